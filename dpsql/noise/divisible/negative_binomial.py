"""Negative binomial variates of a rational shape, exactly: integers only, many draws at once.

NB(r, p) counts the failures before success number r, where a trial succeeds with chance p. Here p = e^-gamma for a
rational gamma, and r may be any rational number above 0: Pr(x) = C(x + r - 1, x) p^r (1 - p)^x. The sum of n
independent variates of shape r / n has shape r, so n parties can share one variate.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np

from dpsql.errors import CalibrationError, ReleaseError
from dpsql.noise.discrete_gaussian import uniform_below
from dpsql.noise.divisible.compound_poisson import LARGEST_JUMPS, draw_compound_poisson
from dpsql.noise.divisible.exponential_powers import failure_powers, require_gamma, success_powers
from dpsql.noise.entropy import Entropy, Flags, Integers
from dpsql.noise.refined_table import GeometricByDigits

LARGEST_DENOMINATOR = 10**6
# Algorithm 1 is used up to here: p is about 1/2 or more, and its loop is short.
_MOST_GAMMA = Fraction(7, 10)
_MOST_FAILURES = 32


def draw_negative_binomials(shape: Fraction, gamma: Fraction, count: int, entropy: Entropy) -> Integers:
    """Return `count` independent variates of NB(shape, e^-gamma); exact.

    *Source*: Harrison and Manurangsi 2025, Algorithm 1, for gamma up to 0.7 and few expected failures. For the rest,
    where that loop is long, the compound Poisson form. docs/proofs/divisible-noise.md.
    *Symbols*: `shape` is r, e^-gamma is p.
    *Args*: `shape`, a Fraction above 0 with a denominator of at most 10**6; `gamma`, a Fraction from 2**-50 to 34;
    shape * gamma at most 2**20.
    *Shapes*: (count,).
    *Raises*: CalibrationError for any other; ReleaseError for an impossible count; EntropyError if the entropy fails.
    *Assumes*: words of the entropy are uniform and independent.
    *Randomness*: about (1 + mean) log2(1 / gamma) words each by Algorithm 1, about 2 + 4 shape gamma otherwise.
    *Timing*: depends on the draws.

    >>> from dpsql.noise.entropy import SystemEntropy
    >>> int(draw_negative_binomials(Fraction(1, 3), Fraction(1, 1000), 10, SystemEntropy()).min())
    0
    """
    require_shape(shape)
    require_gamma(gamma)
    require_count(count)
    if shape * gamma > LARGEST_JUMPS:
        raise CalibrationError(f"shape * gamma must be at most 2**20, got {float(shape * gamma):.6g}")
    if gamma > _MOST_GAMMA or float(shape) * math.expm1(gamma) > _MOST_FAILURES:
        return draw_compound_poisson(shape, gamma, count, entropy)
    whole, rest = divmod(shape, 1)
    drawn = _whole_shape(whole, gamma, count, entropy)
    return drawn + _fractional_shape(rest, gamma, count, entropy) if rest else drawn


def require_count(count: object) -> int:
    """Return the number of draws, or raise ReleaseError unless it is a whole number of at least 0."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise ReleaseError(f"the number of noise draws must be a whole number, got {count!r}")
    if count < 0:
        raise ReleaseError(f"the number of noise draws cannot be negative, got {count}")
    return int(count)


def require_shape(shape: object) -> Fraction:
    """Return the shape, or raise CalibrationError unless it is a Fraction above 0 with a denominator up to 10**6."""
    if not isinstance(shape, Fraction) or shape <= 0:
        raise CalibrationError(f"the shape must be a Fraction above 0, got {shape!r}")
    if shape.denominator > LARGEST_DENOMINATOR:
        raise CalibrationError(f"the denominator of the shape must be at most 10**6, got {shape.denominator}")
    return shape


def _whole_shape(shape: int, gamma: Fraction, count: int, entropy: Entropy) -> Integers:
    """Return variates of a whole shape: the loop IntSample of Algorithm 1.

    Trials are read in runs of successes. A run is geometric, Pr(run >= j) = p^j, and a failure ends it. The variate
    is the number of runs that end before all successes are there.
    """
    failures = np.zeros(count, dtype=np.int64)
    if shape == 0:
        return failures
    runs, alive = _success_runs(gamma), np.arange(count)
    missing = np.full(count, shape, dtype=np.int64)
    while alive.size:
        missing -= runs.draw(alive.size, entropy)
        unfinished = missing > 0
        alive, missing = alive[unfinished], missing[unfinished]
        failures[alive] += 1
    return failures


def _fractional_shape(shape: Fraction, gamma: Fraction, count: int, entropy: Entropy) -> Integers:
    """Return variates of a shape below 1 by rejection: the outer loop of Algorithm 1.

    A variate of shape 1 is proposed and accepted with chance (r)_w / (1)_w. A share p^(1 - r) of all is accepted.
    The printed algorithm proposes the shape rounded up. Here the whole part is drawn apart and needs no rejection.
    """
    proposals = _failure_runs(gamma)
    drawn = np.empty(count, dtype=np.int64)
    open_places = np.arange(count)
    while open_places.size:
        proposed = proposals.draw(open_places.size, entropy)
        accepted = _accepted(proposed, shape, entropy)
        drawn[open_places[accepted]] = proposed[accepted]
        open_places = open_places[~accepted]
    return drawn


def _accepted(proposed: Integers, shape: Fraction, entropy: Entropy) -> Flags:
    """Toss a coin of chance (r)_w / (1)_w for each proposal w: the product of (r + i) / (1 + i) over i < w."""
    kept = np.ones(proposed.size, dtype=np.bool_)
    for place in range(int(proposed.max(initial=0))):
        tossed = np.flatnonzero(kept & (proposed > place))
        if not tossed.size:
            break
        below = shape.numerator + place * shape.denominator
        kept[tossed] = uniform_below((1 + place) * shape.denominator, tossed.size, entropy) < np.uint64(below)
    return kept


@lru_cache(maxsize=64)
def _success_runs(gamma: Fraction) -> GeometricByDigits:
    """Return the law of a run of successes: P(run) = (1 - p) p^run."""
    return GeometricByDigits(partial(success_powers, gamma))


@lru_cache(maxsize=64)
def _failure_runs(gamma: Fraction) -> GeometricByDigits:
    """Return the law of a run of failures, which is NB(1, p)."""
    return GeometricByDigits(partial(failure_powers, gamma))
