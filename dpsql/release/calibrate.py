"""Step 4: from a request to levels, noise scales and a threshold, by policy and text alone.

A query at rho asks statistic i for level w_i * rho (ARCHITECTURE, "statistics, not texts"). Asked by (epsilon, delta),
rho is the largest for which the stacked release of all its statistics with its threshold is (epsilon, delta)-private
by the exact analysis, and the threshold the smallest that this rho allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpsql.accounting import gaussian, sparse_histogram
from dpsql.errors import CalibrationError
from dpsql.mechanisms.rounded_gaussian import RoundedGaussian, slack_delta, slack_delta_zcdp
from dpsql.query.private_query import PrivateQuery, Statistic

NANO = 10**9
_FLOAT_SLACK = 1.0 + 2.0**-40


@dataclass(frozen=True, slots=True)
class Level:
    """One statistic's share of a query.

    Attributes:
        rho_nano: zCDP level in nano-rho; what its noise is drawn for and what it costs.
        sigma: standard deviation of its noise in the units of the aggregate, rounded up.
        noise_delta: what finite precision of the draws adds to delta, rounded up.

    """

    statistic: Statistic
    rho_nano: int
    sigma: float
    noise_delta: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Everything about the noise of a query, before any data is read.

    Attributes:
        mechanism: ``gaussian`` (public keys) or ``gshm`` (private keys with a threshold).
        levels: one per statistic of the query, presence first.
        tau_steps: a key is shown if its noisy presence count exceeds 1 + tau_steps; None with public keys.
        threshold_delta: probability that a unit's own groups make any new key pass, rounded up; 0 with public keys.
        epsilon, delta: guarantee of this query alone, exact joint analysis, both rounded up.

    """

    mechanism: str
    levels: tuple[Level, ...]
    tau_steps: int | None
    threshold_delta: float
    epsilon: float
    delta: float

    @property
    def rho_nano(self) -> int:
        """Sum of the levels."""
        return sum(level.rho_nano for level in self.levels)


def calibrate(query: PrivateQuery, default_delta: float) -> Calibration:
    """Levels, noise and threshold of a query.

    Args:
        query: the plan.
        default_delta: delta of a query that names none.

    Raises:
        CalibrationError: the request is so small that a level rounds to nothing or its noise cannot be drawn, or no
            threshold meets it.

    """
    delta = query.request.delta if query.request.delta is not None else default_delta
    if query.request.rho is not None:
        return _at_rho(query, query.request.rho, delta)
    if query.request.epsilon is None:
        raise CalibrationError("a query needs rho or epsilon")
    return _at_epsilon(query, query.request.epsilon, delta)


def sigma_at(statistic: Statistic, rho_nano: int, max_groups: int) -> float:
    """Noise of a statistic at a level: radius * sqrt(max_groups / (2 rho)), rounded up."""
    return statistic.radius * math.sqrt(max_groups / (2 * rho_nano / NANO)) * _FLOAT_SLACK


def threshold_steps(tau: float) -> int:
    """Smallest whole tau such that comparing the *rounded* noisy count with 1 + tau is as strict as tau itself.

    Counts are whole, so round(noise) > t means noise >= t + 1/2: the rounded rule at t is the continuous rule at
    t + 1/2 (docs/proofs/gshm.md, part c).
    """
    return max(0, math.ceil(tau - 0.5))


def guarantee(max_groups: int, levels: tuple[Level, ...], tau_steps: int | None, delta: float) -> tuple[float, float]:
    """(epsilon, delta) of one release of these levels together, by the exact joint analysis, both rounded up.

    ``delta`` is what may be spent on noise and threshold; what the draws' precision adds comes on top.
    """
    sigma = levels[0].sigma
    if tau_steps is None:
        rho = sum(level.rho_nano for level in levels) / NANO
        epsilon = gaussian.epsilon(delta, math.sqrt(2.0 * rho) * _FLOAT_SLACK, 1.0)
    else:
        tau = tau_steps + 0.5
        shown = sparse_histogram.threshold_delta(max_groups=max_groups, sigma=sigma, tau=tau)
        delta = max(delta, shown * _FLOAT_SLACK)
        epsilon = sparse_histogram.gshm_epsilon(
            delta,
            max_groups=max_groups,
            sigma=sigma,
            tau=tau,
            aggregate_precision=aggregate_precision(levels),
        )
    noise = slack_delta(max_groups * len(levels), epsilon)
    return epsilon, min(1.0, (delta + noise) * (1.0 + 2.0**-51))


