"""Sums of discrete Laplace numbers, each multiplied by a step: probabilities, losses and draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import CalibrationError
from dpsql.noise.divisible.law import Logs, decay_of, laplace_variance
from dpsql.noise.divisible.many_negative_binomials import draw_many
from dpsql.noise.divisible.negative_binomial import draw_negative_binomials, require_count
from dpsql.noise.entropy import Entropy, Integers

Tilted = NDArray[np.float64]

_NEGLIGIBLE = 25.0
_CONVERGED = 40.0
_MOST_WORK = 3 * 10**9
_MOST_WORK_OF_LOSS = 10**8
_ROUNDING = 1e-12
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Term:
    """Independent discrete Laplace numbers of one gamma, one for each of `steps`, multiplied by their steps."""

    steps: tuple[int, ...]
    gamma: Fraction

    @property
    def tilt(self) -> float:
        """Return the slowest decay of the term's tail for one whole number."""
        return decay_of(self.gamma) / max(self.steps)

    @property
    def variance(self) -> float:
        """Return the variance of the sum."""
        return sum(step * step for step in self.steps) * laplace_variance(self.gamma)


def draw_terms(terms: Sequence[Term], shape: Fraction, count: int, entropy: Entropy) -> Integers:
    """Return `count` independent sums of the terms, or shares of them if `shape` is 1 / parties; exact.

    *Randomness*: two draws of Algorithm 3 for each term. Their time grows with the numbers that are not 0, not with
    the number of steps. If most numbers are not 0, each is drawn by itself.
    """
    drawn = np.zeros(require_count(count), dtype=np.int64)
    for term, sign in itertools.product(terms, (1, -1)):
        mean = float(shape) * math.expm1(float(term.gamma))
        if len(term.steps) == 1 or mean > 1:
            for step in term.steps:
                drawn += sign * step * draw_negative_binomials(shape, term.gamma, count, entropy)
        else:
            block = max(1, int(_BLOCK / max(mean * len(term.steps), 1)))
            for start in range(0, count, block):
                part = drawn[start : start + block]
                part += sign * _sparse_sums(term, shape, part.size, entropy)
    return drawn


def _sparse_sums(term: Term, shape: Fraction, count: int, entropy: Entropy) -> Integers:
    """Return `count` sums of negative binomial numbers times their steps, by Algorithm 3."""
    owner, kind, number = draw_many(shape, term.gamma, len(term.steps), count, entropy)
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, owner, number * np.array(term.steps, dtype=np.int64)[kind])
    return sums


@dataclass(frozen=True, slots=True)
class ScaledShare:
    """The noise that one of several parties adds: each discrete Laplace number is replaced by one of its shares.

    *Source*: Harrison and Manurangsi 2025, Section 5: shares are differences of NB(1 / parties, p).
    """

    terms: tuple[Term, ...]
    parties: int

    @property
    def variance(self) -> float:
        """Return the variance of the whole noise over the number of parties."""
        return sum(term.variance for term in self.terms) / self.parties

    def draw(self, count: int, entropy: Entropy) -> Integers:
        """Return the shares of one party for `count` numbers; exact."""
        return draw_terms(self.terms, Fraction(1, self.parties), count, entropy)


