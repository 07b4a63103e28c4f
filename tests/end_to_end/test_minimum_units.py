"""The policy's least number of units per group: smaller groups are left out before anything is noised."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

import dpsql
from dpsql.model.frame import PRESENCE
from dpsql.release import points as shown_module
from dpsql.release import stage as stage_module
from dpsql.release.exact import Exact, Reading, read_exact
from dpsql.release.runtime import Runtime
from tests.end_to_end.prepared import with_own_state
from tests.noise_sources import seeded_noise

MINIMUM = 20
# A right law falls below the first with probability 1e-4 per seed; the planted faults fall far below the second.
ACCEPTED, CAUGHT = 1e-4, 1e-7
BY_CITY = "SELECT city, count(DISTINCT patient) AS n FROM visits GROUP BY city"
BY_EVERY_MECHANISM = {
    "threshold": BY_CITY,
    "top_k": BY_CITY.replace("SELECT", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (top_k = 2000)", 1),
    "top_k without shared noise": BY_CITY.replace(
        "SELECT", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (top_k = 2000, mechanism = GSHM)", 1
    ),
    "sketch": BY_CITY.replace(
        "SELECT", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (mechanism = MISRA_GRIES, sketch_size = 2000)", 1
    ),
}


def open_session(groups: dict[int, int], minimum: int | None = MINIMUM) -> dpsql.Session:
    """So many groups of so many units each; ``city // 1000`` is a group's size, a unit is in one group with one row."""
    session = dpsql.connect()
    session.connection.execute("CREATE TABLE visits (patient VARCHAR, city INTEGER, cost DOUBLE NOT NULL)")
    for size, count in groups.items():
        assert count <= 1000, "city // 1000 tells a group's size"
        session.connection.execute(
            f"INSERT INTO visits SELECT concat_ws(' ', {size}, g, u), {size} * 1000 + g, 7 "
            f"FROM range({count}) a(g), range({size}) b(u)"
        )
    session.sql("CALL dp_unit('patient', rho_budget := 1e6, delta_threshold := 0.99, delta_conversion := 1e-6)")
    protect(session, minimum)
    session.sql("CALL dp_domain('visits', 'cost', bounds := [5, 11])")
    session._runner.noise_source = seeded_noise(20)
    return session


def protect(session: dpsql.Session, minimum: int | None) -> None:
    rule = f", min_privacy_units_per_group := {'NULL' if minimum is None else minimum}, replace := true"
    session.sql(
        "CALL dp_protect('visits', coverage := FALSE, unit := 'patient', privacy_unit_column := 'patient', "
        f"max_groups_contributed := 1, max_rows_per_group := 1{rule})"
    )


def sizes_shown(session: dpsql.Session, text: str, releases: int, **options: float) -> list[int]:
    """True sizes of all groups that were shown over fresh releases."""
    shown: list[int] = []
    for _ in range(releases):
        session.sql("CALL dp_new_version('visits')")
        shown += [row[0] // 1000 for row in session.sql(text, None, **options).fetchall()]
    return shown


# Little noise, and a threshold so low that a key beside it would often pass.
LEVELS = ({"rho": 4.0, "delta": 0.01}, {"rho": 0.05, "delta": 0.4}, {"rho": 0.0005, "delta": 0.4})


@pytest.fixture(scope="module")
def small_groups() -> Iterator[dpsql.Session]:
    with open_session({1: 400, 19: 900, 300: 8}) as session:
        yield session


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("mechanism", "level"),
    [*((mechanism, LEVELS[1]) for mechanism in BY_EVERY_MECHANISM), ("threshold", LEVELS[0]), ("threshold", LEVELS[2])],
)
def test_a_group_of_fewer_units_is_never_shown_whatever_the_noise(
    small_groups: dpsql.Session, mechanism: str, level: dict[str, float]
) -> None:
    """None of 2,600 groups: such a group has no noisy count that could pass."""
    with with_own_state(small_groups) as session:
        session._runner.noise_source = seeded_noise(20)
        assert not [size for size in sizes_shown(session, BY_EVERY_MECHANISM[mechanism], 2, **level) if size < MINIMUM]


