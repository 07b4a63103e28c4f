{{ config(materialized='view') }}

select city, visits, cost / visits as cost_per_visit
from {{ ref('visits_by_city') }}
where visits > 100
order by visits desc
