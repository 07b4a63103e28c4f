{{ config(materialized='private_table', target_relative_error=0.01, max_rho='5e-4', at_least=0.9, delta=1e-9) }}

select wing, count(*) as stays
from {{ ref('stays') }} join {{ ref('wards') }} using (ward)
where patient % 2 = 1
group by wing
