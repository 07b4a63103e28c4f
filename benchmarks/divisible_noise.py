"""Noise that parties share: figures 1 and 2 of Harrison and Manurangsi 2025, a price list, parties, and samplers.

    python -m benchmarks.divisible_noise [--folder out]

All mean squared errors are exact variances, but for the column that says it is measured. Figure 1 is at max_change 20,
the probabilities of figure 2 are at max_change 10 and epsilon 8, its continuous errors at max_change 1. Pictures need
matplotlib; the numbers do not.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import time
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import CalibrationError
from dpsql.noise.divisible import (
    Arete,
    DiscreteLaplace,
    DiscreteStaircase,
    DivisibleLaw,
    GeneralizedDiscreteLaplace,
    MultiScaleLaplace,
    TransformedLaplace,
    ValueLaplace,
    choose_law,
    continuous_staircase_variance,
)
from dpsql.noise.divisible.many_negative_binomials import draw_many
from dpsql.noise.divisible.negative_binomial import draw_negative_binomials
from dpsql.noise.entropy import SystemEntropy

Numbers = NDArray[np.float64]
Variance = Callable[[float], float]

CHANGE = 20
EPSILONS = (4.0, 6.0, 8.0, 10.0)
DRAWN_EPSILONS = np.arange(2.0, 14.01, 0.25)
PMF_CHANGE, PMF_EPSILON, PMF_REACH = 10, 8.0, 45
CONTINUOUS_EPSILONS = (2.0, 5.0, 8.0, 11.0, 14.0)
PRICES, PRICE_EPSILON = (5, 10, 30, 100), 10.0
PARTIES = (1, 2, 7, 100, 1000)
MANY_EPSILON, MANY_KINDS = 12, 2 * 50_000
"""Kinds of one noisy number at max_change 50,000: a positive and a negative one for each scale."""

DISCRETE: Mapping[str, Variance] = {
    "staircase (cannot be shared)": lambda epsilon: DiscreteStaircase.of(epsilon, CHANGE).variance,
    "MSDLap, nearest multiples": lambda epsilon: MultiScaleLaplace.of_nearest(epsilon, CHANGE).variance,
    "MSDLap, best spacing": lambda epsilon: MultiScaleLaplace.of(epsilon, CHANGE).variance,
    "GDL, best": lambda epsilon: GeneralizedDiscreteLaplace.of(epsilon, CHANGE).variance,
    "GDL, Theorem 15": lambda epsilon: GeneralizedDiscreteLaplace.of_theorem_15(epsilon, CHANGE).variance,
    "discrete Laplace": lambda epsilon: DiscreteLaplace.of(epsilon, CHANGE).variance,
}
CONTINUOUS: Mapping[str, Variance] = {
    "staircase (cannot be shared)": lambda epsilon: continuous_staircase_variance(epsilon, 1),
    "MSDLap, best split": lambda epsilon: TransformedLaplace.of(epsilon, 1).variance,
    "MSDLap, Theorem 21": lambda epsilon: TransformedLaplace.of_theorem_21(epsilon, 1).variance,
    "GDL, Theorem 21": lambda epsilon: TransformedLaplace.of_theorem_21(epsilon, 1, generalized=True).variance,
    "Arete (not proven)": lambda epsilon: Arete.of_conjecture_30(epsilon, 1).variance,
    "Laplace": lambda epsilon: 2 / epsilon**2,
}


def variance_at(law: Variance, epsilon: float) -> float:
    """Return the variance of a law, or NaN where the law has no parameters for this epsilon."""
    try:
        return law(epsilon)
    except CalibrationError:
        return math.nan


def print_errors(title: str, laws: Mapping[str, Variance], epsilons: Sequence[float]) -> None:
    """Print the variances of laws, one a row, at each epsilon."""
    print(f"\n{title}\n{'epsilon':<32}" + "".join(f"{epsilon:>12g}" for epsilon in epsilons))
    for name, law in laws.items():
        found = [variance_at(law, epsilon) for epsilon in epsilons]
        print(f"{name:<32}" + "".join(f"{'-' if math.isnan(one) else format(one, '.4g'):>12}" for one in found))


def probabilities() -> tuple[NDArray[np.int64], dict[str, Numbers]]:
    """Return whole numbers, and the probabilities of figure 2 (a) at each."""
    places = np.arange(-PMF_REACH, PMF_REACH + 1)
    laws: dict[str, DivisibleLaw] = {
        "GDL, Theorem 15": GeneralizedDiscreteLaplace.of_theorem_15(PMF_EPSILON, PMF_CHANGE),
        "MSDLap, Theorem 16": MultiScaleLaplace(1, PMF_CHANGE, MultiScaleLaplace.of(PMF_EPSILON, 1).coarse),
        "discrete Laplace": DiscreteLaplace.of(PMF_EPSILON, PMF_CHANGE),
    }
    return places, {name: np.exp(law.log_pmf(places)) for name, law in laws.items()}


def print_probabilities() -> None:
    """Print figure 2 (a) around the first multiples of the largest change."""
    places, laws = probabilities()
    shown = (0, 1, 5, PMF_CHANGE, PMF_CHANGE + 1, 2 * PMF_CHANGE, 2 * PMF_CHANGE + 1)
    print(f"\nProbabilities at max_change {PMF_CHANGE} and epsilon {PMF_EPSILON:g} (figure 2 a)")
    print(f"{'noise':<32}" + "".join(f"{place:>12}" for place in shown))
    for name, chances in laws.items():
        print(f"{name:<32}" + "".join(f"{chances[places == place][0]:>12.3g}" for place in shown))


def print_prices() -> None:
    """Print the errors of a sum over a price list, where one unit adds or removes one sale."""
    largest = max(PRICES)
    print(f"\nSum of sales at the prices {', '.join(map(str, PRICES))}, epsilon {PRICE_EPSILON:g}: mean squared errors")
    rows = {
        "MSDLap of the four prices": ValueLaplace.of(PRICE_EPSILON, PRICES).variance,
        "continuous staircase": continuous_staircase_variance(PRICE_EPSILON, largest),
        "discrete staircase": DiscreteStaircase.of(PRICE_EPSILON, largest).variance,
        "MSDLap of all changes to 100": MultiScaleLaplace.of(PRICE_EPSILON, largest).variance,
        "discrete Laplace": DiscreteLaplace.of(PRICE_EPSILON, largest).variance,
    }
    for name, variance in rows.items():
        print(f"{name:<32}{variance:>12.4g}")


def print_parties(epsilon: float, draws: int) -> None:
    """Print the error of a sum over n parties: with shares, measured, and with noise of each party's own."""
    choice = choose_law(epsilon, CHANGE)
    single = choice.variances["discrete Laplace"]
    print(f"\nMean squared error of a sum over n parties at epsilon {epsilon:g} and max_change {CHANGE}: {choice.name}")
    print(f"{'parties':>8}{'shares':>12}{'measured':>12}{'discrete Laplace':>20}{'each its own noise':>20}")
    for parties in PARTIES:
        share = choice.law.share(parties)
        total = sum((share.draw(draws, SystemEntropy()) for _ in range(parties)), np.zeros(draws, dtype=np.int64))
        measured = float(np.mean(total.astype(np.float64) ** 2))
        own = parties * choice.law.variance
        print(f"{parties:>8,}{choice.law.variance:>12.4g}{measured:>12.4g}{single:>20.4g}{own:>20.4g}")


