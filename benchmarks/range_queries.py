"""Running totals and time ranges: fractional sums, trees and plain noise on the same days, at the same privacy.

    python -m benchmarks.range_queries [--days 365]

Nothing is drawn: each figure is the exact root mean square error at rho = 1/2 (at another rho: times 1 / sqrt(2 rho))
where one unit moves at most so many days, each by at most 1, over all running totals and over the sums of all ranges of
days. A tree notes the days, every block of b, b^2, ... days, and all days; least squares over all notes is its best
linear estimate. Its worst unit has the first days, whatever the weights of the levels are. The last row bounds every
factorisation for one day, and loosely for more.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from dpsql.noise.running_totals import SQUARE_ROOT, FractionalSum

UNIT_DAYS = (1, 7, 30)
BRANCHING = (2, 3, 4, 5, 6, 8, 12, 20)

Matrix = NDArray[np.float64]
# W^T W of the questions W, and how many they are
Questions = tuple[Matrix, int]
# an error, and of what
Best = tuple[float, str]


def questions(days: int) -> dict[str, Questions]:
    """All running totals and all ranges; entry (i, j) of W^T W counts the questions that both days are in."""
    day = np.arange(days)
    first, last = np.minimum.outer(day, day), np.maximum.outer(day, day)
    totals = (days - last).astype(np.float64)
    return {"running totals": (totals, days), "ranges": ((first + 1) * totals, days * (days + 1) // 2)}


def error(covariance: Matrix, sensitivity: float, asked: Questions) -> float:
    """Root mean square error, if the values of the days have this covariance for noise of 1."""
    gram, count = asked
    return sensitivity * math.sqrt(float((gram * covariance).sum()) / count)


def fractional_sum(total: FractionalSum, most: int, asked: Questions) -> float:
    """Error of the mechanism as it is: with the rounded matrix that it applies and the sensitivity that it declares."""
    return error(fractional_covariance(total), total.sensitivity(most), asked)


@lru_cache
def fractional_covariance(total: FractionalSum) -> Matrix:
    """R^-1 times its transpose; values of unit vectors are the columns of R^-1."""
    inverse = total.values(np.eye(total.length))
    return inverse.T @ inverse


def widths(days: int, branching: int) -> tuple[int, ...]:
    """Block sizes of a tree's levels, from single days to all days."""
    return (*itertools.takewhile(lambda width: width < days, (branching**level for level in itertools.count())), days)


def blocks(days: int, width: int) -> Matrix:
    """Entry (i, j) is 1 where both days are in one block: what a level adds to the precision."""
    block = np.arange(days) // width
    return np.equal.outer(block, block).astype(np.float64)


@lru_cache
def tree_covariance(days: int, levels: tuple[int, ...]) -> Matrix:
    """Least squares over all notes, each with noise of 1."""
    return np.asarray(np.linalg.inv(sum((blocks(days, width) for width in levels), np.zeros((days, days)))))


def moved(most: int, width: int) -> int:
    """Squared l2 norm of what the first days move on one level."""
    return int((np.bincount(np.arange(most) // width) ** 2).sum())


def tree(days: int, levels: tuple[int, ...], most: int, asked: Questions) -> float:
    """Every level with the same noise."""
    sensitivity = math.sqrt(sum(moved(most, width) for width in levels))
    return error(tree_covariance(days, levels), sensitivity, asked)


def best_tree(days: int, most: int, asked: Questions) -> Best:
    """The best branching factor, with or without the note of all days."""
    found: list[Best] = []
    for branching in BRANCHING:
        levels = widths(days, branching)
        found += [(tree(days, noted, most, asked), f"b = {branching}") for noted in (levels, levels[:-1])]
    return min(found)


def tuned_binary_tree(days: int, most: int, asked: Questions) -> float:
    """Each level with the noise that is best for these questions and units: a numerical minimum."""
    levels = widths(days, 2)
    precisions = np.array([blocks(days, width) for width in levels])
    squares = np.array([moved(most, width) for width in levels])

    def log_error(log_weights: Matrix) -> tuple[float, Matrix]:
        weights = np.exp(log_weights)
        covariance = np.linalg.inv(np.tensordot(weights, precisions, axes=1))
        noise, square = float((asked[0] * covariance).sum()), float(weights @ squares)
        slope = squares / square - (precisions * (covariance @ asked[0] @ covariance)).sum(axis=(1, 2)) / noise
        return math.log(noise * square / asked[1]), weights * slope

    found = minimize(log_error, np.zeros(len(levels)), jac=True, method="L-BFGS-B", tol=1e-5)
    return math.exp(float(found.fun) / 2)


def nuclear_norm(asked: Questions) -> float:
    """Sum of the singular values of all questions."""
    return float(np.sqrt(np.maximum(np.linalg.eigvalsh(asked[0]), 0.0)).sum())


def main() -> None:
    """Print a table for the running totals and one for the ranges."""
    parser = argparse.ArgumentParser(description="Fractional sums, trees and plain noise for sums over time.")
    parser.add_argument("--days", type=int, default=365)
    days = parser.parse_args().days
    began = time.perf_counter()
    for name, asked in questions(days).items():
        print(f"Root mean square error of all {name} of {days} days at rho = 1/2")
        print(f"{'days of a unit':28}" + "".join(f"{most:>16}" for most in UNIT_DAYS))
        powers = {
            most: [fractional_sum(FractionalSum(days, power), most, asked) for power in range(SQUARE_ROOT + 1)]
            for most in UNIT_DAYS
        }
        best_powers = [min((found, f"{power}/16") for power, found in enumerate(powers[most])) for most in UNIT_DAYS]
        print_row("plain noise on the days", [(powers[most][0], "") for most in UNIT_DAYS])
        print_row("square root", [(powers[most][SQUARE_ROOT], "") for most in UNIT_DAYS])
        print_row("best power", best_powers)
        print_row("binary tree", [(tree(days, widths(days, 2), most, asked), "") for most in UNIT_DAYS])
        print_row("best tree", [best_tree(days, most, asked) for most in UNIT_DAYS])
        print_row("binary tree, levels tuned", [(tuned_binary_tree(days, most, asked), "") for most in UNIT_DAYS])
        bound = nuclear_norm(asked) / math.sqrt(days * asked[1])
        print_row("nothing is below", [(math.sqrt(most) * bound, "") for most in UNIT_DAYS])
        print()
    print(f"{time.perf_counter() - began:.1f} s")


def print_row(name: str, row: list[Best]) -> None:
    """One mechanism, with what was best for each column."""
    print(f"{name:28}" + "".join(f"{found:>8.2f} {what:<7}" for found, what in row))


if __name__ == "__main__":
    main()