@pytest.mark.statistical
def test_the_readers_own_minimum_is_a_rule_of_chance() -> None:
    """The planted fault: the same number on noisy counts lets groups of 19 through."""
    text = BY_CITY.replace(
        "SELECT", f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (min_privacy_units_per_group = {MINIMUM})", 1
    )
    with open_session({19: 900}, minimum=None) as session:
        assert len(sizes_shown(session, text, 1, **LEVELS[1])) > 100


def test_the_exact_group_at_the_minimum_can_be_shown() -> None:
    with open_session({19: 900, 20: 900}) as session:
        shown = sizes_shown(session, BY_CITY, 1, **LEVELS[1])
        assert set(shown) == {20}
        assert len(shown) > 100


AGGREGATES = "count(DISTINCT patient) AS units, count(*) AS n, sum(cost) AS s, avg(cost) AS a"


def bias_p(session: dpsql.Session) -> float:
    """The worst p-value of mean 0 over 600 groups far above the threshold; Bonferroni over the columns."""
    answer = session.sql(f"SELECT city, {AGGREGATES} FROM visits GROUP BY city", rho=2, delta=1e-6)
    assert len(answer) == 600
    assert answer.receipt is not None
    shown = answer.df()
    sizes = shown["city"].to_numpy() // 1000
    found = []
    for column, value in zip(answer.receipt.columns, (1, 1, 7), strict=False):
        error = shown[column.name].to_numpy(dtype=np.float64) - value * sizes
        assert column.sigma is not None
        found.append(2 * stats.norm.sf(abs(error.mean()) / column.sigma * math.sqrt(len(error))))
    return min(1.0, len(found) * float(min(found)))


@pytest.mark.statistical
def test_groups_above_the_minimum_have_unbiased_counts_and_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {100: 300, 200: 300, 3: 50}
    with open_session(groups) as session:
        assert bias_p(session) > ACCEPTED
        averages = session.sql(f"SELECT city, {AGGREGATES} FROM visits GROUP BY city", rho=2, delta=1e-6).df()["a"]
        assert abs(averages.mean() - 7) < 0.05
    # the planted fault: what was subtracted is not added again
    monkeypatch.setattr(shown_module, "_floors", lambda *_: (0.0, 0.0))
    with open_session(groups) as session:
        assert bias_p(session) < CAUGHT


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with open_session({19: 20, 20: 200, 30: 200, 45: 200, 90: 20}) as session:
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        session._runner.noise_source = seeded_noise(20)
        yield session


def explained(session: dpsql.Session, text: str) -> str:
    rows = session.sql(f"FROM dp_explain($$ {text} $$, rho := 0.5, delta := 1e-3)").fetchall()
    (sentence,) = (value for section, name, value in rows if (section, name) == ("mechanism", "threshold"))
    return str(sentence)


def with_minimum(number: int) -> str:
    return BY_CITY.replace(
        "SELECT", f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (min_privacy_units_per_group = {number})", 1
    )


def stored_tau(session: dpsql.Session) -> float:
    with session._access.read()._database.read() as connection:
        (tau,) = connection.execute("SELECT tau FROM point WHERE tau IS NOT NULL").fetchone()
    return float(tau)


def test_plan_and_receipt_tell_the_same_threshold_with_the_minimum_in_it(session: dpsql.Session) -> None:
    planned = {text: explained(session, text) for text in (BY_CITY, with_minimum(5), with_minimum(40))}
    receipt = session.sql(BY_CITY, rho=0.5, delta=1e-3).receipt
    assert receipt is not None
    tau = stored_tau(session)
    assert tau > 0
    assert receipt.threshold == MINIMUM + tau
    sentence = f"a group is shown if its noisy count of units exceeds {MINIMUM + tau:.9g}"
    assert planned == {
        BY_CITY: sentence,
        with_minimum(5): sentence,
        with_minimum(40): f"a group is shown if its noisy count of units exceeds {40 + tau:.9g}",
    }
    assert {text: explained(session, text) for text in planned} == planned, "what is stored is explained as it was"
    assert f"exceeds {MINIMUM + tau:.4g}" in str(receipt)
    for number, threshold in ((5, MINIMUM + tau), (MINIMUM, MINIMUM + tau), (40, 40 + tau)):
        other = session.sql(with_minimum(number), rho=0.5, delta=1e-3).receipt
        assert other is not None
        assert other.threshold == threshold


