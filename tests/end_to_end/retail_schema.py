"""Small, deterministic tables of a shop that sells in stores, on the web and by catalogue, and their policy.

A customer is the privacy unit. Sales and returns are linked to customers. Items, stores, promotions, days and
warehouses are public. Bounds bind nothing, and each key of a text has many customers: without noise, answers are exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import duckdb

import dpsql
from tests.noise_sources import silence

Row = tuple[Any, ...]
NUMBERS = (int, float, Decimal)
CUSTOMERS = 500


def _drawn(seed: int, count: int) -> str:
    """Return SQL for a number from 0 to ``count - 1`` that follows from the row number ``i`` by a hash."""
    return f"(hash(i + {seed}000) % {count})::INT"


def _sales(seed: int, profit: str) -> str:
    """Return SQL for the columns that all sales have. Tables with other seeds have other numbers."""
    day = f"DATE '2023-01-01' + {_drawn(seed, 731)} AS day"
    return f"{day}, 1 + {_drawn(seed + 4, 6)} AS quantity, 5 + {_drawn(seed + 8, 95)} AS amount, {profit} AS profit"


def _customer(step: int, rows: int) -> str:
    """Return SQL for a customer. All have a row in the first ``rows``, and those of low numbers have more later."""
    return f"(i * {step} % {CUSTOMERS} // (1 + i // {rows}))::INT AS customer"


SETUP = (
    "CREATE TABLE item AS SELECT i::INT id, 'Item ' || i AS name, (['Books', 'Music', 'Shoes', 'Toys'])[1 + i % 4] AS "
    "category, (['Alto', 'Brio', 'Cora'])[1 + i % 3] AS brand, (4 + i * 5 % 17)::INT price FROM range(24) r(i)",
    "CREATE TABLE store AS SELECT i::INT id, 'Store ' || chr(65 + i::INT) AS name, (['TX', 'OH', 'NV'])[1 + i % 3] AS "
    "state, (200 + 150 * i)::INT space FROM range(9) r(i)",
    "CREATE TABLE warehouse AS SELECT i::INT id, (['North', 'South', 'East', 'West'])[1 + i] AS name, "
    "(1000 * (1 + i))::INT space FROM range(4) r(i)",
    "CREATE TABLE promotion AS SELECT i::INT id, (i * 7 % 24)::INT item, (['tv', 'mail', 'radio'])[1 + i % 3] AS "
    "medium, DATE '2023-02-10' + 55 * i::INT AS starts, DATE '2023-02-24' + 55 * i::INT AS ends FROM range(9) r(i)",
    "CREATE TABLE date_dim AS SELECT d::DATE AS day, year(d)::INT AS year, quarter(d)::INT AS quarter, month(d)::INT "
    "AS month, dayofweek(d)::INT AS weekday, dayofweek(d) IN (0, 6) AS weekend "
    "FROM range(TIMESTAMP '2023-01-01', TIMESTAMP '2025-01-01', INTERVAL 1 DAY) r(d)",
    f"CREATE TABLE customer AS SELECT i::INT id, (['TX', 'OH', 'NV', 'UT'])[1 + {_drawn(0, 4)}] AS state, "
    f"(1940 + i * 37 % 64)::INT born FROM range({CUSTOMERS}) r(i)",
    f"CREATE TABLE store_sales AS SELECT i::INT id, {_customer(7, 2000)}, {_drawn(10, 20)} AS item, "
    f"([0, 0, 0, 1, 1, 2, 3, 4, 4, 5])[1 + {_drawn(14, 10)}]::INT AS store, 8 + {_drawn(18, 13)} AS hour, "
    f"{_sales(22, f'{_drawn(34, 60)} - 20')} FROM range(3000) r(i)",
    f"CREATE TABLE web_sales AS SELECT i::INT id, {_customer(11, 1000)}, 8 + {_drawn(50, 16)} AS item, "
    f"{_drawn(54, 3)} AS warehouse, {_drawn(58, 24)} AS hour, {_sales(62, f'{_drawn(74, 60)} - 15')} "
    "FROM range(2000) r(i)",
    f"CREATE TABLE catalog_sales AS SELECT i::INT id, {_customer(13, 500)}, 4 + {_drawn(80, 12)} AS item, "
    f"1 + {_drawn(84, 3)} AS warehouse, {_sales(92, f'{_drawn(104, 60)} - 25')} FROM range(1500) r(i)",
    f"CREATE TABLE store_returns AS SELECT i::INT id, {_customer(17, 500)}, {_drawn(110, 20)} AS item, "
    f"([0, 1, 1, 2, 4, 6])[1 + {_drawn(114, 6)}]::INT AS store, {_sales(122, f'-{_drawn(134, 9)}')} "
    "FROM range(900) r(i)",
    *(
        f"ALTER TABLE {table} ADD PRIMARY KEY ({key})"
        for table, key in (
            *((public, "id") for public in ("item", "store", "warehouse", "promotion")),
            ("date_dim", "day"),
            ("customer", "id"),
            *((sales, "id") for sales in ("store_sales", "web_sales", "catalog_sales", "store_returns")),
        )
    ),
)
"""Statements of DuckDB that create the tables. Stores 7 and 8 have no sales, store 6 has returns alone."""
ROWS_PER_CUSTOMER = {"store_sales": 8, "web_sales": 6, "catalog_sales": 6, "store_returns": 3}
"""Most rows of one customer in each linked table: so bounds of this size bind nothing."""
COLUMN_BOUNDS = {"quantity": (0, 6), "amount": (0, 100), "profit": (-30, 50)}
"""Bounds of the number columns of linked tables."""
POLICY = (
    "CALL dp_unit('shopper', rho_budget := 9e9, delta_threshold := 0.4, delta_conversion := 0.1)",
    "CALL dp_protect('customer', unit := 'shopper', privacy_unit_column := 'id', "
    "max_groups_contributed := 1, max_rows_per_group := 1)",
    "CALL dp_domain('customer', 'born', bounds := [1900, 2020])",
    *(
        f"CALL dp_link('{table}', 'customer', parent := 'customer.id', "
        f"max_groups_contributed := {rows}, max_rows_per_group := {rows})"
        for table, rows in ROWS_PER_CUSTOMER.items()
    ),
    *(
        f"CALL dp_domain('{table}', '{column}', bounds := [{low}, {high}])"
        for table in ROWS_PER_CUSTOMER
        for column, (low, high) in COLUMN_BOUNDS.items()
    ),
    *(f"CALL dp_public('{table}')" for table in ("item", "store", "promotion", "date_dim", "warehouse")),
)
LEVEL: dict[str, Any] = {"rho": 10.0, "delta": 1e-4}
"""Level of a text. Silenced noise hides no group of 30 customers, also if several parts divide the level."""


def create_tables(session: dpsql.Session) -> None:
    """Create the tables in a session's database, declare their policy, and let the session answer without noise."""
    for text in SETUP:
        session.connection.execute(text)
    for text in POLICY:
        session.sql(text)
    silence(session)


