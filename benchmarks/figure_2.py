"""Variance of many releases of one statistic, independent or lossless: Figure 2 of the lossless multiple release paper.

    python -m benchmarks.figure_2 [--draws 1000000] [--png figure_2.png]

Levels are spaced evenly on a logarithmic scale from rho 0.001 to 5. Independent releases have to share what the levels
allow: the release at a level may only spend the difference to the one before. Lossless releases need not. Every
number is measured on noise, beside the exact 1 / (2 rho). The picture needs matplotlib; the numbers do not.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import time
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpsql.noise.entropy import SystemEntropy
from dpsql.noise.laws import LAWS

FIRST, LAST = 0.001, 5.0
RELEASES = (2, 4, 8, 16, 32)
# Lattice steps per unit of sensitivity: the rounding is 1e-11 of the smallest variance.
STEPS = 1 << 20
SHOWN = 8

Numbers = NDArray[np.float64]


def levels_of(releases: int) -> list[Fraction]:
    """Return so many levels, rising, rounded to nano-rho."""
    return [Fraction(round(rho * 1e9), 10**9) for rho in np.geomspace(FIRST, LAST, releases)]


def independent_variances(levels: list[Fraction], draws: int) -> Numbers:
    """Return the measured variance at each level if every release is drawn afresh for the rise it costs."""
    law, exact = LAWS["gaussian"](Fraction(STEPS)), np.zeros(draws, dtype=np.int64)
    rises = [levels[0], *(high - low for low, high in pairwise(levels))]
    return np.array([variance(law.draw(exact, rise, SystemEntropy())) for rise in rises])


def lossless_variances(levels: list[Fraction], draws: int) -> Numbers:
    """Return the measured variance at each level of one lossless cascade, drawn from the middle outwards."""
    law, exact, entropy = LAWS["gaussian"](Fraction(STEPS)), np.zeros(draws, dtype=np.int64), SystemEntropy()
    top, bottom, *between = levels[-1], levels[0], *levels[1:-1]
    first = levels[len(levels) // 2 - 1]
    points = {first: law.draw(exact, first, entropy)}
    points[top] = law.step_up(points[first], first, top, exact, entropy)
    if bottom != first:
        points[bottom] = law.step_down(points[first], first, bottom, entropy)
    for level in between:
        if level not in points:
            low, high = max(one for one in points if one < level), min(one for one in points if one > level)
            points[level] = law.bridge(points[low], low, points[high], high, level, entropy)
    return np.array([variance(points[level]) for level in levels])


def variance(noise: NDArray[np.int64]) -> float:
    """Return the mean square in units of squared sensitivity."""
    return float(np.mean((noise / STEPS) ** 2))


def print_panel(releases: int, draws: int) -> tuple[Numbers, Numbers, Numbers]:
    """Print and return levels, independent and lossless variances of so many releases."""
    levels = levels_of(releases)
    independent, lossless = independent_variances(levels, draws), lossless_variances(levels, draws)
    rhos = np.array([float(level) for level in levels])
    print(f"\n{releases} releases")
    print(f"{'rho':>12}{'1 / (2 rho)':>14}{'lossless':>14}{'independent':>14}{'independent / lossless':>26}")
    for place in np.unique(np.linspace(0, releases - 1, SHOWN).round().astype(int)):
        numbers = f"{0.5 / rhos[place]:>14.5g}{lossless[place]:>14.5g}{independent[place]:>14.5g}"
        print(f"{rhos[place]:>12.5g}{numbers}{independent[place] / lossless[place]:>26.3f}")
    return rhos, independent, lossless


def draw(path: str, panels: dict[int, tuple[Numbers, Numbers, Numbers]]) -> None:
    """Draw variance against rho, one line for each number of independent releases and one for all lossless ones."""
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axis = pyplot.subplots(figsize=(7, 5))
    for releases, (rhos, independent, _) in panels.items():
        axis.loglog(rhos, independent, "o-", label=f"{releases} independent releases")
    rhos, _, lossless = panels[max(panels)]
    axis.loglog(rhos, lossless, "k--", label="lossless, any number")
    axis.set(xlabel="rho", ylabel="variance of the noise")
    axis.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Print the variances for each number of releases, and draw them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=1_000_000, help="noise draws per release")
    parser.add_argument("--png", help="also draw the figure into this file (needs matplotlib)")
    arguments = parser.parse_args()
    began = time.perf_counter()
    panels = {releases: print_panel(releases, arguments.draws) for releases in RELEASES}
    worst = max(float(np.abs(lossless * 2 * rhos - 1).max()) for rhos, _, lossless in panels.values())
    print(f"\nlossless variance times 2 rho differs from 1 by at most {worst:.4f}")
    print("independent over lossless at the largest level, by the number of releases:")
    print("  ".join(f"{releases}: {panel[1][-1] / panel[2][-1]:.2f}" for releases, panel in panels.items()))
    print(f"{time.perf_counter() - began:.1f} s")
    if arguments.png and importlib.util.find_spec("matplotlib") is None:
        print("matplotlib is not installed: no picture")
    elif arguments.png:
        draw(arguments.png, panels)


if __name__ == "__main__":
    main()