def aggregate_precision(levels: tuple[Level, ...]) -> float:
    """Sum over the statistics beside the presence count of (radius / sigma)²: what one changed group adds."""
    return math.fsum((level.statistic.radius / level.sigma) ** 2 for level in levels[1:])


def level_of(statistic: Statistic, rho_nano: int, max_groups: int) -> Level:
    """A statistic at a level, with its noise.

    Raises:
        CalibrationError: the noise is wider than can be drawn.

    """
    sigma = sigma_at(statistic, rho_nano, max_groups)
    try:
        RoundedGaussian(sigma / statistic.lattice)
    except CalibrationError:
        raise CalibrationError(
            f"rho = {rho_nano / NANO:.3g} for one statistic with max_groups = {max_groups} needs more noise than can "
            "be drawn; ask for more rho, or let a unit have fewer groups or rows"
        ) from None
    return Level(statistic, rho_nano, sigma, slack_delta_zcdp(max_groups, rho_nano / NANO))


def _levels(query: PrivateQuery, rho: float) -> tuple[Level, ...]:
    # the shortest decimal that names the float is what was asked for, so a whole number of nano-rho stays whole
    total = math.floor(round(rho * NANO, 6))
    shares = [math.floor(weight * total) for weight in query.weights]
    shares[0] += total - sum(shares)
    if min(shares) < 1:
        raise CalibrationError(
            f"rho = {rho:.3g} is too small to share among {len(shares)} statistics; the unit of account is 1e-9"
        )
    return tuple(
        level_of(statistic, rho_nano, query.frame.max_groups)
        for statistic, rho_nano in zip(query.statistics, shares, strict=True)
    )


def _at_rho(query: PrivateQuery, rho: float, delta: float) -> Calibration:
    levels = _levels(query, rho)
    if not query.frame.has_private_keys:
        return _calibration(query, levels, None, delta)
    # the imprecision of the draws is charged beside the threshold; together they cost no more than delta
    target = delta - 1.01 * math.fsum(level.noise_delta for level in levels)
    if target <= 0.0:
        least = len(levels) * slack_delta_zcdp(query.frame.max_groups, 0.0)
        raise _no_room_for_imprecision("rho", rho, delta, too_large=delta > 1.01 * least)
    tau = sparse_histogram.threshold(target, max_groups=query.frame.max_groups, sigma=levels[0].sigma)
    return _calibration(query, levels, threshold_steps(tau), delta)


def _at_epsilon(query: PrivateQuery, epsilon: float, delta: float) -> Calibration:
    max_groups = query.frame.max_groups
    draws = max_groups * len(query.statistics)
    target = delta - 1.01 * slack_delta(draws, epsilon)
    if target <= 0.0:
        too_large = delta > 1.01 * slack_delta(draws, 0.0)
        raise _no_room_for_imprecision("epsilon", epsilon, delta, too_large=too_large)
    if not query.frame.has_private_keys:
        rho = 0.5 / gaussian.sigma(epsilon, target, 1.0) ** 2
        return _calibration(query, _levels(query, rho / _FLOAT_SLACK**3), None, target)
    point = sparse_histogram.best_gshm(
        epsilon, target, max_groups=max_groups, presence_share=min(1.0, query.weights[0])
    )
    levels = _levels(query, point.rho / _FLOAT_SLACK)
    tau = sparse_histogram.gshm_threshold(
        epsilon,
        target,
        max_groups=max_groups,
        sigma=levels[0].sigma,
        aggregate_precision=aggregate_precision(levels),
    )
    return _calibration(query, levels, threshold_steps(tau), target)


def _no_room_for_imprecision(name: str, value: float, delta: float, *, too_large: bool) -> CalibrationError:
    """What the draws' imprecision adds to delta grows with rho or epsilon; without either a little is left."""
    if too_large:
        return CalibrationError(
            f"{name} = {value:.3g} is too large for delta = {delta:.3g}: there the finite precision of the noise alone "
            f"costs more delta; ask for less {name}"
        )
    return CalibrationError(f"delta = {delta:.3g} is below what the precision of the noise allows")


def _calibration(query: PrivateQuery, levels: tuple[Level, ...], tau_steps: int | None, delta: float) -> Calibration:
    max_groups = query.frame.max_groups
    epsilon, total_delta = guarantee(max_groups, levels, tau_steps, delta)
    if tau_steps is None:
        return Calibration("gaussian", levels, None, 0.0, epsilon, total_delta)
    shown = sparse_histogram.threshold_delta(max_groups=max_groups, sigma=levels[0].sigma, tau=tau_steps + 0.5)
    return Calibration("gshm", levels, tau_steps, shown, epsilon, total_delta)
