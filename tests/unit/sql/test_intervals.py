"""Intervals of expressions: exact ends, and no value that DuckDB computes of a row within the domains lies outside."""

from __future__ import annotations

import math

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from dpsql.operations.dialect import parse_statement
from dpsql.sql.interval_arithmetic import Interval
from dpsql.sql.intervals import Columns, interval_of

DOMAINS: dict[str, tuple[float, float]] = {"price": (0, 10), "rate": (0, 0.1), "net": (-3, 8), "sure": (1, 5)}
COLUMNS = Columns(DOMAINS.get, lambda name: name == "sure")


def interval(sql: str) -> Interval:
    tree = parse_statement(f"SELECT {sql}")
    assert isinstance(tree, exp.Select)
    return interval_of(tree.selects[0].unalias(), COLUMNS)


INFERRED: dict[str, tuple[float, float]] = {
    "price * (1 - rate)": (0, 10),
    "1 - rate": (0.9, 1),
    "price * (1 - rate) * (1 + rate)": (0, 11),
    "net * net": (0, 64),
    "net * (net)": (0, 64),
    "net * net * net": (-192, 512),
    "power(net, 3)": (-27, 512),
    "net ** 2": (0, 64),
    "-net": (-8, 3),
    "abs(net)": (0, 8),
    "abs(-sure)": (1, 5),
    "net + 2 * net - 1": (-10, 23),
    "price / sure": (0, 10),
    "net / -sure": (-8, 3),
    "price / 3": (0, 3.3333333333333335),
    "net // 2": (-2, 4),
    "net % 5": (-3, 5),
    "price % net": (0, 8),
    "coalesce(net, 0)": (-3, 8),
    "coalesce(sure, 0)": (0, 5),
    "coalesce(net, NULL, 20)": (-3, 20),
    "nullif(price, 0)": (0, 10),
    "case when rate > 0 then net when rate < 0 then 20 end": (-3, 20),
    "case when rate > 0 then net else null end": (-3, 8),
    "if(absent, net, 9)": (-3, 9),
    # least and greatest skip NULLs: a column that may be NULL bounds the value on one side only
    "least(net, price)": (-3, 10),
    "least(net, sure)": (-3, 5),
    "least(net, 2)": (-3, 2),
    "greatest(net, -1)": (-1, 8),
    "greatest(least(absent, 500), 0)": (0, 500),
    "least(greatest(absent, -5), 5)": (-5, 5),
    "round(price / 3, 1)": (0, 3.3),
    "round(rate * 9)": (0, 1),
    "ceil(rate)": (0, 1),
    "floor(net / 2)": (-2, 4),
    "trunc(net / 3)": (-1, 2),
    "cast(price / 3 as integer)": (0, 3),
    "cast(net * 100 as tinyint)": (-128, 127),
    "cast(net as utinyint)": (0, 8),
    "try_cast(price / 3 as decimal(5, 1))": (0, 3.3),
    "rate::float": (0, 0.10000000149011612),
    "price > 3": (0, 1),
    "absent is null or price > 3 and not absent": (0, 1),
    "absent::boolean": (0, 1),
    "extract(month from absent)": (1, 12),
    "date_part('hour', absent)": (0, 23),
    "dayofyear(absent) - 1": (0, 365),
    "sign(absent)": (-1, 1),
    "sqrt(net)": (0, 2.828427124746192),
    "0 * absent": (0, 0),
}  # fmt: skip


@pytest.mark.parametrize("sql", INFERRED)
def test_the_interval_is_what_arithmetic_says(sql: str) -> None:
    assert interval(sql).floats() == INFERRED[sql]


@pytest.mark.parametrize(
    "sql",
    [
        "absent", "absent + 1", "coalesce(absent, 0)", "price / rate", "price / net", "1 / price", "least(absent, 5)",
        "greatest(price, absent)", "year(absent)", "length(absent)", "cast(absent as tinyint)", "'5'", "1e999",
        "1e-99999999",
        "ln(price)", "tan(net)", "power(price, net)", "power(net, -1)", "power(price, 1000)", "round(price, sure)",
        "net & 3", "if(absent, price, absent)", "exp(exp(exp(price)))", "NULL",
    ],
)  # fmt: skip
def test_an_open_end_is_no_interval(sql: str) -> None:
    assert not interval(sql).is_finite


def test_squares_of_squares_stay_short() -> None:
    """Fractions of unbounded length would cost time without bound."""
    nested = "rate / 3"
    for _ in range(12):
        nested = f"power({nested}, 60)"
    found = interval(nested)
    assert found.is_finite
    assert 0 < found.floats()[1] < 1e-100


_NUMBERS = st.sampled_from(["price", "rate", "net", "sure", "2", "0.5", "-1.25", "0"])


def _wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, inner)
    forms = (
        "({} + {})",
        "({} - {})",
        "({} * {})",
        "({} / {})",
        "coalesce({}, {})",
        "least({}, {})",
        "greatest({}, {})",
        "if(price > 5, {}, {})",
        "nullif({}, {})",
        "mod({}, {})",
    )
    calls = (
        "abs({})",
        "-({})",
        "round({}, 1)",
        "floor({})",
        "ceil({})",
        "trunc({})",
        "sqrt({})",
        "exp(sin({}))",
        "cast({} as integer)",
        "cast({} as decimal(12, 2))",
        "power({}, 2)",
        "cast({} as float)",
        "ln({})",
        "cbrt({})",
    )
    return st.one_of(
        st.builds(lambda form, parts: form.format(*parts), st.sampled_from(forms), two),
        st.builds(lambda form, part: form.format(part), st.sampled_from(calls), inner),
    )


_ROWS = "SELECT * FROM " + ", ".join(
    f"(SELECT unnest([{low}, {high}, {(low + high) / 2}, {low + (high - low) / 7}"
    f"{'' if name == 'sure' else ', NULL'}])::DOUBLE AS {name}) AS of_{name}"
    for name, (low, high) in DOMAINS.items()
)


_DATABASE = duckdb.connect(config={"threads": 1})


@settings(max_examples=120, derandomize=True, database=None, deadline=None)
@given(sql=st.recursive(_NUMBERS, _wider, max_leaves=6))
def test_no_row_within_the_domains_leaves_the_interval(sql: str) -> None:
    found = interval(sql)
    low, high = found.floats()
    value = f"TRY(CAST({sql} AS DOUBLE))"
    least, most = _DATABASE.execute(
        f"SELECT min(v), max(v) FROM (SELECT CASE WHEN isfinite({value}) THEN {value} END AS v FROM ({_ROWS}))"
    ).fetchone() or (None, None)
    if least is None:
        return
    # DuckDB computes these in floating point; a step of rounding (floor, casts) is not continuous, and is left out
    slack = 1e-9 * max(1.0, abs(least), abs(most))
    steps = any(name in sql for name in ("floor", "ceil", "trunc", "round", "cast", "mod"))
    slack = slack + 1.0 if steps else slack
    assert low - slack <= least, (sql, low, least)
    assert most <= high + slack, (sql, high, most)
    assert not math.isnan(low + high) or not found.is_finite
