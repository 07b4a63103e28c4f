"""Rows that change without a new version: the curator is told, and nobody else can tell."""

from __future__ import annotations

import functools
import io
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

import dpsql
from dpsql.engine import Engine
from tests.end_to_end.prepared import with_own_rows
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

COUNT = "SELECT shop, count(DISTINCT visitor) AS n FROM visits GROUP BY shop"
SUM = "SELECT shop, sum(cost) AS cost FROM visits GROUP BY shop"
DAYS = "SELECT day, count(*) AS n FROM visits GROUP BY day"
STATEMENT = "CALL dp_new_version('visits')"


TABLES = """
CREATE TABLE visits (visitor INTEGER, shop VARCHAR, day INTEGER, cost DOUBLE);
INSERT INTO visits SELECT i, 'shop ' || i % 2, i % 3, 7 FROM range(600) t(i);
"""


def open_file(path: Path | str, **settings: Any) -> dpsql.Session:
    session = dpsql.connect(path, **settings)
    if not session.sql("FROM dp_policy()").fetchall():
        session.connection.execute(TABLES)
        session.sql("CALL dp_unit('visitor', rho_budget := 100, delta_threshold := 0.1, delta_conversion := 1e-6)")
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "unit := 'visitor', privacy_unit_column := 'visitor', max_rows_per_group := 1, "
            "max_groups_contributed := 2, default_delta := 1e-6)"
        )
        session.sql("CALL dp_domain('visits', 'day', keys := [0, 1, 2])")
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 10])")
    session._runner.noise_source = seeded_noise(5)
    return session


@functools.cache
def _prepared() -> dpsql.Session:
    """Return a session with everything declared, which stays open until the process ends."""
    return open_file(":memory:")


@contextmanager
def open_shop() -> Iterator[dpsql.Session]:
    with with_own_rows(_prepared(), TABLES) as session:
        session._runner.noise_source = seeded_noise(5)
        yield session


def warnings_in_books(session: dpsql.Session) -> list[str | None]:
    return [row["warning"] for row in session.sql("FROM dp_releases()").arrow().to_pylist()]


def require_warned(session: dpsql.Session, caplog: pytest.LogCaptureFixture, count: int = 1) -> None:
    """In the log, in the books and in the curator's session, each with the statement to write."""
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    told = [sentence for sentence in logged if "mixes rows" in sentence]
    noted = [note for note in warnings_in_books(session) if note is not None]
    assert (len(told), len(noted), len(session.warnings)) == (count, count, min(count, 1))
    assert all(STATEMENT in sentence and "version 1" in sentence for sentence in (*told, *noted, *session.warnings))


