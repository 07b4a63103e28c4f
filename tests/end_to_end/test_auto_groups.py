"""max_groups_contributed = AUTO: a sure choice is paid once, the same for every later text; nothing leaks or is lost.

What other levels, other readers and crashes make of it is in `test_auto_levels.py`.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy import stats

import dpsql
from dpsql.bound.unit_histograms import group_counts_sql
from dpsql.cascade.reader import CURATOR
from dpsql.engine import DuckDBEngine
from dpsql.engine.transaction import DuckDBTransaction
from dpsql.features import auto_histograms
from dpsql.features.auto_choices import Expected, binned, chosen_groups
from dpsql.mechanism.window import free_level
from dpsql.model.identity import statistic_hash
from dpsql.model.private_query import PrivateQuery
from dpsql.plan.features.auto import GROUPS, candidates
from dpsql.release import points
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.receipts import receipt_of
from tests.frames import with_relation
from tests.noise_sources import seeded_noise

TEXT = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = {rho}, delta = 1e-6, max_groups_contributed = AUTO{more}) "
    "k, count(DISTINCT u) AS n FROM t GROUP BY k"
)


def text(rho: float = 0.32, more: str = "") -> str:
    return TEXT.format(rho=rho, more=more)


@pytest.fixture
def fresh() -> Iterator[dpsql.Session]:
    with opened() as session:
        yield session


@pytest.fixture(scope="module")
def shared() -> Iterator[dpsql.Session]:
    with opened() as session:
        session.sql("CALL dp_unit('unit', rho_budget := 90, replace := TRUE)")
        yield session


@pytest.fixture
def session(shared: dpsql.Session) -> dpsql.Session:
    """Return the units under a version that nobody has asked about."""
    shared.sql("CALL dp_new_version('t')")
    shared._runner.noise_source = seeded_noise(4)
    return shared


@contextlib.contextmanager
def opened() -> Iterator[dpsql.Session]:
    """2,000 units in 1 to 12 of 40 groups."""
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE t AS SELECT u, (hash(u, i) % 40)::INTEGER AS k FROM range(2000) r(u), range(12) s(i) "
            "WHERE i <= u % 12"
        )
        session.sql("CALL dp_unit('unit', rho_budget := 3, delta_threshold := 1e-3, delta_conversion := 1e-6)")
        session.sql("CALL dp_protect('t', coverage := FALSE, unit := 'unit', privacy_unit_column := 'u')")
        session._runner.noise_source = seeded_noise(4)
        yield session


def planned(session: dpsql.Session, sql: str) -> PrivateQuery:
    statement = read_statement(sql)
    assert isinstance(statement, SelectStatement)
    return session._runner.plan(statement, {}, CURATOR)[0]


def spent(session: dpsql.Session) -> float:
    return float(session.sql("FROM dp_budget('unit')").df().rho_spent[0])


def test_the_same_text_again_is_the_same_frame_for_nothing(session: dpsql.Session) -> None:
    first = session.sql(text())
    again = session.sql(text())
    assert again.fetchall() == first.fetchall()
    one, other = receipt_of(first), receipt_of(again)
    assert one.charged_rho == pytest.approx(0.32, abs=1e-12)
    assert one.rho == pytest.approx(0.32, abs=1e-12)
    assert (other.charged_rho, other.charged_delta, other.reused) == (0.0, 0.0, True)
    assert (one.query_hash, one.max_groups) == (other.query_hash, other.max_groups)
    assert 6 <= (one.max_groups or 0) <= 14
    assert any("AUTO chose" in note and "rho = 0.01" in note for note in one.notes)


def test_other_levels_texts_and_boundings_pay_nothing_for_it(session: dpsql.Session) -> None:
    chosen = receipt_of(session.sql(text())).max_groups
    higher = receipt_of(session.sql(text(0.64)))
    assert higher.charged_rho == pytest.approx(0.32 * 31 / 32, abs=1e-12)
    lower = receipt_of(session.sql(text(0.032)))
    assert (lower.charged_rho, lower.max_groups, higher.max_groups) == (0.0, chosen, chosen)
    # what it was told at is more than a 32nd of this level, and is part of what the numbers tell
    assert lower.rho == pytest.approx(free_level(31_000_000) / 1e9 + 0.01, abs=1e-12)
    weighted = receipt_of(session.sql(text(0.32, ", bounding = L2")))
    assert weighted.charged_rho == pytest.approx(0.32 * 31 / 32, abs=1e-12)
    # the text that names the number is the same question
    named = text(0.32 * 31 / 32).replace("AUTO", str(chosen))
    assert receipt_of(session.sql(named)).charged_rho == 0.0


@pytest.mark.parametrize("nano", [95, 64, 33, 32, 2, 999_999_999])
def test_what_is_charged_for_it_is_what_was_planned(session: dpsql.Session, nano: int) -> None:
    """To the last nano-rho: shares are rounded down, but for one that would be nothing."""
    rho = nano / 1e9
    plan = session.sql(f"FROM dp_explain($${text(rho, ', min_privacy_units_per_group = 2')}$$)").fetchall()
    receipt = receipt_of(session.sql(text(rho, ", min_privacy_units_per_group = 2")))
    assert round(receipt.charged_rho * 1e9) == nano
    assert round(receipt.rho * 1e9) == nano
    (price,) = (value for section, name, value in plan if (section, name) == ("price", "rho"))
    assert float(price.partition(",")[0]) == pytest.approx(rho, rel=1e-8)


def test_in_any_order_it_costs_what_the_levels_cost(fresh: dpsql.Session) -> None:
    for rho in (0.064, 0.32, 0.16):
        fresh.sql(text(rho))
    assert spent(fresh) == pytest.approx(0.002 + 0.31, abs=1e-12)


def test_a_query_by_epsilon_is_what_it_says_with_auto_in_it(session: dpsql.Session) -> None:
    sql = text().replace("rho = 0.32", "epsilon = 1")
    one, again = receipt_of(session.sql(sql)), receipt_of(session.sql(sql))
    assert (one.epsilon, one.delta) == (1.0, 1e-6)
    assert (again.epsilon, again.delta, again.charged_rho) == (1.0, 1e-6, 0.0)
    named = receipt_of(session.sql(sql.replace("AUTO", str(one.max_groups))))
    assert one.threshold is not None
    assert named.threshold is not None
    assert named.threshold < one.threshold < 1.12 * named.threshold


def test_explaining_draws_nothing_and_does_not_depend_on_the_data(fresh: dpsql.Session) -> None:
    before = fresh.sql(f"FROM dp_explain($${text()}$$)").fetchall()
    fresh.connection.execute("DELETE FROM t")
    assert fresh.sql(f"FROM dp_explain($${text()}$$)").fetchall() == before
    assert spent(fresh) == 0.0
    assert any(name == "rho" and value.startswith("0.32,") for section, name, value in before if section == "price")


def test_what_could_not_be_answered_is_not_paid(fresh: dpsql.Session) -> None:
    with pytest.raises(dpsql.BudgetError):
        fresh.sql(text(3.1))
    with pytest.raises(dpsql.CalibrationError):
        fresh.sql(text(1e-9))
    fresh.sql("CALL dp_analyst('ana', rho_limit := 0.1)")
    with pytest.raises(dpsql.AccessError):
        fresh.as_analyst("ana").sql(text())
    assert spent(fresh) == 0.0
    fresh.sql(text(2.9))
    with pytest.raises(dpsql.AccessError):
        # chosen by a histogram at 2.9 / 32, which is within the limit, as the question is not
        fresh.as_analyst("ana").sql(text(0.2))


@pytest.mark.parametrize("moment", ["read", "draw"])
def test_a_charge_that_no_histogram_was_stored_for_is_used_up(
    fresh: dpsql.Session, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any, **__: Any) -> Any:
        raise RuntimeError("killed")

    with monkeypatch.context() as broken:
        place: tuple[Any, str] = (DuckDBTransaction, "make_pairs") if moment == "read" else (points, "noisy_places")
        broken.setattr(*place, crash)
        with pytest.raises((RuntimeError, dpsql.DpsqlError)):
            fresh.sql(text())
    assert spent(fresh) == pytest.approx(0.01, abs=1e-12)
    receipt = receipt_of(fresh.sql(text()))
    assert receipt.charged_rho == pytest.approx(0.31, abs=1e-12)
    assert spent(fresh) == pytest.approx(0.32, abs=1e-12)


def test_public_keys_a_window_and_a_ceiling(fresh: dpsql.Session) -> None:
    windowed = receipt_of(fresh.sql(text(0.32, ", rho_window = [0.01, 1]")))
    assert windowed.threshold is not None
    assert receipt_of(fresh.sql(text(0.1, ", rho_ceiling = 0.5"))).max_groups == windowed.max_groups
    fresh.sql("CALL dp_domain('t', 'k', keys := [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])")
    public = receipt_of(fresh.sql(text()))
    assert public.threshold is None
    assert 1 <= (public.max_groups or 0) <= 15
    assert public.charged_rho == pytest.approx(0.32, abs=1e-12)


def test_a_unit_moves_the_histogram_in_one_place_by_one(fresh: dpsql.Session) -> None:
    """The property that the noise is drawn for, on every unit of a small table, with NULL units and public keys."""
    fresh.connection.execute("DELETE FROM t WHERE u >= 40; INSERT INTO t SELECT NULL, k FROM range(9) r(k)")
    engine, ends = DuckDBEngine(fresh.connection), candidates(1024)
    (asked,) = planned(fresh, text(more="")).first.auto

    def histogram(relation: str) -> np.ndarray[Any, Any]:
        frame = with_relation(asked.frame, relation)
        table = engine.aggregate(group_counts_sql(frame, bytes(16)), listed_keys=None, timeout_seconds=None).reveal()
        return binned(table.column("groups").to_numpy(), table.column("units").to_numpy(), ends)

    whole = histogram(asked.frame.rows_sql.relation)
    assert whole.sum() == 40
    for unit in range(40):
        without = histogram(f"(SELECT * FROM {asked.frame.rows_sql.relation} WHERE u IS DISTINCT FROM {unit})")
        assert sorted(abs(whole - without))[-2:] == [0, 1]


def _law(session: dpsql.Session) -> float:
    """p-value of the stored histograms' noise having the variance that was charged, over many frames."""
    scores = []
    for i in range(12):
        sql = text(0.0032).replace("GROUP BY", f"WHERE k <> {i} AND u < 0 GROUP BY")
        query = planned(session, sql)
        session.sql(sql)
        (asked,) = query.first.auto
        side_table = session._access.read().side_table
        name = statistic_hash(GROUPS, asked.frame)
        point = side_table.point(name, 100_000)
        assert point is not None
        scores.append(point.values * 2.0**-20 * math.sqrt(2.0 * 1e-4))
    squares = float(np.sum(np.concatenate(scores) ** 2))
    law = stats.chi2(len(np.concatenate(scores)))
    return 2.0 * min(float(law.cdf(squares)), float(law.sf(squares)))


