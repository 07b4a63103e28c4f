-- The tables that the pages about SQL speak of, and their policy.
CREATE TABLE visits AS
SELECT i AS visit_id, i % 3000 AS patient_id, ['Lund', 'Malmö', 'Ystad'][1 + i % 3] AS city,
       'D' || (i % 37) AS diagnosis, (i * 7919 % 500)::DOUBLE AS cost, i % 4 = 0 AS urgent,
       DATE '2026-01-01' + (i % 180)::INTEGER AS day
FROM range(12000) t(i);
ALTER TABLE visits ADD PRIMARY KEY (visit_id);
CREATE TABLE meals AS SELECT i % 12000 AS visit_id, ['soup', 'fish'][1 + i % 2] AS dish FROM range(20000) t(i);
CREATE TABLE bills AS SELECT i % 3000 AS patient_id, 'K' || (i * i % 23) AS kind, (i * 31 % 90)::DOUBLE AS amount FROM range(24000) t(i);
CREATE TABLE cities AS SELECT unnest(['Lund', 'Malmö', 'Ystad']) AS name;
CREATE TABLE wards AS SELECT unnest(['A', 'B']) AS ward;
CREATE TABLE days AS SELECT DATE '2026-01-01' + i::INTEGER AS day FROM range(200) t(i);
CALL dp_unit('patient', rho_budget := 100, delta_threshold := 1e-3, delta_conversion := 1e-6);
CALL dp_protect('visits', coverage := FALSE, unit := 'patient', privacy_unit_column := 'patient_id', max_groups_contributed := 4,
                max_rows_per_group := 5, default_rho := 0.1, default_delta := 1e-9);
CALL dp_link('meals', 'visit_id', coverage := FALSE, parent := 'visits.visit_id', max_groups_contributed := 3, max_rows_per_group := 20,
             default_rho := 0.1);
CALL dp_domain('visits', 'cost', bounds := [0, 500]);
CALL dp_public('cities');
CALL dp_public('days');
CALL dp_domain('visits', 'city', keys_from := 'cities.name');
CALL dp_domain('visits', 'urgent', keys := [true, false]);
CALL dp_domain('visits', 'day', keys_from := 'days.day');
