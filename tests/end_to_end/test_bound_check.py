"""dp_check: what it says of bounds is true, it changes nothing, and no analyst can ask for it."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dpsql
from dpsql.errors import AccessError, DpsqlError, PolicyError, QueryError
from dpsql.frontends.cli import main
from dpsql.session import bound_report
from tests.end_to_end.prepared import with_own_state
from tests.serving import door, in_background, token_of

CHECK = "FROM dp_check('visits')"
BOUNDS = "max_groups_contributed := 1, max_rows_per_group := 1"
PROTECT = "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', {})"
CANARY = 987_654.25
"""The cost of one visit. Its patient alone is in every ward."""


def open_clinic(database: str = ":memory:") -> dpsql.Session:
    """Return a session on 40,000 visits of 4,000 patients: five wards of eight each, and two visits to each."""
    session = dpsql.connect(database)
    session.connection.execute(
        "CREATE TABLE visits AS SELECT i % 4000 AS patient, 'ward ' || ((i % 4000 + i // 4000 % 5) % 8) AS ward, "
        "(i * 7919 % 100)::DOUBLE AS cost, DATE '2026-01-01' + (i % 2400)::INTEGER AS day FROM range(40_000) t(i)"
    )
    session.connection.execute(f"INSERT INTO visits SELECT 1, 'ward ' || (i % 8), {CANARY}, NULL FROM range(90) t(i)")
    session.sql("CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6)")
    session.sql(PROTECT.format(BOUNDS))
    session.sql("CALL dp_domain('visits', 'ward', keys := ['ward 0', 'ward 1', 'ward 2', 'ward 3', 'ward 4', 'ward 5', "
                "'ward 6', 'ward 7', 'ward 8'])")  # fmt: skip
    session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 1000])")
    session.sql("CALL dp_analyst('ana')")
    return session


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with open_clinic() as session:
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        yield session


@pytest.fixture(scope="module")
def screen(prepared: dpsql.Session) -> dict[tuple[str, str], str]:
    rows = prepared.sql(CHECK).fetchall()
    return {(section, name): value for section, name, value in rows}


def test_the_screen_says_what_bounds_keep(screen: dict[tuple[str, str], str]) -> None:
    # 10 rows of each patient are in 5 wards, and one row in one ward is left
    assert screen["max_groups_contributed = 1", "keeps"] == "20 % of the rows by ward"
    assert screen["max_groups_contributed = 1", "by ward"] == (
        "99 % of the units (patient) are in 5 groups or fewer; the largest is in 8"
    )
    assert screen["max_rows_per_group = 1", "keeps"] == "50 % of the rows by ward"
    assert screen["bounds of cost", "[0, 1000]"].startswith("keeps 2.3 % of sum(cost); 99.78 % of the values are")
    assert screen["public keys of ward", "9 keys"] == (
        "100 % of the rows have a listed key, and 1 of the 9 keys have no row"
    )
    assert "Show them to nobody" in screen["for the curator alone", "raw rows"]
    assert "the privacy promise does not cover" in screen["how to read it", "privacy"]


def test_better_bounds_can_be_pasted_and_come_from_a_grid(
    session: dpsql.Session, screen: dict[tuple[str, str], str]
) -> None:
    assert screen["result", "best bounds"].endswith(
        "They keep 99.78 % of the rows by ward, the declared bounds 10.0 %."
    )
    calls = [value for value in screen.values() if value.startswith("CALL ")]
    numbers = [int(one) for call in calls for one in re.findall(r"(?::= |, |\[)(\d+)", call)]
    assert {"max_groups_contributed := 5", "max_rows_per_group := 2"} <= set(re.findall(r"\w+ := \d+", " ".join(calls)))
    assert all(re.fullmatch("0|[125]0*", str(one)) for one in numbers)
    for call in calls:
        session.sql(call.removesuffix(";"))


def test_no_bound_follows_the_values_of_one_unit(session: dpsql.Session) -> None:
    """One of 900 units has a tenth of the rows, and values that nobody else has."""
    session.connection.execute(
        "CREATE OR REPLACE TABLE people AS SELECT i % 900 AS patient, i % 3 = 0 AS even, (i % 100)::DOUBLE AS paid "
        "FROM range(9000) t(i) UNION ALL SELECT 7, i % 2 = 0, 99_999 FROM range(900) t(i)"
    )
    session.sql(PROTECT.format(BOUNDS).replace("visits", "people"))
    session.sql("CALL dp_domain('people', 'paid', bounds := [0, 10])")
    rows = session.sql("FROM dp_check('people', by := 'even', auto := false)").fetchall()
    calls = " ".join(value for _, _, value in rows if value.startswith("CALL "))
    assert "bounds := [0, 100]" in calls
    assert int(re.findall(r"max_rows_per_group := (\d+)", calls)[0]) <= 20
    # of ten units no value is left that bounds may follow
    session.connection.execute("DELETE FROM people WHERE patient >= 10")
    rows = session.sql("FROM dp_check('people', by := 'even', auto := false)").fetchall()
    assert "dp_domain" not in " ".join(value for _, _, value in rows)


def test_the_expected_error_is_that_of_answers(session: dpsql.Session, screen: dict[tuple[str, str], str]) -> None:
    text = "SELECT ward, count(*) AS n FROM visits GROUP BY ward"
    true = dict(session.connection.execute(text).fetchall())
    session.sql("CALL dp_unit('patient', epsilon_budget := 100, delta_budget := 1e-6, replace := true)")
    errors = []
    for _ in range(12):
        answer = session.sql(text, epsilon=1, delta=5e-9, refresh=True).fetchall()
        errors.append(sum(abs(n - true.get(ward, 0)) for ward, n in answer) / sum(true.values()))
    (declared,) = re.findall(r"([\d.]+) % as declared", screen["error by ward", "rows"])
    assert float(declared) / 100.0 == pytest.approx(np.mean(errors), rel=0.05)


def test_missing_values_and_bounds_away_from_zero(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A year of birth is known of four in five people, and a part of the units has about the errors of all."""
    session.connection.execute(
        "CREATE OR REPLACE TABLE people AS SELECT i AS patient, i % 2 = 0 AS even, "
        "CASE WHEN i % 5 > 0 THEN 1930 + i % 80 END AS born FROM range(20_000) t(i)"
    )
    session.sql(PROTECT.format(BOUNDS).replace("visits", "people"))
    session.sql("CALL dp_domain('people', 'born', bounds := [1900, 2025])")

    def error() -> float:
        rows = session.sql("FROM dp_check('people', by := 'even', auto := false)").fetchall()
        (words,) = [value for _, name, value in rows if name == "sum(born)"]
        (declared,) = re.findall(r"^([\d.]+) % as declared", words)
        return float(declared)

    whole = error()
    assert whole < 0.5
    monkeypatch.setattr(bound_report, "MOST_PAIRS", 4000)
    assert error() == pytest.approx(whole, rel=0.2)


