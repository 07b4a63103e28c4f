"""One set of checks for every law of lossless multiple release, and the cases that they run over.

A case is a law with four levels. Its points are drawn in some order by the law's own steps. Whatever the order, every
point has the marginal law of its level, and the least private point and the steps down from it are independent.
Together that is the joint law. All p-values of one test are combined by Bonferroni's inequality.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from dpsql.noise.gaussian_laws import CorrelatedGaussianLaw, GaussianLaw
from dpsql.noise.laplace_laws import DiscreteLaplaceLaw, ExponentialLaw, LaplaceLaw
from dpsql.noise.law import Law, Values
from dpsql.noise.poisson_laws import PoissonLaw, SkellamLaw
from tests.deterministic_entropy import SeededEntropy

Levels = tuple[Fraction, ...]
Samples = NDArray[np.float64]
Points = dict[Fraction, Samples]
Distribution = Callable[[Samples, float], Samples]

DRAWS = 100_000
STEPS = 1 << 20
EXACT = 40
RHOS = tuple(Fraction(1, n) for n in (20, 5, 2, 1))


# --- The law of each case --------------------------------------------------------------------------------------------


def gaussian_cdf(points: Samples, variance: float) -> Samples:
    cdf: Samples = special.ndtr((points + 0.5) / math.sqrt(variance))
    return cdf


def geometric_cdf(points: Samples, variance: float) -> Samples:
    # variance = a / (1 - a)^2; `points` are whole.
    gap = (math.sqrt(4 * variance + 1) - 1) / (2 * variance)
    return np.where(points < 0, 0.0, -np.expm1((np.maximum(points, 0) + 1) * math.log1p(-gap)))


def laplace_cdf(points: Samples, variance: float) -> Samples:
    # variance = 2 a / (1 - a)^2.
    gap = (math.sqrt(2 * variance + 1) - 1) / variance
    tail = np.exp(np.where(points < 0, -points, points + 1) * math.log1p(-gap)) / (2 - gap)
    return np.where(points < 0, tail, 1 - tail)


def poisson_cdf(points: Samples, variance: float) -> Samples:
    cdf: Samples = np.asarray(stats.poisson.cdf(points, variance))
    return cdf


def skellam_cdf(points: Samples, variance: float) -> Samples:
    """Sums of probabilities over the points up to 12 standard deviations away; the points rise."""
    reach = int(12 * math.sqrt(variance)) + 12
    law = stats.skellam.pmf(np.arange(-reach, reach + 1), variance / 2, variance / 2)
    passed = np.concatenate([[0.0], np.cumsum(law)])
    cdf: Samples = passed[np.clip(points + reach + 1, 0, passed.size - 1).astype(int)]
    return cdf


def every_key(noise: Values) -> Samples:
    return noise.astype(np.float64)


def contrasts(noise: Values) -> Samples:
    """Differences of neighbouring keys, free of the common term: variance 2 of the own noise."""
    return (noise[::2] - noise[1::2]).astype(np.float64)


@dataclass(frozen=True)
class Case:
    """A law at four levels, rising; `independent` makes independent samples of the noise of all keys."""

    name: str
    law: Law
    levels: Levels
    cdf: Distribution
    # The level at which the variance is 3 % lower.
    three_percent_low: Callable[[Fraction], Fraction]
    independent: Callable[[Values], Samples] = every_key
    # Variance of an independent sample over the law's.
    share: float = 1.0
    keys: int = DRAWS
    exact: Values = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def with_keys(self, keys: int) -> Case:
        return replace(self, keys=keys, exact=np.arange(keys) % 5 + EXACT)

    def variance(self, level: Fraction) -> float:
        return self.law.variance(level) * self.share

    def mean(self, level: Fraction) -> float:
        return self.law.mean(level)


def of_scale(level: Fraction) -> Fraction:
    return level / Fraction(math.sqrt(0.97))


def of_variance(level: Fraction) -> Fraction:
    return level / Fraction(97, 100)


def of_ratio(level: Fraction) -> Fraction:
    """For P(x) proportional to level^-|x|."""
    variance = 0.97 * DiscreteLaplaceLaw(1).variance(level)
    return 1 / Fraction(1 - (math.sqrt(2 * variance + 1) - 1) / variance)


CORRELATED = CorrelatedGaussianLaw(Fraction(STEPS), Fraction(1, 3))
CASES = [
    Case("gaussian", GaussianLaw(Fraction(STEPS)), RHOS, gaussian_cdf, of_variance),
    Case("correlated gaussian", CORRELATED, RHOS, gaussian_cdf, of_variance, contrasts, 1.5, 2 * DRAWS),
    Case("laplace", LaplaceLaw(STEPS), RHOS, laplace_cdf, of_scale),
    Case(
        "discrete laplace",
        DiscreteLaplaceLaw(1),
        (Fraction(7, 6), Fraction(4, 3), Fraction(2), Fraction(4)),
        laplace_cdf,
        of_ratio,
    ),
    Case("exponential", ExponentialLaw(1 << 10), RHOS, geometric_cdf, of_scale),
    Case("poisson", PoissonLaw(), RHOS, poisson_cdf, of_variance),
    Case("skellam", SkellamLaw(), RHOS, skellam_cdf, of_variance),
]
CASES = [case.with_keys(case.keys) for case in CASES]


# --- Points in some order --------------------------------------------------------------------------------------------


def released(case: Case, order: Levels, seed: int) -> Points:
    """Noise of every point, drawn in this order by the law's own steps."""
    law, exact, entropy = case.law, case.exact, SeededEntropy(seed)
    points: dict[Fraction, Values] = {}
    for level in order:
        lower = max((other for other in points if other < level), default=None)
        higher = min((other for other in points if other > level), default=None)
        if higher is not None and lower is not None:
            points[level] = law.bridge(points[lower], lower, points[higher], higher, level, entropy)
        elif higher is not None:
            points[level] = law.step_down(points[higher], higher, level, entropy)
        elif lower is not None:
            points[level] = law.step_up(points[lower], lower, level, exact, entropy)
        else:
            points[level] = law.draw(exact, level, entropy)
    return {level: case.independent(points[level] - exact) for level in case.levels}