def log_pmf(terms: Sequence[Term], x: Integers) -> Logs:
    """Return the logarithms of the probabilities of whole numbers.

    *Raises*: CalibrationError if the steps and the width of the noise ask for too many operations.
    """
    sizes = np.abs(np.asarray(x, dtype=np.int64))
    divisor = math.gcd(*(step for term in terms for step in term.steps))
    reduced = tuple(Term(tuple(step // divisor for step in term.steps), term.gamma) for term in terms)
    possible = sizes % divisor == 0
    places = np.where(possible, sizes // divisor, 0)
    most = int(places.max(initial=0))
    if _work(reduced, most) > _MOST_WORK:
        raise CalibrationError(
            "these probabilities ask for too many operations: take a larger epsilon, smaller numbers or fewer values"
        )
    tilt = min(term.tilt for term in reduced)
    with np.errstate(divide="ignore"):
        logs: Logs = np.log(_tilted(reduced, most)[places]) - tilt * places
    return np.where(possible, logs, -np.inf)


def _grid_size(terms: Sequence[Term], most: int) -> int:
    """Return the size of a grid from 0 on whose cut tail is negligible up to `most`.

    The noise is U - V. What the grid cuts off at x is P(U > size, U - V = x), at most
    exp(t x - 2 t size) E[exp(t U)]^2 for each t below the tilt. It is compared with exp(-tilt x) over the width.
    """
    tilt = min(term.tilt for term in terms)
    width = math.sqrt(sum(term.variance for term in terms))
    slopes = tilt * (1 - np.geomspace(1e-6, 0.5, 40))
    moments = np.zeros(slopes.size)
    for term in terms:
        decay = decay_of(term.gamma)
        for step in term.steps:
            # log((1 - exp(-decay)) / (1 - exp(slope step - decay)))
            moments += math.log(-math.expm1(-decay)) - np.log(-np.expm1(np.minimum(slopes * step - decay, -1e-300)))
    excess = (tilt - slopes) * most + 2 * moments + 2 * _NEGLIGIBLE + math.log1p(4 * width)
    return most + 1 + math.ceil(max(_NEGLIGIBLE / tilt, float((excess / (2 * slopes)).min())))


def _work(terms: Sequence[Term], most: int) -> float:
    """Return the number of additions that `_tilted` takes."""
    steps = sum(len(term.steps) for term in terms)
    return float(steps) * _grid_size(terms, most) * 8


def _tilted(terms: Sequence[Term], most: int) -> Tilted:
    """Return P(x) exp(tilt x) for x from 0 to `most`, where `tilt` is the slowest decay of a tail.

    A discrete Laplace number is the difference of two geometric ones. Each is a recurrence of positive terms, upwards
    or downwards, so all digits of small probabilities are right. Sums start at 0 and go up, then all come down.
    """
    tilt = min(term.tilt for term in terms)
    values = np.zeros(_grid_size(terms, most))
    values[0] = 1.0
    for direction in (1, -1):
        for term in terms:
            decay, success = decay_of(term.gamma), math.exp(-float(term.gamma))
            for step in term.steps:
                ratio = min(math.exp(direction * tilt * step - decay), 1.0)
                _add_geometric(values if direction > 0 else values[::-1], ratio, step)
                values *= success
    return values[: most + 1]


def _add_geometric(values: Tilted, ratio: float, step: int) -> None:
    """Replace v[x] by the sum of ratio^j v[x - j step] over j >= 0: a product of factors 1 + ratio^(2^k) z^(2^k step).

    Multiplication of both sides by doubled powers needs a number of passes that is a logarithm of the size.
    """
    while step < values.size and ratio > 1e-300:
        values[step:] += ratio * values[:-step]
        ratio, step = ratio * ratio, 2 * step


def loss_bound(terms: Sequence[Term], changes: Iterable[int]) -> float:
    """Return an upper bound of log(P(x) / P(x + change)) over all whole x and all `changes`; infinite if not found.

    Ratios near 0 are computed. Further out P(x) exp(tilt x) only rises along multiples of the widest step, by no more
    than a bound: docs/proofs/divisible-noise.md, 3. Up to rounding, the result is the smallest epsilon.
    """
    divisor = math.gcd(*(step for term in terms for step in term.steps))
    reduced = tuple(Term(tuple(step // divisor for step in term.steps), term.gamma) for term in terms)
    moved = [change // divisor for change in sorted(set(changes)) if change % divisor == 0]
    if len(moved) < len(set(changes)):
        return math.inf
    tail = _Tail.of(reduced)
    if tail.rate <= 0:
        return math.inf
    most = math.ceil(tail.length) + 2 * tail.period
    if max(_work(reduced, most), most * len(moved)) > _MOST_WORK_OF_LOSS:
        return math.inf
    values = _tilted(reduced, most)
    if not values.all():
        return math.inf
    beyond = values[-tail.period :][np.arange(tail.period + moved[-1]) % tail.period]
    line = tail.tilt * np.arange(values.size + beyond.size)
    high = np.log(np.concatenate([values, beyond + tail.rise(most - tail.period)])) - line
    low = np.log(np.concatenate([values, beyond])) - line
    return max(_largest_loss(high, low, change) for change in moved) + _ROUNDING


@dataclass(frozen=True, slots=True)
class _Tail:
    """The tail of a sum whose slowest part is one discrete Laplace number, times the widest step `period`.

    Attributes:
        tilt, period: decay of the tail for one whole number, and the step that causes it.
        others: decay for one whole number, and step, of all other numbers.
        rate: by how much the slowest of them decays faster; 0 if one decays as slowly.

    """

    tilt: float
    period: int
    others: tuple[tuple[float, int], ...]
    rate: float

    @classmethod
    def of(cls, terms: Sequence[Term]) -> _Tail:
        numbers = sorted((decay_of(term.gamma) / step, step) for term in terms for step in term.steps)
        tilt, period = numbers[0]
        # Alone, the number has its tail from 0 on.
        rate = numbers[1][0] - tilt if len(numbers) > 1 else 8 * tilt
        return cls(tilt, period, tuple(numbers[1:]), rate)

    @property
    def length(self) -> float:
        """Return a size from which on the rise is negligible against the least of `period` neighbours, as a rule."""
        return (_CONVERGED + 2 * self.tilt * self.period) / min(self._faster, self.tilt)

    @property
    def _faster(self) -> float:
        return 0.875 * self.rate

    def rise(self, x: int) -> float:
        """Return a bound of how much P(y) exp(tilt y) can still rise along multiples of `period` from any y >= x on."""
        tilt = self.tilt + self._faster
        logarithm = math.log(math.tanh(self.tilt * self.period / 2)) - self._faster * x
        for own, step in self.others:
            success = 2 * math.log(-math.expm1(-own * step))
            logarithm += (
                success - math.log(-math.expm1((tilt - own) * step)) - math.log(-math.expm1(-(tilt + own) * step))
            )
        return math.exp(min(logarithm, 700.0))


def _largest_loss(high: Logs, low: Logs, change: int) -> float:
    """Return the largest high(|x|) - low(|x + change|) over whole x, inside the arrays."""
    apart = max(float((high[:-change] - low[change:]).max()), float((high[change:] - low[:-change]).max()))
    around = float((high[: change + 1] - low[change::-1]).max())
    return max(apart, around)
