-- The tables that format_3.sql tells of.
CREATE TABLE visits (visit_id INTEGER PRIMARY KEY, patient INTEGER, city VARCHAR, day INTEGER, cost DOUBLE);
CREATE TABLE meals (visit INTEGER, dish VARCHAR);
CREATE TABLE cities (name VARCHAR, region VARCHAR);
INSERT INTO visits SELECT i, i % 200, 'city ' || CASE WHEN i % 200 < 110 THEN 0 WHEN i % 200 < 170 THEN 1 ELSE 2 END, i % 4, i % 10 FROM range(400) t(i);
INSERT INTO meals SELECT i % 400, 'dish ' || i % 2 FROM range(600) t(i);
INSERT INTO cities SELECT 'city ' || i, 'region ' || i % 2 FROM range(3) t(i);
