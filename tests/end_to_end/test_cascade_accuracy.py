"""The last release of a cascade has the error of a single release at its level, not more and not less."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from dpsql.cascade import servings as servings_module
from dpsql.mechanism.calibrate import level_of
from dpsql.mechanism.gaussian_measure import GaussianMeasure
from dpsql.mechanism.measure import Level, NoisyHistogram, Placed
from tests.end_to_end.cities import BY_THRESHOLD, ORDER, PUBLIC, ask, open_session
from tests.noise_sources import seeded_noise

Floats = npt.NDArray[np.float64]
REPETITIONS, KEYS, PATIENTS = 300, 8, 60
LEVEL = ORDER[-1]
# Noise of a count at that level, and what rounding it to a whole number adds.
VARIANCE = 1 / (2 * LEVEL) + 1 / 12
# With the right law a check fails by chance once in a million seeds; a planted fault has to be a million times clearer.
ACCEPTED, CAUGHT = 1e-6, 1e-12

TEXTS = {"private keys": BY_THRESHOLD, "public keys": PUBLIC["GAUSSIAN"]}
VERSIONS = [3, pytest.param(REPETITIONS, marks=pytest.mark.long)]


def squared_errors(which: str, levels: tuple[float, ...], versions: int) -> Floats:
    """Sums of squared errors of the last of these levels, one per repetition, in units of the variance.

    Keys have noise of their own each, so one release of many keys is several repetitions of a release of few.
    """
    blocks = REPETITIONS // versions
    found = []
    with open_session([PATIENTS] * (KEYS * blocks), public=which == "public keys") as session:
        # no two runs share noise
        session._runner.noise_source = seeded_noise(1000 * list(TEXTS).index(which) + 10 * versions + len(levels))
        for _ in range(versions):
            session.sql("CALL dp_new_version('visits')")
            for rho in levels:
                values, receipt = ask(session, TEXTS[which], rho)
            assert receipt.columns[0].sigma == pytest.approx(VARIANCE**0.5, rel=1e-6)
            assert sorted(values) == list(range(KEYS * blocks)), "no key is near its threshold"
            noise = np.array([values[city] for city in range(KEYS * blocks)]) - PATIENTS
            found.append((noise.reshape(blocks, KEYS) ** 2).sum(axis=1) / VARIANCE)
    return np.concatenate(found)


@functools.cache
def of_single_releases(which: str, versions: int) -> Floats:
    return squared_errors(which, (LEVEL,), versions)


def chi_square_p(squares: Floats) -> float:
    """Two-sided p-value of a sum of squares of normal errors; rounding makes their squares vary a little less."""
    total, freedom = float(squares.sum()), len(squares) * KEYS
    return 2 * float(min(stats.chi2.cdf(total, freedom), stats.chi2.sf(total, freedom)))


def same_variance_p(one: Floats, other: Floats) -> float:
    """Two-sided p-value of the F-test."""
    ratio, freedom = float(one.sum() / other.sum()), len(one) * KEYS
    return 2 * float(min(stats.f.cdf(ratio, freedom, freedom), stats.f.sf(ratio, freedom, freedom)))


@pytest.mark.statistical
@pytest.mark.parametrize("versions", VERSIONS)
@pytest.mark.parametrize("which", TEXTS)
def test_the_last_release_has_the_squared_error_of_a_single_one(which: str, versions: int) -> None:
    cascade, single = squared_errors(which, ORDER, versions), of_single_releases(which, versions)
    assert len(cascade) == len(single) == REPETITIONS
    assert min(chi_square_p(cascade), chi_square_p(single), same_variance_p(cascade, single)) > ACCEPTED


RISEN = GaussianMeasure.risen


def equal_weights(measure: GaussianMeasure, held: Placed, fresh: Placed) -> NoisyHistogram:
    """A rise that averages without regard to how noisy either is: 1.9 times the variance at the last level."""
    return RISEN(measure, dataclasses.replace(held, rho_nano=fresh.rho_nano), fresh)


def only_the_fresh(_: GaussianMeasure, __: Placed, fresh: Placed) -> NoisyHistogram:
    """A rise that forgets what was released before: twice the variance."""
    return fresh.noisy


def too_little_noise(*arguments: Any) -> Level:
    """A rise with three quarters of the noise that it pays for: two thirds of the variance."""
    level = level_of(*arguments)
    return dataclasses.replace(level, sigma=0.75 * level.sigma)


FAULTS: dict[str, tuple[object, str, Callable[..., object]]] = {
    "equal weights": (GaussianMeasure, "risen", equal_weights),
    "only the fresh": (GaussianMeasure, "risen", only_the_fresh),
    "too little noise": (servings_module, "level_of", too_little_noise),
}


@pytest.mark.statistical
@pytest.mark.parametrize("fault", FAULTS)
# public keys rise by the same steps, and take five times as long
@pytest.mark.parametrize("which", ["private keys", pytest.param("public keys", marks=pytest.mark.long)])
def test_a_last_release_with_another_error_is_caught(which: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    single = of_single_releases(which, 3)
    monkeypatch.setattr(*FAULTS[fault])
    cascade = squared_errors(which, ORDER, 1)
    assert chi_square_p(single) > ACCEPTED
    assert chi_square_p(cascade) < CAUGHT
    assert same_variance_p(cascade, single) < CAUGHT