CHANGES = {
    "rows are added": "INSERT INTO visits VALUES (900, 'shop 0', 1, 3)",
    "rows are deleted": "DELETE FROM visits WHERE visitor % 2 = 0",
    "the table is another": "CREATE OR REPLACE TABLE visits AS SELECT *, 1 AS more FROM visits",
    "a column is another": "ALTER TABLE visits ALTER cost TYPE FLOAT",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_curator_is_told_that_first_sums_mix_days(change: str, caplog: pytest.LogCaptureFixture) -> None:
    with open_shop() as session:
        session.sql(COUNT, rho=1)
        require_warned(session, caplog, 0)
        session.connection.execute(change)
        # the counts are stored, and nothing is read for them
        session.sql(COUNT, rho=1)
        assert warnings_in_books(session) == [None, None]
        session.sql(SUM, rho=1)
        require_warned(session, caplog)
        session.sql(STATEMENT)
        assert session.warnings == ()
        caplog.clear()
        session.sql(SUM, rho=1)
        assert session.warnings == ()
        assert warnings_in_books(session)[-1] is None
        assert "mixes" not in caplog.text


def test_the_first_mark_of_a_version_counts(caplog: pytest.LogCaptureFixture) -> None:
    """What changed before anything was read is nobody's mixture; what changed twice is told each time it is read."""
    with open_shop() as session:
        session.connection.execute(CHANGES["rows are added"])
        session.sql(COUNT, rho=1)
        require_warned(session, caplog, 0)
        session.connection.execute(CHANGES["rows are added"])
        session.sql(SUM, rho=1)
        session.sql(DAYS, rho=1)
        require_warned(session, caplog, 2)
        session.connection.execute("DELETE FROM visits WHERE visitor = 900")
        session.connection.execute(CHANGES["rows are added"])
        # the number is that of the first reading again
        assert session.warnings == ()


def test_the_mark_is_kept_in_the_state_file_and_other_tables_do_not_matter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "shop.duckdb"
    with open_file(path) as session:
        session.sql(COUNT, rho=1)
        session.connection.execute("CREATE TABLE other AS SELECT * FROM range(1000)")
    with open_file(path, read_only=True) as session:
        session.sql(DAYS, rho=1)
        require_warned(session, caplog, 0)
    with open_file(path) as session:
        session.connection.execute(CHANGES["rows are deleted"])
    with open_file(path, read_only=True) as session:
        assert len(session.warnings) == 1
        session.sql(SUM, rho=1)
        require_warned(session, caplog)


def test_parents_and_public_tables_have_marks_too(caplog: pytest.LogCaptureFixture) -> None:
    with open_shop() as session:
        session.connection.execute("CREATE TABLE kinds (name VARCHAR, kind VARCHAR)")
        session.connection.execute("INSERT INTO kinds VALUES ('shop 0', 'kind'), ('shop 1', 'kind')")
        session.sql("CALL dp_public('kinds')")
        session.sql("SELECT kind, count(*) AS n FROM visits JOIN kinds ON shop = name GROUP BY kind", rho=1)
        session.connection.execute("INSERT INTO kinds VALUES ('shop 9', 'kind')")
        session.sql("SELECT kind, sum(cost) AS n FROM visits JOIN kinds ON shop = name GROUP BY kind", rho=1)
        assert ["CALL dp_new_version('kinds')" in sentence for sentence in session.warnings] == [True]
        assert "dp_new_version('kinds')" in caplog.text


@pytest.mark.parametrize("source", ["'{}'", "read_parquet('{}')", "read_parquet(['{}'])"])
def test_files_behind_a_view_have_size_and_time(source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "visits.parquet"
    with open_shop() as session:
        session.connection.execute(f"COPY visits TO '{file}' (FORMAT parquet)")
        session.connection.execute("CREATE VIEW inner_view AS FROM " + source.format(file))
        session.connection.execute("CREATE VIEW seen AS SELECT * FROM inner_view WHERE day < 3")
        session.sql(
            "CALL dp_protect('seen', coverage := FALSE, "
            "unit := 'visitor', privacy_unit_column := 'visitor', max_rows_per_group := 1, "
            "max_groups_contributed := 2, default_delta := 1e-6)"
        )
        session.sql(COUNT.replace("visits", "seen"), rho=1)
        session.sql(DAYS.replace("visits", "seen"), rho=1)
        assert session.warnings == ()
        os.utime(file, (1, 1))
        assert ["CALL dp_new_version('seen')" in sentence for sentence in session.warnings] == [True]
        session.sql(
            SUM.replace("visits", "seen").replace("(cost)", "(cost, contribution_bounds_per_group => (0, 9))"), rho=1
        )
        assert "dp_new_version('seen')" in caplog.text


def test_a_view_over_tables_has_their_marks() -> None:
    with open_shop() as session:
        session.connection.execute("CREATE VIEW seen AS SELECT * FROM main.Visits WHERE day < 3")
        session.sql("CALL dp_protect('seen', coverage := FALSE, unit := 'visitor', privacy_unit_column := 'visitor')")
        session.sql(COUNT.replace("visits", "seen"), rho=1, max_groups_contributed=2, delta=1e-6)
        assert session.warnings == ()
        session.connection.execute(CHANGES["rows are added"])
        assert ["CALL dp_new_version('seen')" in sentence for sentence in session.warnings] == [True]


def test_a_frame_has_its_number_of_rows(caplog: pytest.LogCaptureFixture) -> None:
    frame: Any = pd.DataFrame({"who": range(500), "shop": ["a", "b"] * 250, "cost": 3.0})
    unit = dpsql.unit("who", column="who", source="sales", epsilon_budget=9, delta_budget=1e-6, state=None)
    frame.dp.groupby("shop", unit=unit, rho=0.1, max_groups=1, max_rows_per_group=1).size()
    frame.dp.groupby("shop", unit=unit, rho=0.1, max_groups=1, max_rows_per_group=1).mean("cost", bounds=(0, 9))
    assert "mixes" not in caplog.text
    more: Any = pd.concat([frame, frame])
    more.dp.groupby("shop", unit=unit, rho=0.1, max_groups=1, max_rows_per_group=1).sum("cost", bounds=(0, 9))
    assert "CALL dp_new_version('sales')" in caplog.text
    assert "CALL dp_new_version('sales')" in unit.releases()["warning"].iloc[-1]


# What only the state file knows of a release besides what its reader is shown.
QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    (COUNT, {"rho": 1.0}),
    (SUM, {"rho": 0.5}),
    (DAYS, {"rho": 0.5}),
    (COUNT, {"rho": 1.5}),
    (SUM, {"rho": 99.0}),
    ("SELECT shop, avg(cost) AS c FROM visits GROUP BY shop", {"rho": 0.3}),
    (COUNT, {"rho": 2.0, "refresh": True}),
    ("FROM dp_releases()", {}),
    ("FROM dp_budget()", {}),
    ("SELECT nothing FROM visits", {}),
    (f"FROM dp_explain($$ {SUM} $$, rho := 1)", {}),
    (DAYS, {"rho": 0.5, "as_of": "1"}),
)


def seen_by(session: dpsql.Session, name: str, monkeypatch: pytest.MonkeyPatch, *, changed: bool) -> list[object]:
    """Everything that an analyst sees of a session in which a mark differs, or does not; and all that is written."""
    engine = session._runner.engine
    marks, number = type(engine).marks, [0]

    def marked(self: Engine, tables: list[str]) -> object:
        number[0] += 1
        found = marks(self, tables)
        return {table: {**mark, "number of rows": str(changed and number[0])} for table, mark in found.items()}

    monkeypatch.setattr(type(engine), "marks", marked)
    analyst = session.as_analyst(name)
    seen: list[object] = []
    for text, options in QUESTIONS:
        output = io.StringIO()
        with redirect_stdout(output), redirect_stderr(output):
            try:
                answer = analyst.sql(text, **options)
                table = answer.arrow()
                if "at" in table.column_names:
                    table = table.drop_columns(["at"])
                seen.append((table.schema, table.to_pylist(), answer.receipt, str(answer) if answer.receipt else ""))
            except dpsql.errors.DpsqlError as error:
                seen.append((type(error), str(error)))
        seen.append((output.getvalue(), number[0]))
    monkeypatch.undo()
    return seen


def test_nothing_that_an_analyst_sees_depends_on_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers, refusals, prices, books and output are equal, and so is how often marks are read."""
    found = []
    for changed in (False, True):
        with open_shop() as session:
            found.append(seen_by(session, "ana", monkeypatch, changed=changed))
            # the scene is one: the curator is told
            assert (any(warnings_in_books(session)), changed) in ((False, False), (True, True))
    assert found[0] == found[1]


def test_the_columns_of_an_analysts_books_are_what_they_were() -> None:
    with open_shop() as session:
        session.as_analyst("ana").sql(COUNT, rho=1)
        own = session.as_analyst("ana").sql("FROM dp_releases()").arrow()
        assert own.column_names[-1] == "versions"
        assert session.sql("FROM dp_releases()").arrow().column_names == [*own.column_names, "warning"]


def test_what_others_ask_is_told_on_no_screen_of_its_own(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody set up a log, Python prints warnings to stderr, which an analyst in a notebook would read."""
    for logger in (logging.getLogger(), logging.getLogger("dpsql")):
        monkeypatch.setattr(logger, "handlers", [])
    with open_shop() as session:
        session.sql(COUNT, rho=1)
        session.connection.execute(CHANGES["rows are added"])
        capfd.readouterr()
        session.as_analyst("ana").sql(SUM, rho=1)
        assert capfd.readouterr() == ("", "")
        session.sql(DAYS, rho=1)
        assert STATEMENT in capfd.readouterr().err


def test_a_session_whose_log_others_read_tells_it_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """As that of a run of dbt."""
    with open_shop() as session, dpsql.Session(session.connection.cursor(), None, logs_changes=False) as quiet:
        quiet._access = quiet._runner.access = session._access
        quiet.sql(COUNT, rho=1)
        session.connection.execute(CHANGES["rows are added"])
        quiet.sql(SUM, rho=1)
        assert "mixes" not in caplog.text
        assert STATEMENT in str(warnings_in_books(session)[-1])


def test_a_mark_that_cannot_be_read_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise duckdb.InterruptException("planted")

    monkeypatch.setattr("dpsql.engine.catalog._read_marks", fails)
    with open_shop() as session:
        assert receipt_of(session.sql(COUNT, rho=1)).charged_rho == 1
        assert session.warnings == ()
