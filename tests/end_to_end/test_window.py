"""A window: the thresholds of a whole range of levels are paid with the first release, none after that."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

import dpsql
from dpsql.accounting import gaussian
from dpsql.cascade.reader import CURATOR
from dpsql.engine import DuckDBEngine
from dpsql.mechanism.registry import histogram_of
from dpsql.mechanism.window import charged_delta, grid, snapped, window_taus
from dpsql.model.frame import Window
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.prepared import with_own_rows
from tests.noise_sources import seeded_noise
from tests.unit.mechanism.key_frames import frame, top_k

TEXT = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({option}rho_window = [0.02, 2], delta = 1e-6) "
    "shop, count(DISTINCT visitor) AS n FROM visits GROUP BY shop"
)
WINDOW = Window(2 * 10**7, 2 * 10**9, 1e-6)
OPTIONS = ["", "top_k = 6, "]


TABLES = """
CREATE TABLE visits AS SELECT u::INTEGER AS visitor, 'shop ' || i AS shop
FROM range(10) s(i), range(900) r(u) WHERE u < [900, 600, 300, 60, 40, 30, 20, 10, 3, 1][i + 1]
"""


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(TABLES)
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'visitor', max_groups_contributed := 4, "
            "rho_budget := 100, delta_threshold := 0.1, delta_conversion := 1e-6)"
        )
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_rows(prepared, TABLES) as session:
        session._runner.noise_source = seeded_noise(8)
        yield session


def receipt_of(answer: dpsql.Result) -> dpsql.Receipt:
    assert answer.receipt is not None
    return answer.receipt


@pytest.mark.parametrize("option", OPTIONS)
def test_delta_is_paid_once_for_all_levels_inside(session: dpsql.Session, option: str) -> None:
    text = TEXT.format(option=option)
    receipts = [receipt_of(session.sql(text, rho=rho)) for rho in (0.05, 0.5, 0.2, 1.0)]
    assert receipts[0].charged_delta <= 1e-6
    assert receipts[0].charged_delta > 0.5e-6
    # the rises add what their draws' imprecision costs, and nothing else
    assert all(receipt.charged_delta < 1e-20 for receipt in receipts[1:])
    spent = session.sql("FROM dp_budget()").df()
    assert spent["rho_spent"].item() == pytest.approx(receipts[-1].rho)
    assert receipts[2].charged_rho == 0.0
    # each has a threshold of its own, and the coarser the answer the higher
    thresholds = [receipt.threshold for receipt in receipts]
    assert all(threshold is not None for threshold in thresholds)
    assert thresholds[0] > thresholds[2] > thresholds[1] > thresholds[3]  # type: ignore[operator]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("releases", [12, pytest.param(1000, marks=pytest.mark.long)])
def test_levels_below_the_top_cost_nothing_and_read_nothing(
    session: dpsql.Session, option: str, releases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEXT.format(option=option)
    session.sql(text, rho=1.9)

    def no_data(*_: object, **__: object) -> None:
        raise AssertionError("raw data were read")

    monkeypatch.setattr(DuckDBEngine, "aggregate", no_data)
    seen: dict[float, float | None] = {}
    for step in range(releases):
        receipt = receipt_of(session.sql(text, rho=0.02 + 1.8 * step / releases))
        assert (receipt.charged_rho, receipt.charged_delta, receipt.reused) == (0.0, 0.0, True)
        assert seen.setdefault(receipt.rho, receipt.threshold) == receipt.threshold
    assert set(seen) <= {level / 1e9 for level in grid(WINDOW)}
    assert len(seen) > 5


@pytest.mark.parametrize("option", OPTIONS)
def test_another_delta_is_another_window(session: dpsql.Session, option: str) -> None:
    """Thresholds that followed each query's own delta would be lower than what the first release paid for."""
    text = TEXT.format(option=option)
    receipt_of(session.sql(text.replace("1e-6", "1e-12"), rho=0.05))
    again = receipt_of(session.sql(text, rho=1.9))
    # nothing of the first is used: rho and thresholds are paid anew
    assert again.charged_rho == pytest.approx(again.rho)
    assert 0.5e-6 < again.charged_delta <= 1e-6
    # the option in a call is the same window as the option in the text
    bare = text.replace(", delta = 1e-6", "")
    assert receipt_of(session.sql(bare, rho=1.9, delta=1e-6)).reused


@pytest.mark.parametrize("option", OPTIONS)
def test_thresholds_are_what_was_paid_whatever_else_is_asked(session: dpsql.Session, option: str) -> None:
    """Sums beside the count, and their noise, move no threshold of a level."""
    text = TEXT.format(option=option)
    first = receipt_of(session.sql(text, rho=0.05))
    beside = text.replace("AS n", "AS n, sum(visitor % 7, contribution_bounds_per_group => (0, 9)) AS total")
    for rho in (0.5, 1.0, 5.0):
        found = receipt_of(session.sql(beside, rho=rho))
        assert found.threshold in {1.0 + tau for tau in window_taus_of(session, text)}
        assert found.charged_delta < 1e-20
    assert first.charged_delta > 0.5e-6


