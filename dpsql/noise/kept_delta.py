"""The parts of a delta where no threshold takes any of it: for the imprecision of draws, and for the conversion.

A unit without thresholds splits its budget so. A question by epsilon in such a unit splits its own delta in the same
way, so that one question at the whole budget costs exactly the rho of the budget.
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpsql.accounting.composition import gaussian_rho
from dpsql.noise.rounded_gaussian import slack_delta_zcdp

_LEAST_PART = 2.0**-40
_DRAWS, _RELEASES = 1000, 64
"""The draws that are covered: those of 64 releases at the whole rho, with 1000 draws each."""
_UNIT_BITS = 100
"""A kept delta is a multiple of 2**-100, as the ledger counts delta."""


def kept_delta(delta: float, rho: float) -> float:
    """Return the part of ``delta`` that is kept for the imprecision of draws of releases at up to ``rho``.

    Args:
        delta: a whole delta, of a budget or of a question.
        rho: at least 0.
    Returns: a multiple of 2**-100, rounded up. It may exceed ``delta``, which is then too little for such releases.

    >>> kept_delta(1e-6, 0.2) / 1e-6 < 2.0**-39, kept_delta(1e-12, 4.0) / 1e-12 > 2.0**-39
    (True, True)
    """
    kept = max(_LEAST_PART * delta, _RELEASES * slack_delta_zcdp(_DRAWS, rho))
    return math.ldexp(math.ceil(math.ldexp(kept, _UNIT_BITS)), -_UNIT_BITS)


def converted_delta(delta: float, kept: float) -> float:
    """Return the part of ``delta`` for the conversion of rho to epsilon: the rest, and at least half; rounded down.

    >>> converted_delta(1e-6, 2.0**-60) < 1e-6, converted_delta(1e-6, 1.0)
    (True, 5e-07)
    """
    rest = max(Fraction(delta) - Fraction(kept), Fraction(delta) / 2)
    nearest = float(rest)
    return nearest if nearest <= rest else math.nextafter(nearest, 0.0)


def delta_of_conversion(epsilon: float, delta: float) -> float:
    """Return the part of ``delta`` that converts the epsilon of a question in an exact unit without thresholds.

    >>> delta_of_conversion(1.0, 1e-6) < 1e-6
    True
    """
    return converted_delta(delta, kept_delta(delta, gaussian_rho(epsilon, delta)))
