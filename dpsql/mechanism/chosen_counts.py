"""The largest counts within a relative error, by two releases with correlated noise.

The first release noises all keys alike. Its numbers choose the largest keys and a variance for each of them, as large
as the relative error allows. The second release noises these keys with these variances and costs the rest of the level.
A count is estimated from both releases, or from the second one alone if the first one is why its key was chosen.

Here are the pure functions of the method: the choice, the estimate, and the rows that are within the error. A choice
reads released numbers alone, and its cost is fixed before the first release. So both releases cost the sum of their
levels (docs/proofs/ledger.md, Theorem 2, and docs/proofs/weighted-correlated.md, Theorem 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpsql.accounting.weighted_gaussian import Variances, equal_variance, most_keys, with_best_common
from dpsql.noise.weighted_gaussian import MOST_SIGMA, with_few_values

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]

FIRST_PART = 4
"""The first release has one part in so many of the level."""
MARGIN = 1.0
"""A released count is taken to be too large by so many standard deviations: the largest of many noisy numbers are."""
ROOM = 15.0 / 14.0
"""Variances are chosen for half widths that are smaller by this factor than the relative error allows, so that most
chosen counts are still within it when both releases are known."""
_DEVIATION = 1.4826
"""Standard deviation of normal numbers over the median of their distances from the middle."""
CLEAR = 2.0
"""A key is clearly among the chosen ones if its released count is so many standard deviations above those of all keys
that were not chosen."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The chosen counts and their largest noise.

    Attributes:
        sigmas_of_count: number of standard deviations that a count has to have; 19.6 for 10 % at 95 %.
        limit: the largest number of keys; None for any number.
        most: the most that one unit adds to a count.
        rounding: standard deviation of what is rounded off a count.

    """

    sigmas_of_count: float
    limit: int | None = None
    most: float = 1.0
    rounding: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Keys of the second release, with their variances.

    Attributes:
        keys: places of the keys among all keys, those with the largest released counts first.
        variances: of the noise of each.
        is_clear: which of the keys are clearly among the chosen ones, so that the first release tells of their counts.

    """

    keys: Places
    variances: Variances
    is_clear: Flags


def choose_keys(released: Floats, variances: Variances, goal: Goal, rho: float) -> Choice | None:
    """Choose the keys of the second release, and their variances, by the counts of the first one.

    Args:
        released: the counts of the first release. *Shape*: (all keys,).
        variances: of the first release, whose own variances are equal.
        goal: what is asked for.
        rho: the level that the second release costs.

    Returns:
        The most of the largest keys that rho pays for, at variances that cost rho. If it pays for no key, the largest
        one with the variance that rho pays for. None if no count is larger than its margin.

    """
    largest = largest_keys(released, variances, goal)
    _, sizes = largest
    if not len(sizes):
        return None
    count = max(1, most_keys(_totals(sizes, goal), rho, goal.most))
    return _choice_among(largest, count, released, variances, goal, rho)


def choice_of(count: int, released: Floats, variances: Variances, goal: Goal, rho: float) -> Choice:
    """Return the choice of a number of keys, the variances in the ratio of their squared counts, which cost rho.

    Args:
        count: the number of keys, above 0.
        released: as in `choose_keys`.
        variances: likewise.
        goal: likewise.
        rho: likewise.

    """
    return _choice_among(largest_keys(released, variances, goal), count, released, variances, goal, rho)


def _choice_among(
    largest: tuple[Places, Floats], count: int, released: Floats, variances: Variances, goal: Goal, rho: float
) -> Choice:
    """Return the choice of the first keys of `largest_keys`; the other arguments are those of `choice_of`."""
    order, sizes = largest
    keys, exact = order[:count], with_best_common(_totals(sizes[:count], goal)).at(rho, goal.most)
    own = with_few_values(np.sqrt(exact.own)) ** 2
    largest_other = float(np.delete(released, keys).max(initial=-math.inf))
    is_clear = released[keys] >= largest_other + CLEAR * np.sqrt(variances.own[keys])
    return Choice(keys, Variances(own, exact.common).at(rho, goal.most), np.asarray(is_clear))


def largest_keys(released: Floats, variances: Variances, goal: Goal) -> tuple[Places, Floats]:
    """Return the keys that may be chosen, the largest first, and their counts less a margin, all above 0.

    A count is drawn towards the mean of all counts as far as noise explains their spread, and the margin is one of the
    noise that is left. So many equal counts are not taken to be as large as their largest noise. A count that is
    farther from the bulk of all counts than their noise reaches is not drawn.

    *Shapes*: (keys,) twice; at most as many keys as the goal's limit.
    """
    own, spread, mean = float(variances.own[0]), float(np.var(released)), float(released.mean())
    drawn = max(0.0, 1.0 - own / spread) if spread > 0.0 else 0.0
    middle = float(np.median(released))
    bulk = max(_DEVIATION * float(np.median(np.abs(released - middle))), math.sqrt(own))
    kept = np.where(released >= middle + reach(len(released)) * bulk, 1.0, drawn)
    sizes = mean + kept * (released - mean) - MARGIN * np.sqrt(kept * own + variances.common)
    order = np.argsort(-released, kind="stable")[: goal.limit]
    order = order[sizes[order] > 0.0]
    return order, sizes[order]


