"""Bounds of a public column are its least and its largest number, where a sum can be bounded by them."""

from __future__ import annotations

import duckdb
import pytest

from dpsql.engine import DuckDBEngine


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        ("'nan'::DOUBLE, 'inf', 1.5, NULL, -2", (-2.0, 1.5)),
        ("7::DECIMAL(10, 2)", (7.0, 7.0)),
        ("NULL::INTEGER", None),
        ("1e300::DOUBLE, 0", None),
        ("1000000000, 1000000001", None),
        ("0, 0", (0.0, 0.0)),
    ],
)
def test_a_public_column_is_bounded_by_its_usual_finite_numbers(
    values: str, bounds: tuple[float, float] | None
) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE priced AS SELECT unnest([{values}]) AS price")
        engine = DuckDBEngine(connection)
        schema = engine.resolve(["priced"])
        assert schema
        assert engine.value_bounds(schema, "price") == bounds