def test_without_a_minimum_the_threshold_is_what_it_was() -> None:
    for minimum in (None, 1):
        with open_session({45: 20}, minimum) as session:
            receipt = session.sql(BY_CITY, rho=0.5, delta=1e-3).receipt
            assert receipt is not None
            assert receipt.threshold == 1 + stored_tau(session)


def test_the_readers_minimum_above_the_policys_is_free_and_only_takes_rows_away(session: dpsql.Session) -> None:
    first = session.sql(BY_CITY, rho=0.5, delta=1e-3)
    assert first.receipt is not None
    counts = dict(first.fetchall())
    for number in (MINIMUM, 30, 45, 1000):
        answer = session.sql(with_minimum(number), rho=0.5, delta=1e-3)
        receipt = answer.receipt
        assert receipt is not None
        assert receipt.query_hash == first.receipt.query_hash
        assert (receipt.reused, receipt.charged_rho, receipt.charged_delta) == (True, 0, 0)
        assert receipt.threshold is not None
        shown = dict(answer.fetchall())
        assert shown == {city: n for city, n in counts.items() if city in shown}
        # a count is compared before it is rounded, so that one beside the threshold may read either way
        assert {city for city, n in counts.items() if n - 0.5 > receipt.threshold} <= set(shown)
        assert all(n + 0.5 >= receipt.threshold for n in shown.values())
    assert counts
    assert len(session.sql(with_minimum(1000), rho=0.5, delta=1e-3)) == 0
    assert 0 < len(session.sql(with_minimum(30), rho=0.5, delta=1e-3)) < len(counts)


@pytest.mark.parametrize("number", [1, 2, 19, 20])
def test_the_readers_minimum_below_the_policys_changes_nothing(session: dpsql.Session, number: int) -> None:
    first = session.sql(with_minimum(number), rho=0.5, delta=1e-3)
    again = session.sql(BY_CITY, rho=0.5, delta=1e-3)
    assert first.receipt is not None
    assert again.receipt is not None
    assert again.fetchall() == first.fetchall()
    assert again.receipt.reused
    assert again.receipt.threshold == first.receipt.threshold == MINIMUM + stored_tau(session)


def test_another_minimum_of_the_policy_is_another_release(session: dpsql.Session) -> None:
    """What was drawn with groups of 20 says nothing about groups of 10; it must neither be served nor cost less."""
    first = session.sql(BY_CITY, rho=0.5, delta=1e-3).receipt
    protect(session, 10)
    second = session.sql(BY_CITY, rho=0.5, delta=1e-3).receipt
    protect(session, MINIMUM)
    third = session.sql(BY_CITY, rho=0.5, delta=1e-3).receipt
    assert first is not None
    assert second is not None
    assert third is not None
    assert second.query_hash != first.query_hash == third.query_hash
    assert (second.charged_rho, third.charged_rho) == (first.charged_rho, 0)


def test_the_policy_shows_the_minimum(session: dpsql.Session) -> None:
    rows = session.sql("FROM dp_policy()").fetchall()
    assert ("protected table", "main.visits", "min_privacy_units_per_group", "20") in rows


@pytest.mark.parametrize("wrong", ["0", "-1", "1.5", "'20'", "true", "10000000000000"])
def test_a_minimum_that_is_no_number_of_units_is_refused(session: dpsql.Session, wrong: str) -> None:
    with pytest.raises(dpsql.PolicyError):
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, unit := 'patient', privacy_unit_column := 'patient', "
            f"min_privacy_units_per_group := {wrong})"
        )
    assert ("main.visits", "20") in [row[1::2] for row in session.sql("FROM dp_policy()").fetchall()]


@pytest.fixture(scope="module")
def two_groups() -> Iterator[dpsql.Session]:
    with open_session({30: 2}) as session:
        yield session


