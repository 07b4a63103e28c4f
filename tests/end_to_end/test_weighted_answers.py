"""bounding = L2 end to end, every draw 0: what is shown are weighted counts, by every road to them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

import dpsql
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import silence

OPTIONS = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = {rho}, delta = 1e-6, max_groups_contributed = 2, bounding = L2)"
)


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    """1,000 units in 1 group, 1,000 in 3 and 1,000 in 9 of 9 groups; groups 100 to 103 have 150 units more."""
    with dpsql.connect() as opened:
        opened.connection.execute(
            "CREATE TABLE t AS SELECT u, i AS k, 2.0 AS x FROM range(3000) r(u), range(9) s(i) "
            "WHERE i < CASE u % 3 WHEN 0 THEN 1 WHEN 1 THEN 3 ELSE 9 END "
            "UNION ALL SELECT 9000 + u, 100 + i, 2.0 FROM range(150) r(u), range(4) s(i)"
        )
        opened.sql("CALL dp_unit('unit', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)")
        _protect(opened)
        yield opened


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        silence(session)
        yield session


def _protect(session: dpsql.Session, rule: str = "") -> None:
    session.sql(
        "CALL dp_protect('t', coverage := FALSE, "
        f"unit := 'unit', privacy_unit_column := 'u', max_rows_per_group := 1{rule})"
    )


def _ask(session: dpsql.Session, columns: str, rho: float = 5.0) -> dpsql.Result:
    return session.sql(f"{OPTIONS.format(rho=rho)} k, {columns} FROM t GROUP BY k ORDER BY k")


def test_counts_and_sums_are_weighted_by_every_road(session: dpsql.Session) -> None:
    count = dict(_ask(session, "count(DISTINCT u)").fetchall())
    # two groups fully, up to four with weight sqrt(2 / n), which four of nine is the salt's choice
    assert count[0] >= 1000 + math.floor(1000 * math.sqrt(2 / 3))
    kept = sum(count[k] for k in range(9))
    assert kept == pytest.approx(1000 * (1 + 3 * math.sqrt(2 / 3) + 4 * math.sqrt(2 / 4)), abs=10)
    assert count[100] == round(150 * math.sqrt(2 / 4))
    # later, on the keys that the first release has frozen, and at other levels
    sums = dict(_ask(session, "sum(x, contribution_bounds_per_group => (0, 8))").fetchall())
    assert set(sums) == set(count)
    for k, n in count.items():
        assert sums[k] == pytest.approx(2 * n, abs=2)
    for rho in (7.0, 2.0):
        assert dict(_ask(session, "count(DISTINCT u)", rho).fetchall()) == count
    rows = dict(_ask(session, "count(*)").fetchall())
    assert rows == count


def test_public_keys_are_weighted_without_a_threshold(session: dpsql.Session) -> None:
    session.sql("CALL dp_domain('t', 'k', keys := [0, 1, 2, 3, 4])")
    answer = _ask(session, "count(DISTINCT u) AS n, avg(x, contribution_bounds_per_row => (0, 8)) AS a")
    found = {k: (n, a) for k, n, a in answer.fetchall()}
    assert receipt_of(answer).mechanism == "gaussian"
    # of the listed keys, at most 4 of a unit count
    total = 1000 * (1 + 3 * math.sqrt(2 / 3) + 4 * math.sqrt(2 / 4))
    assert sum(n for n, _ in found.values()) == pytest.approx(total, abs=5)
    assert all(a == pytest.approx(2.0, abs=1e-4) for _, a in found.values())


@pytest.mark.parametrize(("minimum", "shown"), [(100, True), (103, True), (104, False), (140, False)])
def test_the_policys_minimum_is_of_weighted_counts(session: dpsql.Session, minimum: int, shown: bool) -> None:
    """150 units with weight sqrt(1/2) are 106.07, which exceeds 103 by more than the threshold, and 104 by less."""
    _protect(session, f", min_privacy_units_per_group := {minimum}")
    answer = _ask(session, "count(DISTINCT u)")
    assert 2.07 < (receipt_of(answer).threshold or 0.0) - minimum < 3.07
    found = dict(answer.fetchall())
    assert (100 in found) == shown
    if shown:
        assert found[100] == 106


def test_a_window_pays_its_thresholds_once(session: dpsql.Session) -> None:
    windowed = OPTIONS.format(rho="{rho}").replace("bounding", "rho_window = [1, 8], bounding")
    text = windowed + " k, count(DISTINCT u) FROM t GROUP BY k ORDER BY k"
    first = session.sql(text.format(rho=2.0))
    higher, lower = (session.sql(text.format(rho=rho)) for rho in (4.0, 1.5))
    assert first.fetchall() == higher.fetchall() == lower.fetchall()
    assert 0.0 < receipt_of(first).charged_delta <= 1e-6
    assert (receipt_of(higher).charged_delta, receipt_of(lower).charged_delta) <= (1e-12, 0.0)
