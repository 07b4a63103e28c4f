"""Computing with far dates and wide numbers apart says what TRY says, and makes other rows no slower."""

from __future__ import annotations

import time
from typing import Any

import duckdb
import pytest
import sqlglot

from dpsql.operations import overflow
from dpsql.operations.row_sql import columns_of, total_sql, without_statistics

COLUMNS = (
    ("d", "DATE"),
    ("s", "TIMESTAMP"),
    ("z", "TIMESTAMP WITH TIME ZONE"),
    ("ns", "TIMESTAMP_NS"),
    ("h", "HUGEINT"),
    ("m", "DECIMAL(38,0)"),
    ("t", "VARCHAR"),
    ("n", "INTEGER"),
    ("u", "UHUGEINT"),
    ("f", "DECIMAL(38,37)"),
    ("g", "DECIMAL(38,38)"),
)
VALUES = {
    "d": ("DATE '2026-02-03'", "'5881580-07-10'::DATE", "'5877642-06-25 (BC)'::DATE", "NULL"),
    "s": ("TIMESTAMP '2026-02-03 04:05:06'", "'294247-01-10 04:00:54'::TIMESTAMP",
          "'290309-12-22 (BC)'::TIMESTAMP", "NULL"),
    "z": ("TIMESTAMPTZ '2026-02-03 04:05:06+00'", "'294247-01-10 04:00:54+00'::TIMESTAMPTZ",
          "'290309-12-22 (BC) 00:00:00+00'::TIMESTAMPTZ", "NULL"),
    "ns": ("TIMESTAMP_NS '2026-02-03 04:05:06'", "TIMESTAMP_NS '2262-04-11'", "TIMESTAMP_NS '1677-09-22'", "NULL"),
    "h": ("77", "170141183460469231731687303715884105727", "-170141183460469231731687303715884105728", "NULL"),
    "m": ("77", "99999999999999999999999999999999999999", "-99999999999999999999999999999999999999", "NULL"),
    "t": ("'2026-02-03'", "'5881580-07-10'", "'x'", "NULL"),
    "n": ("1", "2147483647", "-2147483648", "NULL"),
    "u": ("7", "340282366920938463463374607431768211455"),
    "f": ("1.5", "-9.5", "NULL"),
    "g": ("0.5", "0", "NULL"),
}  # fmt: skip
TEXTS = (
    '"d" + INTERVAL 1 MONTH',
    '"d" + 3',
    '"d" - "n"',
    '"d" - "d"',
    'last_day("d")',
    "date_trunc('month', \"d\")",
    'week("d")',
    'date_diff(\'day\', "d", "s")',
    '"d" < "s"',
    'greatest("d", "s")',
    '"s" + INTERVAL 1 MONTH',
    "date_trunc('month', \"s\")",
    '"s" - INTERVAL 1 YEAR',
    'year("ns")',
    '"ns" + INTERVAL 1 DAY',
    '"h" + 1',
    '"h" * "h" - 77',
    '-"h"',
    'abs("h") > 3',
    '1 / ("h" - 77)',
    '"m" + "m"',
    '"u" + "u"',
    '"f" + "f"',
    '-"g"',
    '"m" * 3',
    'CAST("t" AS DATE) + 3',
    'last_day(CAST("t" AS DATE))',
    'greatest(CAST(CAST("t" AS DATE) AS TIMESTAMP), "d")',
    "date_trunc('month', CAST(last_day(\"d\") AS TIMESTAMP))",
    'CASE WHEN "n" > 0 THEN "d" + INTERVAL 1 MONTH ELSE "s" END',
    "coalesce(last_day(\"d\"), DATE '2030-01-01') > DATE '2026-01-01' OR \"h\" + 1 > 3",
    '"z" < "s"',
)


