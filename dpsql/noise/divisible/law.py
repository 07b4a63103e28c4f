"""The protocol of noise that many parties can share, and the limits of its parameters."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import CalibrationError
from dpsql.noise.divisible.negative_binomial import LARGEST_DENOMINATOR
from dpsql.noise.entropy import Entropy, Integers

Logs = NDArray[np.float64]

MOST_CHANGE = 10_000
LEAST_EPSILON = 1e-6
MOST_EPSILON = 34
MOST_VALUES = 1_000
LARGEST_SIZE = 1e12
MOST_PARTIES = LARGEST_DENOMINATOR
"""A share of one party has the shape 1 / parties."""

_SIGNIFICANT_BITS = 40
_ROUNDED_UP = 1 + 2.0**-44
WIDENED = 1 + 2.0**-37
"""Factor of scales of noise. It is worth more epsilon than all that `rounded_up` adds."""


class Share(Protocol):
    """The noise that one of several parties adds. Shares of all parties add up to noise of the whole law."""

    @property
    def variance(self) -> float:
        """Return the variance of one share."""

    def draw(self, count: int, entropy: Entropy) -> Integers:
        """Return the shares of one party for `count` numbers, exactly drawn."""


class DivisibleLaw(Share, Protocol):
    """Noise on whole numbers that is symmetric around 0 and can be drawn in shares.

    Each law is calibrated for add-or-remove neighbours: one unit changes an exact number by at most `max_change`, or by
    one of the known values.
    Only the sum of all shares is as private as the law. The sum of fewer shares is less private.
    """

    def log_pmf(self, x: Integers) -> Logs:
        """Return the logarithms of the probabilities of whole numbers; minus infinity for impossible ones.

        A probability that is below e^-700 against its neighbours may be minus infinity, too.
        """

    def epsilon(self, max_change: int) -> float:
        """Return the smallest epsilon for changes of at most `max_change`, rounded up."""

    def share(self, parties: int) -> Share:
        """Return the noise that each of `parties` parties adds."""


def rounded_up(epsilon: float) -> float:
    """Return a number that is surely no less than epsilon, whose floating-point error is a few units."""
    return epsilon * _ROUNDED_UP


def gamma_for(decay: float) -> Fraction:
    """Return a rational gamma whose discrete Laplace noise is at least as wide as exp(-decay |x|).

    *Symbols*: exp(-gamma) = p = 1 - exp(-decay), the chance of success of the negative binomial law.
    *Args*: `decay`, above 0 and at most 34.
    *Returns*: gamma of at most 40 significant bits, rounded up by a share of at most 2**-36. A larger gamma is a
    smaller p and more noise.
    """
    gamma = Fraction(_log_of_complement(decay) * WIDENED)
    whole_bits = gamma.numerator.bit_length() - gamma.denominator.bit_length()
    unit = Fraction(2) ** (whole_bits - _SIGNIFICANT_BITS + 1)
    return math.ceil(gamma / unit) * unit


def decay_of(gamma: Fraction) -> float:
    """Return a with exp(-a) = 1 - exp(-gamma): the inverse of `gamma_for`, to the last digits."""
    return _log_of_complement(float(gamma))


def laplace_variance(gamma: Fraction) -> float:
    """Return the variance 2 q / p^2 of discrete Laplace noise with p = exp(-gamma), q = 1 - p."""
    return -2 * math.expm1(-float(gamma)) * math.exp(2 * float(gamma))


def _log_of_complement(x: float) -> float:
    """Return -log(1 - exp(-x)) for x above 0, without cancellation."""
    return -math.log(-math.expm1(-x)) if x < math.log(2) else -math.log1p(-math.exp(-x))


def require_epsilon(epsilon: float) -> float:
    """Return epsilon, or raise CalibrationError unless it is a number from 1e-6 to 34."""
    number = isinstance(epsilon, int | float | Fraction | np.integer | np.floating) and not isinstance(epsilon, bool)
    if not number or not LEAST_EPSILON <= epsilon <= MOST_EPSILON:
        raise CalibrationError(f"epsilon must be a number from {LEAST_EPSILON} to {MOST_EPSILON}, got {epsilon!r}")
    return float(epsilon)


def require_change(max_change: int) -> int:
    """Return `max_change`, or raise CalibrationError unless it is a whole number from 1 to 10,000."""
    return require_whole("max_change", max_change, MOST_CHANGE)


def require_size(max_change: float) -> float:
    """Return the largest change, or raise CalibrationError unless it is above 0 and at most 10**12."""
    number = isinstance(max_change, int | float | Fraction | np.integer | np.floating) and not isinstance(
        max_change, bool
    )
    if not number or not 1 / LARGEST_SIZE <= max_change <= LARGEST_SIZE:
        raise CalibrationError(f"max_change must be a number from 1e-12 to 1e12, got {max_change!r}")
    return float(max_change)


def require_parties(parties: int) -> int:
    """Return the number of parties, or raise CalibrationError unless it is a whole number from 1 to 10**6."""
    return require_whole("the number of parties", parties, MOST_PARTIES)


def require_whole(name: str, number: int, most: int) -> int:
    """Return a whole number from 1 to `most`, or raise CalibrationError."""
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 1 <= number <= most:
        raise CalibrationError(f"{name} must be a whole number from 1 to {most:,}, got {number!r}")
    return int(number)