def print_sampler(owners: int) -> None:
    """Print the processor time of Algorithm 3 and of drawing every number, zeros included."""
    gamma, entropy = MultiScaleLaplace.of(MANY_EPSILON, 1).coarse, SystemEntropy()
    print(f"\nProcessor time of {MANY_KINDS:,} numbers at epsilon {MANY_EPSILON}, in microseconds")
    print(f"{'parties':>8}{'Algorithm 3':>14}{'every number':>14}{'ratio':>10}")
    for parties in (1, 3, 1000):
        began = time.process_time()
        draw_many(Fraction(1, parties), gamma, MANY_KINDS, owners, entropy)
        sparse = (time.process_time() - began) / owners
        began = time.process_time()
        draw_negative_binomials(Fraction(1, parties), gamma, 10 * MANY_KINDS, entropy)
        dense = (time.process_time() - began) / 10
        print(f"{parties:>8,}{sparse * 1e6:>14.3g}{dense * 1e6:>14,.0f}{dense / sparse:>10,.0f}")


def draw_errors(axis: Any, laws: Mapping[str, Variance], title: str) -> None:
    """Draw variances against epsilon on a logarithmic scale."""
    for name, law in laws.items():
        style = {"color": "black", "linestyle": "--"} if "cannot" in name else {}
        axis.semilogy(DRAWN_EPSILONS, [variance_at(law, one) for one in DRAWN_EPSILONS.tolist()], label=name, **style)
    axis.set(title=title, xlabel="epsilon", ylabel="mean squared error")
    axis.legend()


def draw_pictures(folder: Path) -> None:
    """Draw both figures as PNG files."""
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axis = pyplot.subplots(figsize=(7, 5))
    draw_errors(axis, DISCRETE, f"Figure 1: whole numbers, max_change {CHANGE}")
    figure.savefig(folder / "divisible_noise_1.png", dpi=130, bbox_inches="tight")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5))
    places, laws = probabilities()
    for name, chances in laws.items():
        left.semilogy(places, chances, ".-", linewidth=0.8, markersize=3, label=name)
    left.set(title=f"Figure 2 (a): max_change {PMF_CHANGE}, epsilon {PMF_EPSILON:g}", xlabel="noise", ylabel="chance")
    left.legend()
    draw_errors(right, CONTINUOUS, "Figure 2 (b): real numbers, max_change 1")
    figure.savefig(folder / "divisible_noise_2.png", dpi=130, bbox_inches="tight")


def main() -> None:
    """Print all tables, and draw both figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=Path("out"), help="where the pictures go (needs matplotlib)")
    arguments = parser.parse_args()
    print_errors(f"Mean squared errors, whole numbers, max_change {CHANGE} (figure 1)", DISCRETE, EPSILONS)
    print_probabilities()
    print_errors("Mean squared errors, real numbers, max_change 1 (figure 2 b)", CONTINUOUS, CONTINUOUS_EPSILONS)
    print_prices()
    print_parties(8.0, 100_000)
    print_sampler(1000)
    if importlib.util.find_spec("matplotlib") is None:
        print("\nmatplotlib is not installed: no pictures")
    else:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        draw_pictures(arguments.folder)
        print(f"\npictures: {arguments.folder / 'divisible_noise_1.png'}, {arguments.folder / 'divisible_noise_2.png'}")
    print(f"{time.process_time():.0f} s of processor time")


if __name__ == "__main__":
    main()
