{{ config(materialized='private_table') }}

select with differential_privacy options (rho = 0.02, delta = 1e-9)
       diagnosis, count(distinct patient_id) as patients
from {{ ref('visits') }}
group by diagnosis
