"""No answer on facts of the catalog that changed between the plan and the reading of rows.

Another connection changes a definition right after the charge. The question ends with a constant error, its charge
stays, and the next question is planned on the new definitions.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import dpsql
from dpsql.bound.statement import Bounded
from dpsql.cascade.reader import CURATOR
from dpsql.engine import Definitions, DuckDBEngine, redefined
from dpsql.engine.connection import Cursor
from dpsql.engine.public_rows import PublicRows
from dpsql.errors import EngineError, UnsupportedQueryError
from dpsql.release.formulation import groups_first
from dpsql.sql.statements import SelectStatement, read_statement
from dpsql.state.ledger import Ledger
from tests.hostile_texts import Writer
from tests.one_person import Size, opened

TABLES = """
CREATE TABLE people (person INTEGER PRIMARY KEY, home VARCHAR);
CREATE TABLE stays (stay INTEGER PRIMARY KEY, person INTEGER, city VARCHAR NOT NULL);
CREATE TABLE meals (stay INTEGER, dish VARCHAR);
CREATE TABLE prices (dish VARCHAR, price INTEGER);
CREATE TABLE badges (badge VARCHAR, door VARCHAR);
CREATE MACRO shortened(name) AS left(name, 6);
CREATE TYPE number AS INTEGER;
CREATE VIEW inner_rows AS SELECT person::number AS person, city FROM stays;
CREATE TABLE "odd "" name" AS SELECT 1 AS one;
CREATE TABLE "it's" AS SELECT 1 AS one;
CREATE TABLE plain AS SELECT 1 AS one;
CREATE MACRO of_default(t := 'plain') AS TABLE FROM query_table(t);
CREATE VIEW odd AS SELECT person, city FROM stays, "odd "" name", query_table('it''s'), of_default();
CREATE VIEW seen AS SELECT person, shortened(city) AS city FROM inner_rows;
INSERT INTO people SELECT i, 'home ' || i % 3 FROM range(300) t(i);
INSERT INTO stays SELECT i, i % 300, 'city ' || i % 3 FROM range(600) t(i);
INSERT INTO meals SELECT i % 600, 'dish ' || i % 4 FROM range(1200) t(i);
INSERT INTO prices SELECT 'dish ' || i, i FROM range(4) t(i);
INSERT INTO badges SELECT 'badge ' || i % 300, 'door ' || i % 3 FROM range(600) t(i);
ATTACH '{folder}/first.duckdb' AS other;
CREATE TABLE other.trips AS SELECT i % 300 AS traveller, 'trip ' || i % 3 AS goal FROM range(600) t(i);
ATTACH '{folder}/second.duckdb' AS spare;
CREATE TABLE spare.trips AS SELECT i AS traveller, 'trip 1' AS goal FROM range(600) t(i);
DETACH spare;
"""
DECLARATIONS = (
    *(
        f"CALL dp_unit('{unit}', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)"
        for unit in ("person", "badge", "traveller")
    ),
    "CALL dp_protect('people', unit := 'person', privacy_unit_column := 'person', coverage := FALSE)",
    "CALL dp_protect('stays', unit := 'person', privacy_unit_column := 'person', coverage := FALSE)",
    "CALL dp_link('meals', 'stay', parent := 'stays.stay', coverage := FALSE)",
    "CALL dp_protect('seen', unit := 'person', privacy_unit_column := 'person', coverage := FALSE)",
    "CALL dp_protect('odd', unit := 'person', privacy_unit_column := 'person', coverage := FALSE)",
    "CALL dp_protect('badges', unit := 'badge', privacy_unit_column := 'badge', coverage := FALSE)",
    "CALL dp_protect('other.trips', unit := 'traveller', privacy_unit_column := 'traveller', coverage := FALSE)",
    "CALL dp_public('prices')",
)
WAYS = (
    "OPTIONS (max_groups_contributed = 2) {key}, count(*, contribution_bounds_per_group => (0, 3)) AS n",
    "OPTIONS (max_groups_contributed = 2, mechanism = KEYS_FIRST) {key}, count(DISTINCT {unit}) AS n",
    "OPTIONS (mechanism = MISRA_GRIES, sketch_size = 20) {key}, count(DISTINCT {unit}) AS n",
    "OPTIONS () {key}, count(*) AS n",
    "OPTIONS () {key}, count(DISTINCT {unit}) AS n",
)
"""Questions that read rows in other ways: in one statement, over pairs that are held, as a stream, with AUTO twice."""


@dataclass(frozen=True)
class Kind:
    """A kind of facts.

    Attributes:
        key, unit, rows: parts of the questions.
        changed: statements that change the fact.
        back: statements after which it is as before.

    """

    key: str
    unit: str
    rows: str
    changed: str
    back: str


def recreated(table: str, columns: str) -> str:
    """Return statements that make a table again with other columns and the same rows."""
    return (
        f"CREATE OR REPLACE TABLE held AS FROM {table}; CREATE OR REPLACE TABLE {table} ({columns}); "
        f"INSERT INTO {table} FROM held"
    )


STAYS = recreated("stays", "stay INTEGER PRIMARY KEY, person INTEGER, city VARCHAR NOT NULL")
BADGES = recreated("badges", "badge VARCHAR, door VARCHAR")
KINDS = {
    "key of a link": Kind("dish", "person", "meals", "CREATE OR REPLACE TABLE stays AS FROM stays", STAYS),
    "key of a join": Kind(
        "home",
        "person",
        "stays JOIN people USING (person)",
        "CREATE OR REPLACE TABLE people AS FROM people",
        recreated("people", "person INTEGER PRIMARY KEY, home VARCHAR"),
    ),
    "matches in a public table": Kind(
        "dish",
        "person",
        "meals JOIN prices USING (dish)",
        "INSERT INTO prices SELECT 'dish 1', 7 FROM range(2000)",
        "DELETE FROM prices WHERE price = 7",
    ),
    "type of the unit": Kind(
        "door",
        "badge",
        "badges",
        recreated("badges", "badge BLOB, door VARCHAR"),
        BADGES.replace("FROM held", "SELECT badge::VARCHAR, door FROM held"),
    ),
    "collation of the unit": Kind(
        "door", "badge", "badges", recreated("badges", "badge VARCHAR COLLATE NOCASE, door VARCHAR"), BADGES
    ),
    "text of a protected view": Kind(
        "city",
        "person",
        "seen",
        "CREATE OR REPLACE VIEW seen AS SELECT stay AS person, city FROM stays",
        "CREATE OR REPLACE VIEW seen AS SELECT person, shortened(city) AS city FROM inner_rows",
    ),
    "text of a view below": Kind(
        "city",
        "person",
        "seen",
        "CREATE OR REPLACE VIEW inner_rows AS SELECT stay AS person, city FROM stays",
        "CREATE OR REPLACE VIEW inner_rows AS SELECT person::number AS person, city FROM stays",
    ),
    "macro in a view": Kind(
        "city",
        "person",
        "seen",
        "CREATE OR REPLACE MACRO shortened(name) AS upper(name)",
        "CREATE OR REPLACE MACRO shortened(name) AS left(name, 6)",
    ),
    "table of an odd name": Kind(
        "city",
        "person",
        "odd",
        'CREATE OR REPLACE TABLE "odd "" name" AS SELECT 2 AS two',
        'CREATE OR REPLACE TABLE "odd "" name" AS SELECT 1 AS one',
    ),
    "table named by a literal": Kind(
        "city",
        "person",
        "odd",
        'CREATE OR REPLACE TABLE "it\'s" AS SELECT 2 AS two',
        'CREATE OR REPLACE TABLE "it\'s" AS SELECT 1 AS one',
    ),
    "table named by a default": Kind(
        "city",
        "person",
        "odd",
        "CREATE OR REPLACE TABLE plain AS SELECT 2 AS two",
        "CREATE OR REPLACE TABLE plain AS SELECT 1 AS one",
    ),
    "type in a view": Kind(
        "city",
        "person",
        "seen",
        "DROP TYPE number; CREATE TYPE number AS TINYINT",
        "DROP TYPE number; CREATE TYPE number AS INTEGER",
    ),
    "table below a view": Kind(
        "city",
        "person",
        "seen",
        recreated("stays", "stay INTEGER, person BIGINT, city VARCHAR"),
        STAYS,
    ),
    "view in the place of a table": Kind(
        "door",
        "badge",
        "badges",
        "CREATE OR REPLACE TABLE held AS FROM badges; DROP TABLE badges; CREATE VIEW badges AS FROM held",
        "DROP VIEW badges; CREATE TABLE badges AS FROM held",
    ),
    "NULL in a column": Kind(
        "city",
        "person",
        "stays",
        "ALTER TABLE stays ALTER city DROP NOT NULL",
        "ALTER TABLE stays ALTER city SET NOT NULL",
    ),
    "default collation": Kind(
        "door",
        "badge",
        "badges",
        "SET GLOBAL default_collation = 'NOCASE'",
        "SET GLOBAL default_collation = ''",
    ),
    "database of a name": Kind(
        "goal",
        "traveller",
        "other.trips",
        "DETACH other; ATTACH '{folder}/second.duckdb' AS other",
        "DETACH other; ATTACH '{folder}/first.duckdb' AS other",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("databases")


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[dpsql.Session]:
    with dpsql.connect(folder / "main.duckdb", threads=1) as opened:
        opened.connection.execute(TABLES.format(folder=folder))
        for declaration in DECLARATIONS:
            opened.sql(declaration)
        yield opened


@contextmanager
def after_charges(act: Callable[[], object], number: int = 1) -> Iterator[list[object]]:
    """Do something once after a charge, the first or another one; yield what was charged."""
    charge, charged = Ledger.charge, list[object]()

    def charging(ledger: Ledger, *given: object) -> object:
        charged.append(charge(ledger, *given))  # type: ignore[arg-type]
        if len(charged) == number:
            act()
        return charged[-1]

    with patch.object(Ledger, "charge", charging):
        yield charged


def question(kind: Kind, way: str) -> str:
    """Return a text that was not asked before."""
    asked = way.format(key=kind.key, unit=kind.unit)
    rows = f"{kind.rows} WHERE {kind.key} <> 'key {next(NUMBERS)}'"
    return f"SELECT WITH DIFFERENTIAL_PRIVACY {asked} FROM {rows} GROUP BY {kind.key}"


def outcomes(session: dpsql.Session, kind: Kind, folder: Path, ways: Sequence[str]) -> Iterator[str]:
    """Yield for each way of reading the end of a question, if a fact changes after its charge."""
    other = session.connection.cursor()

    def run(statements: str) -> None:
        other.execute(statements.format(folder=folder))

    for way in ways:
        with after_charges(lambda: run(kind.changed)) as charged:
            try:
                session.sql(question(kind, way), rho=1.0, delta=1e-6)
            except EngineError as error:
                yield str(error)
            else:
                yield "an answer"
            finally:
                run(kind.back)
        assert charged


NUMBERS = itertools.count()
MESSAGE = str(redefined())


@pytest.mark.parametrize("place", range(len(KINDS)), ids=tuple(KINDS))
def test_a_changed_fact_has_no_answer(session: dpsql.Session, folder: Path, place: int) -> None:
    kind, way = tuple(KINDS.values())[place], WAYS[place % len(WAYS)]
    assert list(outcomes(session, kind, folder, [way])) == [MESSAGE]


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_a_changed_fact_has_no_answer_by_any_way(session: dpsql.Session, folder: Path, name: str) -> None:
    assert list(outcomes(session, KINDS[name], folder, WAYS)) == [MESSAGE] * len(WAYS)


def test_the_charge_stays_and_the_next_question_is_planned_anew(session: dpsql.Session, folder: Path) -> None:
    kind = KINDS["text of a view below"]
    text = question(kind, WAYS[0])
    with (
        after_charges(lambda: session.connection.cursor().execute(kind.changed)) as charged,
        pytest.raises(EngineError, match="created anew"),
    ):
        session.sql(text, rho=1.0, delta=1e-6)
    session.connection.execute(kind.back)
    spent = session.sql("FROM dp_budget('person')").fetchall()[0][1:5]
    with after_charges(lambda: None) as again:
        assert len(session.sql(text, rho=1.0, delta=1e-6).fetchall()) == 3
    assert len(charged) == len(again) == 1
    assert session.sql("FROM dp_budget('person')").fetchall()[0][1:5] == spent


def test_without_the_check_changed_facts_are_answered(session: dpsql.Session, folder: Path) -> None:
    with patch.object(DuckDBEngine, "while_defined", lambda engine, planned: engine):
        assert "an answer" in list(outcomes(session, KINDS["text of a view below"], folder, WAYS[:1]))


@pytest.mark.parametrize("name", ["key of a link", "text of a view below", "matches in a public table"])
def test_a_change_after_the_check_is_not_seen_by_the_reading(session: dpsql.Session, folder: Path, name: str) -> None:
    kind, seen = KINDS[name], Definitions.are_seen_by
    other = session.connection.cursor()

    def change_after(planned: Definitions, cursor: Cursor) -> bool:
        found = seen(planned, cursor)
        other.execute(kind.changed)
        return found

    statement = read_statement(question(kind, WAYS[0]))
    assert isinstance(statement, SelectStatement)
    runner = session._runner
    query, _, _, defined = runner._plan_to_read(statement, {"rho": 1.0, "delta": 1e-6}, CURATOR)
    bounded = Bounded(query.first.frame, query.first.statistics)

    def read() -> Any:
        found = runner.engine.while_defined(defined).exact(
            bounded, bytes(16), groups_first, listed_keys=None, timeout_seconds=None
        )
        return found.reveal().sort_by("key_0").to_pylist()

    before = read()
    with patch.object(Definitions, "are_seen_by", change_after):
        assert read() == before
    with pytest.raises(EngineError, match="created anew"):
        read()
    other.execute(kind.back)


def test_a_change_after_the_histogram_of_auto_is_named(session: dpsql.Session, folder: Path) -> None:
    kind = KINDS["type of the unit"]
    with (
        after_charges(lambda: session.connection.execute(kind.changed)) as charged,
        pytest.raises(EngineError, match="created anew"),
    ):
        session.sql(question(kind, WAYS[3]), rho=1.0, delta=1e-6)
    session.connection.execute(kind.back)
    assert len(charged) == 1


def test_a_later_collation_changes_no_reading_of_a_question(session: dpsql.Session) -> None:
    """Rounds of keys read rows in a transaction that began before."""
    session.connection.execute("CREATE OR REPLACE TABLE held AS FROM badges; UPDATE badges SET door = upper(door)")
    asked = f"OPTIONS (max_groups_contributed = 1, mechanism = KEYS_FIRST) door, {WAYS[0].partition('}, ')[2]}"
    rows = "badges WHERE door IN ('DOOR 1', 'door 2')"
    with after_charges(lambda: session.connection.execute("SET GLOBAL default_collation = 'NOCASE'"), 2) as charged:
        found = session.sql(f"SELECT WITH DIFFERENTIAL_PRIVACY {asked} FROM {rows} GROUP BY door", rho=1.0, delta=1e-6)
    session.connection.execute("SET GLOBAL default_collation = ''; CREATE OR REPLACE TABLE badges AS FROM held")
    assert len(charged) > 1
    assert [door for door, _ in found.fetchall()] == ["DOOR 1"]


def test_rows_that_come_to_a_public_table_during_a_plan_are_counted(session: dpsql.Session) -> None:
    kind, most = KINDS["matches in a public table"], PublicRows.most_matches
    other, found = session.connection.cursor(), list[int]()

    def raced(engine: PublicRows, *given: Any) -> int:
        if not found:
            other.execute(kind.changed)
        found.append(most(engine, *given))
        return found[-1]

    with patch.object(PublicRows, "most_matches", raced):
        with pytest.raises(EngineError, match="created anew"):
            session.sql(question(kind, WAYS[0]), rho=1.0, delta=1e-6)
        with pytest.raises(UnsupportedQueryError):
            session.sql(question(kind, WAYS[0]), rho=1.0, delta=1e-6)
    other.execute(kind.back)
    assert (found[0], found[-1]) == (1, 2001)


def test_changes_of_rows_and_of_other_tables_fail_no_question(session: dpsql.Session) -> None:
    other, numbers = session.connection.cursor(), itertools.count()

    def change() -> None:
        name = next(numbers)
        other.execute(
            f"{STAYS}; INSERT INTO badges FROM badges; DELETE FROM stays WHERE person = {name}; CHECKPOINT; "
            f"CREATE INDEX i{name} ON people (home); CREATE OR REPLACE TABLE home AS SELECT 1 AS sea; "
            "DELETE FROM prices WHERE price = 99; CHECKPOINT"
        )

    session.connection.execute("CREATE TABLE home AS SELECT 1 AS sea; INSERT INTO prices VALUES ('dish 99', 99)")
    session.connection.execute("DELETE FROM prices WHERE price = 99")
    for name, of in (("type of the unit", "badges"), ("matches in a public table", "meals JOIN prices USING (dish)")):
        kind = KINDS[name]
        assert of == kind.rows
        with after_charges(change if of == "badges" else lambda: other.execute("CHECKPOINT")):
            assert session.sql(question(kind, WAYS[0]), rho=1.0, delta=1e-6).fetchall()
    session.connection.execute("DROP TABLE home")


def test_the_first_charge_of_a_database_changes_no_definition(tmp_path: Path) -> None:
    """It creates the table of the stamp. A view that computes a name depends on all tables of the curator."""
    with dpsql.connect(tmp_path / "first.duckdb", threads=1) as opened:
        opened.connection.execute(
            "CREATE TABLE stays AS SELECT i % 300 AS person, 'city ' || i % 3 AS city FROM range(600) t(i); "
            "CREATE VIEW odd AS FROM query_table('stays')"
        )
        opened.sql(DECLARATIONS[0])
        opened.sql(
            "CALL dp_protect('odd', unit := 'person', privacy_unit_column := 'person', coverage := FALSE, "
            "max_groups_contributed := 2, max_rows_per_group := 3)"
        )
        answer = opened.sql("SELECT city, count(*) AS n FROM odd GROUP BY city", rho=1.0, delta=1e-6)
        assert len(answer.fetchall()) == 3


PLACE = re.compile(r'"memory"\."main"\."(\w+)"')


def test_a_plan_lists_each_table_that_its_rows_are_read_from() -> None:
    side = opened(Size(rows=10, units=5, of_the_person=0), None, timeout_seconds=30)
    try:
        plans = [plan for number in range(30) if not isinstance(plan := side.plan(Writer(number).text()), str)]
    finally:
        side.close()
    frames = [part.frame for plan in plans for part in plan.parts]
    listed = [{table.removeprefix("main.") for table, _ in frame.rows.table_versions} for frame in frames]
    read = [set(PLACE.findall(frame.rows_sql.relation)) for frame in frames]
    assert set().union(*read) >= {"visits", "stays", "items", "wards", "codes"}
    assert [places - tables for places, tables in zip(read, listed, strict=True)] == [set()] * len(frames)
