"""What whole-number noise costs: smallest thresholds of the correlated histogram with discrete and continuous noise.

    python -m benchmarks.discrete_noise

Discrete noise by both routes to the delta of the counts, adding the exact chance of showing a new key; beside it
continuous noise, by adding the paper's two deltas (Theorem 3.3) and by the exact maximum over all neighbours, for which
discrete noise has no proof. Each at its own best sigma, with correlation 1 / sqrt(k).
"""

from __future__ import annotations

import math
import time
from functools import partial

from benchmarks.figure_3 import Curve, csh_curve, minimum
from dpsql.accounting import zcdp
from dpsql.accounting.best_point import best_point
from dpsql.accounting.correlated_histogram import CorrelatedAnalysis, CorrelatedProfile
from dpsql.accounting.discrete_histogram import DiscreteRoute, discrete_sigma, discrete_threshold
from dpsql.errors import CalibrationError
from dpsql.noise.discrete_gaussian import rational_variance

TABLE = ((10, 0.35, 1e-5), (100, 1.0, 1e-5), (1000, 0.35, 1e-8))
ROUTES: tuple[DiscreteRoute, ...] = ("zcdp", "lattice")
ANALYSES: tuple[CorrelatedAnalysis, ...] = ("add-the-deltas", "exact")
STEP = 1.02


def discrete_at(epsilon: float, delta: float, k: int, route: DiscreteRoute, sigma: float) -> float:
    """Smallest threshold with discrete noise of this sigma, infinite where none is private."""
    variance = rational_variance(sigma)
    try:
        return discrete_threshold(epsilon, delta, k=k, variance=variance, correlation=k**-0.5, route=route)
    except CalibrationError:
        return math.inf


def best_discrete(epsilon: float, delta: float, k: int, route: DiscreteRoute) -> tuple[float, float]:
    """Sigma and threshold at the least threshold, over sigma in steps of 2 % around the least one by zCDP."""
    middle = discrete_sigma(zcdp.rho(epsilon, delta), k=k, correlation=k**-0.5)
    scanned = (middle * STEP**step for step in range(-16, 17))
    best = min((discrete_at(epsilon, delta, k, route, sigma), sigma) for sigma in scanned)
    return best[1], best[0]


def best_continuous(epsilon: float, delta: float, k: int, analysis: CorrelatedAnalysis) -> tuple[float, float]:
    """Sigma and threshold at the least threshold with continuous noise."""
    curve = Curve(analysis, partial(csh_curve, epsilon, delta, k, analysis))
    both = math.sqrt(1.0 + k**-0.5)
    total, tau = minimum(curve, best_point(CorrelatedProfile(k=k, sigma=1.0), epsilon, delta).sigma * both)
    return total / both, tau


def main() -> None:
    """Print one row for each k, epsilon and delta: every least threshold, and the sigma it is at."""
    began = time.perf_counter()
    columns = [f"discrete, {route}" for route in ROUTES] + [f"continuous, {analysis}" for analysis in ANALYSES]
    print("Smallest threshold, and the sigma of each key's own noise that has it")
    print(f"{'k':>6}{'epsilon':>9}{'delta':>8}" + "".join(f"{column:>27}" for column in columns))
    for k, epsilon, delta in TABLE:
        points = [best_discrete(epsilon, delta, k, route) for route in ROUTES]
        points += [best_continuous(epsilon, delta, k, analysis) for analysis in ANALYSES]
        row = "".join(f"{f'{tau:,.1f} at {sigma:.1f}':>27}" for sigma, tau in points)
        print(f"{k:>6,}{epsilon:>9g}{delta:>8g}{row}")
    print(f"\n{time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
