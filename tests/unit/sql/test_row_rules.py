"""Attacks on row expressions: errors that TRY does not catch, formats that read foreign memory, costs that double."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import re
import time
from collections.abc import Iterator, Sequence

import duckdb
import pyarrow as pa
import pytest

import dpsql
from dpsql.engine import DuckDBEngine
from dpsql.errors import Refusal, UnsupportedQueryError
from dpsql.operations.row_sql import total_sql, try_depth
from dpsql.sql.date_parts import DATE_PARTS
from dpsql.sql.row_rules import FUNCTION_EXAMPLES
from dpsql.sql.row_types import MAX_TRY_DEPTH

EXTREMES: dict[str, tuple[str, ...]] = {
    "BOOLEAN": ("true", "false"),
    "TINYINT": ("-128", "127", "0"),
    "UBIGINT": ("0", "18446744073709551615"),
    "HUGEINT": ("0", "-170141183460469231731687303715884105728", "170141183460469231731687303715884105727"),
    "FLOAT": ("0", "nan", "inf", "-inf", "3e38", "-0.0"),
    "DOUBLE": ("0", "nan", "inf", "-inf", "1e308", "5e-324"),
    "DECIMAL(38,37)": ("9.9999999999999999999999999999999999999", "-1", "0"),
    "VARCHAR": ("", "abc", "12", "infinity", "%", "2020-02-30", "\u00e9\u0301", "1e400"),
    "DATE": ("infinity", "-infinity", "5874897-12-31", "290309-12-22 (BC)", "2020-02-29"),
    "TIMESTAMP": ("infinity", "-infinity", "294247-01-10 04:00:54.775806", "290309-12-22 (BC) 00:00:00"),
    "TIMESTAMP_NS": ("infinity", "-infinity", "2262-04-11 23:47:16.854775806", "1677-09-22 00:00:00"),
    "TIMESTAMP_S": ("infinity", "-infinity", "2020-02-29 23:59:59"),
    "TIMESTAMP WITH TIME ZONE": ("infinity", "-infinity", "294247-01-10 04:00:54.775806+00", "2020-02-29"),
    "UUID": ("ffffffff-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000"),
}


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect() as opened:
        columns = []
        for place, (kind, values) in enumerate(EXTREMES.items()):
            listed = ", ".join(f"'{value}'" for value in values)
            columns.append(f"list_extract([{listed}], 1 + (i // {place + 1}) % {len(values)})::{kind} AS c{place}")
        opened.connection.execute(
            f"CREATE TABLE t AS SELECT i % 9 AS u, {', '.join(columns)}, "
            "TIME '10:00' AS clock, INTERVAL 1 DAY AS span, [1, 2] AS list, 'bob' AS s FROM range(90) r(i)"
        )
        opened.connection.execute("INSERT INTO t (u) VALUES (3)")
        opened.sql(
            "CALL dp_protect('t', coverage := FALSE, "
            "privacy_unit_column := 'u', max_groups_contributed := 50, max_rows_per_group := 50, "
            "default_rho := 1e-6, rho_budget := 100, delta_threshold := 0.5, delta_conversion := 1e-6)"
        )
        yield opened


def calls_that_bind() -> list[str]:
    """Every allowed function over columns of every scalar type, as far as DuckDB binds it."""
    found = []
    with duckdb.connect() as connection:
        columns = [f"c{place}" for place in range(len(EXTREMES))]
        declared = ", ".join(f"{column} {kind}" for column, kind in zip(columns, EXTREMES, strict=True))
        connection.execute(f"CREATE TABLE empty ({declared})")
        for example in FUNCTION_EXAMPLES:
            body = re.sub(r"'[^']*'", "", example)
            names = sorted(set(re.findall(r"\b(?:[xyzstdec]|ts)\b(?!\()", body)))
            for column in columns:
                # all arguments of one type: which types a function takes is found one by one
                text = re.sub(r"'[^']*'|\b\w+\b(?!\()", lambda m: column if m[0] in names else m[0], example)  # noqa: B023
                with contextlib.suppress(duckdb.Error):
                    connection.execute(f"DESCRIBE SELECT ({text}) FROM empty")
                    found.append(text)
    return found


def refusals_of(session: dpsql.Session, calls: Sequence[str]) -> dict[str, list[Refusal]]:
    """Why those of some calls are refused that are; all others are answered, in one query."""
    left, refused = list(calls), dict[str, list[Refusal]]()
    while left:
        text, ends = "SELECT ", []
        for i, call in enumerate(left):
            text += f"{', ' * (i > 0)}count({call}) AS n{i}"
            ends.append(len(text))
        try:
            session.sql(f"{text} FROM t")
            break
        except UnsupportedQueryError as error:
            for refusal in error.refusals:
                assert refusal.span is not None
                refused.setdefault(left[bisect.bisect(ends, refusal.span.start)], []).append(refusal)
        left = [call for call in left if call not in refused]
    return refused


@pytest.mark.thorough
def test_no_allowed_function_fails_aloud_on_any_scalar_type(session: dpsql.Session) -> None:
    calls = calls_that_bind()
    assert len(calls) > 400
    answered, refused = len(calls), 0
    for start in range(0, len(calls), 75):
        for refusals in refusals_of(session, calls[start : start + 75]).values():
            answered -= 1
            # DuckDB binds casts that it does not have
            refused += all("there is no cast" not in str(refusal) for refusal in refusals)
    assert answered > 9 * refused


@pytest.mark.parametrize(
    "text",
    [
        *(
            f"{part}(span) > 0"
            for part in ("week", "isodow", "dayofyear", "yearweek", "isoyear", "dayofweek", "weekday")
        ),
        "week(c9 - c9) > 0",
        "week(TRY_CAST(s || ' days' AS INTERVAL)) IS NOT NULL",
        "date_diff('day', clock, clock) > 0",
        "date_sub('day', clock, clock) > 0",
        "date_part('timezone_hour', c8) > 0",
        "date_part(s, c8) > 0",
        "extract(timezone_hour FROM c8) > 0",
        "time_bucket(INTERVAL 0 DAY, c8) > c8",
        "s LIKE concat(s, '!') ESCAPE '!'",
        "s LIKE s",
        "strftime(c8, '%n%n%n%n') LIKE '%ECRE%'",
        "strftime(c8, s) > ''",
        "length(list) > 1",
        "concat(list, list) = list",
        "hour(clock) > 1",
        "span > INTERVAL 1 HOUR",
        "CAST(s AS TIME) IS NULL",
        "CAST(s AS BLOB) IS NULL",
    ],
)
def test_what_could_fail_aloud_is_refused_before_a_charge(session: dpsql.Session, text: str) -> None:
    before = session.sql("FROM dp_budget()").fetchall()
    with pytest.raises(UnsupportedQueryError):
        session.as_analyst("ana").sql(f"SELECT count(*) FILTER (WHERE CASE WHEN s = 'Alice' THEN {text} END) FROM t")
    assert session.sql("FROM dp_budget()").fetchall() == before


def test_other_types_may_be_grouped_by_counted_and_compared_with_null(session: dpsql.Session) -> None:
    answer = session.sql("SELECT count(span), count(clock), count(*) FILTER (WHERE list IS NOT NULL) FROM t")
    assert len(answer) == 1
    assert session.sql("SELECT span, count(*) FROM t GROUP BY span", rho=10).columns == ["span", "count_star()"]


def test_allowed_formats_are_functions_of_their_date() -> None:
    specifiers = [f"%{letter}" for letter in "YmdHMSjybBaApGVu%"]
    formats = [*map("".join, itertools.product(specifiers, repeat=2)), " ".join(specifiers * 3)]
    with duckdb.connect() as connection:
        distinct = connection.execute(
            f"SELECT {', '.join(f'count(DISTINCT strftime(d, {form!r}))' for form in formats)} "
            "FROM (SELECT DATE '2020-02-29' AS d FROM range(4000))"
        ).fetchone()
        # years whose ISO year has more digits, or fewer
        years = connection.execute(
            "SELECT isoyear(d), list(DISTINCT strftime(d, 'x%Gx%V')) FROM (SELECT make_date(y, m, r) AS d FROM "
            "(VALUES (9999), (10000), (-99), (-100), (0), (-9999)) a(y), (VALUES (1, 1), (12, 31)) b(m, r)), "
            "range(500) GROUP BY d"
        ).fetchall()
    assert distinct is not None
    assert set(distinct) == {1}
    for year, (text, *others) in years:
        assert not others
        assert text[:-2] == f"x{year if year < 0 else f'{year:04}'}x"


def test_units_of_dates_are_all_known_to_duckdb() -> None:
    with duckdb.connect() as connection:
        for part in DATE_PARTS:
            connection.execute(f"SELECT date_part('{part}', DATE '2020-02-29')").fetchone()


def nested(levels: int) -> str:
    text = "u + 9223372036854775807"
    for _ in range(levels):
        text = f"coalesce({text}, u) + 9223372036854775807"
    return text


def test_trys_do_not_stand_inside_one_another_without_end(session: dpsql.Session) -> None:
    assert try_depth('"a" + "b" + "c" + "d" + "e" + "f" + "g" + "h" + CAST("s" AS INTEGER) > 3') == 1
    assert try_depth(nested(3)) == 4
    assert total_sql(nested(1)).upper().count("TRY(") == 2
    session.sql(f"SELECT count(*) FILTER (WHERE {nested(MAX_TRY_DEPTH - 2)} IS NULL) FROM t")
    with pytest.raises(UnsupportedQueryError) as caught:
        session.sql(f"SELECT count(*) FILTER (WHERE CASE WHEN s = 'Alice' THEN {nested(20)} IS NULL END) FROM t")
    assert {refusal.code for refusal in caught.value.refusals} == {"row_syntax"}


def test_texts_do_not_double_without_end(session: dpsql.Session) -> None:
    text = "s"
    for _ in range(10):
        text = f"concat({text}, {text})"
    for expression in (text, text.replace("concat(", "(").replace(", ", " || ")):
        with pytest.raises(UnsupportedQueryError):
            session.sql(f"SELECT count(*) FILTER (WHERE length({expression}) > 3) FROM t")


@pytest.mark.parametrize(
    ("aliased", "written"),
    [
        ("SELECT count(*) AS n, u + 1 AS c FROM t WHERE c * 2 > 3 GROUP BY ALL", "(u + 1) * 2 > 3"),
        ("SELECT count(*) AS n, u > 1 OR u < 0 AS c FROM t WHERE NOT c GROUP BY ALL", "NOT (u > 1 OR u < 0)"),
        ("SELECT count(*) AS n, u - 1 AS m FROM t WHERE 3 - m > 0 GROUP BY ALL", "3 - (u - 1) > 0"),
    ],
)
def test_an_alias_stands_for_its_whole_expression(session: dpsql.Session, aliased: str, written: str) -> None:
    spelled = re.sub(r"WHERE .* GROUP", f"WHERE {written} GROUP", aliased)
    first, second = session.sql(aliased), session.sql(spelled)
    assert first.receipt is not None
    assert second.receipt is not None
    assert first.receipt.query_hash == second.receipt.query_hash


def test_arithmetic_over_an_alias_takes_all_of_it(session: dpsql.Session) -> None:
    ((n, doubled),) = session.sql("SELECT count(*) + 1 AS n, n * 2 FROM t").fetchall()
    assert doubled == 2 * n


def test_a_case_with_a_subject_compares_the_whole_subject() -> None:
    rows = "(VALUES (true, false), (false, true), (true, true), (false, false), (NULL, true)) t(p, q)"
    for case in (
        'CASE NOT "p" > "q" WHEN "q" THEN 1 ELSE 2 END',
        'CASE "p" OR "q" WHEN "q" AND "p" THEN 1 WHEN "p" THEN 3 END',
    ):
        with duckdb.connect() as connection:
            plain = connection.execute(f"SELECT {case} FROM {rows}").fetchall()
            assert connection.execute(f"SELECT {total_sql(case)} FROM {rows}").fetchall() == plain


def test_the_engine_reads_no_settings_but_its_own(session: dpsql.Session) -> None:
    before = session.connection.execute("SELECT name, value FROM duckdb_settings() ORDER BY ALL").fetchall()
    DuckDBEngine(session.connection).settings()
    session.sql("SELECT count(*) FROM t", rho=0.5)
    assert session.connection.execute("SELECT name, value FROM duckdb_settings() ORDER BY ALL").fetchall() == before


LOWEST = "DATE '5877642-06-25 (BC)'"


EXTREME_ROWS: dict[str, tuple[str, ...]] = {
    "3, 5, 7, NULL": (f"week(coalesce(d, {LOWEST})) IS NULL", f"yearweek(coalesce(d, {LOWEST})) > 0"),
    "3, 5, 1000, DATE '2020-01-01'": ("week(make_date(-5877641 + n, 6, 25)) IS NULL",),
    "1000, 5, 7, DATE '2020-01-01'": ("week(make_date(-5877641 + u, 6, 25)) IS NULL",),
    "3, -5877641, 7, DATE '2020-01-01'": ("week(make_date(CAST(b AS INTEGER), 6, 25)) IS NULL",),
    f"3, 5, 7, {LOWEST}": tuple(
        f"{call} IS NULL"
        for call in (
            "week(d)",
            "weekofyear(d)",
            "isoyear(d)",
            "yearweek(d)",
            "extract(week FROM d)",
            "date_part('isoyear', d)",
            "date_trunc('week', d)",
            "date_trunc('week', d + 1)",
            "last_day(d)",
            "date_diff('week', d, d)",
            "time_bucket(INTERVAL 1 WEEK, d)",
            "time_bucket(INTERVAL 1 MONTH, d)",
            "strftime(d, '%G-%V')",
            "year(age(d, d))",
        )
    ),
    "3, 500, 7, DATE '2020-01-01'": (f"week(CASE WHEN b > 100 THEN {LOWEST} ELSE d END) IS NULL",),
}
"""By a row that no date or number of which is usual: conditions that fail on it, or on what it makes possible."""


@pytest.fixture(scope="module")
def dates() -> Iterator[dpsql.Session]:
    """A unit, to which tables of usual dates are added."""
    with dpsql.connect() as session:
        session.sql("CALL dp_unit('u', rho_budget := 100, delta_threshold := 0.5, delta_conversion := 1e-6)")
        yield session


@pytest.mark.parametrize("row", EXTREME_ROWS)
def test_what_the_optimizer_computes_from_statistics_never_fails_aloud(dates: dpsql.Session, row: str) -> None:
    """The optimizer applies functions of dates to a column's least and greatest value, before any row and any TRY."""
    table, conditions = f"dates_{list(EXTREME_ROWS).index(row)}", EXTREME_ROWS[row]
    dates.connection.execute(
        f"CREATE TABLE {table} AS SELECT (i % 9)::INTEGER AS u, (i % 50)::BIGINT AS b, (i % 20)::INTEGER AS n, "
        "DATE '2020-01-01' + (i % 300)::INTEGER AS d FROM range(1000) r(i)"
    )
    dates.sql(
        f"CALL dp_protect('{table}', coverage := FALSE, unit := 'u', privacy_unit_column := 'u', "
        "max_groups_contributed := 50, max_rows_per_group := 50)"
    )
    analyst = dates.as_analyst("ana")
    counts = ", ".join(f"count(*) FILTER (WHERE {condition})" for condition in conditions)
    texts = [f"SELECT {counts} FROM {table}"]
    for condition in conditions:
        texts.append(f"SELECT count(*) FROM {table} WHERE {condition}")
        texts.append(f"SELECT {condition} AS key, count(*) FROM {table} GROUP BY ALL")
    for text in texts:
        analyst.sql(text, rho=1e-4)
    dates.connection.execute(f"INSERT INTO {table} VALUES ({row})")
    dates.sql(f"CALL dp_new_version('{table}')")
    for text in texts:
        analyst.sql(text, rho=1e-4)


