"""Running totals over an ordered list of public buckets: part of the adding up is done before the noise, part after.

What is noised is R x, R a power of the matrix of running totals: its square root where a unit is in one bucket, less
where it is in many, down to the buckets themselves. Values, running totals and all other sums of buckets are linear in
it: post-processing. The coefficients of R are rounded to integers, and *that* matrix is the mechanism: it is applied
exactly, its sensitivity is its own, and it is inverted as it is. Proofs: docs/proofs/running-totals.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import scipy

from dpsql.accounting.gaussian import Floats
from dpsql.accounting.profile import UP, require_max_groups
from dpsql.errors import CalibrationError, ReleaseError
from dpsql.noise.entropy import Integers

# Coefficients are multiples of 2**-FRACTION_BITS.
FRACTION_BITS = 19
# Squared norms fit 64 bits up to here, and Lemma 2 of the proof was checked for every length up to here.
MOST_BUCKETS = 4096
MOST_SHIFT = 30
# Powers are multiples of 1/16, at most 1/2.
SQUARE_ROOT = 8

_RESULT_BITS = 61
# Whole numbers up to 2**53 are exact as doubles, in any order of adding.
_EXACT_BITS = 53
# Up to here a matrix of coefficients is faster than one sequence after the other.
_MATRIX_BUCKETS = 512
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class FractionalSum:
    """What is noised for one sequence of `length` buckets in order: R x, R being A^(sixteenths / 16), A running totals.

    *Guarantee*: if one unit moves at most `unit_groups` entries of `exact`, each by at most `radius_steps`, then
    `transform` moves by at most `sensitivity_steps` in the l2 norm. With Gaussian noise for that sensitivity it is
    rho-zCDP, rises and lower points included (docs/proofs/cascade.md), whatever is computed from it. Neighbours differ
    in all rows of one unit (add or remove).
    *Source*: square root: Fichtenberger, Henzinger and Upadhyay 2023; factorisations released at many levels: Andersson
    et al. 2025, Section 5.1. Smaller powers, sensitivity and rounding: docs/proofs/running-totals.md.
    *Symbols*: `length` is n, `unit_groups` is m, `sixteenths` / 16 is a.
    *Args*: `length` from 1 to MOST_BUCKETS; `sixteenths` from 0 (the buckets themselves) to 8 (the square root).
    *Raises*: CalibrationError for any other.
    *Assumes*: the buckets, their order and the number of sequences are public. Every entry from the first moved one on
    may move, in every sequence that the unit is in: `touched` draws count for `slack_delta`, not `unit_groups`.
    """

    length: int
    sixteenths: int = SQUARE_ROOT

    def __post_init__(self) -> None:
        if not 1 <= self.length <= MOST_BUCKETS:
            raise CalibrationError(f"running totals take 1 to {MOST_BUCKETS} buckets, got {self.length!r}")
        if not 0 <= self.sixteenths <= SQUARE_ROOT:
            raise CalibrationError(f"the power must be 0 to {SQUARE_ROOT} sixteenths, got {self.sixteenths!r}")

    def sensitivity(self, unit_groups: int, sequences: int = 1) -> float:
        """Return the largest l2 norm of R d: at most `unit_groups` entries of d are not 0, and those are in [-1, 1].

        *Source*: docs/proofs/running-totals.md, Theorems 1 and 2. Within a sequence the first buckets are the worst;
        among sequences all numbers of them are equal (to within 1) but one, which is smaller.
        *Args*: both from 1 to 10^6. *Returns*: rounded up, by a share below 2**-39. It is attained.

        >>> round(FractionalSum(365).sensitivity(1), 4), round(FractionalSum(365).sensitivity(7), 4)
        (1.7158, 10.3367)
        """
        most, exact_squares = require_max_groups(unit_groups), _prefix_squares(self)
        # Up to here each further bucket adds more than the one before, from here on less.
        steepest, squares = int(np.argmax(np.diff(exact_squares))), exact_squares.astype(np.float64)
        equal = np.arange(min(require_max_groups(sequences), most // (steepest + 1)) + 1)[:, None]
        smaller = np.arange(min(steepest, most) + 1)[None, :]
        each, left = np.divmod(np.minimum(most - smaller, equal * self.length), np.maximum(equal, 1))
        total = squares[smaller] + (equal - left) * squares[each] + left * squares[np.minimum(each + 1, self.length)]
        total[equal[:, 0] == sequences, 1:] = 0.0
        return math.sqrt(total.max()) * 2.0**-FRACTION_BITS * UP

    def touched(self, unit_groups: int, sequences: int = 1) -> int:
        """Return how many entries of `transform` one unit may move at most."""
        rows, most = require_max_groups(sequences), require_max_groups(unit_groups)
        return min(most, rows * self.length) if self.sixteenths == 0 else min(most, rows) * self.length

    def sensitivity_steps(self, radius_steps: int, unit_groups: int, shift: int, sequences: int = 1) -> float:
        """Return the l2 sensitivity of `transform`, rounding included.

        *Source*: docs/proofs/running-totals.md, Theorem 3: rounding adds less than a step to each entry that moves.
        *Args*: `radius_steps`, most that one unit moves one entry of `exact`. *Returns*: rounded up.
        """
        unrounded = math.ldexp(radius_steps * self.sensitivity(unit_groups, sequences), _require_shift(shift))
        rounds = shift < FRACTION_BITS and self.sixteenths > 0
        return (unrounded + (math.sqrt(self.touched(unit_groups, sequences)) if rounds else 0.0)) * UP

    def clamp(self, shift: int) -> int:
        """Return the largest size of an exact entry for which no entry of `transform` can reach 2**61."""
        column = int(_coefficients(self).sum())
        return (((1 << _RESULT_BITS) - 1) << FRACTION_BITS) // (column << _require_shift(shift))

    def transform(self, exact: Integers, shift: int) -> Integers:
        """Return R exact 2**shift, rounded half up to integers: what noise is added to.

        Entries beyond `clamp` are cut to it, which moves no two of them apart. All arithmetic is exact (`_product`);
        from FRACTION_BITS on nothing is rounded. Nothing here fails, or takes longer, on what the data are. Time grows
        with the square of `length`: about 0.04 ms for a row of 365, 12 ms for one of 4096.

        *Args*: `exact` in lattice steps; `shift` from 0 to MOST_SHIFT: the result is in steps of 2**-shift of those.
        *Shapes*: (..., length), one sequence a row, and the same. *Returns*: below 2**61 in size.
        *Raises*: ReleaseError for another shape or type, CalibrationError for another shift.

        >>> FractionalSum(4).transform(np.array([1, 0, 0, 0]), 19).tolist()
        [524288, 262144, 196608, 163840]
        """
        if exact.dtype != np.int64 or exact.shape[-1:] != (self.length,):
            raise ReleaseError(f"expected 64-bit integers in rows of {self.length}, got {exact.dtype} {exact.shape}")
        largest = self.clamp(shift)
        # rows of a transposed array would otherwise be rows of copies, and what is written to them lost
        clipped = np.ascontiguousarray(np.clip(exact, -largest, largest))
        rows, bits = clipped.reshape(-1, self.length), self._limb_bits()
        half = 1 << (bits - 1)
        dropped = max(FRACTION_BITS - shift, 0)
        made = np.empty_like(rows)
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[first : first + _ROWS_AT_ONCE]
            low = ((part + half) & ((1 << bits) - 1)) - half
            high, low = self._product((part - low) >> bits), self._product(low)
            rounded = (high << (bits - dropped)) + ((low + ((1 << dropped) >> 1)) >> dropped)
            made[first : first + _ROWS_AT_ONCE] = rounded << max(shift - FRACTION_BITS, 0)
        return made.reshape(exact.shape)

    def _limb_bits(self) -> int:
        """Return the bits of the lower part of an entry, which is at most half of them in size: 28 to 35."""
        return _EXACT_BITS + 1 - (int(_coefficients(self).sum()) - 1).bit_length()

    def _product(self, rows: Integers) -> Integers:
        """Return R rows 2**FRACTION_BITS.

        *Guarantee*: the result is exact, in whatever order a processor adds. Coefficients are whole numbers of at least
        0, and their sum S is at most 2**26. A row whose entries are at most 2**53 / S in size has sums of products of
        at most 2**53 in size: a double holds each of them, and each part of it. A lower part is at most 2**(bits - 1)
        in size, and 2**(bits - 1) S <= 2**53. An entry at the clamp is at most 2**80 / S in size, so its upper part,
        times S, is at most 2**(80 - bits) + S <= 2**52 + 2**26.
        """
        coefficients, entries = _coefficients(self), rows.astype(np.float64)
        if self.length <= _MATRIX_BUCKETS:
            return np.asarray((entries @ _matrix(self)).astype(np.int64))
        doubles = coefficients.astype(np.float64)
        sums = [np.convolve(row, doubles)[: self.length] for row in entries]
        return np.array(sums, dtype=np.float64).reshape(rows.shape).astype(np.int64)

    def values(self, noisy: Floats) -> Floats:
        """Return R^-1 noisy: the buckets' own values, in the unit of `noisy`. *Shapes*: (..., length), the same."""
        column = _coefficients(self) * 2.0**-FRACTION_BITS
        return np.asarray(scipy.signal.lfilter([1.0], column, noisy, axis=-1), dtype=np.float64)

    def totals(self, noisy: Floats, span: int | None = None) -> Floats:
        """Return sums of `values` over the last `span` buckets up to each; None: from the first. *Shapes*: the same."""
        return _windows(self.values(noisy), span)

    def value_norms(self) -> Floats:
        """Return the standard deviation of each value for independent noise of 1. *Shapes*: (length,)."""
        return _row_norms(self._inverse())

    def total_norms(self, span: int | None = None) -> Floats:
        """Return the standard deviation of each total for independent noise of 1. *Shapes*: (length,)."""
        return _row_norms(_windows(self._inverse(), span))

    def subset_norms(self, weights: Floats) -> Floats:
        """Return the standard deviation of each sum of weights times values. *Shapes*: (..., length) to (...)."""
        return np.asarray(np.linalg.norm(self.values(weights[..., ::-1]), axis=-1), dtype=np.float64)

    def _inverse(self) -> Floats:
        """First column of R^-1."""
        return self.values(np.eye(1, self.length)[0])