def exact_units(
    prepared: dpsql.Session, text: str, units_of_the_city: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[int, int], int]:
    """Counts by city as they are noised, and the floor, where city 0 has so many units."""
    read: list[Exact] = []

    def recording(reading: Reading, salt: bytes, runtime: Runtime, timeout_seconds: float | None) -> Exact:
        read.append(read_exact(reading, salt, runtime, timeout_seconds))
        return read[-1]

    with with_own_state(prepared) as session, monkeypatch.context() as patch:
        session.connection.execute("DELETE FROM visits WHERE city = 0")
        session.connection.execute(
            f"INSERT INTO visits SELECT 'neighbour ' || u, 0, 7 FROM range({units_of_the_city}) t(u)"
        )
        patch.setattr(stage_module, "read_exact", recording)
        session.sql(text, rho=0.5, delta=1e-3)
        (exact,) = read
        keys = exact.new_keys if exact.new_keys is not None else pa.table({"key_0": pa.array([], pa.int32())})
        return dict(zip(keys["key_0"].to_pylist(), exact.values[PRESENCE].tolist(), strict=True)), exact.floor


@pytest.mark.parametrize("mechanism", BY_EVERY_MECHANISM)
def test_one_unit_more_brings_a_group_in_at_one(
    two_groups: dpsql.Session, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the proof of the threshold wants: between neighbours a count moves by one, and a new one begins at one."""
    others = {30_000: 30 - MINIMUM + 1, 30_001: 30 - MINIMUM + 1}
    for units, left in ((0, {}), (19, {}), (20, {0: 1}), (21, {0: 2})):
        assert exact_units(two_groups, BY_EVERY_MECHANISM[mechanism], units, monkeypatch) == (
            others | left,
            MINIMUM - 1,
        )


@pytest.mark.statistical
def test_a_group_that_comes_late_brings_no_more_than_one_units_sum_along() -> None:
    """Neighbours of 19 and 20 units, then rows that nobody declared: a sum of the first moment moves by one unit's.

    The group of 20 was in the frame when the sum was drawn, that of 19 was not; both are large when they are shown.
    The difference is at most 5, one unit's reach, and noise: 50 is more than 8 standard deviations beyond it.
    """
    text = "SELECT city, count(DISTINCT patient) AS n, sum(cost) AS s FROM visits GROUP BY city"
    sums = []
    for units in (19, 20):
        with open_session({300: 2}) as session:
            session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 10])")
            session.connection.execute(f"INSERT INTO visits SELECT 'near ' || u, 0, 10 FROM range({units}) t(u)")
            session.sql(text, rho=4, delta=1e-3)
            session.connection.execute("INSERT INTO visits SELECT 'late ' || u, 0, 5 FROM range(300) t(u)")
            session.sql(BY_CITY, rho=6, delta=1e-3)
            answer = session.sql(text, rho=4, delta=1e-3)
            assert answer.receipt is not None
            assert answer.receipt.reused
            # less the part that the count explains: five for each unit
            sums += [s - 5 * n for city, n, s in answer.fetchall() if city == 0]
    assert len(sums) in (0, 2), "the group is shown to both neighbours or to none"
    assert not sums or abs(sums[0] - sums[1]) < 50


def test_public_keys_have_noise_whatever_their_size_and_the_minimum_is_on_what_is_seen() -> None:
    """A listed key is no secret: it is noised, zeros included, and the policy's minimum hides small noisy counts."""
    with open_session({19: 1, 200: 2}) as session:
        session.sql("CALL dp_domain('visits', 'city', keys := [0, 19000, 200000, 200001])")
        answer = session.sql(BY_CITY + " ORDER BY city", rho=5)
        assert answer.receipt is not None
        assert answer.receipt.threshold == MINIMUM
        assert [row[0] for row in answer.fetchall()] in ([200_000, 200_001], [19_000, 200_000, 200_001])
        assert all(n > MINIMUM for _, n in answer.fetchall())
        protect(session, None)
        every = session.sql(BY_CITY, rho=5)
        assert every.receipt is not None
        assert every.receipt.reused, "the release is the same one, whatever is hidden of it"
        assert len(every) == 4


def test_a_query_without_group_by_has_its_one_group() -> None:
    with open_session({3: 1}) as session:
        answer = session.sql("SELECT count(*) AS n FROM visits", rho=5)
        assert len(answer.fetchall()) in (0, 1)
        assert answer.receipt is not None
        assert answer.receipt.threshold == MINIMUM
