"""What a whole grid of levels costs in delta, if it is charged once and the same counts are then shown at any of it.

At level rho_r the noise of a count has the standard deviation sigma_r = sensitivity_l2 / sqrt(2 rho_r), and over the
levels of one cascade sqrt(rho_r) times it, divided by sensitivity_l2 / sqrt(2), is a Brownian motion at the times
rho_r, divided by their roots: X_r, standard normal, with correlation sqrt(rho_r / rho_s) for r < s. A key with one
unit is shown at level r if X_r > z_r = tau_r / sigma_r. Read backwards the motion is a Markov chain as well,

    X_(r-1) = a X_r + s Z,    a^2 = rho_(r-1) / rho_r,    s^2 = 1 - a^2,

so hidden_r(x), the probability that the key was hidden at the levels up to r given X_r = x, is 0 above z_r and below
it the integral of hidden_(r-1)(u) over u ~ N(a x, s^2). The probability of being first shown at r is the integral of
the density of X_r, times that same integral, over x > z_r. Nothing is ever subtracted. Proofs: docs/proofs/window.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import scipy

from dpsql.accounting.gaussian import Floats
from dpsql.accounting.profile import (
    FAR,
    SMALLEST,
    require_delta,
    require_finite,
    require_max_groups,
    require_positive,
    smallest_at_most,
    within_floats,
)
from dpsql.errors import CalibrationError

MOST_LEVELS = 256
# Gauss-Legendre on panels of 6 s errs by less than 2**-40 a step; the margin, of the sum of tails, covers 256 steps.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_PANEL = 6.0
_MARGIN = 2.0**-30
# Hidden keys so deep below the threshold count as never shown: at most this many panels deep.
_MOST_PANELS = 25
# Two levels closer than this would lose too many digits; the later one counts with its whole tail.
_LEAST_STEP = 1e-3
# Beyond so many standard deviations a normal tail is below 1e-17.
_NEGLIGIBLE = 8.5
# Heights worked out at once.
_BLOCK = 96
_RESOLUTION = 2.0**-32


@within_floats
def window_delta(rhos: Sequence[float], taus: Sequence[float], *, max_groups: int) -> float:
    """Probability that a unit alone in max_groups keys has any of them shown at any level of the grid.

    Guarantee: showing, at any levels of the grid and in any order, chosen and stopped by what was shown, the keys of
        one cascade whose noisy count exceeds 1 + tau_r at level r, costs the ledger this delta, once, and the rho of
        the cascade's rises, when all rows of one unit are added or removed.
    Source: docs/proofs/window.md, Theorem 1, and docs/proofs/ledger.md; for a single level
        `SparseProfile.threshold_delta`.
    Symbols: notes on Algorithm 6 call the probability of being first shown at level r q_r; this is 1 - (1 - sum of
        q_r)^max_groups.

    Args:
        rhos: the levels in any order, above 0, from 1 to 256 of them; of equal ones the least threshold counts.
        taus: for each level, a key is shown if its noisy count exceeds 1 + tau; at least 0, in units. The noise of a
            count is sigma_r = sqrt(max_groups / (2 rho_r)).
        max_groups: most keys that one unit touches, at least 1.
    Returns: a probability, rounded up; never more than the sum over the levels (up to rounding).
    Raises: CalibrationError for inputs outside these ranges.
    Assumes: continuous noise, independent between keys. Where what is compared with 1 + tau lies within h of the
        continuous noisy count (h is half a lattice step if one rounded draw makes a level, or if a level is a
        weighted mean of rounded draws), pass tau_r - h; where the comparison is known to be one with 1 + tau_r + h,
        pass that.
    Randomness: none.

    >>> round(window_delta([0.1, 0.2, 0.4], [14.0, 10.0, 7.0], max_groups=1), 13)
    5.071e-10
    """
    require_max_groups(max_groups)
    levels = _merged(rhos, taus)
    # One unit in the last place for each of the three operations.
    scores = [tau * math.sqrt(2.0 * rho) / math.sqrt(max_groups) * (1.0 - 2.0**-51) for rho, tau in levels]
    return _any_shown(max_groups, tuple(rho for rho, _ in levels), tuple(scores))


@within_floats
def window_threshold(delta: float, rhos: Sequence[float], *, max_groups: int) -> float:
    """Smallest z such that the thresholds tau_r = z sigma_r, one per level of the grid, cost at most delta together.

    Guarantee, Source, Assumes: as `window_delta`, of which this is the inverse, for thresholds that are the same
        number of standard deviations at each level.
    Args: delta strictly between 0 and 1; the others as `window_delta`.
    Returns: z, above 0, rounded up: window_delta(rhos, z * sigmas, ...) <= delta, and so for larger thresholds.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(window_threshold(1e-9, [0.1, 0.2, 0.4], max_groups=10), 4)
    6.5274
    """
    require_delta(delta)
    require_max_groups(max_groups)
    levels = tuple(rho for rho, _ in _merged(rhos, [0.0] * len(rhos)))

    def cost(z: float) -> float:
        # Lowered by more than the roundings of z * sigma and back, in units of any sensitivity.
        return _any_shown(max_groups, levels, (z * (1.0 - 2.0**-49),) * len(levels))

    one_key = -math.expm1(math.log1p(-delta) / max_groups)
    return smallest_at_most(cost, delta, max(-float(scipy.special.ndtri(one_key)), _RESOLUTION), _RESOLUTION)


def _merged(rhos: Sequence[float], taus: Sequence[float]) -> list[tuple[float, float]]:
    """Return the levels with their thresholds, rising, each level once; refuse what is no grid."""
    if not 1 <= len(rhos) <= MOST_LEVELS:
        raise CalibrationError(f"a window has from 1 to {MOST_LEVELS} levels, got {len(rhos)}")
    if len(taus) != len(rhos):
        raise CalibrationError(f"there are {len(rhos)} levels but {len(taus)} thresholds")
    least: dict[float, float] = {}
    for each_rho, each_tau in zip(rhos, taus, strict=True):
        rho, tau = require_positive("rho", each_rho), require_finite("tau", each_tau, least=0.0)
        least[rho] = min(tau, least.get(rho, math.inf))
    return sorted(least.items())


@lru_cache(maxsize=1024)
def _any_shown(max_groups: int, rhos: tuple[float, ...], scores: tuple[float, ...]) -> float:
    # A key that is shown for certain leaves nothing to multiply.
    one = min(shown_once(rhos, scores), 1.0 - 2.0**-53)
    return min(1.0, max(-math.expm1(max_groups * math.log1p(-one)) * (1.0 + 2.0**-48), SMALLEST))


def shown_once(rhos: tuple[float, ...], scores: tuple[float, ...]) -> float:
    """Probability that X_r exceeds its score at any level; rhos rising, scores at least 0.

    Returns: a number above 0, rounded up, at most the sum of the tails (up to rounding).

    >>> round(shown_once((1.0,), (2.0,)), 6), round(shown_once((1.0, 4.0), (2.0, 2.0)), 6)
    (0.02275, 0.041447)
    """
    clipped = [min(score, FAR) for score in scores]
    tails = [float(scipy.special.ndtr(-score)) * (1.0 + 2.0**-46 * (1.0 + score * score)) for score in clipped]
    chain = [(rhos[0], clipped[0])]
    total = tails[0]
    for rho, score, tail in zip(rhos[1:], clipped[1:], tails[1:], strict=True):
        if _Step.between(chain[-1], (rho, score)).spread < _LEAST_STEP:
            total += tail
        else:
            chain.append((rho, score))
    union = math.fsum(tails) * (1.0 + 2.0**-50)
    later = _first_shown_later(chain) + _MARGIN * union if len(chain) > 1 else 0.0
    return max(min(total + later, union), SMALLEST)


@dataclass(frozen=True, slots=True)
class _Step:
    """From one level, at `score`, to the one before it: X_(r-1) = pull x + spread Z.

    `offset` is the score before, less pull times the score now.
    """

    score: float
    pull: float
    spread: float
    offset: float

    @classmethod
    def between(cls, before: tuple[float, float], now: tuple[float, float]) -> _Step:
        variance = (now[0] - before[0]) / now[0]
        pull = math.sqrt(before[0] / now[0])
        # 1 - pull without cancellation.
        offset = (before[1] - now[1]) + variance / (1.0 + pull) * now[1]
        return cls(score=now[1], pull=pull, spread=math.sqrt(variance), offset=offset)


@dataclass(frozen=True, slots=True)
class _Hidden:
    """hidden_r at nodes below the score, times the weight of the node; taken as 1 deeper than `depth`."""

    depths: Floats
    weighted: Floats
    depth: float

    def before(self, step: _Step, heights: Floats) -> Floats:
        """Return the probability of being hidden up to here, given the next X at these heights above its score.

        Heights are monotone. Nodes further than 8.5 spreads from all heights of a block are left out.
        """
        reach = (step.offset - step.pull * heights) / step.spread
        depths = self.depths / step.spread
        sums = np.zeros(heights.size)
        for start in range(0, heights.size, _BLOCK):
            rows = slice(start, start + _BLOCK)
            ends = min(reach[rows][0], reach[rows][-1]), max(reach[rows][0], reach[rows][-1])
            near = slice(*np.searchsorted(depths, (ends[0] - _NEGLIGIBLE, ends[1] + _NEGLIGIBLE)).tolist())
            away = reach[rows, None] - depths[near]
            sums[rows] = np.exp(-0.5 * away * away) @ self.weighted[near]
        inside = scipy.special.ndtr(reach - self.depth / step.spread)
        return np.asarray(inside + sums / (step.spread * math.sqrt(2.0 * math.pi)))


def _first_shown_later(chain: list[tuple[float, float]]) -> float:
    """Sum over all levels but the first of the probability that the key is first shown there."""
    steps = [_Step.between(before, now) for before, now in pairwise(chain)]
    hidden = _Hidden(np.empty(0), np.empty(0), 0.0)
    total = _first_shown(steps[0], hidden)
    for place, (step, following) in enumerate(pairwise(steps), start=1):
        finest = min(step.spread, following.spread)
        depth = min(_depth(chain, place), _MOST_PANELS * _PANEL * finest)
        depths, weights = _panels(depth, finest)
        hidden = _Hidden(depths, weights * np.minimum(hidden.before(step, -depths), 1.0), depth)
        total += _first_shown(following, hidden)
    return total


def _first_shown(step: _Step, hidden: _Hidden) -> float:
    """Integral over X above its score of its density, times the probability of being hidden before."""
    far = math.sqrt(step.score * step.score + 72.0) - step.score
    height = min(far, max((step.offset + _NEGLIGIBLE * step.spread) / step.pull, 4.0 * step.spread))
    heights, weights = _panels(height, min(step.spread, 1.0 / max(step.score, 1.0)))
    log_density = -0.5 * step.score * step.score - heights * (step.score + 0.5 * heights)
    inside = (weights * np.exp(log_density)) @ hidden.before(step, heights) / math.sqrt(2.0 * math.pi)
    # Higher up the key was hidden before with at most this probability.
    above, below = -step.score - height, (step.offset - step.pull * height) / step.spread
    beyond = float(scipy.special.ndtr(above)) * float(scipy.special.ndtr(below))
    return float(inside) + beyond


def _depth(chain: list[tuple[float, float]], place: int) -> float:
    """Depth below which a key was hardly ever shown before, or is hardly ever shown later; too little is safe."""
    rho, score = chain[place]
    share = math.sqrt(chain[0][0] / rho)
    lowest_before = min(score for _, score in chain[:place])
    lowest_later = min(score for _, score in chain[place:])
    returning = max(4.5, min(lowest_later + 7.0, 27.0 - 4.0 * lowest_later)) + score - lowest_later
    moved = 9.5 * math.sqrt(1.0 - share * share) + (1.0 - share) * score + max(0.0, score - lowest_before)
    return min(returning, moved)


def _panels(length: float, spread: float) -> tuple[Floats, Floats]:
    """Nodes and weights on [0, length], on panels of at most 6 spreads."""
    count = math.ceil(length / (_PANEL * spread))
    width = length / count
    starts = np.arange(count) * width
    nodes = starts[:, None] + 0.5 * width * (1.0 + _NODES)
    return nodes.ravel(), np.tile(0.5 * width * _WEIGHTS, count)