@pytest.mark.statistical
def test_the_noise_is_what_was_charged(session: dpsql.Session) -> None:
    # fails with probability 1e-4 per seed
    assert _law(session) > 1e-4


@pytest.mark.statistical
def test_the_check_catches_too_little_noise(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    sigma = auto_histograms.auto_sigma
    monkeypatch.setattr(auto_histograms, "auto_sigma", lambda rho_nano, l2: sigma(rho_nano, l2) / math.sqrt(2.0))
    assert _law(session) < 1e-7


def test_the_formula_finds_the_least_error() -> None:
    """Where nobody has more than 10 groups 10 are enough, and few noisy places far out change nothing."""
    ends = candidates(1024)
    noisy = np.where(np.asarray(ends) <= 10, 5000.0, 0.0)
    noisy[-1] = 60.0

    def expected(max_groups: int) -> Expected:
        return Expected(4.0 * math.sqrt(max_groups), 25.0 * math.sqrt(max_groups))

    for key_count in (None, 500):
        found = chosen_groups(noisy, 25.0, ends, expected, key_count=key_count, weighted=False)
        assert 8 <= found <= 10
        assert chosen_groups(noisy, 25.0, ends, expected, key_count=key_count, weighted=True) <= found
    assert chosen_groups(np.zeros(len(ends)), 25.0, ends, expected, key_count=None, weighted=True) == 1


@pytest.mark.parametrize("groups", [1, 6], ids=["one group of a unit", "six groups"])
def test_a_plan_before_auto_has_the_most_that_is_charged_and_shown(groups: int) -> None:
    """One group of a unit leads to another mechanism, whose threshold may cost the whole delta of the question."""
    text = "SELECT shop, count(*) AS n FROM sales GROUP BY shop"
    with dpsql.connect() as session:
        session.connection.execute(
            f"CREATE TABLE sales AS SELECT u, (u + i) % 12 AS shop FROM range(9000) r(u), range({groups}) s(i)"
        )
        session.sql("CALL dp_unit('buyer', epsilon_budget := 3, delta_budget := 1e-6)")
        session.sql("CALL dp_protect('sales', unit := 'buyer', privacy_unit_column := 'u')")
        plan = {row[:2]: row[2] for row in session.sql(f"FROM dp_explain($${text}$$, rho := 0.05)").fetchall()}
        receipt = receipt_of(session.sql(text, rho=0.05))
    guarantee = re.search(r"epsilon = (.*), delta = (.*)", plan["mechanism", "this query alone"])
    assert guarantee, plan
    assert receipt.epsilon <= float(guarantee[1]) * (1 + 1e-5)
    assert receipt.delta <= float(guarantee[2]) * (1 + 1e-5)
    assert receipt.charged_rho <= float(plan["price", "rho"].split(",")[0])
    assert receipt.charged_delta <= float(plan["price", "threshold delta"]) * (1 + 1e-5)