def totals_error(total: FractionalSum, unit_groups: int, span: int | None = None) -> float:
    """Return the root mean square error of all running totals of one sequence at rho = 1/2 and radius 1.

    >>> plain = totals_error(FractionalSum(365, 0), 1)
    >>> round(totals_error(FractionalSum(365), 1) / plain, 3)
    0.206
    """
    return total.sensitivity(unit_groups) * float(np.sqrt(np.mean(total.total_norms(span) ** 2)))


@lru_cache(maxsize=64)
def best_power(length: int, unit_groups: int, span: int | None = None) -> FractionalSum:
    """Return the power with the least `totals_error`; it knows public numbers only.

    >>> [best_power(365, most).sixteenths for most in (1, 7, 30)]
    [8, 6, 5]
    """
    return min(
        map(partial(FractionalSum, length), range(SQUARE_ROOT + 1)),
        key=lambda total: totals_error(total, unit_groups, span),
    )


@lru_cache(maxsize=64)
def _coefficients(total: FractionalSum) -> Integers:
    """Return the first column of R times 2**FRACTION_BITS, each entry rounded half up from its exact value."""
    rounded, numerator, denominator = [], 1, 1
    for k in range(total.length):
        rounded.append(((numerator << (FRACTION_BITS + 1)) + denominator) // (2 * denominator))
        numerator, denominator = numerator * (16 * k + total.sixteenths), denominator * (16 * k + 16)
    coefficients = np.array(rounded, dtype=np.int64)
    coefficients.flags.writeable = False
    return coefficients


@lru_cache(maxsize=8)
def _matrix(total: FractionalSum) -> Floats:
    """Return the matrix that takes a row x to R x, times 2**FRACTION_BITS. *Shapes*: (length, length)."""
    coefficients = _coefficients(total).astype(np.float64)
    return np.asarray(scipy.linalg.toeplitz(np.eye(1, total.length)[0] * coefficients[0], coefficients))


@lru_cache(maxsize=64)
def _prefix_squares(total: FractionalSum) -> Integers:
    """Return the squared norm of the sum of the first m columns of R, m from 0 to n, times 4**FRACTION_BITS."""
    sums = np.concatenate([[0], np.cumsum(_coefficients(total))])
    squares = np.zeros(total.length + 1, dtype=np.int64)
    for m in range(1, total.length + 1):
        entries = sums[1:].copy()
        entries[m:] -= sums[1 : total.length + 1 - m]
        squares[m] = (entries * entries).sum()
    squares.flags.writeable = False
    return squares


def _windows(values: Floats, span: int | None) -> Floats:
    sums = np.cumsum(values, axis=-1, dtype=np.float64)
    if span is not None and span < 1:
        raise CalibrationError(f"a running total takes at least one bucket, got {span!r}")
    width = sums.shape[-1] if span is None else min(span, sums.shape[-1])
    before = np.zeros_like(sums)
    before[..., width:] = sums[..., : sums.shape[-1] - width]
    return sums - before


def _row_norms(column: Floats) -> Floats:
    """Norms of the rows of a lower triangular Toeplitz matrix, from its first column."""
    return np.asarray(np.sqrt(np.cumsum(column * column)), dtype=np.float64)


def _require_shift(shift: int) -> int:
    if not 0 <= shift <= MOST_SHIFT:
        raise CalibrationError(f"the shift must be from 0 to {MOST_SHIFT} bits, got {shift!r}")
    return shift
