"""Keys of every hashable type come back as they were, also when a frame that holds them is released again."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest

import dpsql
from dpsql.errors import UnsupportedQueryError
from tests.unit.bound.query_descriptions import literal
from tests.unit.bound.typed_keys import KEY_TYPES

_REFUSED = (
    "STRUCT(a INTEGER)",
    "MAP(INTEGER, INTEGER)",
    "STRUCT(a INTEGER)[]",
    "UHUGEINT",
    "BIT",
    "TIMETZ",
    "TIMETZ[]",
)
_SPELLINGS: dict[str, tuple[str, str, str]] = {
    "DOUBLE": ("-0.0", "0.0", "0.0"),
    "FLOAT": ("0.0", "-0.0", "0.0"),
    "INTERVAL": ("30 days", "1 month", "1 month"),
    "DOUBLE[]": ("[-0.0]", "[0.0]", "[0.0]"),
    "DOUBLE[1][]": ("[[-0.0]]", "[[0.0]]", "[[0.0]]"),
    "INTERVAL[]": ("[-24 hours]", "[-1 day]", "[-1 day]"),
}
"""Two spellings that GROUP BY holds equal, and the one that is shown."""

_UNITS = 200


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect() as opened:
        opened.sql("CALL dp_unit('u', rho_budget := 1e9, delta_threshold := 0.9, delta_conversion := 1e-6)")
        yield opened


def _create(session: dpsql.Session, kind: str, values: tuple[str | None, ...], order: str = "") -> None:
    listed = ", ".join(f"({literal(value)})" for value in values)
    session.connection.execute(f"CREATE OR REPLACE TABLE typed (pid INTEGER, k {kind})")
    session.connection.execute(
        f"INSERT INTO typed SELECT u, CAST(v AS {kind}) FROM range({_UNITS}) us(u), (VALUES {listed}) vs(v) {order}"
    )
    session.sql(
        "CALL dp_protect('typed', coverage := FALSE, "
        "unit := 'u', privacy_unit_column := 'pid', max_groups_contributed := 6, "
        "max_rows_per_group := 2)"
    )
    session.sql("CALL dp_new_version('typed')")


def _texts(table: pa.Table, kind: str) -> list[str | None]:
    """Keys of a result as DuckDB writes them, cast from Arrow back to their type."""
    other = _other_database()
    other.register("result", table)
    rows = other.execute(f"SELECT CAST(CAST(k AS {kind}) AS VARCHAR) FROM result").fetchall()
    other.unregister("result")
    return [row[0] for row in rows]


@functools.cache
def _other_database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


@functools.cache
def _arrow_types() -> dict[str, pa.DataType]:
    """Return the type that DuckDB itself gives each kind of key."""
    listed = ", ".join(f'CAST(NULL AS {kind}) AS "{kind}"' for kind in KEY_TYPES)
    with duckdb.connect() as other:
        other.execute("SET TimeZone = 'UTC'")
        schema = other.sql(f"SELECT {listed}").to_arrow_table().schema
    return {kind: schema.field(kind).type for kind in KEY_TYPES}


def _sorted(texts: list[str | None]) -> list[str | None]:
    return sorted(texts, key=lambda text: (text is None, text or ""))


@pytest.mark.parametrize("kind", KEY_TYPES)
def test_a_key_comes_back_in_its_own_type(session: dpsql.Session, kind: str) -> None:
    _create(session, kind, (*KEY_TYPES[kind], None))
    expected = session.connection.execute("SELECT DISTINCT CAST(k AS VARCHAR) FROM typed").fetchall()
    text = "SELECT k, count(DISTINCT pid) AS n FROM typed GROUP BY k"
    first = session.sql(text, rho=2, delta=1e-3)
    assert _sorted(_texts(first.arrow(), kind)) == _sorted([row[0] for row in expected])
    assert first.arrow().schema.field("k").type == _arrow_types()[kind]
    again = session.sql(text, rho=3, delta=1e-3)
    assert again.receipt is not None
    assert not again.receipt.reused, "a second draw on keys that the frame holds"
    assert _texts(again.arrow(), kind) == _texts(first.arrow(), kind)
    counts = [row[1] for row in again.fetchall()]
    assert all(abs(count - _UNITS) < 10 for count in counts), "each held key met its own group"
    assert len(str(again)) > 0
    assert list(again.df().columns) == ["k", "n"]


@pytest.mark.parametrize("kind", _SPELLINGS)
@pytest.mark.parametrize("order", ["ORDER BY v, u", "ORDER BY v DESC, u"])
def test_equal_keys_are_spelled_the_same_in_any_order_of_rows(session: dpsql.Session, kind: str, order: str) -> None:
    first, second, shown = _SPELLINGS[kind]
    _create(session, kind, (first, second), order)
    result = session.sql("SELECT k, count(DISTINCT pid) FROM typed GROUP BY k", rho=2, delta=1e-3)
    assert _texts(result.arrow(), kind) == [shown]


def test_a_nan_is_one_key_with_one_bit_pattern(session: dpsql.Session) -> None:
    _create(session, "DOUBLE", ("nan",))
    session.connection.execute("UPDATE typed SET k = -k WHERE pid % 2 = 0")
    result = session.sql("SELECT k, count(DISTINCT pid) AS n FROM typed GROUP BY k", rho=2, delta=1e-3)
    ((key, count),) = result.fetchall()
    assert math.isnan(key)
    assert math.copysign(1, key) == 1
    assert abs(count - _UNITS) < 10


@pytest.mark.parametrize("kind", _REFUSED)
def test_a_type_that_cannot_be_released_is_refused_before_any_charge(session: dpsql.Session, kind: str) -> None:
    session.connection.execute(f"CREATE OR REPLACE TABLE typed (pid INTEGER, k {kind})")
    session.sql(
        "CALL dp_protect('typed', coverage := FALSE, "
        "unit := 'u', privacy_unit_column := 'pid', max_groups_contributed := 6)"
    )
    before = session.sql("FROM dp_budget('u')").fetchall()
    with pytest.raises(UnsupportedQueryError) as refused:
        session.sql("SELECT k, count(DISTINCT pid) FROM typed GROUP BY k", rho=2, delta=1e-3)
    assert [refusal.code for refusal in refused.value.refusals] == ["key_type"]
    assert session.sql("FROM dp_budget('u')").fetchall() == before


def test_an_enum_is_text_and_its_members_appear_nowhere(session: dpsql.Session) -> None:
    session.connection.execute("CREATE TYPE diagnosis AS ENUM ('flu', 'canary_member', 'cold')")
    _create(session, "diagnosis", ("flu", "cold"))
    text = "SELECT k, count(DISTINCT pid) FROM typed GROUP BY k"
    result = session.sql(text, rho=2, delta=1e-3)
    assert result.arrow().schema.field("k").type == pa.string()
    assert sorted(row[0] for row in result.fetchall()) == ["cold", "flu"]
    explained = session.sql(f"FROM dp_explain($$ {text} $$, rho := 2, delta := 1e-3)")
    shown = [repr(result.arrow()), str(result), str(result.receipt), repr(result.receipt), str(explained.fetchall())]
    for failing in ("sum(k, contribution_bounds_per_group => (0, 1))", "count(k + 1)"):
        with pytest.raises(dpsql.DpsqlError) as refused:
            session.sql(f"SELECT {failing} FROM typed", rho=1)
        shown.append(str(refused.value))
    for words in shown:
        assert "canary" not in words
