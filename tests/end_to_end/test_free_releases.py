"""The sample clinic at many levels: the price is that of the highest level, and below it nothing is paid or read."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.assets import asset
from dpsql.engine import DuckDBEngine
from dpsql.mechanism.window import is_free_level
from dpsql.state import DELTA_UNITS_PER_ONE
from tests.end_to_end.cities import CHARGED, ORDER, ask, presence_levels, spent
from tests.noise_sources import seeded_noise

WITH = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS"
MANY = "count(DISTINCT patient_id) AS n, count(*) AS visits, sum(cost) AS cost FROM visits GROUP BY"
PUBLIC = f"SELECT city, {MANY} city"
PRIVATE = f"SELECT diagnosis, {MANY} diagnosis"
WINDOW = f"{WITH} (rho_window = [0.005, 1]) diagnosis, {MANY} diagnosis"
# What draws that are not perfect may add to the ledger's delta.
IMPRECISION = 1e-20 * DELTA_UNITS_PER_ONE


@contextlib.contextmanager
def open_clinic() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        for table in ("visits", "cities"):
            path = str(asset("sample_data", "clinic", f"{table}.parquet"))
            session.connection.execute(f"CREATE TABLE {table} AS FROM read_parquet(?)", [path])
        session.sql("CALL dp_unit('patient', rho_budget := 100, delta_threshold := 0.1, delta_conversion := 1e-6)")
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, unit := 'patient', privacy_unit_column := 'patient_id', "
            "max_groups_contributed := 4, max_rows_per_group := 5, default_delta := 1e-7)"
        )
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 500])")
        session.sql("CALL dp_public('cities')")
        session.sql("CALL dp_domain('visits', 'city', keys_from := 'cities.name')")
        session._runner.noise_source = seeded_noise(3)
        yield session


@pytest.fixture(scope="module")
def clinic() -> Iterator[dpsql.Session]:
    with open_clinic() as session:
        yield session


def charges(session: dpsql.Session, text: str, levels: tuple[float, ...]) -> list[tuple[int, int]]:
    """What each release of a new version adds to the ledger: nano-rho, and units of delta."""
    session.sql("CALL dp_new_version('visits')")
    found = []
    for rho in levels:
        before = spent(session)
        session.sql(text, rho=rho)
        after = spent(session)
        found.append((after[0] - before[0], after[1] - before[1]))
    return found


def rho_of(charged: list[tuple[int, int]]) -> int:
    return sum(rho_nano for rho_nano, _ in charged)


def assert_threshold_alone(delta: int, expected: int) -> None:
    """The same delta, but for what imprecise draws add."""
    assert abs(delta - expected) < IMPRECISION < expected


def test_public_keys_cost_what_the_highest_level_alone_costs(clinic: dpsql.Session) -> None:
    """Three statistics, so each level is split between them: the shares of all levels add up in whole nano-rho."""
    found = charges(clinic, PUBLIC, ORDER)
    assert rho_of(found) == rho_of(charges(clinic, PUBLIC, (1.0,))) == 10**9
    assert found[ORDER.index(0.2)] == (0, 0)
    assert 0 < sum(delta for _, delta in found) < IMPRECISION


def test_private_keys_cost_the_highest_level_and_the_thresholds_of_those_that_were_charged(
    clinic: dpsql.Session,
) -> None:
    found = charges(clinic, PRIVATE, ORDER)
    single = {rho: charges(clinic, PRIVATE, (rho,)) for rho in CHARGED}
    assert rho_of(found) == rho_of(single[1.0]) == 10**9
    assert found[ORDER.index(0.2)] == (0, 0)
    for rho, ((_, alone),) in single.items():
        assert_threshold_alone(found[ORDER.index(rho)][1], alone)


def test_a_window_costs_the_highest_level_and_the_delta_of_the_first_release(clinic: dpsql.Session) -> None:
    found, ((rho_alone, delta_alone),) = charges(clinic, WINDOW, ORDER), charges(clinic, WINDOW, (1.0,))
    # the count of units is at the window's own levels, so each level is a little below what was asked for
    assert rho_of(found) == rho_alone
    assert 0.9e9 < rho_alone <= 1e9
    first, *later = (delta for _, delta in found)
    assert_threshold_alone(first, delta_alone)
    assert found[ORDER.index(0.2)] == (0, 0)
    assert max(later) < IMPRECISION


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the engine was asked for exact values, each way."""
    counted: Counter[str] = Counter()

    def spy_on(name: str) -> None:
        way = getattr(DuckDBEngine, name)

        def counting(*arguments: Any, **keywords: Any) -> Any:
            counted[name] += 1
            return way(*arguments, **keywords)

        monkeypatch.setattr(DuckDBEngine, name, counting)

    spy_on("exact")
    spy_on("stream")
    return counted


ONE = "count(DISTINCT patient_id) AS n FROM visits GROUP BY"
IN_WINDOW = f"{WITH} (rho_window = [0.02, 1]{{}}) diagnosis, {ONE} diagnosis"
FREE = {
    "public keys": (f"SELECT city, {ONE} city", "exact"),
    "window": (IN_WINDOW.format(""), "exact"),
    "window, sketch": (IN_WINDOW.format(", mechanism = MISRA_GRIES, sketch_size = 200"), "stream"),
}


@pytest.mark.parametrize("releases", [18, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("which", FREE)
def test_random_lower_levels_cost_nothing_and_read_nothing(which: str, releases: int, reads: Counter[str]) -> None:
    """Whatever is asked for, points lie on a fixed grid; in a window on its own."""
    text, way = FREE[which]
    chance = random.Random(5)
    drawn = [round(21_000_000 * (999 / 21) ** chance.random()) / 1e9 for _ in range(releases)]
    levels = [min(drawn), *drawn]
    with open_clinic() as session:
        # what declarations read is no answer
        reads.clear()
        top, _ = ask(session, text, 1.0)
        assert reads == {way: 1}, "the spy sees what is read"
        price = spent(session)
        # whatever still read the visits would show it
        session.connection.execute("DELETE FROM visits")
        served: dict[float, dict[Any, float]] = {}
        for rho in levels:
            values, receipt = ask(session, text, rho)
            assert (receipt.charged_rho, receipt.charged_delta, receipt.reused) == (0.0, 0.0, True)
            assert 0.799 * rho < receipt.rho <= rho + 1e-9
            assert values
            assert values != top
            # one level has one answer; keys may join that lower levels have shown since
            before = served.setdefault(receipt.rho, values)
            assert {key: values[key] for key in before} == before
        assert reads == {way: 1}
        assert spent(session) == price
        assert len(presence_levels(session)) == len(served) + 1
        if which == "public keys":
            assert all(is_free_level(round(rho * 1e9)) for rho in served)
            assert all(values.keys() == top.keys() for values in served.values())
        else:
            assert len(served) > 10
