"""Conversions between the amounts of all releases of a unit and epsilon: one pair of functions for each composition.

A unit has one composition, which its policy fixes before the first charge. All are proved in `docs/proofs/ledger.md`,
for histories whose levels add up to at most an amount, however each level was chosen by earlier answers. An amount is a
rho of zCDP, or an epsilon if the composition is ``pure``.

- ``gaussian``: Theorem 2. Every release is a Gaussian shift of its level, so all of them cost what one shift of length
  sqrt(2 rho) costs. It is exact: no smaller epsilon holds.
- ``zcdp``: every release is zCDP at its level, as discrete noise is. The optimal conversion holds for any such noise.
- ``pure``: every release is epsilon-differentially private at its level, with a delta of 0. Levels add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from dpsql.accounting import gaussian, zcdp
from dpsql.accounting.profile import require_finite, within_floats

Composition = Literal["gaussian", "zcdp", "pure"]
"""Ways in which the levels of releases add up."""
_UP = 1.0 + 2.0**-50


@dataclass(frozen=True, slots=True)
class Conversion:
    """A pair of functions between rho and epsilon at a delta; one is the inverse of the other.

    Attributes:
        epsilon: of (delta, rho), rounded up.
        rho: of (epsilon, delta), rounded down.

    """

    epsilon: Callable[[float, float], float]
    rho: Callable[[float, float], float]


@within_floats
def gaussian_epsilon(delta: float, rho: float) -> float:
    """Return the smallest epsilon of Gaussian releases whose levels add up to rho.

    Guarantee: (epsilon, delta) when all rows of one unit are added or removed, for any adaptive history of Gaussian
        releases within rho. Delta of thresholds comes on top.
    Source: docs/proofs/ledger.md, Theorem 2: D(sqrt(2 rho), epsilon) = delta.

    Args:
        delta: strictly between 0 and 1.
        rho: at least 0.
    Returns: epsilon at least 0, rounded up.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(gaussian_epsilon(1e-6, 0.1), 4)
    1.9945
    """
    return gaussian.epsilon(delta, math.sqrt(2.0 * require_finite("rho", rho, least=0.0)) * _UP, 1.0)


@within_floats
def gaussian_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho to which levels of Gaussian releases may add up for (epsilon, delta).

    Guarantee, Source: as `gaussian_epsilon`, of which this is the inverse.

    Args:
        epsilon: at least 0.
        delta: strictly between 0 and 1.
    Returns: rho above 0, rounded down.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(gaussian_rho(3.0, 5e-7), 4), round(gaussian_rho(3.0, 1e-6), 4)
    (0.1984, 0.2098)
    """
    return 0.5 / gaussian.sigma(epsilon, delta, 1.0) ** 2 * (1.0 - 2.0**-45)


CONVERSIONS: Mapping[Composition, Conversion] = {
    "gaussian": Conversion(gaussian_epsilon, gaussian_rho),
    "zcdp": Conversion(zcdp.epsilon, zcdp.rho),
    "pure": Conversion(lambda _, amount: amount, lambda epsilon, _: epsilon),
}
"""The conversion of each composition that a unit may have."""
