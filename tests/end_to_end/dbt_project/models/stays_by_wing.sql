{{ config(materialized='private_table', rho=0.001, delta=1e-9) }}

select wing, count(*) as stays
from {{ ref('stays') }} join {{ ref('wards') }} using (ward)
group by wing
