"""Smallest threshold for every magnitude of noise: Figure 3 of the correlated stability histogram paper, extended.

    python -m benchmarks.figure_3 [--png figure_3.png]

Both panels (epsilon 0.35, delta 1e-5, k = 51,914 and k = 10) as numbers, with the curves of our two analyses added,
then the minima for more k, epsilon and delta. The picture needs matplotlib; the numbers do not.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpsql.accounting.best_point import best_point
from dpsql.accounting.correlated_histogram import CorrelatedAnalysis, CorrelatedProfile
from dpsql.accounting.profile import smallest_query_threshold
from dpsql.accounting.sparse_histogram import SparseProfile
from dpsql.errors import CalibrationError
from tests.unit.accounting.added_deltas import AddedDeltasProfile

PANELS = (51914, 10)
TABLE = tuple((k, epsilon, 1e-8) for k in (2, 100, 1000) for epsilon in (0.1, 1.0, 3.0))
GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


@dataclass(frozen=True)
class Curve:
    """Smallest threshold as a function of the total noise, infinite where no threshold is private."""

    name: str
    threshold: Callable[[float], float]


def gshm_curve(epsilon: float, delta: float, k: int, kind: type[SparseProfile], total: float) -> float:
    """Smallest threshold of the Gaussian histogram at this noise."""
    try:
        return smallest_query_threshold(kind(max_groups=k, sigma=total), epsilon, delta)
    except CalibrationError:
        return math.inf


def csh_curve(epsilon: float, delta: float, k: int, analysis: CorrelatedAnalysis, total: float) -> float:
    """Smallest threshold of the correlated histogram whose two noises together have this size."""
    sigma = total / math.sqrt(1.0 + k**-0.5)
    try:
        return smallest_query_threshold(CorrelatedProfile(k=k, sigma=sigma, analysis=analysis), epsilon, delta)
    except CalibrationError:
        return math.inf


def curves(epsilon: float, delta: float, k: int) -> list[Curve]:
    """Return all curves of one panel, the loosest first."""
    gshm = {"add-the-deltas": AddedDeltasProfile, "exact": SparseProfile}
    csh: tuple[CorrelatedAnalysis, ...] = ("add-the-deltas", "tight", "improved", "exact")
    return [Curve(f"GSHM {name}", partial(gshm_curve, epsilon, delta, k, kind)) for name, kind in gshm.items()] + [
        Curve(f"CSH {name}", partial(csh_curve, epsilon, delta, k, name)) for name in csh
    ]


def minimum(curve: Curve, start: float) -> tuple[float, float]:
    """Total noise and threshold at the curve's minimum; it falls, then rises, beyond the least private noise."""
    low, high = 0.3 * start, 4.0 * start
    while high / low > 1.0 + 1e-7:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if math.isfinite(curve.threshold(middle)) else (middle, high)
    low, high = high, 3.0 * high
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = curve.threshold(left), curve.threshold(right)
    while high / low > 1.0 + 1e-6:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = curve.threshold(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = curve.threshold(right)
    return min(((total, curve.threshold(total)) for total in (low, left, right)), key=lambda point: point[1])


def minima(epsilon: float, delta: float, k: int) -> dict[str, tuple[float, float]]:
    """Total noise and threshold at the minimum of every curve."""
    csh = best_point(CorrelatedProfile(k=k, sigma=1.0), epsilon, delta).sigma * math.sqrt(1.0 + k**-0.5)
    starts = best_point(SparseProfile(max_groups=k, sigma=1.0), epsilon, delta).sigma, csh
    return {curve.name: minimum(curve, starts[curve.name.startswith("CSH")]) for curve in curves(epsilon, delta, k)}


def print_panel(epsilon: float, delta: float, k: int) -> dict[str, tuple[float, float]]:
    """Print one panel: thresholds along the noise, then the minima."""
    print(f"\nk = {k:,}, epsilon = {epsilon:g}, delta = {delta:g}: smallest threshold at each total noise")
    lowest = minima(epsilon, delta, k)
    panel = curves(epsilon, delta, k)
    print(f"{'total noise':>16}" + "".join(f"{curve.name:>20}" for curve in panel))
    first = 0.99 * min(total for total, _ in lowest.values())
    last = 1.6 * max(total for total, _ in lowest.values())
    for total in np.geomspace(first, last, 16):
        values = (curve.threshold(float(total)) for curve in panel)
        row = "".join(f"{value:>20,.1f}" if math.isfinite(value) else f"{'-':>20}" for value in values)
        print(f"{total:>16,.1f}{row}")
    print(f"{'minimum':>16}" + "".join(f"{lowest[curve.name][1]:>20,.1f}" for curve in panel))
    print(f"{'at total noise':>16}" + "".join(f"{lowest[curve.name][0]:>20,.1f}" for curve in panel))
    return lowest


def print_table() -> None:
    """Print the minima of every curve for more k, epsilon and delta, and the gain of the best one."""
    names = [curve.name for curve in curves(1.0, 1e-8, 2)]
    print(f"\nSmallest thresholds\n{'k':>8}{'epsilon':>9}{'delta':>8}" + "".join(f"{name:>20}" for name in names))
    for k, epsilon, delta in TABLE:
        lowest = minima(epsilon, delta, k)
        row = "".join(f"{lowest[name][1]:>20,.2f}" for name in names)
        print(f"{k:>8,}{epsilon:>9g}{delta:>8g}{row}")


def draw(path: str, lowest: dict[int, dict[str, tuple[float, float]]]) -> None:
    """Draw both panels, with the minima marked."""
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(12, 5))
    for axis, k in zip(axes, PANELS, strict=True):
        totals = [total for total, _ in lowest[k].values()]
        grid = np.geomspace(0.95 * min(totals), 1.6 * max(totals), 80)
        for curve in curves(0.35, 1e-5, k):
            values = np.array([curve.threshold(float(total)) for total in grid])
            (line,) = axis.plot(grid, np.where(np.isfinite(values), values, np.nan), label=curve.name)
            axis.plot(*lowest[k][curve.name], "o", color=line.get_color())
        axis.set(title=f"k = {k:,}", xlabel="total noise", ylabel="smallest threshold")
        axis.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Print both panels and the table, and draw the panels if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--png", help="also draw both panels into this file (needs matplotlib)")
    arguments = parser.parse_args()
    began = time.perf_counter()
    lowest = {k: print_panel(0.35, 1e-5, k) for k in PANELS}
    print_table()
    print(f"\n{time.perf_counter() - began:.1f} s")
    if arguments.png and importlib.util.find_spec("matplotlib") is None:
        print("matplotlib is not installed: no picture")
    elif arguments.png:
        draw(arguments.png, lowest)


if __name__ == "__main__":
    main()
