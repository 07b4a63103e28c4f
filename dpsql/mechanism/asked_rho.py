"""The level of a whole question in rho: as it was asked for, or as its epsilon became rho."""

from __future__ import annotations

import math
from fractions import Fraction

from dpsql.accounting.composition import gaussian_rho
from dpsql.model.frame import NANO
from dpsql.model.private_query import Request
from dpsql.noise.kept_delta import converted_delta, kept_delta


def whole_nano(rho: float) -> int:
    """Return a level in whole nano-rho, rounded down."""
    # the shortest decimal that names the float is what was asked for, so a whole number of nano-rho stays whole
    return math.floor(round(rho * NANO, 6))


def total_nano(request: Request, rho: float) -> int:
    """Return the level of a whole query in nano-rho, rounded down: as it was asked for, or as epsilon became rho."""
    return whole_nano(rho) if request.rho is not None else math.floor(Fraction(repr(rho)) * NANO)


def budget_delta(request: Request) -> float:
    """Return the part of delta that is converted where epsilon becomes rho as in the budget of the unit."""
    epsilon, delta = request.asked_epsilon, request.delta
    return converted_delta(delta, kept_delta(delta, gaussian_rho(epsilon, delta)))
