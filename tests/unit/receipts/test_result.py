"""What a reader holds: types fixed by the query, one materialisation, and every way out of it."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpsql
from dpsql.receipts.column_types import duckdb_type
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise
from tests.sql.golden_records import new_session

SQL = (
    "SELECT city, count(*) AS n, sum(cost) AS cost, avg(cost) AS mean, "
    "sum(fee, contribution_bounds_per_group => (0, 50)) AS fees, dp_interval_low(n) AS low FROM visits GROUP BY city"
)
TYPES = ["VARCHAR", "BIGINT", "DOUBLE", "DOUBLE", "DECIMAL(38,2)", "DOUBLE"]


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with new_session() as session:
        yield session


def duckdb_types(table: pa.Table) -> list[str]:
    with duckdb.connect() as connection:
        return [str(kind) for kind in connection.from_arrow(table).types]


OF_EACH_TYPE = (
    "SELECT true, 1::TINYINT, 1::SMALLINT, 1, 1::BIGINT, 1::UTINYINT, 1::USMALLINT, 1::UINTEGER, 1::UBIGINT, 1::FLOAT, "
    "1::DOUBLE, 'x', 'x'::BLOB, DATE '2026-01-01', '2026-01-01'::TIMESTAMP_S, '2026-01-01'::TIMESTAMP_MS, "
    "'2026-01-01'::TIMESTAMP, '2026-01-01'::TIMESTAMP_NS, '2026-01-01'::TIMESTAMPTZ, TIME '10:00', INTERVAL 1 DAY, "
    "NULL, 1.5::DECIMAL(9,2), [1], {'a b': 1, 'c': ['x']}, map{'a': 1}, 'x'::ENUM('x', 'y'), [1, 2]::INTEGER[2], uuid()"
)


def test_types_have_the_names_of_duckdb() -> None:
    with duckdb.connect() as connection:
        table = connection.sql(OF_EACH_TYPE).to_arrow_table()
    assert [duckdb_type(kind) for kind in table.schema.types] == duckdb_types(table.slice(0, 0))


def test_a_minimum_of_units_is_a_number_of_units_where_keys_are_listed(session: dpsql.Session) -> None:
    listed = session.sql("SELECT city, count(*) FROM visits GROUP BY city", min_privacy_units_per_group=10)
    assert "noisy count of units exceeds 10\n" in str(listed.receipt)
    top = session.sql("SELECT diagnosis, count(*) FROM visits GROUP BY diagnosis", top_k=3)
    assert "exceeds the largest group left out by more than" in str(top.receipt)


def test_types_are_fixed_by_the_query(session: dpsql.Session) -> None:
    some = session.sql(SQL)
    none = session.sql(SQL, group_selection_strategy="GAUSSIAN_THRESHOLD", min_privacy_units_per_group=10**6)
    assert (len(some), len(none)) == (3, 0)
    assert duckdb_types(some.arrow()) == duckdb_types(none.arrow()) == TYPES


def test_rows_are_fetched_one_after_the_other_as_from_duckdb(session: dpsql.Session) -> None:
    result = session.sql(SQL)
    rows = result.fetchall()
    with duckdb.connect() as connection:
        peer = connection.execute("SELECT * FROM (VALUES (1), (2), (3)) t (i)")
        for call in ("fetchone", "fetchmany", "fetchone", "fetchone", "fetchone", "fetchall"):
            own, theirs = getattr(result, call)(), getattr(peer, call)()
            assert own == place_in(rows, theirs), call
    assert result.fetchall() == rows, "after the last they begin again"
    assert (result.fetchmany(2), result.fetchall(), result.fetchall()) == (rows[:2], rows[2:], rows)
    assert (result.fetchmany(0), result.fetchmany(-1), result.fetchone()) == ([], [], rows[0])


def place_in(rows: list[tuple[object, ...]], theirs: object) -> object:
    """Our rows in place of DuckDB's rows, which hold their numbers."""
    if isinstance(theirs, list):
        return [rows[row[0] - 1] for row in theirs]
    return rows[theirs[0] - 1] if isinstance(theirs, tuple) else theirs


def test_it_is_a_sequence_of_rows(session: dpsql.Session) -> None:
    result = session.sql(SQL)
    rows = result.fetchall()
    assert list(result) == rows == list(result), "reading it twice changes nothing"
    assert (result[0], result[-1], result[1:], result.shape) == (rows[0], rows[-1], rows[1:], (3, 6))
    assert rows[1] in result
    assert ("nowhere",) not in result
    assert [city for city, *_ in result] == ["Lund", "Malmö", "Ystad"]
    with pytest.raises(IndexError):
        result[3]
    none = session.sql(SQL, group_selection_strategy="GAUSSIAN_THRESHOLD", min_privacy_units_per_group=10**6)
    assert (list(none), none.fetchone(), none.fetchmany(5), none.shape) == ([], None, [], (0, 6))


