"""What Skellam noise on whole numbers costs, in Rényi divergence: the published bound, and the exact value.

Skellam noise of variance mu is the difference of two Poisson variates of mean mu / 2. Its cost is close to that of
Gaussian noise, but no theorem gives rho-zCDP with rho = sensitivity^2 / (2 mu): use the bound, or exact values.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import NDArray

from dpsql.accounting.profile import require_finite, require_positive, within_floats
from dpsql.errors import CalibrationError

# Raised by more than the rounding errors of the sums below, at most 2**-40 where variance and orders are in range.
_ROUND_UP = 1 + 2.0**-36
_LARGEST_VARIANCE = 2.0**16
_LARGEST_ORDER = 512.0
# The absolute error of a divergence that is close to 0.
_FLOOR = 2.0**-36


@within_floats
def skellam_renyi_bound(order: int, variance: float, *, sensitivity_l1: float, sensitivity_l2: float) -> float:
    """Return a bound on the Rényi divergence of a Skellam release, any number of coordinates.

    *Guarantee*: whole numbers that one unit moves by at most these l1 and l2 norms, with Skellam noise of this variance
    on each, have Rényi divergence of this order at most the result, both ways, for neighbours that differ in all
    rows of one unit (add or remove).
    *Source*: Agarwal, Kairouz and Liu 2021, "The Skellam Mechanism for Differentially Private Federated Learning":
    order l2^2 / (2 mu) + min(((2 order - 1) l2^2 + 6 l1) / (4 mu^2), 3 l1 / (2 mu)).
    *Symbols*: variance is mu, order is alpha.
    *Args*: `order`, a whole number of at least 2 (divergences rise with the order: round it up); the sensitivities in
    steps, l1 at least l2.
    *Returns*: rounded up.
    *Raises*: CalibrationError for any other argument, NaN and infinity included.

    >>> round(skellam_renyi_bound(2, 100.0, sensitivity_l1=1, sensitivity_l2=1), 6)
    0.010225
    """
    if isinstance(order, bool) or not isinstance(order, int) or order < 2:
        raise CalibrationError(f"the order must be a whole number of at least 2, got {order!r}")
    mu, l2 = require_positive("the variance", variance), require_positive("sensitivity_l2", sensitivity_l2)
    l1 = require_finite("sensitivity_l1", sensitivity_l1, least=l2)
    square = l2 * l2
    excess = min(((2 * order - 1) * square + 6 * l1) / (4 * mu * mu), 3 * l1 / (2 * mu))
    return (order * square / (2 * mu) + excess) * _ROUND_UP


@within_floats
def skellam_renyi(order: float, variance: float, *, shift: int) -> float:
    """Return the Rényi divergence of one Skellam coordinate that moves by `shift` steps.

    *Guarantee*: the divergence of this order between the noise and the noise moved, either way (the law is symmetric).
    Coordinates have independent noise: a vector's divergence is the sum over its coordinates.
    *Source*: the definition, summed over the lattice; probabilities by the backward recurrence of Bessel ratios.
    *Args*: `order` above 1, at most 512; `variance` in (0, 2**16]; `shift`, whole, at most 2**16 in size.
    *Returns*: above the sum by a share of 2**-36 and 2**-36; the sum's own rounding errors and what is left out of it
    are below that in all tests, but not by proof: rely on `skellam_renyi_bound` where a proof is needed.
    *Raises*: CalibrationError for any other argument.

    >>> round(skellam_renyi(2.0, 1.0, shift=1), 6)
    0.874882
    """
    alpha, mu = require_finite("the order", order, least=1.0), require_positive("the variance", variance)
    if not 1.0 < alpha <= _LARGEST_ORDER or mu > _LARGEST_VARIANCE:
        raise CalibrationError(f"no exact cost of Skellam noise at order {order!r} and variance {variance!r}")
    if isinstance(shift, bool) or not isinstance(shift, int) or abs(shift) > _LARGEST_VARIANCE:
        raise CalibrationError(f"the shift must be a whole number of at most 2**16 steps, got {shift!r}")
    moved = abs(shift)
    if moved == 0:
        return 0.0
    # Above this the terms fall faster than the geometric series of ratio 1/2: (mu / 2k)^(alpha) (2k / mu)^(alpha - 1).
    reach = int(40 * math.sqrt(mu) + 4 * mu + 60 + 2 * alpha * moved)
    law, centre = _log_law(mu, reach + moved), reach + moved
    points = np.arange(-reach, reach + 1)
    logarithms = alpha * law[centre + points] + (1 - alpha) * law[centre + points - moved]
    return max(0.0, float(scipy.special.logsumexp(logarithms)) / (alpha - 1)) * _ROUND_UP + _FLOOR


def _log_law(variance: float, reach: int) -> NDArray[np.float64]:
    """Return ln P(x) for x from -reach to reach.

    P(x) / P(x - 1) = I_x(mu) / I_{x-1}(mu) = 1 / (2x / mu + next ratio): backwards this is stable, so every ratio has
    an error of a few units in the last place, whatever it starts from.
    """
    ratio, logarithms = 0.0, np.empty(reach)
    for x in range(reach + 20, 0, -1):
        ratio = 1.0 / (2.0 * x / variance + ratio)
        if x <= reach:
            logarithms[x - 1] = math.log(ratio)
    upper = np.cumsum(logarithms)
    law = np.concatenate([upper[::-1], [0.0], upper])
    return np.asarray(law - scipy.special.logsumexp(law))