def window_taus_of(session: dpsql.Session, text: str) -> tuple[float, ...]:
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    planned, _, _ = session._runner.plan(statement, {"rho": 0.05}, CURATOR)
    assert planned.first.frame.window == WINDOW
    return window_taus(histogram_of(planned.first.frame), WINDOW)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_receipt_names_the_delta_of_the_whole_window(session: dpsql.Session, option: str) -> None:
    """Keys come from every level up to the one that is served, so its own threshold's delta is not enough."""
    text = TEXT.format(option=option)
    receipts = [receipt_of(session.sql(text, rho=rho)) for rho in (1.9, 0.03, 0.1, 0.3, 0.6)]
    again = receipt_of(session.sql(text, rho=0.3))
    assert (again.epsilon, again.delta) == (receipts[3].epsilon, receipts[3].delta)
    for receipt in receipts:
        # thresholds of all levels, and the conversion to epsilon beside them
        assert receipt.delta == pytest.approx(1e-6 + receipts[0].charged_delta, rel=1e-9)
        converted = gaussian.delta(receipt.epsilon, math.sqrt(2.0 * receipt.rho), 1.0)
        assert converted <= receipt.delta - receipts[0].charged_delta


def test_a_rise_inside_the_window_is_drawn_from_the_frozen_histogram(session: dpsql.Session) -> None:
    """What was paid for thresholds covers the keys of the first release; a later key is no part of this frame."""
    session.sql(TEXT.format(option=""), rho=0.05)
    session.connection.execute("INSERT INTO visits SELECT i, 'fad' FROM range(5000) t(i)")
    assert "fad" not in dict(session.sql(TEXT.format(option=""), rho=1.9).fetchall())
    session.sql("CALL dp_new_version('visits')")
    assert "fad" in dict(session.sql(TEXT.format(option=""), rho=1.9).fetchall())


def test_requests_are_rounded_down_to_the_grid(session: dpsql.Session) -> None:
    levels = grid(WINDOW)
    assert (levels[0], levels[-1]) == (WINDOW.low, WINDOW.high)
    assert len(levels) <= 256
    assert list(levels) == sorted(set(levels))
    assert snapped(WINDOW, levels[3] + 1) == levels[3] == snapped(WINDOW, levels[3])
    assert snapped(WINDOW, 10**12) == WINDOW.high
    with pytest.raises(dpsql.CalibrationError):
        session.sql(TEXT.format(option=""), rho=0.01)
    assert session.sql("FROM dp_budget()").df()["rho_spent"].item() == 0.0
    assert len(grid(Window(1, 10**15, 1e-6))) <= 256


def test_a_threshold_costs_at_most_a_half(session: dpsql.Session) -> None:
    """Beyond, what imprecise draws add is not proved."""
    for text in (TEXT.format(option=""), TEXT.format(option="").replace("rho_window = [0.02, 2], ", "")):
        with pytest.raises(dpsql.CalibrationError, match="more than a threshold may cost"):
            session.sql(text.replace("1e-6", "0.51"), rho=0.1)
    assert session.sql("FROM dp_budget()").df()["rho_spent"].item() == 0.0


@pytest.mark.parametrize("statement", ["{}", "FROM dp_explain($${}$$)"])
def test_a_window_goes_with_rho_by_default_too(session: dpsql.Session, statement: str) -> None:
    """A table's default_epsilon would pay for the threshold of one level only."""
    session.sql(
        "CALL dp_protect('visits', coverage := FALSE, privacy_unit_column := 'visitor', max_groups_contributed := 4, "
        "default_epsilon := 3.0, replace := true)"
    )
    with pytest.raises(dpsql.UnsupportedQueryError, match="goes with rho"):
        session.sql(statement.format(TEXT.format(option="")))
    assert session.sql(TEXT.format(option=""), rho=0.1).receipt is not None


def test_a_window_goes_with_rho(session: dpsql.Session) -> None:
    with pytest.raises(dpsql.UnsupportedQueryError):
        session.sql(TEXT.format(option=""), epsilon=1.0)
    with pytest.raises(dpsql.UnsupportedQueryError):
        session.sql(TEXT.format(option="").replace("[0.02, 2]", "[2, 0.02]"), rho=0.1)


@pytest.mark.parametrize("asked", [frame("gshm", max_groups=4), top_k("csh", 30), top_k("gshm", 30)])
def test_the_charge_covers_every_level_and_the_naive_charge_does_not(asked: object) -> None:
    """The sum over levels bounds the joint failure; one level's threshold at every level costs many times its delta."""
    histogram = histogram_of(asked)  # type: ignore[arg-type]
    delta = WINDOW.delta
    taus = window_taus(histogram, WINDOW)
    charged = charged_delta(histogram, WINDOW)
    levels = [level / 1e9 for level in grid(WINDOW)]
    alone = [histogram.threshold_delta(histogram.sigma(rho), tau) for rho, tau in zip(levels, taus, strict=True)]
    assert max(alone) <= charged <= delta
    assert charged <= sum(alone) * (1 + 1e-9)
    naive = [histogram.threshold(delta, histogram.sigma(rho)) for rho in levels]
    assert all(one is not None and one < tau for one, tau in zip(naive, taus, strict=True))
    naive_alone = [histogram.threshold_delta(histogram.sigma(rho), one) for rho, one in zip(levels, naive, strict=True)]
    assert sum(naive_alone) > 20 * delta
