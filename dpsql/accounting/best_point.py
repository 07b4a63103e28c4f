"""The noise and threshold of a release behind a threshold with the least of both for an (epsilon, delta)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from dpsql.accounting import gaussian
from dpsql.accounting.profile import Profile, require_delta, require_finite, require_positive, within_floats
from dpsql.errors import CalibrationError

_UP, _DOWN = 1.0 + 2.0**-39, 1.0 - 2.0**-38


@dataclass(frozen=True, slots=True)
class Point:
    """One calibrated release.

    Attributes:
        profile: the mechanism with its noise, sigma rounded up.
        rho: what counts and aggregates spend in zCDP, their levels added (rounded up).
        tau: a key is shown if its noisy presence count exceeds 1 + tau, in units (rounded up).
        delta: delta of the release alone at the requested epsilon (rounded up).
        threshold_delta: what the ledger adds beside rho (rounded up).

    """

    profile: Profile
    rho: float
    tau: float
    delta: float
    threshold_delta: float

    @property
    def sigma(self) -> float:
        """Standard deviation of each key's own noise, in units."""
        return self.profile.sigma


@lru_cache(maxsize=4096)
@within_floats
def best_point(
    profile: Profile, epsilon: float, delta: float, presence_share: float = 1.0, beside_share: float = 0.0
) -> Point:
    """Noise and threshold of the (epsilon, delta)-private release of this kind with the least of both.

    Guarantee: the point is (epsilon, delta)-private when all rows of one unit are added or removed; certified by
        `Profile.delta` before it is returned.
    Source: no sigma can be below the one at which common keys alone cost delta, and no tau below the one at which new
        keys alone do, so a certified point at both limits is the optimum (docs/proofs/gshm.md, csh-exact.md). Where
        mixed neighbours cost more, both limits are eased by one factor until a point passes.

    Args:
        profile: the mechanism; its own noise does not matter.
        epsilon: at least 0.
        delta: strictly between 0 and 1.
        presence_share: part of rho that the presence count gets, above 0 and at most 1; the aggregates' noise has
            aggregate_precision = 2 rho (1 - presence_share - beside_share) / unit_groups.
        beside_share: part of rho of what is released whichever keys are shown: beside = 2 rho beside_share.
    Returns: a point whose sigma, tau, rho and deltas are rounded up; `rho` beside `delta` stays certified.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.
    """
    require_finite("epsilon", epsilon, least=0.0)
    require_delta(delta)
    if require_positive("presence_share", presence_share) > 1.0:
        raise CalibrationError(f"presence_share must be at most 1, got {presence_share!r}")
    # At rho = 1 the shares fix sigma and the aggregates; jointly they move less than the levels add up to.
    rest = max(0.0, 1.0 - presence_share - beside_share)
    sums = 2.0 * rest / profile.unit_groups
    sigma = math.sqrt(replace(profile, sigma=1.0, aggregate_precision=0.0, beside=0.0).rho / presence_share)
    at_one = replace(profile, sigma=sigma, aggregate_precision=sums, beside=2.0 * beside_share).rho
    for slack in profile.slacks:
        # The point at which either pure case alone costs (1 - slack) delta.
        mu = 1.0 / gaussian.sigma(epsilon, delta * (1.0 - slack), 1.0) * _DOWN
        rho = 0.5 * mu * mu / at_one * _UP
        precision, beside = 2.0 * rho * rest / profile.unit_groups, 2.0 * rho * beside_share
        found = replace(profile, sigma=sigma / math.sqrt(rho) * _UP, aggregate_precision=precision, beside=beside)
        tau = found.own_threshold(found.threshold_share(epsilon, delta, slack))
        cost = found.delta(epsilon, tau)
        if cost <= delta:
            return Point(found, rho, tau, cost, found.threshold_delta(tau))
    raise CalibrationError(f"no histogram meets epsilon = {epsilon!r}, delta = {delta!r}")
