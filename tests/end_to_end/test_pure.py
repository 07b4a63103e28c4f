"""Units with composition 'pure': answers, intervals, budgets and refusals through SQL."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import dpsql
from dpsql.errors import BudgetError, DpsqlError, PolicyError, UnsupportedQueryError
from tests.end_to_end.prepared import with_own_state
from tests.noise_sources import seeded_noise

ROOT = Path(__file__).parents[2]
KEYS = 50
TABLES = """
CREATE TABLE v AS
    SELECT i AS person, i % 50 AS city, (i // 50) % 11 AS nights, (i // 50) % 3 - 1 AS move, i % 3 = 0 AS often,
        i % 2 AS day
    FROM range(20000) t(i);
CREATE TABLE g AS SELECT i AS pid, i % 5 AS city FROM range(100) t(i);
CREATE TABLE z AS SELECT i AS zid, i % 5 AS city FROM range(100) t(i);
"""
ONE = "max_groups_contributed := 1, max_rows_per_group := 1"
DECLARED = (
    f"CALL dp_protect('v', unit := 'person', privacy_unit_column := 'person', {ONE})",
    "CALL dp_domain('v', 'nights', bounds := [0, 10])",
    "CALL dp_domain('v', 'move', bounds := [-1, 1])",
    f"CALL dp_domain('v', 'city', keys := {list(range(KEYS))})",
    "CALL dp_domain('v', 'day', keys := [0, 1])",
    "CALL dp_unit('pid', epsilon_budget := 3, delta_budget := 1e-6)",
    f"CALL dp_protect('g', unit := 'pid', privacy_unit_column := 'pid', {ONE})",
    "CALL dp_domain('g', 'city', keys := [0, 1, 2, 3, 4])",
    "CALL dp_unit('zid', epsilon_budget := 3, delta_budget := 1e-6, composition := 'zcdp')",
    f"CALL dp_protect('z', unit := 'zid', privacy_unit_column := 'zid', {ONE})",
    "CALL dp_domain('z', 'city', keys := [0, 1, 2, 3, 4])",
)
FROM = "FROM v GROUP BY city ORDER BY city"
COUNT = f"SELECT city, count(*) AS n {FROM}"


def _declare(session: dpsql.Session, epsilon: float) -> None:
    session.sql(f"CALL dp_unit('person', epsilon_budget := {epsilon}, composition := 'pure')")
    for statement in DECLARED:
        session.sql(statement)


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(TABLES)
        _declare(session, 1.0)
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as own:
        own._runner.noise_source = seeded_noise(7)
        yield own


@pytest.fixture
def rich(session: dpsql.Session) -> dpsql.Session:
    """A session with budget for many versions."""
    session.sql("CALL dp_unit('person', epsilon_budget := 10000, replace := true)")
    return session


def _spent(session: dpsql.Session) -> tuple[int, int]:
    total = session._access.read().ledger.spent("person")
    return total.rho_nano, total.delta_units


def _receipt(answer: dpsql.Result) -> dpsql.Receipt:
    assert answer.receipt is not None
    return answer.receipt


def _told(receipt: dpsql.Receipt) -> tuple[object, float]:
    """Return the guarantee of an answer; an epsilon may be rounded up by its last bit."""
    return pytest.approx(receipt.epsilon, rel=1e-15), receipt.delta


def _variance(epsilon: float) -> float:
    ratio = math.exp(-epsilon)
    return 2.0 * ratio / (1.0 - ratio) ** 2


def _shares_of_a_sum(radius: float, most: float, centre: float) -> tuple[float, float]:
    """Return the parts of a level that the count and the sum of a question for a sum have."""
    of_sum, of_count = radius / most, math.hypot(1.0, centre / most)
    return of_count / (of_sum + of_count), of_sum / (of_sum + of_count)


_OF_COUNT, _OF_SUM = _shares_of_a_sum(5.0, 10.0, 5.0)
_VARIANCES = {
    "count(DISTINCT person)": _variance(1.0),
    "count(*)": _variance(1.0),
    "sum(nights)": 2.0 * (5.0 / _OF_SUM) ** 2 + 25.0 * _variance(_OF_COUNT),
}
_SEEDS = {"count(DISTINCT person)": 2, "count(*)": 3, "sum(nights)": 4}
"""At 400 numbers a variance has a deviation of 11 to 13 %: seeds whose draws are near their law."""


@pytest.mark.parametrize("number", _VARIANCES)
def test_fifty_keys_have_the_variance_of_the_law(rich: dpsql.Session, number: str) -> None:
    text = f"SELECT city, {number} AS n {FROM}"
    exact = rich.connection.execute(text).df()["n"].astype(float)
    rich._runner.noise_source, errors = seeded_noise(_SEEDS[number]), []
    for _ in range(8):
        answer = rich.sql(text, epsilon=1)
        errors.append(answer.df()["n"].astype(float) - exact)
        assert (_receipt(answer).epsilon, _receipt(answer).delta) == (1.0, 0.0)
        assert (_receipt(answer).charged_rho, _receipt(answer).charged_delta) == (1.0, 0.0)
        rich.sql("CALL dp_new_version('v')")
    assert float(np.mean(np.square(errors))) == pytest.approx(_VARIANCES[number], rel=0.1)
    assert _spent(rich) == (8 * 10**9, 0)


def _covered(session: dpsql.Session, texts: Sequence[str], versions: int, **level: float) -> npt.NDArray[np.bool_]:
    """Return which intervals of numbers n hold, over versions of the table; rows are found by their city."""
    held = []
    for _ in range(versions):
        for text in texts:
            # an outer query sees shown numbers alone
            exact = session.connection.execute(text.split(" HAVING ")[0].split(" ORDER BY ")[0]).df()
            truth = dict(zip(exact["city"], exact["n"].astype(float), strict=True))
            ends = text.replace(" AS n ", " AS n, dp_interval_low(n) AS low, dp_interval_high(n) AS high ", 1)
            shown = session.sql(ends, **level).df()
            wanted = shown["city"].map(truth).astype(float)
            held.append(((shown["low"] <= wanted + 1e-9) & (wanted <= shown["high"] + 1e-9)).to_numpy())
        session.sql("CALL dp_new_version('v')")
    return np.concatenate(held)


_CELLS = (("count(*)", 0.5), ("sum(nights)", 1.0), ("sum(move)", 5.0), ("avg(nights)", 1.0), ("avg(move)", 5.0))
_MORE_CELLS = [
    pytest.param(number, epsilon, marks=pytest.mark.long)
    for number in dict(_CELLS)
    for epsilon in (0.5, 1.0, 2.5, 5.0)
    if (number, epsilon) not in _CELLS
]


@pytest.mark.parametrize(("number", "epsilon"), [*_CELLS, *_MORE_CELLS])
def test_intervals_of_a_thousand_cells_cover(rich: dpsql.Session, number: str, epsilon: float) -> None:
    held = _covered(rich, [f"SELECT city, {number} AS n {FROM}"], 20, epsilon=epsilon)
    assert len(held) == 1_000
    assert held.mean() >= 0.94


def test_shown_numbers_are_within_their_half_widths(rich: dpsql.Session) -> None:
    """Sums of whole numbers are shown as whole numbers, whatever steps their noise has."""
    text = f"SELECT city, sum(move) AS n {FROM}"
    exact = rich.connection.execute(text).df()["n"].astype(float)
    held = []
    for _ in range(20):
        answer = rich.sql(text, epsilon=2)
        (column,) = _receipt(answer).columns
        assert column.half_width_95 is not None
        held.append(np.abs(answer.df()["n"].astype(float) - exact) <= column.half_width_95)
        rich.sql("CALL dp_new_version('v')")
    assert np.mean(held) >= 0.94


_PICKED = (("count(*)", 2.5), ("sum(nights)", 0.5), ("avg(nights)", 2.5))
_MORE_PICKED = [
    pytest.param(number, epsilon, marks=pytest.mark.long)
    for number in dict(_PICKED)
    for epsilon in (0.5, 1.0, 2.5, 5.0)
    if (number, epsilon) not in _PICKED
]


@pytest.mark.parametrize(("number", "epsilon"), [*_PICKED, *_MORE_PICKED])
def test_intervals_of_picked_rows_cover(rich: dpsql.Session, number: str, epsilon: float) -> None:
    """Of groups of one size, the largest and the smallest numbers are those with the largest noise."""
    of = f"SELECT city, {number} AS n FROM v GROUP BY city ORDER BY n"
    held = _covered(rich, [f"{of} DESC LIMIT 10", f"{of} LIMIT 3"], 15, epsilon=epsilon)
    assert len(held) == 195
    assert held.mean() >= 0.94


def test_having_leaves_rows_out(session: dpsql.Session) -> None:
    all_rows = session.sql(COUNT, epsilon=0.5).df()
    before = _spent(session)
    some = session.sql("SELECT city, count(*) AS n FROM v GROUP BY city HAVING n > 400 ORDER BY city", epsilon=0.5).df()
    assert some["city"].tolist() == all_rows[all_rows["n"] > 400]["city"].tolist()
    assert some["n"].tolist() == all_rows[all_rows["n"] > 400]["n"].tolist()
    assert 0 < len(some) < KEYS
    assert _spent(session) == before


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_a_unit_pays_its_epsilon_and_no_more(session: dpsql.Session) -> None:
    first = session.sql(COUNT, epsilon=0.6)
    assert _told(_receipt(first)) == (0.6, 0.0)
    assert _receipt(first).charged_rho == 0.6
    assert _spent(session) == (600_000_000, 0)
    other = COUNT.replace("FROM v", "FROM v WHERE nights > 3")
    with pytest.raises(BudgetError, match=r"0\.4\b") as refused:
        session.sql(other, epsilon=0.6)
    assert (refused.value.requested_rho, refused.value.remaining_rho) == (0.6, 0.4)
    assert _spent(session) == (600_000_000, 0)
    again = session.sql(COUNT, epsilon=0.6)
    assert again.fetchall() == first.fetchall()
    assert _told(_receipt(again)) == (0.6, 0.0)
    assert _receipt(again).charged_rho == 0.0
    lower = session.sql(COUNT, epsilon=0.2)
    assert (_receipt(lower).charged_rho, _receipt(lower).delta) == (0.0, 0.0)
    assert lower.fetchall() != first.fetchall()
    between = session.sql(COUNT, epsilon=0.4)
    assert _receipt(between).charged_rho == 0.0
    assert session.sql(COUNT, epsilon=0.2).fetchall() == lower.fetchall()
    assert _spent(session) == (600_000_000, 0)
    session.sql(other, epsilon=0.4)
    assert _spent(session) == (10**9, 0)


def test_a_half_width_is_reached_at_its_price(session: dpsql.Session) -> None:
    """Of a count the price is the least epsilon whose half width, a whole number, is no more than the target."""
    answer = session.sql(COUNT, target_half_width=10.9)
    receipt = _receipt(answer)
    assert receipt.columns[0].half_width_95 == 10.0
    ratio = math.exp(-receipt.charged_rho)
    assert 2.0 * ratio**11 / (1.0 + ratio) <= 0.05
    less = math.exp(-receipt.charged_rho * 0.995)
    assert 2.0 * less**11 / (1.0 + less) > 0.05
    assert _told(receipt) == (receipt.charged_rho, 0.0)
    assert _spent(session) == (round(receipt.charged_rho * 1e9), 0)


_SEVERAL = (
    "SELECT count(*) AS n FROM v WHERE nights < 3 UNION ALL SELECT count(*) FROM v WHERE nights < 5",
    "SELECT (SELECT count(*) FROM v WHERE nights < 3) AS a, (SELECT sum(nights) FROM v WHERE nights < 4) AS b",
    "SELECT city, count(*) AS n FROM v WHERE nights > (SELECT avg(nights) FROM v) GROUP BY city",
    "SELECT max(n) FROM (SELECT city, count(*) AS n FROM v GROUP BY city)",
    "SELECT a.n - b.n FROM (SELECT count(*) AS n FROM v) a, (SELECT count(*) AS n FROM v WHERE often) b",
)


@pytest.mark.parametrize("text", _SEVERAL)
def test_private_parts_share_an_epsilon(session: dpsql.Session, text: str) -> None:
    answer = session.sql(text, epsilon=0.3)
    receipt = _receipt(answer)
    assert _told(receipt) == (0.3, 0.0)
    assert (receipt.charged_rho, receipt.charged_delta) == (0.3, 0.0)
    assert _spent(session) == (300_000_000, 0)
    assert sorted(session.sql(text, epsilon=0.3).fetchall()) == sorted(answer.fetchall())
    assert _spent(session) == (300_000_000, 0)


def test_private_parts_with_levels_of_their_own_add_up(session: dpsql.Session) -> None:
    part = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = {level}) count(*) FROM v WHERE nights < {nights}"
    text = f"{part.format(level=0.2, nights=3)} UNION ALL {part.format(level=0.1, nights=4)}"
    receipt = _receipt(session.sql(text))
    assert _told(receipt) == (0.3, 0.0)
    beside = f"{part.format(level=0.2, nights=5)} UNION ALL SELECT count(*) FROM v WHERE nights < 6"
    receipt = _receipt(session.sql(beside, epsilon=0.5))
    assert (receipt.epsilon, receipt.charged_rho) == (0.5, 0.5)
    assert _spent(session) == (800_000_000, 0)
    with pytest.raises(UnsupportedQueryError, match="add up to"):
        session.sql(beside.replace("< 5", "< 7"), epsilon=0.1)
    assert _spent(session) == (800_000_000, 0)
    whole = f"{part.format(level=0.1, nights=8)} UNION ALL {part.format(level=0.1, nights=9)}"
    assert _receipt(session.sql(whole, epsilon=0.2)).charged_rho == 0.2
    assert _spent(session) == (10**9, 0)


def test_a_state_file_answers_again_after_it_was_closed(tmp_path: Path) -> None:
    path = tmp_path / "pure.duckdb"
    with dpsql.connect(path) as session:
        session.connection.execute(TABLES)
        _declare(session, 1.0)
        first = session.sql(COUNT, epsilon=0.6).fetchall()
    with dpsql.connect(path) as session:
        again = session.sql(COUNT, epsilon=0.6)
        assert again.fetchall() == first
        assert _receipt(again).charged_rho == 0.0
        assert _receipt(session.sql(COUNT, epsilon=0.3)).charged_rho == 0.0
        with pytest.raises(BudgetError):
            session.sql("SELECT count(*) FROM v WHERE often", epsilon=0.6)
        assert _spent(session) == (600_000_000, 0)


_ASK = """
import json, os, sys
import dpsql, dpsql.session, duckdb, scipy.special

database, count = sys.argv[1], 8
pipes = [os.pipe() for _ in range(count)]
told, telling = os.pipe()
for number in range(count):
    if os.fork() == 0:
        with dpsql.connect(database, read_only=True) as session:
            os.write(telling, b".")
            os.read(pipes[number][0], 1)
            asked = []
            for nights in (number, number + 1):
                try:
                    answer = session.sql(f"SELECT count(*) AS n FROM v WHERE nights <> {nights}", epsilon=0.15)
                    asked.append([nights, answer.fetchall()[0][0], answer.receipt.charged_rho])
                except dpsql.BudgetError:
                    asked.append([nights, None, 0.0])
        with open(f"{database}.{number}", "w") as file:
            json.dump(asked, file)
        os._exit(0)
for _ in range(count):
    assert os.read(told, 1)
for _, begin in pipes:
    os.write(begin, b".")
assert all(os.wait()[1] == 0 for _ in range(count))
"""


def test_eight_processes_never_overspend(tmp_path: Path) -> None:
    """Each asks for two of nine questions. The budget pays for six of them."""
    database = tmp_path / "pure.duckdb"
    with dpsql.connect(database) as session:
        session.connection.execute(TABLES)
        _declare(session, 1.0)
    subprocess.run([sys.executable, "-c", _ASK, str(database)], cwd=ROOT, check=True, timeout=300)
    asked = [one for number in range(8) for one in json.loads(Path(f"{database}.{number}").read_text(encoding="utf-8"))]
    shown: dict[int, set[int]] = {}
    for nights, number, _ in asked:
        if number is not None:
            shown.setdefault(nights, set()).add(number)
    assert all(len(numbers) == 1 for numbers in shown.values()), "one answer to one question"
    assert len(shown) == 6
    assert sum(charged for *_, charged in asked) == pytest.approx(0.9)
    with dpsql.connect(database) as session:
        assert _spent(session) == (900_000_000, 0)


# --- refusals ---------------------------------------------------------------------------------------------------------

_E = {"epsilon": 0.1}
_REFUSED: tuple[tuple[str, str, dict[str, object], str], ...] = (
    ("option", "Write OPTIONS (epsilon = ", {"rho": 0.1}, COUNT),
    ("option", "in place of rho_ceiling", {**_E, "rho_ceiling": 0.1}, COUNT),
    ("option", "in place of rho_window", {**_E, "rho_window": [0.1, 0.2]}, COUNT),
    ("mechanism", "GAUSSIAN draws other noise. Leave mechanism out", {**_E, "mechanism": "GAUSSIAN"}, COUNT),
    ("mechanism", "Leave mechanism out", {**_E, "mechanism": "CORRELATED_GAUSSIAN"}, COUNT),
    ("mechanism", "composition := 'pure'", {**_E, "mechanism": "LAPLACE"}, COUNT.replace("FROM v", "FROM g")),
    ("mechanism", "composition := 'pure'", {**_E, "mechanism": "LAPLACE"}, COUNT.replace("FROM v", "FROM z")),
    ("public_keys_missing", "keys := ", _E, "SELECT nights, count(*) FROM v GROUP BY nights"),
    ("public_keys_missing", "", _E, "SELECT nights FROM v GROUP BY nights"),
    ("option", "Look at the list itself", _E, "SELECT city FROM v GROUP BY city"),
    ("aggregate", "count, sum, avg and bool_or", _E, "SELECT city, stddev(nights) FROM v GROUP BY city"),
    ("aggregate", "count, sum, avg and bool_or", _E, "SELECT city, median(nights) FROM v GROUP BY city"),
    ("aggregate", "count, sum, avg and bool_or", _E, "SELECT city, count(DISTINCT nights) FROM v GROUP BY city"),
    ("aggregate", "count, sum, avg and bool_or", _E, "SELECT city, corr(nights, move) FROM v GROUP BY city"),
    ("option", "one GROUP BY", _E, "SELECT city, count(*) FROM v GROUP BY GROUPING SETS ((city), ())"),
    ("option", "one GROUP BY", _E, "SELECT city, count(*) FROM v GROUP BY ROLLUP (city)"),
    ("aggregate", "", _E, "SELECT day, sum(count(*)) OVER (ORDER BY day) FROM v GROUP BY day"),
    ("option", "Leave buckets out", {**_E, "buckets": "day"}, "SELECT day, count(*) FROM v GROUP BY day"),
    ("option", "Leave top_k out", {**_E, "top_k": 5}, COUNT),
    ("option", "Leave other_group out", {**_E, "other_group": "x"}, COUNT),
    ("option", "Leave bounding out", {**_E, "bounding": "L2"}, COUNT),
    ("option", "Leave bounding out", {**_E, "bounding": "NORM"}, COUNT),
    ("option", "Leave refresh out", {**_E, "refresh": True}, COUNT),
    ("option", "Leave target_relative_error out", {"target_relative_error": 0.1, "max_epsilon": 0.5}, COUNT),
    ("option", "most groups", {**_E, "max_groups_contributed": "AUTO"}, COUNT),
    (
        "bounds_invalid",
        "Name bounds",
        _E,
        "SELECT city, sum(nights, contribution_bounds_per_row => AUTO) FROM v GROUP BY city",
    ),
    (
        "bounds_invalid",
        "Name bounds",
        _E,
        "SELECT city, avg(nights, contribution_bounds_per_row => AUTO) FROM v GROUP BY city",
    ),
)


@pytest.mark.parametrize(("code", "cure", "options", "text"), _REFUSED)
def test_what_has_no_proof_is_refused_before_a_charge(
    session: dpsql.Session, code: str, cure: str, options: dict[str, object], text: str
) -> None:
    with pytest.raises(UnsupportedQueryError) as refused:
        session.sql(text, **options)
    assert code in {one.code for one in refused.value.refusals}
    assert cure in str(refused.value)
    assert session._access.read().ledger.spent("person").rho_nano == 0
    assert session._access.read().ledger.spent("pid").rho_nano == 0
    with session._access.read()._database.read() as connection:
        assert connection.execute("SELECT count(*) FROM point").fetchone() == (0,)


@pytest.mark.parametrize("epsilon", [1e-9, 1e-7])
def test_an_epsilon_that_is_too_small_is_refused(session: dpsql.Session, epsilon: float) -> None:
    with pytest.raises(DpsqlError):
        session.sql(f"SELECT city, sum(nights) FROM v WHERE often {FROM[7:]}", epsilon=epsilon)
    assert _spent(session) == (0, 0)


# --- declarations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("delta_budget := 1e-6", "positive"),
        ("epsilon_budget := 1, delta_budget := 1", "between 0 and 1"),
        ("rho_budget := 1, delta_conversion := 1e-6", "write epsilon_budget in place of rho_budget"),
        ("epsilon_budget := 1, thresholds := true", "leave thresholds out"),
        ("epsilon_budget := 0", "positive"),
        ("epsilon_budget := -1", "positive"),
    ],
)
def test_a_pure_unit_has_an_epsilon_alone(session: dpsql.Session, arguments: str, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        session.sql(f"CALL dp_unit('other', {arguments}, composition := 'pure')")
    assert "other" not in {one.name for one in session._access.read().policy().units}


def test_a_wrong_composition_is_told_of_three(session: dpsql.Session) -> None:
    with pytest.raises(PolicyError, match=r"'gaussian'.*'zcdp'.*'pure'"):
        session.sql("CALL dp_unit('other', epsilon_budget := 1, composition := 'laplace')")


def test_a_composition_changes_before_a_charge_alone(session: dpsql.Session) -> None:
    gaussian = "CALL dp_unit('person', epsilon_budget := 1, delta_budget := 1e-6, composition := 'gaussian')"
    with pytest.raises(PolicyError, match="replace := true"):
        session.sql(gaussian)
    session.sql(gaussian.replace(")", ", replace := true)"))
    assert _receipt(session.sql("SELECT count(*) FROM v", rho=0.001)).delta > 0.0
    with pytest.raises(PolicyError, match="fixes how its budget adds up"):
        session.sql("CALL dp_unit('person', composition := 'pure')")


def test_a_pure_unit_stays_pure_after_a_charge(session: dpsql.Session) -> None:
    session.sql(COUNT, epsilon=0.5)
    for composition in ("gaussian", "zcdp"):
        with pytest.raises(PolicyError, match="fixes how its budget adds up: composition is 'pure'"):
            session.sql(
                f"CALL dp_unit('person', epsilon_budget := 1, delta_budget := 1e-6, composition := '{composition}', "
                "replace := true)"
            )
    session.sql("CALL dp_unit('person', composition := 'pure')")
    session.sql("CALL dp_unit('person', epsilon_budget := 0.9)")
    with pytest.raises(BudgetError):
        session.sql("SELECT count(*) FROM v WHERE often", epsilon=0.5)
    session.sql("SELECT count(*) FROM v WHERE often", epsilon=0.4)


def test_a_unit_becomes_pure_with_the_epsilon_that_it_had(session: dpsql.Session) -> None:
    session.sql("CALL dp_unit('pid', composition := 'pure')")
    (unit,) = (one for one in session._access.read().policy().units if one.name == "pid")
    assert (unit.composition, unit.rho_budget) == ("pure", 3 * 10**9)
    assert 0.0 < unit.delta_budget <= 1e-6
    receipt = _receipt(session.sql("SELECT city, count(*) FROM g GROUP BY city", epsilon=3))
    assert (receipt.epsilon, receipt.delta) == (3.0, 0.0)
