"""Least squares over marginals: against dense matrices, and as whole numbers that add up."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest

from dpsql.features import consistent
from dpsql.features.consistent import (
    Marginal,
    consistent_values,
    consistent_variances,
    roundings,
    whole_marginals,
)

Floats = npt.NDArray[np.float64]
CASES = {
    "rollup": ((3, 4), (Marginal((0, 1), 2.0), Marginal((0,), 0.5), Marginal((), 3.0))),
    "shared noise": ((3, 4), (Marginal((0, 1), 2.0, 0.3), Marginal((1,), 5.0, 0.2), Marginal((), 1.0))),
    "cube": (
        (2, 3, 2),
        tuple(
            Marginal(axes, 1.0 + 0.3 * i, 0.1 * (i % 2))
            for i, axes in enumerate(a for n in (3, 2, 1, 0) for a in itertools.combinations(range(3), n))
        ),
    ),
    "no chain": ((4, 3, 2), (Marginal((0, 1, 2), 1.0, 0.5), Marginal((0, 1), 2.0), Marginal((1, 2), 0.1))),
    "one value": ((1, 5), (Marginal((0, 1), 1.0), Marginal((0,), 2.0), Marginal((1,), 3.0), Marginal((), 4.0))),
    "no keys": ((), (Marginal((), 2.0),)),
}


def matrix(lengths: tuple[int, ...], marginal: Marginal) -> Floats:
    """What adds cells of the table up to the marginal's."""
    factors = [np.eye(n) if axis in marginal.axes else np.ones((1, n)) for axis, n in enumerate(lengths)]
    product: Floats = np.eye(1)
    for factor in factors:
        product = np.asarray(np.kron(product, factor), dtype=np.float64)
    return product


def dense(lengths: tuple[int, ...], marginals: tuple[Marginal, ...]) -> tuple[list[Floats], Floats, Floats]:
    """Matrices, the covariance of all noisy cells, and what maps them to the best linear unbiased estimate."""
    parts = [matrix(lengths, marginal) for marginal in marginals]
    stacked = np.vstack(parts)
    blocks = [m.own * np.eye(len(part)) + m.shared for m, part in zip(marginals, parts, strict=True)]
    covariance: Floats = np.zeros((len(stacked), len(stacked)))
    start = 0
    for block in blocks:
        covariance[start : start + len(block), start : start + len(block)] = block
        start += len(block)
    precision = np.linalg.inv(covariance)
    best = np.linalg.solve(stacked.T @ precision @ stacked, stacked.T @ precision)
    return parts, covariance, np.asarray(best, dtype=np.float64)


def agrees_with_dense(case: str) -> bool:
    lengths, marginals = CASES[case]
    parts, covariance, best = dense(lengths, marginals)
    cells = np.random.default_rng(5).normal(size=covariance.shape[0])
    noisy = np.split(cells, np.cumsum([len(part) for part in parts])[:-1])
    values = consistent_values(lengths, marginals, noisy)
    variances = consistent_variances(lengths, marginals)
    table = best @ cells
    spread = best @ covariance @ best.T
    return all(
        np.allclose(found, part @ table) and np.allclose(np.diag(part @ spread @ part.T), variance)
        for found, variance, part in zip(values, variances, parts, strict=True)
    )


@pytest.mark.parametrize("case", CASES)
def test_values_and_variances_are_those_of_least_squares(case: str) -> None:
    assert agrees_with_dense(case)


@pytest.mark.parametrize("case", ["rollup", "cube", "shared noise"])
def test_a_plain_mean_of_what_the_marginals_say_is_caught(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: every marginal counts alike, however many cells were added up for it."""
    whole = consistent._precisions
    monkeypatch.setattr(consistent, "_precisions", lambda *given: [float(p > 0.0) for p in whole(*given)])
    assert not agrees_with_dense(case)


def test_shared_noise_that_is_forgotten_is_caught() -> None:
    lengths, marginals = CASES["shared noise"]
    forgotten = tuple(Marginal(marginal.axes, marginal.own) for marginal in marginals)
    assert not np.allclose(consistent_variances(lengths, marginals), consistent_variances(lengths, forgotten))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("step", [1.0, 0.01])
def test_whole_numbers_add_up_and_stay_near(case: str, step: float) -> None:
    lengths, marginals = CASES[case]
    table = np.random.default_rng(6).normal(scale=100.0, size=math.prod(lengths))
    found = whole_marginals(lengths, marginals, table, step)
    for marginal, cells, count in zip(marginals, found, roundings(lengths, marginals), strict=True):
        assert np.allclose(cells / step, np.rint(cells / step), atol=1e-9)
        assert np.allclose(cells, matrix(lengths, marginal) @ found[0])
        assert np.abs(cells - matrix(lengths, marginal) @ table).max() <= step * count / 2 + 1e-9


def test_roundings_are_the_variance_that_rounding_adds() -> None:
    """1,500 tables of 3 by 4: relative errors of the variances are about 3 %, and a factor of 2 would be seen."""
    lengths, marginals = CASES["rollup"]
    chance = np.random.default_rng(7)
    errors: list[list[Floats]] = [[], [], []]
    for _ in range(1500):
        table = chance.normal(scale=50.0, size=12)
        found = whole_marginals(lengths, marginals, table, 1.0)
        for place, (marginal, cells) in enumerate(zip(marginals, found, strict=True)):
            errors[place].append(cells - matrix(lengths, marginal) @ table)
    # the last of an axis is a difference of two rounded sums, the first is one: the count is that of the worst cell
    for place, count in enumerate(roundings(lengths, marginals)):
        worst = np.square(errors[place]).mean(axis=0).max() * 12
        assert 0.85 * count < worst < 1.15 * count