def test_nothing_is_stored_or_charged(tmp_path: Path) -> None:
    database = tmp_path / "clinic.duckdb"
    open_clinic(str(database)).close()
    with dpsql.connect(database) as session:
        ana = session.as_analyst("ana")
        ana.sql("SELECT ward, count(*) AS n FROM visits GROUP BY ward", epsilon=0.5)
        looks = ("FROM dp_budget()", "FROM dp_releases()", "SHOW TABLES", "FROM dp_tables()")
        before = [ana.sql(look).arrow() for look in looks]
        cascade, files = session.sql("FROM dp_cascade()").arrow(), sorted(tmp_path.rglob("*"))
        session.sql(CHECK)
        assert [ana.sql(look).arrow() for look in looks] == before
        assert session.sql("FROM dp_cascade()").arrow() == cascade
        assert sorted(tmp_path.rglob("*")) == files
        assert session.connection.execute("SHOW ALL TABLES").fetchall()[0][2] in ("state_file", "visits")
        again = ana.sql("SELECT ward, count(*) AS n FROM visits GROUP BY ward", epsilon=0.5)
        assert again.receipt is not None
        assert again.receipt.charged_rho == 0.0


INNER = "FROM dp_query($$ {} $$)"
REFUSED = (
    CHECK,
    "CALL dp_check('visits')",
    "SELECT * FROM dp_check('visits')",
    "SELECT value FROM dp_check('visits')",
    "FROM dp_check('main.visits', by := 'ward')",
    "FROM DP_CHECK('visits')",
    "FROM dp_check('visits', auto := false)",
    "(FROM dp_check('visits'))",
    "SELECT count(*) FROM (FROM dp_check('visits'))",
    "SELECT count(*) FROM visits WHERE ward IN (SELECT value FROM dp_check('visits'))",
    "SELECT (SELECT max(value) FROM dp_check('visits')), count(*) FROM visits",
    "WITH c AS (FROM dp_check('visits')) SELECT count(*) FROM c",
    "SELECT count(*) FROM visits JOIN dp_check('visits') ON true",
    "SELECT count(*) FROM visits, dp_check('visits')",
    "SELECT ward, dp_check('visits') FROM visits GROUP BY ward",
    "FROM dp_check('visits') UNION ALL FROM dp_check('visits')",
    "CREATE TABLE c AS FROM dp_check('visits')",
    "CREATE VIEW c AS FROM dp_check('visits')",
    "INSERT INTO visits FROM dp_check('visits')",
    "COPY (FROM dp_check('visits')) TO 'c.csv'",
    "EXPLAIN FROM dp_check('visits')",
    "EXPLAIN ANALYZE FROM dp_check('visits')",
    "DESCRIBE FROM dp_check('visits')",
    "SUMMARIZE FROM dp_check('visits')",
    "PREPARE c AS FROM dp_check('visits')",
    "FROM query('FROM dp_check(''visits'')')",
    "PIVOT dp_check('visits') ON name",
    "SHOW TABLES; FROM dp_check('visits')",
    INNER.format(CHECK),
    INNER.format("CALL dp_check('visits')"),
    "FROM dp_explain($$ FROM dp_check('visits') $$)",
    "FROM dp_describe($$ FROM dp_check('visits') $$)",
    "FROM dp_budget((FROM dp_check('visits')))",
)


