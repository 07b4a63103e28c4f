{{ config(materialized='private_table', epsilon=0.5, delta=1e-9, coverage=true) }}

select city, count(*) as visits, sum(cost) as cost
from {{ ref('visits') }}
group by city