def taken(levels: Sequence[Fraction], *places: int) -> Levels:
    return tuple(levels[place] for place in places)


# --- Checks: each returns p-values -----------------------------------------------------------------------------------


def marginal_p(noise: Samples, case: Case, level: Fraction) -> float:
    """Chi-square in bins of about equal chance."""
    scale = math.sqrt(case.variance(level))
    # The law of the sum of two keys' own noise is only lattice-wide different from the continuous one.
    grid = np.unique(np.floor(case.mean(level) + scale * np.linspace(-6, 9, 3000)))
    passed = case.cdf(grid, case.variance(level))
    ends = np.unique(np.searchsorted(passed, np.arange(1, 16) / 16).clip(0, grid.size - 1))
    expected = np.diff(passed[ends], prepend=0.0, append=1.0) * noise.size
    while expected.min() < 5:
        ends = np.delete(ends, min(int(expected.argmin()), ends.size - 1))
        expected = np.diff(passed[ends], prepend=0.0, append=1.0) * noise.size
    observed = np.bincount(np.searchsorted(grid[ends], noise, side="left"), minlength=ends.size + 1)
    return float(stats.chisquare(observed, expected).pvalue)


def steps_down(points: Points, case: Case) -> list[Samples]:
    """The least private noise, then the step to each next level down: independent in the lossless law."""
    falling = sorted(case.levels, reverse=True)
    return [points[falling[0]], *(points[low] - points[high] for high, low in pairwise(falling))]


def second_moments_p(points: Points, case: Case) -> list[float]:
    """Cov(Y_i, Y_j) = Var(Y of the higher level): normal tests of the mean products."""
    found = []
    for low, high in combinations(sorted(case.levels), 2):
        products = (points[low] - case.mean(low)) * (points[high] - case.mean(high))
        score = (products.mean() - case.variance(high)) / products.std() * math.sqrt(products.size)
        found.append(2 * float(stats.norm.sf(abs(score))))
    return found


def binned(values: Samples) -> NDArray[np.intp]:
    """Up to 8 bins of about equal size, an atom in a bin of its own."""
    borders = np.unique(np.quantile(values, np.arange(1, 8) / 8, method="lower"))
    bins = np.searchsorted(borders, values, side="left") + np.searchsorted(borders, values, side="right")
    index: NDArray[np.intp] = np.unique(bins, return_inverse=True)[1]
    return index


def independence_p(points: Points, case: Case) -> list[float]:
    """Contingency tables of all pairs among the least private noise and the steps."""
    found = []
    for one, other in combinations([binned(values) for values in steps_down(points, case)], 2):
        table = np.bincount(one * 32 + other, minlength=32 * 32).reshape(-1, 32)[: one.max() + 1, : other.max() + 1]
        # Rare bins join their neighbours, so that the chi-square law holds.
        table = merged(merged(table).T)
        if min(table.shape) > 1:
            found.append(float(stats.chi2_contingency(table, correction=False).pvalue))
    return found


def merged(table: NDArray[np.int64]) -> NDArray[np.int64]:
    rows: list[NDArray[np.int64]] = []
    for row in table:
        if rows and min(rows[-1].sum(), row.sum()) < 500:
            rows[-1] = rows[-1] + row
        else:
            rows.append(row.copy())
    return np.array(rows)


def estimator_p(points: Points, case: Case) -> float:
    """F-test: no combination of the other points, nor of simple functions of the steps, improves the best point.

    An estimate from all points is the least private one minus a prediction of its noise from the steps.
    """
    noise, *steps = steps_down(points, case)
    features = [np.ones_like(noise)]
    for step in steps:
        features += [step / step.std(), np.abs(step) / step.std(), (step == 0).astype(float)]
    design = np.column_stack(features)
    centred = noise - noise.mean()
    # The pseudo-inverse drops features that are constant, such as "no step at all" for continuous noise.
    fitted = np.linalg.pinv(design.T @ design) @ (design.T @ centred)
    freedom = design.shape[1] - 1
    total, rest = float((centred**2).sum()), float(((centred - design @ fitted) ** 2).sum())
    ratio = (total - rest) / freedom / (rest / (noise.size - design.shape[1]))
    return float(stats.f.sf(ratio, freedom, noise.size - design.shape[1]))


def law_p(case: Case, order: Levels, seed: int = 5) -> float:
    """All checks of one order of requests, as one p-value."""
    points = released(case, order, seed)
    found = [marginal_p(points[level], case, level) for level in case.levels]
    found += second_moments_p(points, case) + independence_p(points, case)
    found.append(estimator_p(points, case))
    return min(1.0, len(found) * min(found))