COARSE = f"c{list(EXTREMES).index('TIMESTAMP_S')}"
ZONED = f"c{list(EXTREMES).index('TIMESTAMP WITH TIME ZONE')}"


@pytest.mark.parametrize("form", ["CAST({} AS VARCHAR)", "CAST({} AS TIMESTAMPTZ)", "{} || 'x'", "{} < " + ZONED])
def test_timestamps_beyond_the_range_of_others_are_cast_by_a_cast_that_try_catches(
    session: dpsql.Session, form: str
) -> None:
    with pytest.raises(UnsupportedQueryError, match="Write CAST"):
        session.sql(f"SELECT {form.format(COARSE)} AS k, count(*) FROM t GROUP BY k")
    session.sql(f"SELECT {form.format(f'CAST({COARSE} AS TIMESTAMP)')} AS k, count(*) FROM t GROUP BY k")


def test_duckdb_raises_inside_try_where_a_timestamp_is_out_of_range() -> None:
    far = pa.table({"s": pa.array([2**61]).view(pa.timestamp("s"))})
    for cast, expected in (("VARCHAR", None), ("TIMESTAMP", [(None,)])):
        with duckdb.connect() as connection:
            connection.register("far", far)
            raised = contextlib.nullcontext() if expected else pytest.raises(duckdb.Error)
            with raised:
                found = connection.sql(f"SELECT TRY(CAST(s AS {cast})) FROM far").fetchall()
                assert found == expected