def refusal(ask: object, text: str) -> DpsqlError:
    with pytest.raises((AccessError, QueryError, PolicyError)) as raised:
        ask.sql(text)  # type: ignore[attr-defined]
    return raised.value


@pytest.mark.parametrize("text", REFUSED)
def test_an_analyst_is_refused_in_every_way(prepared: dpsql.Session, text: str) -> None:
    error = refusal(prepared.as_analyst("ana"), text)
    assert "%" not in str(error)
    assert str(int(CANARY)) not in str(error)
    # the same for a table that is not there, so that no row decides
    elsewhere = text.replace("dp_check('visits", "dp_check('nothing").replace("''visits", "''nothing")
    assert type(refusal(prepared.as_analyst("ana"), elsewhere)) is type(error)


def test_an_analyst_is_refused_whatever_the_parameters(prepared: dpsql.Session) -> None:
    ana = prepared.as_analyst("ana")
    with pytest.raises(AccessError):
        ana.sql("FROM dp_check($table)", {"table": "visits"})
    with pytest.raises((AccessError, QueryError)):
        ana.sql(CHECK, rho=0.1)


def test_a_server_refuses_its_analysts(session: dpsql.Session) -> None:
    with in_background(session, door("ana")) as urls:
        ana = dpsql.remote.connect(urls.analysts, token=token_of("ana"))
        for text in (CHECK, "CALL dp_check('visits')", "SELECT count(*) FROM dp_check('visits')", INNER.format(CHECK)):
            assert "%" not in str(refusal(ana, text))


def test_plans_and_rehearsals_are_of_selects(prepared: dpsql.Session) -> None:
    """dbt rehearses models, and releases those that are a SELECT."""
    with pytest.raises(DpsqlError):
        prepared.rehearse([], CHECK)
    with pytest.raises(DpsqlError):
        prepared.rehearse([CHECK], "SELECT count(*) FROM visits")


