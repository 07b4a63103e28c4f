"""Pairs of neighbouring histograms under noise with a common term: how far apart they are, and which costs most.

*One pair.* One unit raises ``changed`` of ``common`` keys by 1 and brings ``new`` keys of its own; P is the law with
the unit, Q the law without. Divided by sigma, the common counts are a Gaussian vector of covariance
I + correlation 11^T, of which only two numbers matter: z, the standardised mean of the common noise given the
counts, which also says how likely the new keys are to be shown; and the contrast between changed and unchanged
keys, independent of z. `docs/proofs/csh-exact.md` derives every formula.

*With a floor.* The floor h is the (k+1)-th largest count, and the histogram is H = max(G - h, 0). One unit either
leaves the floor alone and raises H by 1 on keys of its own, or raises the floor and lowers H by 1 on the keys that are
*not* its own. Released are y = H + Z + F per key, F common to all, and the floor as h + C - F. Of j common keys
q are the unit's own; sums move on those, in both cases. `docs/proofs/top-k.md` derives the distances: the
released floor is as good as 1/floor_correlation further keys, which change in the second case only.

*The worst pair.* A pair is the number n of new keys and the number m of changed ones among k - n common keys; fewer
common or new keys cost less. Proposition 1 of docs/proofs/csh-exact.md bounds both deltas of a pair by the probability
that a new key is shown plus the delta of the common counts alone. Few pairs have a bound above the larger of the two
pure cases (all keys new; none new), usually none, and only those are integrated. The search ends with a certificate.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy
from numpy.typing import NDArray

from dpsql.accounting.exceedance import cells_above, hidden_bracket, shown_probabilities, shown_probability
from dpsql.accounting.gaussian import Floats, log_delta, log_delta_error, log_delta_up
from dpsql.accounting.profile import SMALLEST, UP

# More than the rounding error of log p/q at any node.
_SLACK = 2.0**-38
# Nodes with which sums are bounded, first roughly; and how well (relative).
_SUM_NODES = 512
_SUM_RESOLUTION = 2.0**-6
# Nodes of a pair's integral: few tell whether it can be the worst, many measure it.
_NODES = (160, 1024)
# Steps after which the pairs not yet worked out are taken at their bound; up to k = 12 no search needs that many.
_MOST_STEPS = 200


@dataclass(frozen=True, slots=True)
class Noise:
    """What determines the privacy of one release.

    Attributes:
        sigma: standard deviation of the noise that each key has of its own, in units.
        correlation: variance of the common noise over sigma^2.
        aggregate_precision: sum over the aggregates of (sensitivity_l2 per key / their noise)^2.

    """

    sigma: float
    correlation: float
    aggregate_precision: float = 0.0


def shift_squared(changed: Floats, common: Floats, noise: Noise) -> Floats:
    """Squared distance of the common part's means, in standard deviations, if ``changed`` of ``common`` keys change.

    Source: Sherman and Morrison's inverse of I + correlation 11^T: m - m^2 / (j + 1/correlation), plus one
        aggregate_precision per changed key. Written without cancellation and rounded up.
    """
    unchanged = common - changed
    counts = changed * (1.0 + noise.correlation * unchanged) / (1.0 + noise.correlation * common)
    with np.errstate(over="ignore"):
        return np.asarray((counts / noise.sigma / noise.sigma + changed * noise.aggregate_precision) * UP)


def worst_shift_squared(most_changed: Floats, common: Floats, noise: Noise) -> Floats:
    """Largest `shift_squared` over whole numbers of changed keys from 0 to ``most_changed``."""
    gain = 1.0 + noise.sigma * noise.sigma * noise.aggregate_precision
    with np.errstate(divide="ignore", over="ignore"):
        # The parabola's top; both neighbouring whole numbers are tried.
        top = (
            gain * (0.5 / noise.correlation + 0.5 * common) if noise.correlation > 0.0 else np.full_like(common, np.inf)
        )
    below = np.minimum(np.floor(top), most_changed)
    above = np.minimum(np.floor(top) + 1.0, most_changed)
    return np.maximum(shift_squared(below, common, noise), shift_squared(above, common, noise))


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorNoise(Noise):
    """What determines the privacy of one release with a floor.

    Attributes:
        floor_correlation: variance of the floor's own noise C over sigma^2, above 0.

    """

    floor_correlation: float


def floor_rises_squared(own: Floats, common: Floats, noise: FloorNoise) -> Floats:
    """Squared distance of the means, in standard deviations, if the floor rises and the unit has ``own`` common keys.

    The other ``common - own`` keys fall by 1. (j - q + a)(q + b) / (j + a + b) with a = 1/floor_correlation and
    b = 1/correlation, plus one aggregate_precision per own key; written without cancellation and rounded up.
    """
    correlation, floor = noise.correlation, noise.floor_correlation
    with np.errstate(over="ignore", invalid="ignore"):
        falling = (1.0 + floor * (common - own)) * (1.0 + correlation * own)
        counts = falling / (correlation + floor + correlation * floor * common)
        return np.asarray((counts / noise.sigma / noise.sigma + own * noise.aggregate_precision) * UP)


def worst_floor_squared(common: Floats, most_own: Floats, most_own_below: Floats, noise: FloorNoise) -> Floats:
    """Largest squared distance of both cases over whole numbers of own keys.

    Args:
        common: keys of both histograms.
        most_own: most of them that are the unit's if the floor stays, at least 0.
        most_own_below: most of them that are the unit's if the floor rises, at least 0.
        noise: the noise.
    Shapes: all the same.
    Returns: one number per element, rounded up; NaN or infinite where it leaves the floating-point range.
    """
    correlation = noise.correlation
    # Where the floor stays its noisy value tells of F only; 1/F's variance and 1/C's variance add up. Noise of the
    # counts alone with this share of the common variance hides the same changes.
    share = noise.floor_correlation / (correlation + noise.floor_correlation)
    worst = worst_shift_squared(most_own, common, Noise(noise.sigma, correlation * share, noise.aggregate_precision))
    gain = 1.0 + noise.sigma * noise.sigma * noise.aggregate_precision
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # The parabola's top. Without correlation it is at either end, or nowhere if all numbers cost the same.
        steps = gain * (1.0 + correlation * (common + 1.0 / noise.floor_correlation)) - 2.0
        top = np.floor(np.nan_to_num(steps / (2.0 * correlation)) if correlation > 0.0 else np.sign(steps) * np.inf)
    for own in (top, top + 1.0):
        kept = np.clip(np.nan_to_num(own), 0.0, most_own_below)
        worst = np.maximum(worst, floor_rises_squared(kept, common, noise))
    return worst


class CommonKeys:
    """Deltas of all pairs with one number of common and one of new keys, whatever number of keys changes."""

    def __init__(
        self, *, common: int, new: int, most_changed: int, x: float, noise: Noise, least: float, nodes: int
    ) -> None:
        """Work out how likely the new keys are to stay hidden, for equidistant values of z.

        Args:
            common: keys that others touch too, at least 1.
            new: keys of the unit alone, at least 1.
            most_changed: most keys that change, at least 1.
            x: tau / sigma.
            noise: the noise.
            least: a delta too small to matter, above 0; decides how far out z goes.
            nodes: number of values of z.

        """
        self._common, self._noise = float(common), noise
        self._share = 1.0 + noise.correlation * common
        self._shown = shown_probability(new, x, noise.correlation)
        # Either law has mass below 2^-41 of least beyond each end.
        reach = min(38.0, -float(scipy.special.ndtri(least * 2.0**-41)))
        self._beyond = least * 2.0**-40
        self._step = (2.0 * reach + self._shift(most_changed)) / (nodes - 3)
        self._z = reach + self._step * np.arange(2.0 - nodes, 2.0)
        self._log_hidden = hidden_bracket(
            new,
            x - noise.correlation * math.sqrt(self._common / self._share) * self._z,
            math.sqrt(noise.correlation / self._share),
            max(64, nodes // 4),
        )

    def delta_above(self, epsilon: float, changed: int) -> float:
        """Upper bound on both deltas, of P against Q and of Q against P, if ``changed`` keys change by 1."""
        shift = self._shift(changed)
        # What is left of the squared distance once z is known: changed against unchanged keys, and aggregates.
        contrast = changed / self._noise.sigma / self._noise.sigma * (self._common - changed) / self._common
        mu = np.full(self._z.shape, math.sqrt((contrast + changed * self._noise.aggregate_precision) * UP))
        with_unit = self._shown + self._with_unit(epsilon, mu, shift)
        return max(with_unit, self._without_unit(epsilon, mu, shift)) * UP + self._beyond

    def _shift(self, changed: int) -> float:
        """Distance that the changed keys move the mean of z: it is N(0, 1) under P and N(-shift, 1) under Q."""
        return changed / self._noise.sigma / math.sqrt(self._common * self._share)

    def _with_unit(self, epsilon: float, mu: Floats, shift: float) -> float:
        """Integral of (p g - e^epsilon q)+ over z, log-concave since g is; g is the chance to stay hidden."""
        ratio = 0.5 * shift * shift + shift * self._z
        low, high = (
            _log_normal(self._z) + hidden + _log_stick(epsilon - hidden - ratio, mu, toward)
            for hidden, toward in zip(self._log_hidden, (-1.0, 1.0), strict=True)
        )
        if np.isneginf(high).all():
            # Nowhere at a node; and nowhere between, if the concave log(p g / q) stays below epsilon there.
            above = self._log_hidden[1] + ratio
            rise = np.maximum(above[1:] - (self._log_hidden[0] + ratio)[:-1], 0.0)
            return 0.0 if (above[1:] + rise).max() < epsilon and not mu.any() else math.inf
        return float(cells_above(low[:-3], high[1:-2], high[2:-1], low[3:], self._step).sum())

    def _without_unit(self, epsilon: float, mu: Floats, shift: float) -> float:
        """Integral of (q - e^epsilon p g)+ over z, log-concave once the concave log(p g / q) is cut to a chord.

        The chord lies below it in its cell, so the integrand rises.
        """
        loss = self._log_hidden[0] + 0.5 * shift * shift + shift * self._z
        first, rise = loss[1:-2], loss[2:-1] - loss[1:-2]
        far_left, left, right, far_right = (
            _log_normal(self._z[1:-2] + offset * self._step + shift)
            + _log_stick(epsilon + first + offset * rise, mu[1:-2], toward)
            for offset, toward in ((-1.0, -1.0), (0.0, 1.0), (1.0, 1.0), (2.0, -1.0))
        )
        return float(cells_above(far_left, left, right, far_right, self._step).sum())


def _log_normal(z: Floats) -> Floats:
    return -0.5 * z * z - 0.5 * math.log(2.0 * math.pi)


def _log_stick(epsilon: Floats, mu: Floats, toward: float) -> Floats:
    """Logarithm of the hockey-stick divergence at distance mu, rounded down (-1) or up (1)."""
    moved = epsilon - toward * _SLACK * (1.0 + np.abs(epsilon))
    return log_delta(moved, mu) + toward * log_delta_error(moved, mu)


@dataclass(frozen=True, slots=True)
class Setting:
    """One release: most keys with a unit, most keys of one unit, tau / sigma, and the noise."""

    k: int
    unit_keys: int
    x: float
    noise: Noise


def splits_above(
    least: float, unit_keys: int, shown: Callable[[Floats], Floats], gauss: Callable[[Floats], Floats]
) -> list[tuple[int, float]]:
    """Numbers of new keys, but for none and all, at which shown + gauss exceeds ``least``, with these sums.

    The first term rises with the number and the second falls, so the first at a block's end plus the second
    at its beginning bounds the block. Blocks that may exceed ``least`` are halved until they are single.
    """
    first, last = _blocks(unit_keys)
    found: list[tuple[int, float]] = []
    while first.size:
        bounds = (shown(last.astype(float)) + gauss(first.astype(float))) * UP
        kept = bounds > least
        alone = kept & (first == last)
        found += zip(first[alone].tolist(), bounds[alone].tolist(), strict=True)
        kept &= ~alone
        middle = (first[kept] + last[kept]) // 2
        first, last = np.concatenate([first[kept], middle + 1]), np.concatenate([middle, last[kept]])
    return found


def largest_sum(keys: int, x: float, correlation: float, gauss: Callable[[Floats], Floats]) -> float:
    """Largest probability that one of n new keys is shown, plus gauss(n), over n = 0 to ``keys``; rounded up.

    The ends are worked out finely. The rest is bounded roughly first, which most often shows an end to be the
    largest, and if not, to less than a fiftieth of itself.
    """
    ends = np.array([0.0, float(keys)])
    least = float(((shown_probabilities(ends, x, correlation) + gauss(ends)) * UP).max())
    if not least < 1.0:
        return 1.0
    shown = partial(shown_probabilities, x=x, correlation=correlation, nodes=_SUM_NODES)
    # As `splits_above`, but a block goes as soon as it is hardly better than what some number costs.
    first, last = _blocks(keys)
    at_last, bound = shown(last.astype(float)), least
    while first.size:
        bounds = (at_last + gauss(first.astype(float))) * UP
        least = max(least, float((at_last + gauss(last.astype(float))).max()))
        kept = (bounds > least * (1.0 + _SUM_RESOLUTION)) & (first < last)
        bound = max([bound, *bounds[~kept].tolist()])
        first, last, at_last = first[kept], last[kept], at_last[kept]
        middle = (first + last) // 2
        at_last = np.concatenate([shown(middle.astype(float)), at_last])
        first, last = np.concatenate([first, middle + 1]), np.concatenate([middle, last])
    return min(1.0, bound)


def largest_delta(epsilon: float, least: float, splits: Iterable[tuple[int, float]], setting: Setting) -> float:
    """Largest delta of any pair, rounded up: ``least``, that of the pure ones, or that of a pair of the ``splits``.

    Best first: whatever has the highest bound is bounded better, from a split to its pairs, from a pair's bound to
    its integral, to a finer one. Once the highest bound cannot be improved, it is the answer.
    """
    # Entries: minus the bound, how well it is known, new keys, changed keys, and the place in the split's pairs.
    queue = [(-bound, 0, new, 0, 0) for new, bound in splits]
    heapq.heapify(queue)
    pairs: dict[int, list[tuple[float, int]]] = {}
    integrals: dict[tuple[int, int], CommonKeys] = {}
    steps = itertools.count()
    while queue and -queue[0][0] > least:
        bound, known, new, changed, place = heapq.heappop(queue)
        if known > len(_NODES) or next(steps) >= _MOST_STEPS:
            return -bound
        if known > 0:
            nodes = _NODES[known - 1]
            if (new, nodes) not in integrals:
                integrals[new, nodes] = CommonKeys(
                    common=setting.k - new,
                    new=new,
                    most_changed=min(setting.unit_keys, setting.k) - new,
                    x=setting.x,
                    noise=setting.noise,
                    least=max(least, SMALLEST),
                    nodes=nodes,
                )
            value = min(-bound, integrals[new, nodes].delta_above(epsilon, changed))
            heapq.heappush(queue, (-value, known + 1, new, changed, place))
        else:
            pairs[new] = _pairs_above(epsilon, least, new, setting)
        # A split's pairs enter one by one, each once the one before it is worked on.
        entering = {0: 0, 1: place + 1}.get(known, len(pairs[new]))
        if entering < len(pairs[new]):
            bound, changed = pairs[new][entering]
            heapq.heappush(queue, (-bound, 1, new, changed, entering))
    return least


def _pairs_above(epsilon: float, least: float, new: int, setting: Setting) -> list[tuple[float, int]]:
    """Bounds above ``least`` of one split's pairs, and their changed keys, largest first; none changed never is."""
    common = float(setting.k - new)
    changed = np.arange(1.0, min(setting.unit_keys - new, setting.k - new) + 1.0)
    mu = np.sqrt(shift_squared(changed, np.full_like(changed, common), setting.noise))
    lost = shown_probability(new, setting.x, setting.noise.correlation)
    bounds = (lost + np.exp(log_delta_up(epsilon, mu))) * UP
    order = np.argsort(-bounds)[: int((bounds > least).sum())]
    return [(float(bounds[place]), int(changed[place])) for place in order]


def _blocks(keys: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and last number of blocks that hold 1 to ``keys`` - 1, fine at both ends."""
    powers = 2 ** np.arange(20)
    edges = np.unique(np.concatenate([powers, keys - powers, [keys]]))
    edges = edges[(edges >= 1) & (edges <= keys)]
    return edges[:-1], edges[1:] - 1
