-- Rows of which no price, hash, noise scale or receipt may know. Those of the golden records:
DELETE FROM visits WHERE patient_id IN (1, 4);
INSERT INTO visits
SELECT 100 + i % 7, ['Lund', 'Oslo', NULL][1 + i % 3], 'd' || i % 5, i * 3.5, i, i % 2 = 0,
       DATE '2026-03-01' + (i % 50)::INTEGER
FROM range(300) t(i);
INSERT INTO bills SELECT i % 9, 'k' || i % 3, i, 'z' FROM range(80) t(i);
DELETE FROM meals WHERE dish = 'fish';
INSERT INTO stays VALUES (14, 7), (15, 8);
INSERT INTO meals SELECT 14 + i % 2, 'dish' || i % 3 FROM range(20) t(i);
-- TPC-H
INSERT INTO region SELECT i, 'region ' || i, '' FROM range(5) t(i);
INSERT INTO nation SELECT i, 'nation ' || i, i % 5, '' FROM range(25) t(i);
INSERT INTO part SELECT i, 'part ' || i, '', 'brand', 'type', i % 50, 'box', i, '' FROM range(40) t(i);
INSERT INTO supplier SELECT i, 'supplier ' || i, '', i % 25, '', i, '' FROM range(10) t(i);
INSERT INTO partsupp SELECT i % 40, i % 10, i, i, '' FROM range(80) t(i);
INSERT INTO customer SELECT i, 'customer ' || i, '', i % 25, '13-' || i, i, 'BUILDING', '' FROM range(50) t(i);
INSERT INTO orders
SELECT i, i % 50, 'O', i, DATE '1994-01-01' + (i * 5)::INTEGER, '1-URGENT', '', 0, '' FROM range(200) t(i);
INSERT INTO lineitem
SELECT i % 200, i % 40, i % 10, i % 3, i % 50, i, 0.05, 0.02, 'N', 'O', DATE '1994-01-01' + (i * 2)::INTEGER,
       DATE '1994-02-01' + (i * 2)::INTEGER, DATE '1994-03-01' + (i * 2)::INTEGER, '', 'MAIL', ''
FROM range(600) t(i);
