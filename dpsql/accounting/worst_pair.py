"""The pair of neighbouring histograms that costs most: a search that ends with a certificate.

A pair is the number n of new keys and the number m of changed ones among k - n common keys; fewer common or new
keys cost less. Proposition 1 of docs/proofs/csh-exact.md bounds both deltas of a pair by the probability that a
new key is shown plus the delta of the common counts alone. Few pairs have a bound above the larger of the two
pure cases (all keys new; none new), usually none, and only those are integrated.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpsql.accounting.correlated_pair import CommonKeys, Noise, shift_squared
from dpsql.accounting.exceedance import shown_probabilities, shown_probability
from dpsql.accounting.gaussian import Floats, log_delta_up

# Nodes with which sums are bounded, first roughly; and how well (relative).
_SUM_NODES = 512
_SUM_RESOLUTION = 2.0**-6
# Nodes of a pair's integral: few tell whether it can be the worst, many measure it.
_NODES = (160, 1024)
# Steps after which the pairs not yet worked out are taken at their bound; up to k = 12 no search needs that many.
_MOST_STEPS = 200
_UP = 1.0 + 2.0**-40


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
    powers = 2 ** np.arange(20)
    edges = np.unique(np.concatenate([powers, unit_keys - powers, [unit_keys]]))
    edges = edges[(edges >= 1) & (edges <= unit_keys)]
    first, last = edges[:-1], edges[1:] - 1
    found: list[tuple[int, float]] = []
    while first.size:
        bounds = (shown(last.astype(float)) + gauss(first.astype(float))) * _UP
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
    least = float(((shown_probabilities(ends, x, correlation) + gauss(ends)) * _UP).max())
    if not least < 1.0:
        return 1.0
    shown = partial(shown_probabilities, x=x, correlation=correlation, nodes=_SUM_NODES)
    bound = _largest_sum(keys, least, shown, gauss)
    return min(1.0, max(bound, least))


def _largest_sum(
    keys: int, least: float, shown: Callable[[Floats], Floats], gauss: Callable[[Floats], Floats]
) -> float:
    """Bound on shown + gauss over n = 1 to ``keys`` - 1; it need not be any good where it is at most ``least``.

    As `splits_above`, but a block goes as soon as it is hardly better than what some number costs.
    """
    powers = 2 ** np.arange(20)
    edges = np.unique(np.concatenate([powers, keys - powers, [keys]]))
    edges = edges[(edges >= 1) & (edges <= keys)]
    first, last = edges[:-1], edges[1:] - 1
    at_last = shown(last.astype(float))
    bound = 0.0
    while first.size:
        bounds = (at_last + gauss(first.astype(float))) * _UP
        least = max(least, float((at_last + gauss(last.astype(float))).max()))
        kept = (bounds > least * (1.0 + _SUM_RESOLUTION)) & (first < last)
        bound = max([bound, *bounds[~kept].tolist()])
        first, last, at_last = first[kept], last[kept], at_last[kept]
        middle = (first + last) // 2
        at_last = np.concatenate([shown(middle.astype(float)), at_last])
        first, last = np.concatenate([first, middle + 1]), np.concatenate([middle, last])
    return bound


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
    for step in itertools.count():
        if not queue or -queue[0][0] <= least:
            break
        bound, known, new, changed, place = heapq.heappop(queue)
        if known > len(_NODES) or step >= _MOST_STEPS:
            return -bound
        if known > 0:
            nodes = _NODES[known - 1]
            if (new, nodes) not in integrals:
                integrals[new, nodes] = _common_keys(new, least, setting, nodes)
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
    bounds = (lost + np.exp(log_delta_up(epsilon, mu))) * _UP
    order = np.argsort(-bounds)[: int((bounds > least).sum())]
    return [(float(bounds[place]), int(changed[place])) for place in order]


def _common_keys(new: int, least: float, setting: Setting, nodes: int) -> CommonKeys:
    return CommonKeys(
        common=setting.k - new,
        new=new,
        most_changed=min(setting.unit_keys, setting.k) - new,
        x=setting.x,
        noise=setting.noise,
        least=max(least, math.nextafter(0.0, 1.0)),
        nodes=nodes,
    )