def leave_out_a_customer(connection: duckdb.DuckDBPyConnection) -> None:
    """Delete all rows of the customer who has most rows in one of the tables."""
    customer = connection.execute("SELECT customer FROM store_sales GROUP BY 1 ORDER BY count(*) DESC, 1").fetchone()
    assert customer is not None
    for table in ROWS_PER_CUSTOMER:
        connection.execute(f"DELETE FROM {table} WHERE customer = ?", customer)
    connection.execute("DELETE FROM customer WHERE id = ?", customer)


@contextmanager
def tables_without_a_customer() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database with the tables of the shop, without a customer of many rows."""
    with duckdb.connect(config={"threads": "1"}) as connection:
        for text in SETUP:
            connection.execute(text)
        leave_out_a_customer(connection)
        yield connection


def _close(shown: object, exact: object) -> bool:
    """Return whether two values are equal. Numbers are equal up to a relative 1e-6, whatever their types."""
    if isinstance(shown, NUMBERS) and isinstance(exact, NUMBERS):
        return math.isclose(shown, exact, rel_tol=1e-6, abs_tol=1e-6)
    return shown == exact


def _sort_key(row: Sequence[object]) -> tuple[tuple[bool, str], ...]:
    """Return a key that sorts rows with NULL and numbers of several types."""
    return tuple((value is None, f"{value:.4f}" if isinstance(value, NUMBERS) else str(value)) for value in row)


def assert_equal_rows(shown: Sequence[Row], exact: Sequence[Row], *, ordered: bool) -> None:
    """Check that two lists of rows are equal, in their order or as multisets."""
    if not ordered:
        shown, exact = sorted(shown, key=_sort_key), sorted(exact, key=_sort_key)
    assert len(shown) == len(exact), (shown[:5], exact[:5])
    for one, other in zip(shown, exact, strict=True):
        assert len(one) == len(other)
        assert all(map(_close, one, other)), (one, other)
