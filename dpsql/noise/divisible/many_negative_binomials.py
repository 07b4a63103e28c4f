"""Many negative binomial variates of which most are 0, in the time that the others take; exact."""

from __future__ import annotations

from fractions import Fraction

from dpsql.errors import CalibrationError
from dpsql.noise.divisible.dirichlet_multinomial import SparseCounts, draw_dirichlet_multinomials
from dpsql.noise.divisible.negative_binomial import draw_negative_binomials, require_shape
from dpsql.noise.entropy import Entropy

LARGEST_KINDS = 1 << 20


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
