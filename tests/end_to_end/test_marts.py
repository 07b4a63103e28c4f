"""Models of a dbt project as views, one over the other, and two small inputs of foreign tools that read such views."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from tests.noise_sources import silence

TABLES = """
CREATE TABLE raw_customers AS SELECT i::INT id, 'N' || i AS name FROM range(400) r(i);
ALTER TABLE raw_customers ADD PRIMARY KEY (id);
CREATE TABLE raw_stores AS SELECT i::INT id, 'Store ' || i AS name FROM range(4) r(i);
ALTER TABLE raw_stores ADD PRIMARY KEY (id);
CREATE TABLE raw_products AS SELECT 'SKU-' || i AS sku, 'P' || i AS name, ['food', 'drink'][1 + i % 2] AS kind,
  (400 + 100 * i)::INT price FROM range(6) r(i);
ALTER TABLE raw_products ADD PRIMARY KEY (sku);
CREATE TABLE raw_supplies AS SELECT i::INT id, 'SKU-' || i % 6 AS sku, (10 * i)::INT cost FROM range(20) r(i);
CREATE TABLE raw_orders AS SELECT i::INT id, (i % 400)::INT customer, (i % 4)::INT store, (500 + i % 90)::INT subtotal,
  TIMESTAMP '2024-01-01' + to_hours((hash(i) % 4000)::INT) ordered_at FROM range(1500) r(i);
ALTER TABLE raw_orders ADD PRIMARY KEY (id);
CREATE TABLE raw_items AS SELECT i::INT id, (i % 1500)::INT order_id, 'SKU-' || i % 6 AS sku FROM range(2900) r(i);
CREATE TABLE raw_payments AS SELECT i::INT id, (i % 1500)::INT order_id, ['card', 'coupon'][1 + i % 2] AS method,
  (i % 70)::INT amount FROM range(2000) r(i);
CREATE TABLE trip AS SELECT (i * 19 % 600)::INT rider, (i % 30)::INT pu, TIMESTAMP '2024-04-01' + to_minutes((hash(i) %
  60000)::INT) started, started + to_minutes((3 + i % 50)::INT) AS ended, i % 3 AS km FROM range(9000) r(i);
CREATE TABLE zone AS SELECT i::INT id, ['Mitte', 'Nord'][1 + i % 2] AS district FROM range(30) r(i);
ALTER TABLE zone ADD PRIMARY KEY (id);
CREATE TABLE weather AS SELECT DATE '2024-04-01' + i::INT AS day, (i % 7) / 10.0::DOUBLE AS rain FROM range(60) r(i);
ALTER TABLE weather ADD PRIMARY KEY (day);
CREATE TABLE holiday AS SELECT DATE '2024-04-01' + (7 * i)::INT AS day FROM range(6) r(i);
"""
MODELS = """
CREATE VIEW stg_customers AS
  WITH source AS (SELECT * FROM raw_customers), renamed AS (SELECT id AS customer_id, name FROM source)
  SELECT * FROM renamed;
CREATE VIEW stg_orders AS
  WITH source AS (SELECT * FROM raw_orders),
  renamed AS (SELECT id AS order_id, store AS location_id, customer AS customer_id, subtotal,
    date_trunc('day', ordered_at) AS ordered_at FROM source)
  SELECT * FROM renamed;
CREATE VIEW stg_items AS SELECT id AS item_id, order_id, sku AS product_id FROM raw_items;
CREATE VIEW stg_products AS SELECT sku AS product_id, name AS product_name, price, coalesce(kind = 'food', false)
  AS is_food FROM raw_products;
CREATE VIEW stg_supplies AS SELECT id AS supply_id, sku AS product_id, cost FROM raw_supplies;
CREATE VIEW products AS
  WITH products AS (SELECT * FROM stg_products), supplies AS (SELECT * FROM stg_supplies),
  costs AS (SELECT product_id, sum(cost) AS supply_cost, count(*) AS supplies FROM supplies GROUP BY 1)
  SELECT products.*, costs.supply_cost, costs.supplies
  FROM products LEFT JOIN costs ON products.product_id = costs.product_id;
CREATE VIEW order_items AS
  WITH items AS (SELECT * FROM stg_items), orders AS (SELECT * FROM stg_orders), products AS (SELECT * FROM products)
  SELECT items.*, orders.ordered_at, products.product_name, products.price, products.is_food, products.supply_cost
  FROM items LEFT JOIN orders ON items.order_id = orders.order_id
    LEFT JOIN products ON items.product_id = products.product_id;
