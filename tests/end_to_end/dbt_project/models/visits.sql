select * from {{ source('clinic', 'raw_visits') }} where patient_id is not null
