"""bounding = NORM end to end, every draw 0: what is shown is scaled down by norm, by every road to it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.model.identity import frame_hash
from dpsql.sql.statements import SelectStatement, read_statement
from dpsql.state.side_table import SideTable
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import silence

Floats = npt.NDArray[np.float64]
OPTIONS = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = {rho}, delta = 1e-6, max_groups_contributed = 4, "
    "bounding = NORM{more})"
)
ROWS = "count(*, contribution_norm => 6)"
SUMS = "sum(x, contribution_norm => 9)"
MEANS = "avg(x, contribution_norm => 6, contribution_bounds_per_row => (0, 8))"


def _fill(session: dpsql.Session, without: int = -1) -> None:
    """500 units with 2 rows in each of 4 groups, 500 with 8, and unit 7000 with 50 rows in one and 1 in three."""
    session.connection.execute(
        "CREATE OR REPLACE TABLE t AS SELECT * FROM ("
        "SELECT u, i AS k, CASE WHEN u < 500 THEN 1e0 ELSE 3e0 END AS x FROM range(1000) r(u), range(4) s(i), "
        "range(8) n(j) WHERE j < CASE WHEN u < 500 THEN 2 ELSE 8 END "
        "UNION ALL SELECT 7000, i, 5e0 FROM range(4) s(i), range(50) n(j) WHERE j = 0 OR i = 0) "
        f"WHERE u != {without}"
    )


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        _fill(session)
        session.sql("CALL dp_unit('unit', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)")
        session.sql("CALL dp_protect('t', coverage := FALSE, unit := 'unit', privacy_unit_column := 'u')")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        silence(session)
        yield session


def _ask(session: dpsql.Session, columns: str, rho: float = 5.0, more: str = "") -> dpsql.Result:
    return session.sql(f"{OPTIONS.format(rho=rho, more=more)} k, {columns} FROM t GROUP BY k ORDER BY k")


@pytest.mark.parametrize("more", ["", ", mechanism = KEYS_FIRST"])
def test_units_beyond_the_norm_are_scaled_down_as_a_whole(session: dpsql.Session, more: str) -> None:
    found = {k: numbers for k, *numbers in _ask(session, f"{ROWS}, {SUMS}, {MEANS}", more=more).fetchall()}
    # 2 rows in 4 groups have norm 4, 8 rows norm 16, and 50 + 1 + 1 + 1 a little over 50
    heavy = 6 / math.sqrt(2503)
    factor = 6 / 16
    rows = {k: 500 * 2 + 500 * 8 * factor + (50 if k == 0 else 1) * heavy for k in range(4)}
    # sums have norms of their own: 4, 48, and 5 times that of the rows
    sums = {k: 500 * 2 + 500 * 24 * 9 / 48 + (50 if k == 0 else 1) * 9 / math.sqrt(2503) for k in range(4)}
    # of an average the rows' factor is that of both parts
    parts = {k: 500 * 2 * 1 + 500 * 8 * 3 * factor + 5 * (50 if k == 0 else 1) * heavy for k in range(4)}
    for k, (count, total, mean) in found.items():
        assert count == pytest.approx(rows[k], abs=0.51)
        assert total == pytest.approx(sums[k], abs=1e-2)
        assert mean == pytest.approx(parts[k] / rows[k], abs=1e-4)
    assert sorted(found) == [0, 1, 2, 3]


def test_a_norm_costs_hardly_more_epsilon_than_bounds_of_groups(session: dpsql.Session) -> None:
    bounded = "OPTIONS (rho = 0.1, delta = 1e-6, max_groups_contributed = 4)"
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY {bounded} k, count(*, contribution_bounds_per_group => (0, 8)) FROM t"
    plain = receipt_of(session.sql(f"{text} GROUP BY k"))
    normed = receipt_of(_ask(session, ROWS, rho=0.1))
    assert (plain.rho, normed.rho) == (0.1, 0.1)
    assert normed.delta == pytest.approx(plain.delta)
    assert plain.epsilon < normed.epsilon < 1.03 * plain.epsilon
    # the threshold leaves a fortieth of delta for what sums tell without a shown key
    assert normed.charged_delta == pytest.approx(plain.charged_delta * 39 / 40)


def test_every_level_and_every_later_number_is_of_the_same_rows(session: dpsql.Session) -> None:
    first = dict(_ask(session, ROWS).fetchall())
    for rho in (7.0, 2.0):
        assert dict(_ask(session, ROWS, rho).fetchall()) == first
    again = _ask(session, f"{ROWS}, count(DISTINCT u)", 2.0)
    assert {k: n for k, n, _ in again.fetchall()} == first
    assert receipt_of(again).charged_rho == 0.0


def test_public_keys_have_no_threshold_and_none_has_one_group(session: dpsql.Session) -> None:
    session.sql("CALL dp_domain('t', 'k', keys := [0, 1, 9])")
    found = dict(_ask(session, ROWS).fetchall())
    # rows of keys that are not listed are no part of the norm
    assert found[1] == pytest.approx(500 * 2 + 500 * 8 * 6 / math.sqrt(128) + 6 / math.sqrt(2501), abs=0.51)
    assert found[9] == 0
    ((rows, total),) = session.sql(f"{OPTIONS.format(rho=5.0, more='')} {ROWS}, {SUMS} FROM t").fetchall()
    assert rows == 1001 * 6
    assert total == pytest.approx(500 * 8 + 500 * 9 + 9, abs=1e-3)


def test_rows_of_a_unit_are_bounded_by_the_policy_alone(session: dpsql.Session) -> None:
    session.sql("CALL dp_protect('t', coverage := FALSE, max_rows_per_unit := 20)")
    text = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 5, delta = 1e-6, bounding = NORM) k, count(*) FROM t "
    answer = session.sql(f"{text} GROUP BY k ORDER BY k")
    column = receipt_of(answer).columns[0]
    assert (column.l2, column.bounds) == (20.0, (0.0, 20.0))
    # 8 rows of 500 units, 20 of all others
    assert sum(n for _, n in answer.fetchall()) == pytest.approx(500 * 8 + 501 * 20, abs=2)
    assert any("at most 20 rows of a unit are read" in note for note in receipt_of(answer).notes)


_COLUMNS = (ROWS, SUMS, MEANS, "stddev_pop(x, contribution_norm => 6, contribution_bounds_per_row => (0, 8))")


def _stored(prepared: dpsql.Session, without: int) -> dict[tuple[str, int], tuple[Floats, float]]:
    """Each point that a history of questions leaves, by statistic and level, with its noise's standard deviation."""
    found = {}
    frame_salt = SideTable.frame_salt
    with pytest.MonkeyPatch.context() as patch, with_own_state(prepared) as session:
        silence(session)
        # one salt for both, or other groups of everybody else would be cut
        patch.setattr(SideTable, "frame_salt", lambda *of: bytes(len(frame_salt(*of))))
        _fill(session, without)
        for columns, rho in itertools.product(_COLUMNS, (2.0, 8.0)):
            _ask(session, columns, rho)
        statement = read_statement(f"{OPTIONS.format(rho=2.0, more='')} k, {ROWS} FROM t GROUP BY k")
        assert isinstance(statement, SelectStatement)
        query, _, _ = session._runner.plan(statement, {}, CURATOR)
        table = session._access.read().side_table
        for name, rho_nano in table.points_made(frame_hash(query.first.frame)):
            point = table.point(name, rho_nano)
            assert point is not None
            found[name, rho_nano] = point.noisy_values, point.sigma
    _fill(prepared)
    return found


@pytest.fixture(scope="module")
def of_all(prepared: dpsql.Session) -> dict[tuple[str, int], tuple[Floats, float]]:
    return _stored(prepared, -1)


@pytest.mark.parametrize("removed", [7000, 3, 900])
def test_one_unit_moves_what_is_stored_by_no_more_than_its_norm(
    prepared: dpsql.Session, of_all: dict[tuple[str, int], tuple[Floats, float]], removed: int
) -> None:
    """All points of two neighbours, first and later draws."""
    one, other = of_all, _stored(prepared, removed)
    assert one.keys() == other.keys()
    assert len(one) == 2 * 6
    moved = []
    for (name, rho_nano), (values, sigma) in one.items():
        distance = float(np.linalg.norm(values - other[name, rho_nano][0])) / sigma
        moved.append(distance / math.sqrt(2.0 * rho_nano / 1e9))
    # what moves the Gaussian mechanism at rho by more has another price
    assert max(moved) <= 1.0 + 1e-9
    assert max(moved) > 0.6
