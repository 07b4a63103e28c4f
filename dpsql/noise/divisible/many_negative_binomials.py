"""Many negative binomial variates of which most are 0, in the time that the others take; exact.

The sum of the variates of an owner is drawn first. A Pólya urn divides it among them (Dirichlet-multinomial variates):
integers only, many urns at once.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dpsql.errors import CalibrationError, ReleaseError
from dpsql.noise.discrete_gaussian import uniform_below
from dpsql.noise.divisible.negative_binomial import draw_negative_binomials, require_shape
from dpsql.noise.entropy import Entropy, Integers

LARGEST_KINDS = 1 << 20
_LARGEST_URN = 1 << 62


class SparseCounts(NamedTuple):
    """The counts above 0 of many owners: owner `owner[i]` has `number[i]` of kind `kind[i]`.

    Entries are sorted by owner, then by kind; no pair of owner and kind comes twice.
    """

    owner: Integers
    kind: Integers
    number: Integers


def draw_many(shape: Fraction, gamma: Fraction, kinds: int, count: int, entropy: Entropy) -> SparseCounts:
    """Draw `kinds` independent NB(shape, e^-gamma) variates for each of `count` owners, zeros left out; exact.

    *Source*: Harrison and Manurangsi 2025, Algorithm 3. Its text draws the total from NB(r, p): the sum of k variates
    has shape k r (docs/errata-divisible.md).
    *Symbols*: `shape` is r, e^-gamma is p, `kinds` is k.
    *Args*: `kinds` from 1 to 2**20; `shape` and `gamma` as `draw_negative_binomials`, kinds shape gamma up to 2**20.
    *Returns*: kinds are numbered from 0.
    *Raises*: CalibrationError for any other; ReleaseError for a negative count; EntropyError if the entropy fails.
    *Randomness*: that of one NB(kinds * shape, e^-gamma) variate for each owner, and about one word for each unit of
    its value. *Timing*: depends on the draws.
    """
    require_shape(shape)
    if isinstance(kinds, bool) or not isinstance(kinds, int) or not 1 <= kinds <= LARGEST_KINDS:
        raise CalibrationError(f"the number of kinds must be a whole number from 1 to 2**20, got {kinds!r}")
    totals = draw_negative_binomials(kinds * shape, gamma, count, entropy)
    return draw_dirichlet_multinomials(totals, kinds, shape, entropy)


def draw_dirichlet_multinomials(totals: Integers, kinds: int, alpha: Fraction, entropy: Entropy) -> SparseCounts:
    """Divide each of `totals` among kinds 0 to kinds - 1 by the law DirM(total, (alpha, …, alpha)); exact.

    *Law*: independent NB(alpha, p) variates of all kinds, given their sum, for any p.
    *Source*: Harrison and Manurangsi 2025, Algorithm 2, Lemma 23 and Proposition 25.
    *Symbols*: `totals` is n, one for each owner; `kinds` is k; alpha = a / b in lowest terms.
    *Args*: `totals` at least 0; `kinds` at least 1; `alpha` a Fraction above 0. Kinds, numerator, denominator and
    totals are such that kinds a + total b is at most 2**62.
    *Raises*: CalibrationError for other kinds or alpha, ReleaseError for a negative total.
    *Randomness*: one word for each of all totals added up, and one more for less than half of them.
    *Timing*: depends on `totals`.
    """
    if isinstance(kinds, bool) or not isinstance(kinds, int) or kinds < 1:
        raise CalibrationError(f"the number of kinds must be a whole number above 0, got {kinds!r}")
    if not isinstance(alpha, Fraction) or alpha <= 0:
        raise CalibrationError(f"alpha must be a Fraction above 0, got {alpha!r}")
    if totals.size and int(totals.min()) < 0:
        raise ReleaseError("a negative total cannot be divided among kinds")
    largest = int(totals.max(initial=0))
    if kinds * alpha.numerator + largest * alpha.denominator > _LARGEST_URN:
        raise CalibrationError("the urn holds more than 2**62 balls: choose fewer kinds or a smaller denominator")
    owner = np.repeat(np.arange(totals.size), totals)
    return _counted(owner, _picked(totals, kinds, alpha, entropy))


def _picked(totals: Integers, kinds: int, alpha: Fraction, entropy: Entropy) -> Integers:
    """Return the kinds of all balls that are picked, owner after owner.

    Every urn begins with `a` balls of each kind. A ball that is picked goes back with b others of its kind. The balls
    that were added are numbered from kinds a on, b for each earlier pick.
    """
    ends = np.cumsum(totals)
    starts = ends - totals
    picked = np.empty(int(ends[-1]) if ends.size else 0, dtype=np.int64)
    own, added = alpha.numerator, alpha.denominator
    open_urns = np.flatnonzero(totals > 0)
    step = 0
    while open_urns.size:
        ball = uniform_below(kinds * own + step * added, open_urns.size, entropy).astype(np.int64)
        old = ball - kinds * own
        is_added = old >= 0
        place = starts[open_urns]
        colour = ball // own
        colour[is_added] = picked[place[is_added] + old[is_added] // added]
        picked[place + step] = colour
        step += 1
        open_urns = open_urns[totals[open_urns] > step]
    return picked


def _counted(owner: Integers, kind: Integers) -> SparseCounts:
    """Count equal pairs of owner and kind."""
    order = np.lexsort((kind, owner))
    owner, kind = owner[order], kind[order]
    is_first = np.ones(owner.size, dtype=np.bool_)
    is_first[1:] = (owner[1:] != owner[:-1]) | (kind[1:] != kind[:-1])
    first = np.flatnonzero(is_first)
    return SparseCounts(owner[first], kind[first], np.diff(np.append(first, owner.size)))
