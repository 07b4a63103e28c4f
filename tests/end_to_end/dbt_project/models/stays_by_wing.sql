{{ config(materialized='private_table', target_half_width={'stays': 90}, delta=1e-9) }}

select wing, count(*) as stays
from {{ ref('stays') }} join {{ ref('wards') }} using (ward)
group by wing
