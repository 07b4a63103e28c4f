"""Questions over parts of tables: the answers of one table to the bit, one charge whatever happens to a process."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pytest

import dpsql
from dpsql.bound.partials import PartialRows
from dpsql.engine.parts import database
from dpsql.engine.parts.database import PartsEngine
from dpsql.engine.parts.manifest import HEAD, MANIFEST, read_manifest
from dpsql.engine.parts.pool import Pool
from dpsql.engine.parts.transaction import PartsTransaction
from dpsql.frontends.cli import main
from dpsql.state import Ledger
from tests.noise_sources import silence
from tests.parts import small_split, split_of

TABLES = """
CREATE TABLE visits AS
    SELECT CAST(hash(i) % {people} AS INTEGER) AS patient, 'city ' || hash(i, 1) % 30 AS city,
           round(CAST(hash(i, 2) % 10000 AS DOUBLE) / 100, 2) - 10 AS cost, CAST(hash(i, 3) % 50 AS INTEGER) AS code
    FROM range({rows}) t(i);
INSERT INTO visits SELECT 1, 'city ' || i % 30, 7.5, i FROM range(400) t(i);
INSERT INTO visits VALUES (NULL, 'city 1', 1, 1), (7, NULL, NULL, NULL);
CREATE TABLE stays (stay_id BIGINT PRIMARY KEY, patient INTEGER NOT NULL);
INSERT INTO stays SELECT i, hash(i, 4) % {people} FROM range({people} * 2) t(i);
CREATE TABLE meals AS SELECT CAST(hash(i, 5) % ({people} * 2) AS BIGINT) AS stay_id, 'dish ' || hash(i, 6) % 9 AS dish
    FROM range({people} * 4) t(i);
CREATE TABLE people AS
    SELECT CAST(i AS INTEGER) AS patient, 'area ' || hash(i, 7) % 5 AS area FROM range({people}) t(i);