def seconds_with_and_without_failures(expression: str) -> tuple[float, float]:
    """Processor time on 300,000 rows of which 1,500, that lie among all others, fail; and without these."""
    with contextlib.closing(duckdb.connect(config={"threads": "1"})) as connection:
        connection.execute(
            "CREATE TABLE mixed AS SELECT * FROM (SELECT hash(i) AS place, DATE '2026-01-01' AS d "
            "FROM range(300_000) t(i) UNION ALL SELECT hash(-i), '5881580-07-10' FROM range(1_500) t(i)) ORDER BY place"
        )
        connection.execute("CREATE TABLE clean AS FROM mixed WHERE d = DATE '2026-01-01'")
        least = []
        for table in ("mixed", "clean"):
            taken = []
            for _ in range(5):
                began = time.thread_time()
                connection.execute(f"SELECT count(e) FROM (SELECT {expression} AS e FROM {table})").fetchall()
                taken.append(time.thread_time() - began)
            least.append(min(taken))
    return least[0], least[1]


def test_a_cast_that_fails_raises_nothing_that_try_has_to_catch() -> None:
    """DuckDB computes all rows of a piece one by one where one of them raises inside TRY."""
    whole = total_sql("CAST(d AS TIMESTAMP)")
    assert whole.startswith("try(")
    inside = whole.removeprefix("try(").removesuffix(")")
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE far AS SELECT DATE '5881580-07-10' AS d")
        assert connection.execute(f"SELECT {inside} FROM far").fetchall() == [(None,)]
        # the planted fault
        with pytest.raises(duckdb.Error):
            connection.execute("SELECT CAST(d AS TIMESTAMP) FROM far").fetchall()


@pytest.mark.long
def test_a_cast_that_fails_costs_nothing_on_the_rows_beside_it() -> None:
    mixed, clean = seconds_with_and_without_failures(total_sql("CAST(d AS TIMESTAMP)"))
    assert mixed < 3 * clean + 0.01
    # the planted fault: eight times as much and more
    mixed, clean = seconds_with_and_without_failures("TRY(CAST(d AS TIMESTAMP))")
    assert mixed > 3 * clean + 0.01
