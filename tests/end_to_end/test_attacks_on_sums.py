"""Whether a query is answered, and what it costs, comes from policy and text: no sum of any size makes it fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.bound import statement
from dpsql.errors import BudgetError, CalibrationError, ReleaseError

FAR = "SELECT sum(x, contribution_bounds_per_row => (1048576, 1048577.99)) AS s FROM visits"
FAR_BY_CITY = FAR.replace("SELECT", "SELECT city,") + " GROUP BY city"
BY_CITY = "SELECT city, count(*) FROM visits GROUP BY city"


def open_session(units: int, max_rows_per_group: int = 256) -> dpsql.Session:
    """Units of one row each; the value of every row is 0, outside the bounds that the attack states."""
    session = dpsql.connect()
    session.connection.execute(
        f"CREATE TABLE visits AS SELECT u AS patient, 'Lund' AS city, 0::DOUBLE AS x FROM range({units}) t(u)"
    )
    session.sql("CALL dp_unit('patient', rho_budget := 100, delta_threshold := 0.5, delta_conversion := 1e-6)")
    session.sql(
        "CALL dp_protect('visits', coverage := FALSE, "
        "unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 4, "
        f"max_rows_per_group := {max_rows_per_group})"
    )
    return session


@pytest.fixture(scope="module")
def shared() -> Iterator[dpsql.Session]:
    with open_session(100) as session:
        yield session


@pytest.fixture
def session(shared: dpsql.Session) -> dpsql.Session:
    """Return 100 units under a version that nobody has asked about."""
    shared.sql("CALL dp_new_version('visits')")
    return shared


def books(session: dpsql.Session) -> list[tuple[object, ...]]:
    return session.sql("FROM dp_budget()").fetchall()


def outcome(session: dpsql.Session, text: str, **options: float) -> str:
    try:
        session.sql(text, None, **options)
    except CalibrationError as refused:
        return str(refused)
    return "answered"


def test_the_number_of_units_decides_about_no_error() -> None:
    """Three numbers of units once gave three outcomes, with no noise between them: two errors and an answer."""
    receipts = []
    for units in (2_063, 2_064, 2_065, 6_000, 100_000):
        with open_session(units) as session:
            answer = session.as_analyst("ana").sql(FAR, rho=1e-6)
            assert len(answer) == 1
            receipts.append(answer.receipt)
    assert len(set(map(str, receipts))) == 1


@pytest.mark.parametrize(("cap", "refusals"), [(1, 0), (3, 0), (256, 3), (10**9, 4)])
def test_what_is_explained_is_drawn(cap: int, refusals: int) -> None:
    """From the smallest rho up: either the plan is refused and nothing is charged, or there is an answer.

    Where few rows count the lattice is coarse, and every noise that a level of 1e-8 asks for can be drawn.
    """
    outcomes = []
    with open_session(50, cap) as session:
        for exponent in range(-8, -3):
            rho = 3 * 10.0**exponent
            before = books(session)
            plan = outcome(
                session, f"FROM dp_explain($$ {FAR_BY_CITY} $$, rho := {rho!r}, max_groups_contributed := 4000)"
            )
            answer = outcome(session, FAR_BY_CITY, rho=rho, max_groups_contributed=4000)
            assert plan == answer
            assert (books(session) == before) == (answer != "answered")
            outcomes.append(answer == "answered")
    assert outcomes == [False] * refusals + [True] * (5 - refusals)


def test_noise_that_cannot_be_drawn_is_refused_by_its_text(session: dpsql.Session) -> None:
    with pytest.raises(CalibrationError) as refused:
        session.sql(FAR_BY_CITY, rho=1e-6, max_groups_contributed=4000)
    assert str(refused.value) == (
        "rho = 3.09e-07 for one statistic with max_groups = 4000 needs more noise than can be drawn; "
        "ask for more rho or epsilon, or let a unit have fewer groups or rows"
    )


def test_text_for_the_engine_is_made_before_the_charge(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> str:
        raise ReleaseError("no text")

    before = books(session)
    with monkeypatch.context() as patch:
        patch.setattr(statement, "bounded_sql", failing)
        with pytest.raises(ReleaseError, match="no text"):
            session.sql(BY_CITY, rho=0.1, delta=1e-6)
    assert books(session) == before
    # and the frame is as it was: the same query is answered
    assert session.sql(BY_CITY, rho=0.1, delta=1e-6).receipt is not None
    assert books(session) != before


@pytest.mark.parametrize(("rho", "delta"), [(20.0, 1e-8), (30.0, 1e-3)])
def test_a_high_level_has_room_beside_the_draws_precision(session: dpsql.Session, rho: float, delta: float) -> None:
    answer = session.sql(BY_CITY, rho=rho, delta=delta)
    assert answer.receipt is not None
    assert answer.receipt.threshold is not None
    assert 0.0 < answer.receipt.charged_delta <= delta


@pytest.mark.parametrize("rho", [100.0, 120.0, 200.0])
def test_too_large_a_rho_is_called_so(session: dpsql.Session, rho: float) -> None:
    with pytest.raises(CalibrationError, match=f"rho = {rho:.3g} is too large for delta = 0.001") as refused:
        session.sql(BY_CITY, rho=rho, delta=1e-3)
    assert "ask for less rho" in str(refused.value)


def test_too_large_an_epsilon_is_called_so(session: dpsql.Session) -> None:
    with pytest.raises(CalibrationError, match=r"epsilon = 100 is too large for delta = 0\.001"):
        session.sql(BY_CITY, epsilon=100, delta=1e-3)


@pytest.mark.parametrize("options", [{"rho": 0.1}, {"epsilon": 1}])
def test_too_small_a_delta_is_called_so(session: dpsql.Session, options: dict[str, float]) -> None:
    with pytest.raises(CalibrationError, match="delta = 1e-36 is below what the precision of the noise allows"):
        session.sql(BY_CITY, None, delta=1e-36, **options)


def test_a_rho_beyond_the_budget_is_no_matter_of_precision(session: dpsql.Session) -> None:
    with pytest.raises(BudgetError):
        session.sql("SELECT count(DISTINCT patient) FROM visits", rho=101)
