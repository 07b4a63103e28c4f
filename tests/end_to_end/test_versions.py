"""Earlier versions of a table, and fresh readings of the current one: ``as_of`` and ``refresh``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest

import dpsql
from dpsql.errors import BudgetError, ParseError, PolicyError, ReleaseError, UnsupportedQueryError
from tests.end_to_end.prepared import with_own_rows
from tests.noise_sources import seeded_noise

PUBLIC = "SELECT day, count(*) AS n FROM visits GROUP BY day"
PRIVATE = "SELECT shop, count(DISTINCT visitor) AS n FROM visits GROUP BY shop"


TABLES = "CREATE TABLE visits AS SELECT i::INTEGER AS visitor, 'old' AS shop, 0::INTEGER AS day FROM range(500) t(i)"


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(TABLES)
        session.sql("CALL dp_unit('visitor', rho_budget := 10, delta_threshold := 0.1, delta_conversion := 1e-6)")
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "unit := 'visitor', privacy_unit_column := 'visitor', max_rows_per_group := 1, "
            "max_groups_contributed := 2, default_delta := 1e-6, default_rho := 1)"
        )
        session.sql("CALL dp_domain('visits', 'day', keys := [0, 1])")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_rows(prepared, TABLES) as session:
        session._runner.noise_source = seeded_noise(21)
        yield session


def change(session: dpsql.Session) -> None:
    session.connection.execute("UPDATE visits SET shop = 'new', day = 1")


def receipt_of(answer: dpsql.Result) -> dpsql.Receipt:
    assert answer.receipt is not None
    return answer.receipt


@pytest.mark.parametrize("text", [PUBLIC, PRIVATE])
def test_what_was_released_of_an_earlier_version_is_served_as_it_was(session: dpsql.Session, text: str) -> None:
    first = session.sql(text)
    before = dt.datetime.now(dt.UTC)
    change(session)
    session.sql("CALL dp_new_version('visits', version := 'b')")
    second = session.sql(text)
    assert second.fetchall() != first.fetchall()
    for as_of in ("1", before.isoformat(), before.replace(tzinfo=None).isoformat(sep=" ")):
        again = session.sql(text, as_of=as_of)
        assert again.fetchall() == first.fetchall()
        assert receipt_of(again).version == "1"
        assert receipt_of(again).charged_rho == 0
    # lower levels of it are free, too
    assert receipt_of(session.sql(text, as_of="1", rho=0.3)).charged_rho == 0
    for as_of in ("b", "2126-01-01"):
        assert session.sql(text, as_of=as_of).fetchall() == second.fetchall()


def test_nothing_new_can_be_had_of_an_earlier_version(session: dpsql.Session) -> None:
    session.sql(PUBLIC)
    session.sql("CALL dp_new_version('visits')")
    spent = session._access.read().ledger.spent("visitor")
    for text, rho in ((PUBLIC, 1.5), (PRIVATE, 1.0)):
        with pytest.raises(ReleaseError, match="version 1 are gone"):
            session.sql(text, as_of="1", rho=rho)
    assert session._access.read().ledger.spent("visitor") == spent


@pytest.mark.parametrize("as_of", ["3", "1999-01-01", "yesterday"])
def test_a_version_that_never_was_is_refused(session: dpsql.Session, as_of: str) -> None:
    with pytest.raises(UnsupportedQueryError, match="no version"):
        session.sql(PUBLIC, as_of=as_of)
    with pytest.raises(UnsupportedQueryError, match="no version"):
        session.sql(f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (as_of = '{as_of}') {PUBLIC.removeprefix('SELECT ')}")


def test_counts_of_an_earlier_version_rise_from_what_was_frozen(session: dpsql.Session) -> None:
    """The histogram of private keys is in the state file, so its counts need no rows."""
    session.sql(PRIVATE)
    session.sql("CALL dp_new_version('visits')")
    session.connection.execute("DROP TABLE visits")
    answer = session.sql(PRIVATE, as_of="1", rho=2)
    assert receipt_of(answer).charged_rho == pytest.approx(1.0)
    assert answer.fetchall()[0][1] == pytest.approx(500, abs=10)


@pytest.mark.parametrize("text", [PUBLIC, PRIVATE])
def test_a_refresh_reads_the_table_as_it_is_and_is_paid_in_full(session: dpsql.Session, text: str) -> None:
    first = session.sql(text)
    change(session)
    assert session.sql(text).fetchall() == first.fetchall()
    fresh = session.sql(text, refresh=True)
    assert receipt_of(fresh).charged_rho == receipt_of(first).charged_rho == pytest.approx(1.0)
    assert receipt_of(fresh).charged_delta == receipt_of(first).charged_delta
    assert receipt_of(fresh).query_hash != receipt_of(first).query_hash
    moved = dict(fresh.fetchall())
    assert moved[1 if text == PUBLIC else "new"] == pytest.approx(500, abs=20)
    # from now on it is the answer, and its cascade goes on from there
    assert session.sql(text).fetchall() == fresh.fetchall()
    assert receipt_of(session.sql(text, rho=1.5)).charged_rho == pytest.approx(0.5)
    again = session.sql(text, refresh=True)
    assert receipt_of(again).charged_rho == pytest.approx(1.0)


def test_the_first_refresh_is_the_first_release(session: dpsql.Session) -> None:
    first = session.sql(PUBLIC, refresh=True)
    assert receipt_of(session.sql(PUBLIC)).query_hash == receipt_of(first).query_hash


def test_a_refresh_that_was_charged_and_never_stored_pays_for_the_next(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.sql(PUBLIC)
    table = session._access.read().side_table
    with monkeypatch.context() as patch:
        patch.setattr(type(table), "store", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.sql(PUBLIC, refresh=True)
    assert receipt_of(session.sql(PUBLIC, refresh=True)).charged_rho == 0
    assert receipt_of(session.sql(PUBLIC, refresh=True)).charged_rho == pytest.approx(1.0)


def test_refreshes_stop_at_the_budget(session: dpsql.Session) -> None:
    for _ in range(10):
        session.sql(PUBLIC, refresh=True)
    with pytest.raises(BudgetError):
        session.sql(PUBLIC, refresh=True)


def test_an_earlier_version_cannot_be_refreshed(session: dpsql.Session) -> None:
    session.sql(PUBLIC)
    session.sql("CALL dp_new_version('visits')")
    with pytest.raises(UnsupportedQueryError, match="refreshed"):
        session.sql(PUBLIC, as_of="1", refresh=True)


PROTECT = (
    "CALL dp_protect('visits', coverage := FALSE, unit := 'visitor', privacy_unit_column := 'visitor', version := '{}')"
)


def test_a_declaration_may_name_the_version_that_a_table_has(session: dpsql.Session) -> None:
    session.connection.execute("CREATE TABLE malls (name VARCHAR); CREATE TABLE meals (visitor INTEGER)")
    session.sql("CALL dp_public('malls', version := 'a')")
    session.sql(PROTECT.format("b").replace("visits", "meals"))
    versions = {row[1]: row[3] for row in session.sql("FROM dp_policy()").fetchall() if row[2] == "version"}
    assert versions == {"main.malls": "a", "main.meals": "b", "main.visits": "1"}
    session.sql(PROTECT.format("1"))
    for statement in (PROTECT.format("2"), "CALL dp_public('malls', version := 'b')"):
        with pytest.raises(PolicyError, match="as a new version of it"):
            session.sql(statement)
    with pytest.raises(PolicyError, match="takes a name"):
        session.sql(PROTECT.format(""))


def test_a_rehearsal_plans_after_declarations_and_changes_nothing(session: dpsql.Session) -> None:
    session.sql(PUBLIC)
    policy = session.sql("FROM dp_policy()").fetchall()
    spent = session._access.read().ledger.spent("visitor")

    def price(*declarations: str) -> str:
        rehearsed = session.rehearse(declarations, PUBLIC)
        assert rehearsed.columns == (("day", "INTEGER"), ("n", "BIGINT"))
        return str({row[:2]: row[2] for row in rehearsed.plan.fetchall()}["price", "rho"])

    assert price() == "0"
    assert price("CALL dp_new_version('visits', version := 'b')") == "1"
    assert price() == "0"
    assert session.sql("FROM dp_policy()").fetchall() == policy
    assert session._access.read().ledger.spent("visitor") == spent


@pytest.mark.parametrize(
    ("declarations", "text"), [(["FROM dp_policy()"], PUBLIC), ([PUBLIC], PUBLIC), ([], "FROM dp_policy()")]
)
def test_a_rehearsal_answers_nothing(session: dpsql.Session, declarations: list[str], text: str) -> None:
    with pytest.raises(ParseError):
        session.rehearse(declarations, text)