def test_a_declaration_says_once_how_many_rows_are_left(session: dpsql.Session) -> None:
    def told(sql: str) -> str:
        ((text,),) = session.sql(sql).fetchall()
        return str(text)

    session.sql("CALL dp_domain('visits', 'ward', keys := NULL, replace := true)")
    changed = PROTECT.format("max_groups_contributed := 2, max_rows_per_group := 1")
    note = "; by ward, these bounds keep 20 % of the rows: FROM dp_check('visits') shows more"
    assert told(changed).endswith(note)
    assert "dp_check" not in told(changed)
    assert "dp_check" not in told(PROTECT.format("max_groups_contributed := 8, max_rows_per_group := 12"))
    assert "dp_check" not in told(PROTECT.format("default_delta := 1e-9"))


def test_what_others_may_read_has_no_such_note(prepared: dpsql.Session, caplog: pytest.LogCaptureFixture) -> None:
    with dpsql.Session(prepared.connection.cursor(), None, logs_changes=False) as quiet, caplog.at_level(logging.INFO):
        quiet.sql("CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6)")
        ((told,),) = quiet.sql(PROTECT.format(BOUNDS)).fetchall()
        assert told == "table main.visits is protected; its privacy unit is patient"
        assert "keep" not in caplog.text


@pytest.mark.parametrize(
    "call",
    [
        "dp_check()",
        "dp_check('nothing')",
        "dp_check('visits', by := 'nothing')",
        "dp_check('visits', by := 7)",
        "dp_check('visits', by := ['ward', 7])",
        "dp_check('visits', plot := 1)",
        "dp_check('visits', epsilon := 1)",
        "dp_check('visits', 'ward')",
    ],
)
def test_arguments_that_make_no_sense_are_refused(prepared: dpsql.Session, call: str) -> None:
    with pytest.raises(PolicyError):
        prepared.sql(f"FROM {call}")


def test_private_keys_several_columns_and_no_bounds(session: dpsql.Session) -> None:
    session.sql("CALL dp_domain('visits', 'ward', keys := NULL, replace := true)")
    rows = session.sql("FROM dp_check('visits', by := ['day', 'ward, day'], auto := false, plot := true)").fetchall()
    sections = list(dict.fromkeys(section for section, _, _ in rows))
    assert {"error by day", "error by ward, day", "max_groups_contributed by day"} <= set(sections)
    assert any("█" in value for _, _, value in rows)
    session.sql(PROTECT.format("max_groups_contributed := NULL, max_rows_per_group := NULL, replace := true"))
    session.sql("CALL dp_domain('visits', 'cost', bounds := NULL, replace := true)")
    by_name = {(section, name): value for section, name, value in session.sql(CHECK).fetchall()}
    assert "with no bound" in by_name["error by ward", "rows"]
    assert "as declared" not in by_name["error by ward", "rows"]
    assert ("max_groups_contributed, not declared", "by ward") in by_name
    rows = session.sql("FROM dp_check('visits', by := 'ward', auto := false)").fetchall()
    by_name = {(section, name): value for section, name, value in rows}
    assert "Errors with no bound declared are not known" in by_name["result", "best bounds"]
    assert "max_rows_per_group := 2" in by_name["declare", "main.visits"]
    assert re.fullmatch("[0-9.]+ % with the best bounds", by_name["error by ward", "rows"])


def test_the_command_prints_the_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = tmp_path / "clinic.duckdb"
    open_clinic(str(database)).close()
    assert main(["check", str(database), "visits", "--by", "ward", "--plot"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("for the curator alone")
    assert "█" in printed
    assert main(["query", str(database), CHECK, "--analyst", "ana"]) == 2
    assert "for the curator" in capsys.readouterr().err


def test_simple_queries_import_nothing_of_it() -> None:
    program = (
        "import dpsql, json, sys\n"
        "s = dpsql.connect()\n"
        "s.connection.execute('CREATE TABLE t AS SELECT i AS p FROM range(99) r(i)')\n"
        "s.sql(\"CALL dp_protect('t', privacy_unit_column := 'p', epsilon_budget := 3, delta_budget := 1e-6)\")\n"
        "s.sql('SELECT count(DISTINCT p) FROM t', rho=0.1)\n"
        "print(json.dumps([m for m in sys.modules if 'bound_' in m or 'raw_' in m or 'kept_rows' in m]))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {one for one in json.loads(ran.stdout.splitlines()[-1]) if one.startswith("dpsql.")}
    assert loaded <= {"dpsql.sql.source.row_bounds"}