@pytest.fixture(scope="module")
def connection() -> duckdb.DuckDBPyConnection:
    """Tables of near rows, with 500 far ones of one person among them, or without."""
    found = duckdb.connect(config={"threads": 1})
    found.execute("SET TimeZone = 'UTC'")
    kinds = dict(COLUMNS)
    near, far = (
        ", ".join(f'CAST({values[place]} AS {kinds[name]}) AS "{name}"' for name, values in VALUES.items())
        for place in (0, 1)
    )
    found.execute(
        f"CREATE TABLE mixed AS SELECT * FROM (SELECT hash(i) AS place, false AS is_far, {near} "
        f"FROM range(100_000) t(i) UNION ALL SELECT hash(-i), true, {far} FROM range(500) t(i)) ORDER BY place"
    )
    found.execute("CREATE TABLE clean AS FROM mixed WHERE NOT is_far")
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_computed_apart_they_are_what_try_says(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    kinds = dict(COLUMNS)
    lists = [
        f'(SELECT unnest([{", ".join(f"CAST({value} AS {kinds[name]})" for value in VALUES[name])}]) AS "{name}")'
        for name in sorted(set(columns_of(text)))
    ]
    relation = without_statistics(f"(SELECT * FROM {', '.join(lists)})", [text])
    apart, plain = total_sql(text, COLUMNS), total_sql(text)
    assert " BETWEEN " in apart
    shown = connection.execute(
        f"SELECT count(*), count(a), count_if(a IS DISTINCT FROM b), typeof(any_value(a)) = typeof(any_value(b)) "
        f"FROM (SELECT {apart} AS a, {plain} AS b FROM {relation})"
    ).fetchone()
    assert shown is not None
    rows, known, different, same_type = shown
    assert (different, same_type) == (0, True)
    assert 0 < known <= rows


@pytest.mark.parametrize(
    "text",
    [
        '"d"',
        "\"d\" > DATE '2026-01-01'",
        'length("t")',
        'CAST("s" AS DATE)',
        '"h" IN (1, 2)',
        '"d" = "d"',
        'coalesce("d", "d")',
        '"n" + 1',
        '"d" BETWEEN "d" AND "d" OR "h" IS NULL',
    ],
)
def test_what_cannot_fail_is_computed_once(text: str) -> None:
    assert "CASE" not in total_sql(text, COLUMNS)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('CAST("n" AS DECIMAL(10)) + 1', "INTEGER"),
        ('CAST("n" AS DECIMAL) + 1', "INTEGER"),
        ('"n" IS NOT NULL', "DECIMAL(38,2)[]"),
        ('"n" IS NOT NULL', "TIMESTAMP[]"),
        ('"n" = "n"', "DECIMAL(10,2)"),
    ],
)
def test_types_of_any_spelling_are_read(text: str, kind: str) -> None:
    assert "BETWEEN" not in total_sql(text, (("n", kind),))


def test_a_chain_of_conditions_is_read_once() -> None:
    """Not once for each of its ends: what is planned without rows must not take its length squared."""
    chain = " OR ".join(f"\"d\" > DATE '2026-01-{1 + i % 28:02}'" for i in range(200))
    looked = []
    original = overflow._far_kind

    def counted(*arguments: Any) -> str:
        looked.append(1)
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overflow, "_far_kind", counted)
        assert overflow.near(sqlglot.parse_one(chain, dialect="duckdb"), dict(COLUMNS)) == ()
    assert len(looked) < 200 * 20


def seconds(connection: duckdb.DuckDBPyConnection, expression: str, table: str) -> float:
    relation = without_statistics(table, [expression])
    least = []
    for _ in range(4):
        began = time.thread_time()
        connection.execute(f"SELECT count(e) FROM (SELECT {expression} AS e FROM {relation})").fetchall()
        least.append(time.thread_time() - began)
    return min(least)


@pytest.mark.parametrize("text", ['"d" + INTERVAL 1 MONTH', 'last_day("d")', '"h" + 1', '"d" < "s"'])
def test_far_rows_cost_nothing_on_the_rows_beside_them(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    """Each far row costs an exception of its own, some 20 microseconds."""
    total = total_sql(text, COLUMNS)
    apart = seconds(connection, total, "mixed")
    assert apart < 3 * seconds(connection, total, "clean") + 0.02
    # without types as a planted fault
    assert seconds(connection, total_sql(text), "mixed") > 1.5 * apart