CREATE VIEW orders AS
  WITH orders AS (SELECT * FROM stg_orders), items AS (SELECT * FROM order_items),
  locations AS (SELECT id AS location_id, name AS location_name FROM raw_stores),
  summary AS (SELECT order_id, sum(supply_cost) AS cost, count(*) AS items,
    sum(CASE WHEN is_food THEN 1 ELSE 0 END) AS food_items FROM items GROUP BY 1),
  paid AS (SELECT order_id, sum(CASE WHEN method = 'card' THEN amount ELSE 0 END) AS card_amount,
    sum(amount) AS amount FROM raw_payments GROUP BY order_id)
  SELECT orders.*, location_name, summary.cost, summary.items, summary.food_items > 0 AS is_food_order,
    paid.card_amount, paid.amount
  FROM orders LEFT JOIN summary ON orders.order_id = summary.order_id
    LEFT JOIN paid ON orders.order_id = paid.order_id LEFT JOIN locations USING (location_id);
CREATE VIEW customers AS
  WITH customers AS (SELECT * FROM stg_customers), orders AS (SELECT * FROM orders),
  summary AS (SELECT orders.customer_id, count(DISTINCT order_id) AS lifetime_orders, count(*) > 3 AS is_regular,
    min(ordered_at) AS first_ordered_at, sum(subtotal) AS lifetime_spend FROM orders GROUP BY 1)
  SELECT customers.*, summary.lifetime_orders, summary.first_ordered_at, summary.lifetime_spend,
    CASE WHEN summary.is_regular THEN 'regular' ELSE 'new' END AS customer_type
  FROM customers LEFT JOIN summary ON customers.customer_id = summary.customer_id;
CREATE VIEW locations AS
  SELECT s.id AS location_id, s.name AS location_name, orders.* EXCLUDE (location_id)
  FROM (raw_stores s INNER JOIN stg_orders orders ON s.id = orders.location_id)
"""
BOUNDS = "max_groups_contributed := 100, max_rows_per_group := 100"
POLICY = (
    "CALL dp_unit('person', rho_budget := 9e9, delta_threshold := 0.4, delta_conversion := 0.1)",
    f"CALL dp_protect('raw_customers', unit := 'person', privacy_unit_column := 'id', {BOUNDS})",
    f"CALL dp_link('raw_orders', 'customer', parent := 'raw_customers.id', {BOUNDS})",
    *(
        f"CALL dp_link('{table}', 'order_id', parent := 'raw_orders.id', {BOUNDS})"
        for table in ("raw_items", "raw_payments")
    ),
    f"CALL dp_protect('trip', unit := 'person', privacy_unit_column := 'rider', separate_people := true, {BOUNDS})",
    *(
        f"CALL dp_public('{table}', public_by_decision := 'made up')"
        for table in ("raw_stores", "raw_products", "raw_supplies", "zone", "weather", "holiday")
    ),
)
LEVEL: dict[str, Any] = {"rho": 30.0, "delta": 1e-3}
GIVEN = re.compile(r", contribution_bounds_per_group => \([^)]*\)")


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(TABLES + MODELS)
        for text in POLICY:
            session.sql(text)
        silence(session)
        yield session


TEXTS = {
    "customers": "SELECT customer_type, count(*), sum(lifetime_spend, contribution_bounds_per_group => (0, 9000)) "
    "FROM customers GROUP BY 1",
    "customers by orders": "SELECT lifetime_orders, count(*) FROM customers GROUP BY 1",
    "orders": "SELECT location_name, is_food_order, count(*), sum(amount, contribution_bounds_per_group => (0, 900)), "
    "sum(card_amount, contribution_bounds_per_group => (0, 900)) FROM orders GROUP BY ALL",
    "order_items": "SELECT product_name, count(*), sum(supply_cost) FROM order_items GROUP BY 1",
    "products": "SELECT p.supplies, count(*) FROM raw_items i JOIN products p ON p.product_id = i.sku GROUP BY 1",
    "locations": "SELECT location_name, count(DISTINCT customer_id), count(*) FROM locations GROUP BY 1",
    "two marts": "SELECT customer_type, is_food_order, count(*) FROM customers JOIN orders USING (customer_id) "
    "GROUP BY ALL",
    "A4-10 travel times by weekday and rain": "SELECT district, extract(dow FROM started) IN (1, 2, 3, 4, 5) AS "
    "weekday, w.rain > 0.1 AS wet, count(*) FROM trip t JOIN zone z ON z.id = t.pu JOIN weather w ON t.started::DATE = "
    "w.day WHERE km IN (1, 2) AND extract(epoch FROM ended - started) BETWEEN 120 AND 7200 AND t.started::DATE NOT IN "
    "(SELECT day FROM holiday) GROUP BY ALL",
    "A4-23 view with JOIN … ON": "SELECT location_name, count(*), sum(subtotal, contribution_bounds_per_group => "
    "(0, 60000)) FROM locations GROUP BY location_name",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_an_answer_over_models_has_the_rows_of_duckdb(session: dpsql.Session, text: str) -> None:
    shown = session.sql(text, **LEVEL).fetchall()
    assert sorted(shown) == sorted(session.connection.execute(GIVEN.sub("", text)).fetchall())