ALTER TABLE people ADD PRIMARY KEY (patient);
CREATE TABLE cities AS SELECT 'city ' || i AS city, 'land ' || i % 4 AS land FROM range(30) t(i);
"""
UNITS = dict.fromkeys(("visits", "stays", "meals", "people"), "patient")
LINKS = {"meals": [(("stay_id",), "main.stays", ("stay_id",))]}
POLICY = (
    "CALL dp_unit('patient', rho_budget := 1000, delta_threshold := 0.5, delta_conversion := 1e-6)",
    "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 4, "
    "max_rows_per_group := 3, max_rows_norm := 9, max_rows_per_unit := 60)",
    "CALL dp_protect('stays', unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 2, "
    "max_rows_per_group := 3)",
    "CALL dp_link('meals', 'stay_id', parent := 'stays.stay_id', max_groups_contributed := 3, max_rows_per_group := 2)",
    "CALL dp_protect('people', unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 1, "
    "max_rows_per_group := 1)",
    "CALL dp_public('cities')",
    "CALL dp_domain('visits', 'cost', bounds := [0, 80])",
    "CALL dp_domain('visits', 'code', bounds := [0, 40])",
)
WITH = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({})"
QUESTIONS = {
    "people": "SELECT city, count(DISTINCT patient) AS n FROM visits GROUP BY city",
    "rows": "SELECT city, count(*) AS n, count(*) FILTER (WHERE cost > 20) AS dear FROM visits GROUP BY city",
    "sums": "SELECT city, sum(cost) AS s, avg(cost) AS a FROM visits GROUP BY city",
    "one number": "SELECT count(*) AS n, sum(cost) AS s, count(DISTINCT code) AS codes FROM visits",
    "L2": f"{WITH.format('bounding = L2')} city, count(*) AS n, sum(cost) AS s FROM visits GROUP BY city",
    "NORM": f"{WITH.format('bounding = NORM')} city, count(*) AS n FROM visits GROUP BY city",
    "keys first": f"{WITH.format('mechanism = KEYS_FIRST')} city, count(*) AS n, sum(cost) AS s FROM visits "
    "GROUP BY city",
    "links": "SELECT dish, count(*) AS n, count(DISTINCT patient) AS p FROM meals GROUP BY dish",
    "grouping sets": "SELECT city, code, count(*) AS n FROM visits GROUP BY ROLLUP (city, code)",
    "quantiles": "SELECT city, median(cost) AS m, count(*) AS n FROM visits GROUP BY city",
    "top-k": f"{WITH.format('top_k = 5')} code, count(DISTINCT patient) AS n, count(*) AS c FROM visits GROUP BY code",
    "distinct values": "SELECT city, count(DISTINCT code) AS n, sum(DISTINCT code) AS s, count(*) AS c "
    "FROM visits GROUP BY city",
    "AUTO": f"{WITH.format('max_groups_contributed = AUTO')} city, count(*) AS n FROM visits GROUP BY city",
    "AUTO bounds": "SELECT city, sum(cost, contribution_bounds_per_row => AUTO) AS s FROM visits GROUP BY city",
    "join": "SELECT land, count(*) AS n FROM visits JOIN cities USING (city) GROUP BY land",
    "join of units": "SELECT area, count(*) AS n, sum(cost) AS s FROM visits JOIN people USING (patient) GROUP BY area",
    "one row": "SELECT area, count(*) AS n FROM people GROUP BY area",
    "relative error": f"{WITH.format('target_relative_error = 0.2, max_rho = 2')} city, count(*) AS n "
    "FROM visits GROUP BY city",
    "other group": WITH.format("other_group = 'rest'") + " city, count(*) AS n FROM visits GROUP BY city",
}
BY_TARGET = "target_relative_error"
SMALL, LARGE = (8_000, 400), (100_000, 5_000)
SECONDS = 60.0


def declare(session: dpsql.Session) -> dpsql.Session:
    for statement in POLICY:
        session.sql(statement)
    silence(session)
    return session


def answered(session: dpsql.Session, text: str) -> tuple[object, str]:
    """Return the rows of an answer, and what is printed of it."""
    # units are bounded by one salt in all sessions
    with mock.patch("dpsql.state.side_table.os.urandom", bytes):
        level: dict[str, Any] = {} if BY_TARGET in text else {"rho": 0.5}
        answer = session.sql(text, **level, delta=1e-6)
    return answer.arrow(), str(answer)


@pytest.fixture(
    scope="module",
    params=[(SMALL, 3), *(pytest.param((LARGE, parts), marks=pytest.mark.long) for parts in (1, 3, 16))],
    ids=lambda given: f"{given[0][0]} rows in {given[1]}",
)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dpsql.Session]]:
    """One database, and its tables in parts."""
    (rows, people), parts = request.param
    folder = tmp_path_factory.mktemp("parts") / "folder"
    with dpsql.connect() as whole:
        whole.connection.execute(TABLES.format(rows=rows, people=people))
        split_of(whole.connection, folder, parts, units=UNITS, links=LINKS, public=("cities",))
        with dpsql.connect(parts=folder, processes=2) as split:
            yield [declare(whole), declare(split)]


@pytest.mark.parametrize("name", QUESTIONS)
def test_parts_answer_as_one_table(name: str, both: list[dpsql.Session]) -> None:
    whole, split = (answered(session, QUESTIONS[name]) for session in both)
    assert split == whole
    spent = [session.sql("FROM dp_budget()").fetchall() for session in both]
    assert spent[0] == spent[1]


def test_a_sketch_is_refused_by_name(both: list[dpsql.Session]) -> None:
    sketched = WITH.format("mechanism = MISRA_GRIES, sketch_size = 50")
    text = f"{sketched} code, count(DISTINCT patient) FROM visits GROUP BY code"
    before = both[1].sql("FROM dp_budget()").fetchall()
    with pytest.raises(dpsql.SchemaError, match="MISRA_GRIES"):
        both[1].sql(text, rho=0.5, delta=1e-6)
    with pytest.raises(dpsql.EngineError, match="raw rows are not read over parts"):
        both[1].sql("FROM dp_check('visits')")
    assert both[1].sql("FROM dp_budget()").fetchall() == before


def pool_of(session: dpsql.Session) -> Pool:
    engine = session._runner.engine
    assert isinstance(engine, PartsEngine)
    return engine._pool


def kill_later(pool: Pool, moments: random.Random, longest: float) -> threading.Thread:
    """Kill a process at a random moment."""

    def kill() -> None:
        time.sleep(moments.random() * longest)
        for running in moments.choice(pool._processes)._running[:]:
            os.kill(running.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
def test_a_process_that_dies_changes_nothing(kills: int, tmp_path: Path) -> None:
    """Each version of the rows is a new answer at its own price, from the same rows."""
    moments, longest = random.Random(58), 0.0
    with duckdb.connect() as connection:
        connection.execute(TABLES.format(rows=SMALL[0], people=SMALL[1]))
        split_of(connection, tmp_path / "folder", 4, units=UNITS, links=LINKS, public=("cities",))
    found, spent = [], [0]
    with dpsql.connect(parts=tmp_path / "folder", processes=2) as session:
        declare(session)
        for number in range(kills + 1):
            session.sql(f"CALL dp_new_version('visits', version := 'run {number}')")
            began = time.monotonic()
            killing = kill_later(pool_of(session), moments, longest) if number else None
            found.append(answered(session, QUESTIONS["AUTO"])[0])
            longest = longest or time.monotonic() - began
            if killing:
                killing.join()
            spent.append(session._access.read().ledger.spent("patient").rho_nano)
    assert all(one == found[0] for one in found[1:])
    assert len({after - before for before, after in itertools.pairwise(spent)}) == 1
    left = [path.name for path in (tmp_path / "folder").iterdir() if path.suffix != ".duckdb"]
    assert sorted(left) == ["head.duckdb.dpsql", "head.duckdb.dpsql-locks", "parts.json"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return small_split(tmp_path / "folder")


BUDGET = "epsilon_budget := 50, delta_budget := 1e-4"
PROTECTED = f"CALL dp_protect('visits', privacy_unit_column := 'patient', max_groups_contributed := 2, {BUDGET})"
ASKED = "SELECT code, count(*) AS n FROM visits GROUP BY code"


def price_of_failure(session: dpsql.Session, error: type[dpsql.DpsqlError], match: str) -> int:
    """Return what a question that fails has cost."""
    with pytest.raises(error, match=match):
        session.sql(ASKED, rho=0.1, delta=1e-6)
    (unit,) = session._access.read().policy().units
    return session._access.read().ledger.spent(unit.name).rho_nano


@pytest.mark.parametrize("how", ["missing", "changed", "of another split"])
def test_a_part_that_is_another_file_costs_nothing(how: str, folder: Path, tmp_path: Path) -> None:
    part = folder / read_manifest(folder).parts[1].name
    with dpsql.connect(parts=folder, processes=2) as session:
        session.sql(PROTECTED)
        if how == "missing":
            part.unlink()
        elif how == "changed":
            with duckdb.connect(part) as connection:
                connection.execute("INSERT INTO visits SELECT i, 1 FROM range(50) t(i)")
        else:
            with duckdb.connect() as connection:
                connection.execute("CREATE TABLE visits AS SELECT i % 60 AS patient, 1 AS code FROM range(900) t(i)")
                other = split_of(connection, tmp_path / "other", 3, units={"visits": "patient"})
            part.write_bytes((other / read_manifest(other).parts[1].name).read_bytes())
        assert price_of_failure(session, dpsql.EngineError, "part 1 is missing, was changed, or belongs") == 0


def test_a_part_that_changes_after_the_charge_shows_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = folder / read_manifest(folder).parts[1].name
    with dpsql.connect(parts=folder, processes=1) as session:
        session.sql(PROTECTED)
        charge = Ledger.charge

        def charged(*of: Any, **named: Any) -> Any:
            found = charge(*of, **named)
            with duckdb.connect(part) as connection:
                connection.execute("DELETE FROM visits")
            return found

        monkeypatch.setattr(Ledger, "charge", charged)
        assert price_of_failure(session, dpsql.EngineError, "part 1 .* Any charge stays") > 0


@pytest.mark.parametrize(
    ("declared", "match"),
    [
        (
            "CALL dp_protect('visits', privacy_unit_column := 'code', epsilon_budget := 9, delta_budget := 1e-4)",
            "was split by 'patient', and is declared by 'code'",
        ),
        (
            "CALL dp_protect('cities', privacy_unit_column := 'city', epsilon_budget := 9, delta_budget := 1e-4)",
            "all of its rows",
        ),
        ("CALL dp_public('visits')", "was split by a unit"),
        ("CALL dp_public('later')", "is no table of the split"),
    ],
)
def test_a_policy_with_other_units_than_the_split_is_refused(declared: str, match: str, folder: Path) -> None:
    """A person with rows in several parts would be bounded in each of them."""
    with dpsql.connect(parts=folder) as session:
        session.connection.execute("CREATE TABLE later AS SELECT 1 AS a")
        if "'visits'" not in declared:
            session.sql(PROTECTED)
        session.sql(declared)
        with pytest.raises(dpsql.PolicyError, match=match):
            session.sql(ASKED if "dp_public('visits')" not in declared else "FROM visits", rho=0.1, delta=1e-6)


def test_tables_of_the_head_are_those_of_the_split(folder: Path) -> None:
    with dpsql.connect(parts=folder) as session:
        session.sql(PROTECTED)
        session.connection.execute("ALTER TABLE visits ADD COLUMN later INTEGER")
        assert price_of_failure(session, dpsql.PolicyError, "other tables or views than the parts") == 0


def test_rows_that_are_added_to_the_head_are_refused(folder: Path) -> None:
    """No question would read them, even after a new version."""
    with dpsql.connect(parts=folder) as session:
        session.sql(PROTECTED)
        session.connection.execute("INSERT INTO visits (patient) VALUES (1)")
        assert price_of_failure(session, dpsql.PolicyError, "main.visits of head.duckdb has rows") == 0


def test_processes_of_another_duckdb_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PROBE", "SELECT 'v0.9', hash(hash(8))::VARCHAR")
    with dpsql.connect(parts=folder) as session:
        session.sql(PROTECTED)
        assert price_of_failure(session, dpsql.EngineError, "another version of DuckDB") == 0


def test_the_time_of_a_reading_over_parts_is_limited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "SELECT count(*) AS n FROM range(10_000_000_000_000) t(i) WHERE hash(i) = 0"
    read = PartsTransaction.read
    with dpsql.connect(parts=folder) as session:
        session.sql(PROTECTED)
        monkeypatch.setattr(
            PartsTransaction,
            "read",
            lambda own, asked, *of: read(own, replace(asked, texts=(PartialRows(endless, (), ()),)), *of),
        )
        began = time.monotonic()
        with pytest.raises(dpsql.EngineError, match="ran out of time"):
            session.sql(ASKED, rho=0.1, delta=1e-6, timeout_seconds=0.5)
        assert time.monotonic() - began < SECONDS
        monkeypatch.undo()
        assert len(session.sql(ASKED, rho=0.1, delta=1e-6).fetchall()) == 3


def test_a_new_split_asks_for_a_new_version(folder: Path) -> None:
    with dpsql.connect(parts=folder) as session:
        session.sql(PROTECTED)
        first = session.sql(ASKED, rho=0.1, delta=1e-6).fetchall()
        assert session.warnings == ()
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE visits AS SELECT i % 50 AS patient, 10 + i % 3 AS code FROM range(900) t(i)")
        connection.execute("CREATE TABLE cities AS SELECT 'city ' || i AS city FROM range(3) t(i)")
        split_of(connection, folder, 5, units={"visits": "patient"}, public=("cities",))
    with dpsql.connect(folder) as session:
        (warning,) = session.warnings
        assert "dp_new_version" in warning
        assert session.sql(ASKED, rho=0.1, delta=1e-6).fetchall() == first
        session.sql("CALL dp_new_version('visits', version := '2')")
        assert [code for code, _ in session.sql(ASKED, rho=0.1, delta=1e-6).fetchall()] == [10, 11, 12]


@pytest.mark.parametrize(
    ("named", "match"),
    [
        ({"parts": "nowhere"}, "no folder of parts"),
        ({"parts": __file__}, "is a file"),
        ({"path": "a.duckdb", "parts": "b"}, "not both"),
        ({"processes": 2}, "name the folder"),
    ],
)
def test_connect_says_what_it_takes(named: dict[str, Any], match: str) -> None:
    with pytest.raises(dpsql.PolicyError, match=match):
        dpsql.connect(**named)


def test_a_number_of_processes_is_positive(folder: Path) -> None:
    with pytest.raises(dpsql.PolicyError, match="processes=2"):
        dpsql.connect(parts=folder, processes=0)


def test_a_head_is_never_asked_without_its_parts(folder: Path) -> None:
    """Its tables of people are empty, and stored answers of no rows would cost as much as those of all."""
    with dpsql.connect(folder / HEAD) as session:
        session.sql(PROTECTED)
        assert len(session.sql(ASKED, rho=1.0, delta=1e-6).fetchall()) == 3
    with duckdb.connect(folder / HEAD) as connection, pytest.raises(dpsql.PolicyError, match="the head of a folder"):
        dpsql.Session(connection, None)


def test_a_part_is_never_asked_alone(folder: Path) -> None:
    """People would have a second budget in it."""
    with pytest.raises(dpsql.PolicyError, match="one part of a folder"):
        dpsql.connect(folder / read_manifest(folder).parts[0].name)


def test_the_shell_takes_no_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shell", str(folder)]) != 0
    assert f"dpsql query {folder}" in capsys.readouterr().err


def test_a_session_says_that_its_folder_was_split_again(folder: Path) -> None:
    with dpsql.connect(parts=folder) as session:
        session.sql(PROTECTED)
        manifest = folder / MANIFEST
        manifest.write_text(manifest.read_text().replace(read_manifest(folder).identity, "other"))
        assert price_of_failure(session, dpsql.PolicyError, "was split again after it was opened") == 0


def test_the_command_line_takes_the_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", str(folder), PROTECTED]) == 0
    assert main(["query", str(folder), ASKED, "--rho", "1", "--delta", "1e-6", "--format", "csv"]) == 0
    assert capsys.readouterr().out.count("\n") >= 4
