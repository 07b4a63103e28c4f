"""Levels of texts of several parts: what is asked is divided among the parts, kept, and charged once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.errors import AccessError, BudgetError, UnsupportedQueryError
from tests.end_to_end.composed import DECLARED, TABLES, TWO_COUNTS, WITH, receipt_of, spent
from tests.end_to_end.prepared import with_declarations, with_own_state

PRIVATE_KEYS = (
    "SELECT a.city, a.n, b.m FROM (SELECT city, count(*) AS n FROM visits GROUP BY city) AS a "
    "JOIN (SELECT city, sum(cost) AS m FROM visits WHERE ward > 0 GROUP BY city) AS b USING (city)"
)
BOTH_KEYS = "SELECT *, (SELECT count(*) FROM visits) AS k FROM (SELECT city, count(*) AS n FROM visits GROUP BY city)"
PUBLIC_KEYS = (
    "SELECT w.name, a.n, b.m FROM wards w "
    "JOIN (SELECT ward, count(*) AS n FROM visits GROUP BY ward) AS a USING (ward) "
    "JOIN (SELECT ward, sum(cost) AS m FROM visits WHERE cost > 3 GROUP BY ward) AS b USING (ward)"
)
NIGHT = "(SELECT count(*) FROM visits WHERE cost > 4)"


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with with_declarations(TABLES, DECLARED) as session:
        yield session


@pytest.fixture
def clinic(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        yield session


def _levels(receipt: dpsql.Receipt) -> list[float]:
    """Return the levels of the parts."""
    return [one.receipt.rho for one in receipt.sets]


def _check_free_again(session: dpsql.Session, text: str, **options: Any) -> None:
    """Check that a text asked again costs nothing, and has its rows."""
    before = spent(session, "patient")
    one, other = session.sql(text, **options), session.sql(text, **options)
    assert receipt_of(one).charged_rho == receipt_of(one).charged_delta == 0.0
    assert sorted(map(str, one.fetchall())) == sorted(map(str, other.fetchall()))
    assert spent(session, "patient") == before


@pytest.mark.parametrize("text", [PRIVATE_KEYS, BOTH_KEYS, PUBLIC_KEYS, TWO_COUNTS])
@pytest.mark.parametrize("composition", ["gaussian", "zcdp"])
def test_epsilon_of_the_whole_is_divided_and_kept(clinic: dpsql.Session, text: str, composition: str) -> None:
    clinic.sql(f"CALL dp_unit('patient', composition := '{composition}')")
    receipt = receipt_of(clinic.sql(text, epsilon=1.0, delta=1e-6))
    assert 0.99 < receipt.epsilon <= 1.0
    assert receipt.delta <= 1e-6
    assert receipt.charged_rho == spent(clinic, "patient").rho_nano / 1e9
    one, other = _levels(receipt)
    assert one == pytest.approx(other, rel=1e-6)
    assert one + other == pytest.approx(receipt.charged_rho, abs=2e-9)
    _check_free_again(clinic, text, epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        "other_group = 'rest'",
        "other_group = 'rest', epsilon = 0.5",
        "top_k = 2, max_groups_contributed = 2",
        "mechanism = KEYS_FIRST",
        "max_groups_contributed = AUTO",
    ],
)
def test_epsilon_of_the_whole_is_kept_with_parts_of_other_kinds(clinic: dpsql.Session, options: str) -> None:
    part = f"SELECT {WITH} ({options}) city, count(DISTINCT patient) AS n FROM visits GROUP BY city"
    receipt = receipt_of(clinic.sql(f"SELECT *, {NIGHT} AS k FROM ({part}) AS a", epsilon=1.0, delta=1e-6))
    assert 0.9 < receipt.epsilon <= 1.0
    assert receipt.delta <= 1e-6


def test_a_part_keeps_its_own_level_and_others_share_the_rest(clinic: dpsql.Session) -> None:
    text = f"SELECT {WITH} (rho = 0.5) {NIGHT} AS a, (SELECT {WITH} (rho = 0.2) count(*) FROM visits) AS b"
    receipt = receipt_of(clinic.sql(text))
    assert _levels(receipt) == [0.3, 0.2]
    assert spent(clinic, "patient").rho_nano == 5 * 10**8
    _check_free_again(clinic, text)
    # the part with its level is the query that is asked alone
    assert receipt_of(clinic.sql("SELECT count(*) FROM visits", rho=0.2)).charged_rho == 0.0


@pytest.mark.parametrize(
    "own", ["rho = 0.01, delta = 1e-7", "rho = 0.01", "epsilon = 0.2", "epsilon = 0.2, delta = 1e-7"]
)
def test_parts_with_private_keys_and_own_levels_keep_epsilon_and_delta(clinic: dpsql.Session, own: str) -> None:
    text = (
        f"SELECT {WITH} (epsilon = 1, delta = 1e-6) (SELECT count(*) FROM visits) AS k, a.n, b.m "
        f"FROM (SELECT {WITH} ({own}) city, count(*) AS n FROM visits GROUP BY city) AS a "
        "JOIN (SELECT city, sum(cost) AS m FROM visits WHERE ward > 0 GROUP BY city) AS b USING (city)"
    )
    receipt = receipt_of(clinic.sql(text))
    assert 0.99 < receipt.epsilon <= 1.0
    assert receipt.delta <= 1e-6
    assert receipt.charged_delta <= 5e-7
    _check_free_again(clinic, text)


@pytest.mark.parametrize(
    ("whole", "own", "message"),
    [
        ("rho = 0.5", "rho = 0.6", "rho 0.6"),
        ("rho = 0.5", "rho = 0.5", "rho 0.5"),
        ("epsilon = 1, delta = 1e-6", "rho = 0.5", "rho 0.5"),
        ("rho = 0.1", "epsilon = 9", "rho"),
        ("rho = 0.1", "target_half_width = 3", "rho"),
        ("epsilon = 1, delta = 1e-6", "rho = 0.001, delta = 1e-3", "delta of thresholds 0.001"),
    ],
)
def test_own_levels_above_the_whole_are_refused(clinic: dpsql.Session, whole: str, own: str, message: str) -> None:
    part = f"SELECT {WITH} ({own}) city, count(*) AS n FROM visits GROUP BY city"
    with pytest.raises(UnsupportedQueryError, match=f"levels of their own that add up to {message}"):
        clinic.sql(
            f"SELECT {WITH} ({whole}) a.n, b.m FROM ({part}) a JOIN (SELECT city, sum(cost) AS m FROM visits "
            "GROUP BY city) b USING (city)"
        )
    assert spent(clinic, "patient").rho_nano == 0


@pytest.mark.parametrize("parts", ["0.6", "0.3 0.4"])
def test_own_levels_of_all_parts_are_held_to_the_whole(clinic: dpsql.Session, parts: str) -> None:
    shown = " + ".join(
        f"(SELECT {WITH} (rho = {rho}) count(*) FROM visits WHERE cost > {place})"
        for place, rho in enumerate(parts.split())
    )
    with pytest.raises(UnsupportedQueryError, match="levels of their own that add up to rho"):
        clinic.sql(f"SELECT {shown} AS n", rho=0.5)
    assert spent(clinic, "patient").rho_nano == 0
    # all that they ask for may be all there is
    assert receipt_of(clinic.sql(f"SELECT {shown} AS n", rho=sum(map(float, parts.split())))).charged_rho > 0.5


def test_a_part_with_other_options_shares_the_level_of_the_whole(clinic: dpsql.Session) -> None:
    text = (
        f"SELECT {WITH} (rho = 0.4) *, (SELECT {WITH} (max_groups_contributed = 1) count(*) FROM visits WHERE cost > 7)"
        f" AS k FROM (SELECT {WITH} (max_groups_contributed = 1) city, count(*) AS n FROM visits GROUP BY city)"
    )
    receipt = receipt_of(clinic.sql(text))
    assert _levels(receipt) == [0.2, 0.2]
    assert receipt.charged_rho == 0.4


def test_options_in_scalars_beside_a_part_are_no_syntax_error(clinic: dpsql.Session) -> None:
    text = (
        f"SELECT (SELECT {WITH} (rho = 0.1) count(*) FROM visits WHERE cost > 2) AS a, b "
        f"FROM (SELECT {WITH} (rho = 0.2) count(*) AS b FROM visits) AS k"
    )
    receipt = receipt_of(clinic.sql(text))
    assert sorted(_levels(receipt)) == [0.1, 0.2]
    assert receipt.charged_rho == pytest.approx(0.3)


@pytest.mark.parametrize("target", ["target_half_width = 30", "target_relative_error = 0.1, max_rho = 0.3"])
def test_a_target_inside_a_part_counts_at_the_most_it_may_cost(clinic: dpsql.Session, target: str) -> None:
    text = f"SELECT {WITH} (rho = 0.5) (SELECT {WITH} ({target}) count(*) FROM visits) AS a, {NIGHT} AS b"
    receipt = receipt_of(clinic.sql(text))
    assert spent(clinic, "patient").rho_nano <= 5 * 10**8
    assert round(receipt.charged_rho * 1e9) == spent(clinic, "patient").rho_nano
    widest = receipt_of(clinic.sql("SELECT count(*) FROM visits WHERE cost > 99", rho=0.5)).epsilon
    assert receipt.epsilon <= widest * (1.0 + 1e-6)
    _check_free_again(clinic, text)


PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "auto bounds": (
        f"SELECT (SELECT sum(cost * 2, contribution_bounds_per_group => AUTO) FROM visits) AS a, {NIGHT} AS b",
        {"rho": 0.5},
    ),
    "auto groups": (
        f"SELECT {WITH} (rho = 0.5) *, {NIGHT} AS b FROM (SELECT {WITH} (max_groups_contributed = AUTO) city, "
        "count(*) AS n FROM visits GROUP BY city)",
        {"delta": 1e-6},
    ),
    "keys first": (
        f"SELECT {WITH} (rho = 0.5) *, {NIGHT} AS b FROM (SELECT {WITH} (mechanism = KEYS_FIRST) city, count(*) AS n, "
        "sum(cost) AS c FROM visits GROUP BY city)",
        {"delta": 1e-6},
    ),
    "keys alone": (
        "SELECT DISTINCT city FROM visits EXCEPT SELECT DISTINCT city FROM visits WHERE cost > 9",
        {"rho": 0.5},
    ),
    "grouping sets": (
        f"SELECT {NIGHT} AS a, * FROM (SELECT city, ward, count(*) AS n FROM visits GROUP BY ROLLUP (city, ward))",
        {"rho": 0.5},
    ),
    "other group": (
        f"SELECT {WITH} (rho = 0.5) *, {NIGHT} AS b FROM (SELECT {WITH} (other_group = 'rest') city, count(*) AS n "
        "FROM visits GROUP BY city)",
        {"delta": 1e-6},
    ),
    "half width of all": (f"SELECT (SELECT count(*) FROM visits) AS a, {NIGHT} AS b", {"target_half_width": 30}),
    "relative error of all": (
        f"SELECT (SELECT count(*) FROM visits) AS a, {NIGHT} AS b",
        {"target_relative_error": 0.1, "max_rho": 0.5},
    ),
}


@pytest.mark.parametrize("kind", PARTS)
def test_parts_of_all_kinds_cost_no_more_than_was_asked_and_told(clinic: dpsql.Session, kind: str) -> None:
    text, options = PARTS[kind]
    given = "".join(f", {name} := {value}" for name, value in options.items())
    told = clinic.sql(f"FROM dp_explain($$ {text} $$ {given})").fetchall()
    said = {name: float(value) for section, name, value in told if section == "all parts of unit patient"}
    assert spent(clinic, "patient").rho_nano == 0
    answer = clinic.sql(text, **options)
    charged = spent(clinic, "patient").rho_nano
    assert 0 < charged <= 5 * 10**8
    assert round(receipt_of(answer).charged_rho * 1e9) == charged
    assert charged <= said["rho"] * 1e9 * (1.0 + 1e-8)
    _check_free_again(clinic, text, **options)


@pytest.mark.parametrize("levels", [(0.1, 0.3), (0.3, 0.1)])
def test_one_statistic_at_two_levels_is_charged_at_the_larger_one(
    clinic: dpsql.Session, levels: tuple[float, float]
) -> None:
    one, other = (f"(SELECT {WITH} (rho = {rho}) count(DISTINCT patient) FROM visits)" for rho in levels)
    receipt = receipt_of(clinic.sql(f"SELECT {one} AS a, {other} AS b"))
    assert (receipt.charged_rho, spent(clinic, "patient").rho_nano) == (0.3, 3 * 10**8)
    alone = receipt_of(clinic.sql("SELECT count(DISTINCT patient) FROM visits WHERE ward = 1", rho=0.3))
    assert receipt.epsilon <= alone.epsilon * (1.0 + 1e-6)


def test_a_reader_with_a_limit_asks_parts_below_it(clinic: dpsql.Session) -> None:
    ana = clinic.as_analyst("ana")
    assert receipt_of(ana.sql(TWO_COUNTS, rho=0.5)).charged_rho == 0.5
    before = spent(clinic, "patient")
    with pytest.raises(AccessError):
        ana.sql(
            f"SELECT (SELECT {WITH} (rho = 0.6) count(DISTINCT patient) FROM visits WHERE cost > 5) AS a, "
            f"(SELECT {WITH} (rho = 0.1) count(*) FROM visits WHERE cost > 4) AS b"
        )
    assert spent(clinic, "patient") == before


def test_a_reader_with_a_limit_sees_no_sharper_point_of_others(clinic: dpsql.Session) -> None:
    clinic.sql(TWO_COUNTS, rho=40)
    ana = clinic.as_analyst("ana")
    one, other = ana.sql(TWO_COUNTS, rho=0.001).fetchall(), ana.sql(TWO_COUNTS, rho=0.001).fetchall()
    assert one == other
    assert one != clinic.sql(TWO_COUNTS, rho=40).fetchall()


def test_the_part_of_a_budget_covers_all_parts_together(clinic: dpsql.Session) -> None:
    bea = clinic.as_analyst("bea")
    with pytest.raises(BudgetError) as raised:
        bea.sql(TWO_COUNTS, rho=1.1)
    assert raised.value.analyst == "bea"
    assert spent(clinic, "patient").rho_nano == 0
    assert receipt_of(bea.sql(TWO_COUNTS, rho=1.0)).charged_rho == 1.0
    assert receipt_of(bea.sql(TWO_COUNTS, rho=1.0)).charged_rho == 0.0
