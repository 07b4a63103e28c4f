"""The norm of few keys: the stated formula by loops over tails, places and norms, and its errors on known laws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpsql.bound.unit_histograms import NORM_PLACES
from dpsql.features import auto_few_keys
from dpsql.features.auto_choices import MEAN_NOISE, held_units
from dpsql.features.auto_few_keys import _CURVATURES, _SLOPES, _start, norm_of_few_keys
from dpsql.features.auto_histograms import auto_sigma
from dpsql.features.auto_norms import USUAL_ROWS_PLACES, NormUse

Floats = npt.NDArray[np.float64]


def of_norms(norms: Floats, sigma: float = 0.0, seed: int = 1) -> Floats:
    places = np.ceil(4.0 * np.log2(norms) - 1e-9).astype(int) + 1
    return np.bincount(places, minlength=NORM_PLACES) + np.random.default_rng(seed).normal(0.0, sigma, NORM_PLACES)


def use(keys: int, rho: float = 0.0136, groups: int = 8) -> NormUse:
    return NormUse(rho, min(groups, keys), keys, USUAL_ROWS_PLACES, is_of_few=True)


def weighed_tails(places: list[float], sigma: float, start: int) -> list[tuple[float, list[float]]]:
    """Return the likelihood and the units of each tail, by loops."""
    blocks = [[i] for i in range(len(places))]
    if start < 8:
        pairs = [[0], [1, 2], [3, 4], [5, 6], [7]]
        blocks = [[i - start for i in pair] for pair in pairs if pair[0] >= start]
        blocks += [[i] for i in range(8 - start, len(places))]
    found = []
    for slope in _SLOPES:
        for curvature in _CURVATURES:
            if curvature == 0.0 and slope < 0.8:
                continue
            shape = [math.exp(-slope * i / 4.0 - curvature * (i / 4.0) ** 2) for i in range(len(places))]
            if start == 0:
                shape[0] += math.exp(slope / 4.0 - curvature / 16.0)
            product = squares = 0.0
            for block in blocks:
                model, counted = (sum(one[i] for i in block) for one in (shape, places))
                product += model * counted / (sigma**2 * len(block))
                squares += model**2 / (sigma**2 * len(block))
            size = max(product, 0.0) / squares
            found.append((0.5 * size * max(product, 0.0) - 0.5 * math.log(squares), [size * one for one in shape]))
    most = max(exponent for exponent, _ in found)
    return [(math.exp(exponent - most), units) for exponent, units in found]


def expected_error(norm: float, start: int, tails: list[tuple[float, list[float]]], how: NormUse) -> float:
    """Return the mean of the logarithm of a table's error over all tails, by loops."""
    total = mean = 0.0
    noise = math.sqrt(2.0 / math.pi) * (how.key_count or 0) * norm / math.sqrt(2.0 * how.rho)
    for weight, units in tails:
        ends = [2.0 ** ((start + i - 0.5 * bool(i)) / 4.0) for i in range(len(units))]
        lost = math.fsum(number * max(0.0, end - norm) for number, end in zip(units, ends, strict=True))
        mean += weight * math.log(math.hypot(lost * math.sqrt(how.groups), noise))
        total += weight
    return mean / total


def require_least(law: tuple[float, float], keys: int) -> None:
    """Check that the choice for norms of a log-normal law is the least of the stated formula."""
    sigma, how = 34.0, use(keys)
    norms = np.sqrt(np.ceil(np.random.default_rng(keys).lognormal(*law, 3_000)))
    noisy = of_norms(norms, sigma, keys)
    chosen = norm_of_few_keys(noisy, sigma, how)
    assert chosen is not None
    start = _start(noisy[1:], held_units(noisy[1:], sigma), sigma)
    tails = weighed_tails([float(one) for one in noisy[1 + start :][:48]], sigma, start)
    near = round(16.0 * (math.log2(chosen) - start / 4.0))
    steps = {*range(max(near - 4, 0), near + 5), *range(0, 120, 12)}
    grid = [2.0 ** (start / 4.0 + step / 16.0) for step in sorted(steps)]
    least = min(grid, key=lambda norm: expected_error(norm, start, tails, how))
    assert chosen == max(1.0, round(2.0 * least) / 2.0)


