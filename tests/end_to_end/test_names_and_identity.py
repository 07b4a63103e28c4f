"""One person, one column, one table, one name: what DuckDB holds the same is the same here, and nothing else is."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import duckdb
import pytest

import dpsql
from dpsql.engine import DuckDBEngine
from dpsql.errors import PolicyError, SchemaError
from dpsql.model import environment
from dpsql.session.declarations import arguments
from dpsql.session.declare import split_name

KELVIN = "\u212a"


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect() as opened:
        opened.sql("CALL dp_unit('person', rho_budget := 1000, delta_threshold := 1e-2, delta_conversion := 1e-6)")
        yield opened


def _protect(session: dpsql.Session, table: str, column: str) -> None:
    session.sql(
        f"CALL dp_protect('{table}', coverage := FALSE, unit := 'person', privacy_unit_column := '{column}', "
        "max_groups_contributed := 1, max_rows_per_group := 1, default_rho := 2)"
    )


def _count(session: dpsql.Session, table: str) -> int:
    """Number of units, with noise of standard deviation 0.5."""
    return int(session.sql(f"SELECT count(DISTINCT u) AS n FROM {table}").fetchall()[0][0])


@pytest.mark.parametrize("collation", ["NOCASE", "NOACCENT", "NFC", "de", "NOCASE.NOACCENT"])
@pytest.mark.parametrize("relation", ["people", "through_view"])
def test_a_unit_column_with_a_collation_is_refused(session: dpsql.Session, collation: str, relation: str) -> None:
    session.connection.execute(f"CREATE TABLE people (u VARCHAR COLLATE {collation}, plain VARCHAR)")
    session.connection.execute("CREATE VIEW through_view AS SELECT CAST(u AS VARCHAR) AS u, plain FROM people")
    with pytest.raises(PolicyError, match="collation"):
        _protect(session, relation, "u")
    assert {row[0] for row in session.sql("FROM dp_policy()").fetchall()} == {"unit"}
    _protect(session, relation, "plain")


def test_the_remedy_that_the_refusal_names_is_accepted_and_counts_one_person_once(session: dpsql.Session) -> None:
    session.connection.execute("CREATE TABLE people (name VARCHAR COLLATE NOCASE)")
    session.connection.execute(
        "INSERT INTO people SELECT ['Ann', 'ANN', 'ann'][1 + i % 3] || i // 3 FROM range(150) t(i)"
    )
    session.connection.execute('CREATE VIEW spelled AS SELECT lower(name) COLLATE "binary" AS u FROM people')
    _protect(session, "spelled", "u")
    assert abs(_count(session, "spelled") - 50) < 9


def test_no_row_is_read_to_find_a_collation(session: dpsql.Session) -> None:
    session.connection.execute("CREATE TABLE people AS SELECT 'a' AS u FROM range(10)")
    session.connection.execute("CREATE VIEW failing AS SELECT u || error('a row was read') AS u FROM people")
    _protect(session, "failing", "u")


def test_a_collation_is_found_in_a_read_only_database(tmp_path: Path) -> None:
    path = tmp_path / "people.duckdb"
    with duckdb.connect(path) as writing:
        writing.execute("CREATE TABLE people (u VARCHAR COLLATE NOCASE, plain VARCHAR)")
    with duckdb.connect(path, read_only=True) as reading:
        engine = DuckDBEngine(reading)
        schema = engine.resolve(["people"])
        assert schema is not None
        assert engine.collation(schema, "u") == "NOCASE"
        assert engine.collation(schema, "plain") is None


def test_under_a_default_collation_nothing_is_protected_and_nothing_answered(session: dpsql.Session) -> None:
    session.connection.execute("CREATE TABLE people (u VARCHAR)")
    session.connection.execute("CREATE TABLE others (u VARCHAR)")
    _protect(session, "people", "u")
    session.connection.execute("SET GLOBAL default_collation = 'NOCASE'")
    with pytest.raises(PolicyError, match="NOCASE"):
        _protect(session, "others", "u")
    with pytest.raises(PolicyError, match="NOCASE"):
        _count(session, "people")
    session.connection.execute("SET GLOBAL default_collation = 'Binary'")
    _protect(session, "others", "u")
    _count(session, "people")


def test_letters_beyond_ascii_keep_their_case_in_columns(session: dpsql.Session) -> None:
    session.connection.execute(f'CREATE TABLE people ("Ä" INTEGER, "ä" INTEGER, "{KELVIN}" INTEGER, "Kind" INTEGER)')
    schema = DuckDBEngine(session.connection).resolve(["people"])
    assert schema is not None
    asked = ("ä", "Ä", KELVIN, "KIND", "k", "K", "ẞ")
    assert [getattr(schema.column(name), "name", None) for name in asked] == [
        "ä",
        "Ä",
        KELVIN,
        "Kind",
        None,
        None,
        None,
    ]
    session.connection.execute("INSERT INTO people SELECT 1, i, 0, 0 FROM range(50) t(i)")
    _protect(session, "people", "ä")
    shown = session.sql('SELECT count(DISTINCT "ä") AS n FROM people').fetchall()[0][0]
    assert abs(shown - 50) < 9


def test_letters_beyond_ascii_keep_their_case_in_tables(session: dpsql.Session) -> None:
    session.connection.execute('CREATE TABLE "Ä" AS SELECT 0 AS u')
    session.connection.execute('CREATE TABLE "ä" AS SELECT i AS u FROM range(50) t(i)')
    session.connection.execute('CREATE TABLE "Kin" AS SELECT 0 AS u')
    _protect(session, "ä", "u")
    assert abs(_count(session, '"ä"') - 50) < 9
    with pytest.raises(SchemaError, match="not protected"):
        _count(session, '"Ä"')
    engine = DuckDBEngine(session.connection)
    assert engine.resolve([f"{KELVIN}in"]) is None
    assert engine.resolve(["KIN"]) == engine.resolve(["MAIN", "kin"]) == engine.resolve(["MEMORY", "Main", "Kin"])
    assert engine.resolve(["a", "b", "main", "kin"]) is None


@pytest.mark.parametrize(
    "kind",
    [
        "BIGNUM", "VARIANT", "GEOMETRY", "UNION(a INTEGER, b VARCHAR)", "BIGNUM[]", "MAP(INTEGER, BIGNUM)",
        "STRUCT(a UNION(b INTEGER))[]", "alias_of_bignum",
    ],
)  # fmt: skip
def test_columns_of_unsafe_types_are_not_there(session: dpsql.Session, kind: str) -> None:
    session.connection.execute("CREATE TYPE alias_of_bignum AS BIGNUM")
    session.connection.execute(f"CREATE TABLE people (u INTEGER, x {kind})")
    session.connection.execute("INSERT INTO people (u) SELECT i FROM range(50) t(i)")
    with pytest.raises(PolicyError, match="no column 'x'"):
        _protect(session, "people", "x")
    _protect(session, "people", "u")
    with pytest.raises(SchemaError, match="no column 'x'"):
        session.sql("SELECT count(x) FROM people")
    assert abs(_count(session, "people") - 50) < 9


def test_a_bignum_cannot_take_the_database_down(session: dpsql.Session) -> None:
    session.connection.execute("CREATE TABLE people AS SELECT 1 AS u, repeat('9', 60)::BIGNUM AS x")
    _protect(session, "people", "u")
    with pytest.raises(SchemaError):
        session.sql("SELECT count(TRY_CAST(x AS HUGEINT)) FROM people")
    assert session.connection.execute("SELECT count(*) FROM people").fetchall() == [(1,)]


def test_public_keys_come_from_an_attached_database(session: dpsql.Session, tmp_path: Path) -> None:
    with duckdb.connect(tmp_path / "lists.v1.duckdb") as writing:
        writing.execute('CREATE SCHEMA "odd.schema"')
        writing.execute("""CREATE TABLE "odd.schema"."the cities" AS SELECT 'Lund' AS "its.name" """)
    session.connection.execute(f"ATTACH '{tmp_path / 'lists.v1.duckdb'}' AS lists (READ_ONLY)")
    session.connection.execute("CREATE TABLE people AS SELECT i AS u, 'Lund' AS city FROM range(50) t(i)")
    _protect(session, "people", "u")
    session.sql("""CALL dp_public('lists."odd.schema".the cities')""")
    session.sql("""CALL dp_domain('people', 'city', keys_from := 'lists."odd.schema"."the cities"."its.name"')""")
    question = "SELECT city, count(DISTINCT u) FROM people GROUP BY city"
    first = session.sql(question).fetchall()
    assert [row[0] for row in first] == ["Lund"]
    session.connection.execute("DETACH lists")
    session.connection.execute(f"ATTACH '{tmp_path / 'lists.v1.duckdb'}' AS renamed (READ_ONLY)")
    assert session.sql(question).fetchall() == first
    session.connection.execute("DETACH renamed")
    with pytest.raises(SchemaError, match="gone"):
        session.sql(question)


def test_a_dot_in_a_name_makes_no_two_tables_one(session: dpsql.Session) -> None:
    session.connection.execute('CREATE SCHEMA "main.x"')
    session.connection.execute('CREATE TABLE "main.x"."y" AS SELECT 0 AS u')
    session.connection.execute('CREATE TABLE "x.y" AS SELECT i AS u FROM range(50) t(i)')
    _protect(session, 'main."x.y"', "u")
    assert abs(_count(session, 'main."x.y"') - 50) < 9
    with pytest.raises(SchemaError, match="not protected"):
        _count(session, '"main.x"."y"')
    _protect(session, '"main.x".y', "u")
    assert abs(_count(session, '"main.x"."y"')) < 9


def test_a_plain_name_is_its_own_identity(session: dpsql.Session) -> None:
    session.connection.execute('CREATE TABLE "Visits" (u INTEGER)')
    schema = DuckDBEngine(session.connection).resolve(["visits"])
    assert schema is not None
    assert schema.canonical == "main.visits"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("visits", ["visits"]),
        ("main.visits", ["main", "visits"]),
        ('"Odd.Schema"."my table"', ["Odd.Schema", "my table"]),
        ("db.main.my table", ["db", "main", "my table"]),
        ('"a""b".c', ['a"b', "c"]),
        ('""""', ['"']),
    ],
)
def test_names_are_split_at_dots_outside_quotes(text: str, parts: list[str]) -> None:
    assert split_name(text) == parts


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", '"a', 'a"', 'a"b', '"a"b', '""', '"a".', '"a""'])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(PolicyError, match="not a name"):
        split_name(text)


@pytest.mark.parametrize("module", [arguments, environment])
def test_the_examples_in_the_docstrings_hold(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
