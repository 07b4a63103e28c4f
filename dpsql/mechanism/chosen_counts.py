"""The largest counts within a relative error, by two releases with correlated noise.

The first release noises all keys alike. Its numbers choose the largest keys and a variance for each of them, as large
as the relative error allows. The second release noises these keys with these variances and costs the rest of the level.
Both together are the best linear estimate of the chosen counts.

Here are the pure functions of the method: the choice, and the estimate. A choice reads released numbers alone, and its
cost is fixed before the first release. So both releases cost the sum of their levels (docs/proofs/ledger.md, Theorem
2, and docs/proofs/weighted-correlated.md, Theorem 3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsql.accounting.weighted_gaussian import Variances, most_keys, with_best_common
from dpsql.noise.weighted_gaussian import MOST_SIGMA, with_few_values

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

FIRST_PART = 4
"""The first release has one part in so many of the level."""
MARGIN = 1.0
"""A released count is taken to be too large by so many standard deviations: the largest of many noisy numbers are."""
ROOM = 15.0 / 14.0
"""Variances are chosen for half widths that are smaller by this factor than the relative error allows, so that most
chosen counts are still within it when both releases are known."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The chosen counts and their largest noise.

    Attributes:
        sigmas_of_count: number of standard deviations that a count has to have; 19.6 for 10 % at 95 %.
        limit: the largest number of keys; None for any number.
        most: the most that one unit adds to a count.

    """

    sigmas_of_count: float
    limit: int | None = None
    most: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Keys of the second release, with their variances.

    Attributes:
        keys: places of the keys among all keys, those with the largest released counts first.
        variances: of the noise of each.

    """

    keys: Places
    variances: Variances


def choose_keys(released: Floats, variances: Variances, goal: Goal, rho: float) -> Choice | None:
    """Choose the keys of the second release, and their variances, by the counts of the first one.

    Args:
        released: the counts of the first release. *Shape*: (all keys,).
        variances: of the first release.
        goal: what is asked for.
        rho: the level that the second release costs.

    Returns:
        The most of the largest keys that rho pays for, at variances that cost rho. If it pays for no key, the largest
        one with the variance that rho pays for. None if no count is larger than its margin.

    """
    order, sizes = largest_keys(released, variances, goal)
    if not len(order):
        return None
    count = max(1, most_keys(_totals(sizes, goal), rho, goal.most))
    return chosen(order[:count], sizes[:count], goal, rho)


def largest_keys(released: Floats, variances: Variances, goal: Goal) -> tuple[Places, Floats]:
    """Return the keys that may be chosen, the largest first, and their counts less a margin, all above 0.

    *Shapes*: (keys,) twice; at most as many keys as the goal's limit.
    """
    sizes = released - MARGIN * np.sqrt(variances.total)
    order = np.argsort(-sizes, kind="stable")[: goal.limit]
    order = order[sizes[order] > 0.0]
    return order, sizes[order]


def chosen(keys: Places, sizes: Floats, goal: Goal, rho: float) -> Choice:
    """Return a choice of keys, with variances that are in the ratio of their squared counts and cost rho.

    Args:
        keys: places of the keys. *Shape*: (keys,), with at least one key.
        sizes: their counts, above 0. *Shape*: (keys,).
        goal: what is asked for.
        rho: the level that the second release costs.

    """
    exact = with_best_common(_totals(sizes, goal)).at(rho, goal.most)
    own = with_few_values(np.sqrt(exact.own)) ** 2
    return Choice(keys, Variances(own, exact.common).at(rho, goal.most))


def _totals(sizes: Floats, goal: Goal) -> Floats:
    """Return the variance that each count may have, as far as it can be drawn."""
    return np.minimum(sizes / (ROOM * goal.sigmas_of_count), MOST_SIGMA / 2.0) ** 2


def smallest_rho(released: Floats, variances: Variances, goal: Goal) -> float | None:
    """Return the level at which the second release would pay for one key, by the counts of the first release.

    None if no released count is larger than its margin.
    """
    _, sizes = largest_keys(released, variances, goal)
    if not len(sizes):
        return None
    return with_best_common(_totals(sizes[:1], goal)).rho(goal.most)


def estimated(first: Floats, of_first: Variances, second: Floats, of_second: Variances) -> tuple[Floats, Floats]:
    """Return the generalised least squares estimate of counts that two releases have noised, and its deviations.

    The estimate is linear in both releases. It is unbiased if neither keys nor variances depend on them; the choice of
    the largest keys adds a bias (docs/proofs/weighted-correlated.md, section 6). It uses the covariances of the noise
    alone: P = P1 + P2, and P^-1 (P1 x1 + P2 x2), each P_j the inverse of diag(own_j) + common_j 1 1'. P is a diagonal
    less a matrix of rank two, so its inverse takes as many steps as there are keys.

    *Shapes*: each (keys,); the common variances are numbers.
    """
    weights = np.stack([1.0 / of_first.own, 1.0 / of_second.own])
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