def test_the_names_of_duckdb_for_whole_tables(session: dpsql.Session) -> None:
    result = session.sql(SQL)
    assert result.fetchdf().equals(result.df())
    assert result.to_df().equals(result.df())
    assert result.fetch_arrow_table() is result.to_arrow_table() is result.arrow()


def test_every_way_out_shows_the_same_rows(
    session: dpsql.Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = session.sql(SQL)
    rows = result.fetchall()
    assert result.columns == ["city", "n", "cost", "mean", "fees", "low"]
    assert [row[0] for row in rows] == ["Lund", "Malmö", "Ystad"]
    assert all(isinstance(row[1], int) and isinstance(row[2], float) and isinstance(row[4], Decimal) for row in rows)
    assert result.arrow().to_pylist() == [dict(zip(result.columns, row, strict=True)) for row in rows]
    assert [tuple(row) for row in result.df().astype(object).where(result.df().notna(), None).to_numpy()] == rows
    assert isinstance(result.pl(), pl.DataFrame)
    assert result.pl().rows() == rows
    result.to_parquet(tmp_path / "result.parquet")
    assert pq.read_table(tmp_path / "result.parquet").to_pylist() == result.arrow().to_pylist()
    result.show()
    shown = capsys.readouterr().out
    assert shown.strip() == str(result).strip() == repr(result).strip()
    assert result.receipt is not None
    for text in (shown, result._repr_html_()):
        assert "Malmö" in text
        assert "price" in text
    assert result.fetchall() == rows


def test_names_that_stand_twice_come_out_everywhere(session: dpsql.Session, tmp_path: Path) -> None:
    result = session.sql("SELECT count(*), count(*), count(*) AS n, sum(cost) AS N FROM visits")
    assert result.columns == ["count_star()", "count_star()_1", "n", "N_1"]
    assert list(result.df().columns) == result.pl().columns == result.columns
    result.to_parquet(tmp_path / "result.parquet")


@pytest.fixture(scope="module")
def empty(session: dpsql.Session) -> dpsql.Session:
    """The session with a table of nobody: of each of 400 listed keys every number is noise alone."""
    session.connection.execute("CREATE TABLE empty (u INTEGER, k INTEGER, v DOUBLE)")
    session.sql(
        "CALL dp_protect('empty', coverage := FALSE, "
        "unit := 'patient', privacy_unit_column := 'u', max_groups_contributed := 1, max_rows_per_group := 3)"
    )
    session.sql("CALL dp_domain('empty', 'v', bounds := [0, 500])")
    session.sql(f"CALL dp_domain('empty', 'k', keys := {list(range(400))})")
    return session


def test_averages_stay_in_bounds_and_are_null_where_the_noisy_count_is_not_positive(empty: dpsql.Session) -> None:
    """A count of nobody is as often positive as not: both occur but for a chance of 2**-399."""
    text = "SELECT k, avg(v) AS mean, count(v) AS n FROM empty GROUP BY k"
    rows = empty.sql(text, rho=0.1, mechanism="GAUSSIAN").fetchall()
    means: list[float | None] = [mean for _, mean, _ in rows]
    assert None in means
    numbers = [mean for mean in means if mean is not None]
    assert numbers
    assert all(0 <= mean <= 500 for mean in numbers)


def test_counts_are_whole_and_never_shown_below_0(empty: dpsql.Session) -> None:
    """One count of nobody is below zero with probability over 0.4, so of 400 some are but for 1e-88."""
    columns = "count(*) AS n, count(*) + 0 AS as_it_is, dp_interval_low(n) AS low, dp_interval_high(n) AS high"
    text = f"SELECT {columns} FROM empty GROUP BY k"
    found = empty.sql(text, rho=0.01, mechanism="GAUSSIAN").fetchall()
    assert len(found) == 400
    assert all(isinstance(count, int) for count, *_ in found)
    # what is computed of it has the number as it is
    assert min(as_it_is for _, as_it_is, *_ in found) < 0
    assert all(count == max(as_it_is, 0) for count, as_it_is, *_ in found)
    assert min(low for *_, low, _ in found) == 0.0
    assert all(low <= count <= high or count == 0 for count, _, low, high in found)


def test_sums_are_shown_below_0_where_their_bounds_are(empty: dpsql.Session) -> None:
    above, around = (f"sum(v, contribution_bounds_per_row => {bounds})" for bounds in ("(0, 10)", "(-10, 10)"))
    text = f"SELECT {above} AS above, {around} AS around FROM empty GROUP BY k"
    found = empty.sql(text, rho=0.01, mechanism="GAUSSIAN").fetchall()
    assert min(above for above, _ in found) == 0
    assert min(around for _, around in found) < 0


def test_totals_over_groups_add_up_numbers_as_they_are(empty: dpsql.Session) -> None:
    """Of empty groups half would be added as 0 else, and a total be too large by 0.4 of their noise for each."""
    empty._runner.noise_source = seeded_noise(3)
    text = "SELECT k, count(*) AS n, sum(count(*)) OVER () AS total FROM empty WHERE v IS NULL GROUP BY k"
    rows = empty.sql(text, rho=0.02, mechanism="GAUSSIAN").fetchall()
    sigma = next(
        column.sigma
        for column in receipt_of(empty.sql(text, rho=0.02, mechanism="GAUSSIAN")).columns
        if column.name == "n"
    )
    assert sigma is not None
    assert min(n for _, n, _ in rows) == 0
    # independent noise: 400 numbers add up to 20 standard deviations of one, 0.4 of each to 160
    assert sum(n for _, n, _ in rows) > 0.3 * 400 * sigma
    assert abs(rows[0][2]) < 0.5 * sum(n for _, n, _ in rows)


KEYS = {
    "TINYINT": ("7", 7),
    "HUGEINT": ("7", Decimal(7)),
    "UBIGINT": ("18446744073709551615", 2**64 - 1),
    "DOUBLE": ("1.5", 1.5),
    "DECIMAL(4,1)": ("1.5", Decimal("1.5")),
    "BOOLEAN": ("true", True),
    "BLOB": ("'ab'::BLOB", b"ab"),
    "DATE": ("'2026-01-02'", dt.date(2026, 1, 2)),
    "TIME": ("'03:04:05'", dt.time(3, 4, 5)),
    "TIMESTAMP": ("'2026-01-02 03:04:05'", dt.datetime(2026, 1, 2, 3, 4, 5)),
    "TIMESTAMPTZ": ("'2026-01-02 03:04:05+00'", dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
    "UUID": ("'00000000-0000-0000-0000-000000000001'", "00000000-0000-0000-0000-000000000001"),
    "INTEGER[]": ("[1, 2]", [1, 2]),
    "VARCHAR[]": ("['a', NULL]", ["a", None]),
    "ENUM ('a', 'b')": ("'a'", "a"),
    "DATE_OF_NO_YEAR": ("'infinity'", "infinity"),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_kind_come_back(session: dpsql.Session, kind: str, tmp_path: Path) -> None:
    literal, value = KEYS[kind]
    column = "DATE" if kind == "DATE_OF_NO_YEAR" else kind
    table = f"keys_{list(KEYS).index(kind)}"
    session.connection.execute(f"CREATE TABLE {table} (p INTEGER, k {column})")
    session.connection.execute(f"INSERT INTO {table} SELECT i, {literal} FROM range(300) r(i)")
    session.connection.execute(f"INSERT INTO {table} SELECT i, NULL FROM range(300) r(i)")
    session.sql(
        f"CALL dp_protect('{table}', coverage := FALSE, "
        "unit := 'patient', privacy_unit_column := 'p', max_groups_contributed := 2)"
    )
    result = session.sql(f"SELECT k, count(DISTINCT p) AS n FROM {table} GROUP BY k", rho=1, delta=1e-6)
    assert [row[0] for row in result.fetchall()] == [value, None]
    assert result.df()["k"].isna().tolist() == [False, True]
    assert "300" in str(result) or result._repr_html_()
    result.to_parquet(tmp_path / "keys.parquet")


def test_a_copy_of_a_result_has_its_layout_and_nothing_of_its_plan(session: dpsql.Session) -> None:
    result = session.sql(SQL)
    content = pickle.dumps(result)
    copy = pickle.loads(content)  # noqa: S301 — made above
    assert result.layout is not None
    assert copy.layout.keys == result.layout.keys == ("city",)
    assert copy.layout.ends.equals(result.layout.ends)
    assert b"private_query" not in content


def test_an_interval_key_goes_to_parquet(tmp_path: Path) -> None:
    path = tmp_path / "interval.parquet"
    dpsql.Result(pa.table({"k": pa.array([(0, 3, 0)], pa.month_day_nano_interval())})).to_parquet(path)
    with duckdb.connect() as connection:
        assert connection.read_parquet(str(path)).fetchall() == [(dt.timedelta(days=3),)]