@pytest.mark.parametrize(("law", "keys"), [((3.0, 0.3), 5), ((1.0, 1.5), 3), ((3.0, 1.2), 12)])
def test_the_choice_is_the_least_of_the_stated_formula(law: tuple[float, float], keys: int) -> None:
    require_least(law, keys)


def test_a_wrong_formula_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: noise of one key in place of all."""
    monkeypatch.setattr(auto_few_keys, "MEAN_NOISE", MEAN_NOISE / 12.0)
    with pytest.raises(AssertionError):
        require_least((3.0, 1.2), 12)


@pytest.mark.parametrize("norm", [1.0, 4.0, 1024.0])
def test_a_norm_that_everybody_has_is_the_choice(norm: float) -> None:
    assert norm_of_few_keys(of_norms(np.full(1_000, norm), 5.0), 5.0, use(5, rho=1.0)) == norm


def test_noise_of_more_keys_has_a_smaller_norm() -> None:
    noisy = of_norms(1.0 + 4.0 * np.random.default_rng(1).pareto(1.3, 8_000), 34.0)
    norms = [norm_of_few_keys(noisy, 34.0, use(keys, groups=1)) or 0.0 for keys in (1, 2, 4, 8, 16, 32)]
    assert norms == sorted(norms, reverse=True)
    assert norms[0] > 4.0 * norms[-1]


def test_where_no_place_holds_units_there_is_no_norm() -> None:
    assert norm_of_few_keys(of_norms(np.empty(0), 34.0), 34.0, use(5)) is None


@pytest.mark.parametrize("number", [1_000, 3_000])
def test_units_of_another_kind_are_not_cut_at_the_others(number: int) -> None:
    """Wholesalers, whose norms lie three doublings above those of others, and hold no certain place."""
    norms = np.append(np.full(9_000, 4.0), np.exp2(np.random.default_rng(1).uniform(4.5, 5.5, number)))
    chosen = norm_of_few_keys(of_norms(norms, 34.0), 34.0, use(5))
    assert chosen is not None
    assert 30.0 <= chosen <= 64.0


LAWS: dict[str, Callable[[np.random.Generator], npt.NDArray[Any]]] = {
    "Pareto 1.1": lambda random: np.minimum(np.floor(4.0 * random.pareto(1.1, 5_000)) + 1.0, 3_000.0),
    "Pareto 1.5": lambda random: np.floor(3.0 * random.pareto(1.5, 15_000)) + 1.0,
    "log-normal": lambda random: np.ceil(random.lognormal(1.0, 1.5, 10_000)),
    "like": lambda random: 1.0 + random.poisson(19.0, 5_000),
}


def mean_excess(law: str) -> float:
    """Return the error of a table of five keys over that of the best norm, on the geometric average of releases."""
    rho, keys, logs = 0.0266, 5, []
    sigma, level = auto_sigma(round(rho / 64 * 1e9), 1.0), 31.0 / 64.0 * rho
    for seed in range(20):
        rows: Floats = np.maximum(LAWS[law](np.random.default_rng(seed)), 1.0).astype(np.float64)
        norms = np.maximum(rows / math.sqrt(keys), 1.0)
        chosen = norm_of_few_keys(of_norms(norms, sigma, seed), sigma, NormUse(level, keys, keys, USUAL_ROWS_PLACES))
        assert chosen is not None

        def error(norm: float, rows: Floats = rows, norms: Floats = norms) -> float:
            bias = float(rows @ np.maximum(1.0 - norm / norms, 0.0))
            return math.hypot(bias, 0.8 * keys * norm / math.sqrt(2.0 * 0.91 * rho))

        logs.append(math.log(error(chosen) / min(error(2.0 ** (step / 4.0)) for step in range(60))))
    return math.exp(math.fsum(logs) / len(logs))


@pytest.mark.parametrize(
    ("law", "most"), [("Pareto 1.1", 1.9), ("Pareto 1.5", 1.5), ("log-normal", 1.5), ("like", 1.2)]
)
def test_the_choice_is_near_the_best_norm(law: str, most: float) -> None:
    assert mean_excess(law) <= most


def test_the_check_catches_tails_that_end_where_places_are_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_few_keys, "_SLOPES", np.array([20.0]))
    assert mean_excess("Pareto 1.1") > 2.0