def reach(keys: int) -> float:
    """Return about how many standard deviations the largest of many draws of noise has.

    >>> round(reach(300), 2), reach(1)
    (3.38, 0.0)
    """
    return math.sqrt(2.0 * math.log(keys))


def _totals(sizes: Floats, goal: Goal) -> Floats:
    """Return the variance that each count may have, as far as it can be drawn."""
    return np.minimum(sizes / (ROOM * goal.sigmas_of_count), MOST_SIGMA / 2.0) ** 2


def least_count(rows: int, keys: int, level: float, goal: Goal) -> float:
    """Return about how large some counts have to be, so that a question at a level returns them, if all others are 0.

    Their first numbers are clearly above the noise of all others. Even if noise lowers them by a deviation, they are
    large enough for the variances that the second release pays for.

    Args:
        rows: the number of these counts, taken to be equal.
        keys: the number of all keys.
        level: the level of the question in rho.
        goal: what is asked for.

    >>> round(least_count(1, 300, 0.2, Goal(19.6)))
    127
    """
    first = math.sqrt(equal_variance(keys, level / FIRST_PART, goal.most))
    second = math.sqrt(equal_variance(rows, level - level / FIRST_PART, goal.most))
    needed = ROOM * goal.sigmas_of_count * math.hypot(second, goal.rounding)
    return max(needed + (MARGIN + 1.0) * first, (reach(keys) + 1.0) * first)


def smallest_level(count: float, keys: int, goal: Goal) -> float:
    """Return about the level in rho at which a question would return a count, if all others are 0.

    Args:
        count: the count, above 0.
        keys: the number of all keys.
        goal: what is asked for.

    """
    # without rounding, the count that a level needs falls with its square root
    return (least_count(1, keys, 1.0, replace(goal, rounding=0.0)) / count) ** 2


def estimated(first: Floats, of_first: Variances, second: Floats, choice: Choice) -> tuple[Floats, Floats]:
    """Return the generalised least squares estimate of the chosen counts, and its standard deviations.

    The estimate reads the second release, and the first one of the clear keys alone. The other keys were chosen because
    of their first numbers, which are too large for that reason. It uses the covariances of the noise alone: P = P1 +
    P2, and P^-1 (P1 x1 + P2 x2), each P_j the inverse of diag(own_j) + common_j 1 1'. P is a diagonal less a matrix of
    rank two, so its inverse takes as many steps as there are keys.
    *Source*: docs/proofs/weighted-correlated.md, section 5.

    Args:
        first: the counts of the first release for the chosen keys. *Shape*: (keys,).
        of_first: their variances.
        second: the counts of the second release. *Shape*: (keys,).
        choice: the keys, with the variances of the second release.

    """
    of_second = choice.variances
    weights = np.stack([np.where(choice.is_clear, 1.0 / of_first.own, 0.0), 1.0 / of_second.own])
    # P_j = diag(w_j) - w_j w_j' / (1/common_j + sum w_j)
    sums = np.array([1.0 / of_first.common, 1.0 / of_second.common]) + weights.sum(axis=1)
    values = np.stack([first, second])
    right = weights * (values - ((weights * values).sum(axis=1) / sums)[:, None])
    diagonal = weights.sum(axis=0)
    # Woodbury: (D - W S^-1 W')^-1 = D^-1 + D^-1 W (S - W' D^-1 W)^-1 W' D^-1
    spread = weights / diagonal
    inner = np.linalg.inv(np.diag(sums) - spread @ weights.T)
    total = right.sum(axis=0)
    estimates = total / diagonal + spread.T @ (inner @ (spread @ total))
    covariances = 1.0 / diagonal + np.einsum("ik,ij,jk->k", spread, inner, spread)
    return estimates, np.sqrt(covariances)


def rows_within(allowed: Floats, miss: float, quantile: Callable[[float], float]) -> int:
    """Return the largest number of rows that are within the error, if intervals allow for picking them.

    With r rows of k keys, an interval misses with a probability of miss r / k for each key, so that of the rows a part
    of miss is missed in expectation. Rows are those with the largest allowed numbers of deviations, and as many as have
    at least the quantile of that probability.
    *Source*: Benjamini and Yekutieli 2005, Theorem 1; docs/proofs/weighted-correlated.md, Theorem 4.

    Args:
        allowed: half width that the error allows over the standard deviation, of each chosen key. *Shape*: (keys,).
        miss: the part of the rows whose intervals may miss.
        quantile: the number of deviations that noise exceeds, on one side, with a probability.

    >>> from statistics import NormalDist
    >>> rows_within(np.array([9.0, 2.2, 2.1, 1.0]), 0.05, lambda miss: -NormalDist().inv_cdf(miss))
    3
    """
    keys, ordered = len(allowed), np.sort(allowed)[::-1]
    fits = (rows for rows in range(keys, 0, -1) if ordered[rows - 1] >= quantile(miss * rows / (2.0 * keys)))
    return next(fits, 0)
