"""The probability that any of n new keys is shown when their noise shares one common term, by enclosed integrals.

Divided by sigma, the noise of key i is Z_i + sqrt(correlation) X with independent standard normal Z_i and X, and
the key, whose count is 1, is shown if that exceeds x = tau / sigma. Given X the keys are independent, so

    shown(n) = E_X[ F(x - sqrt(correlation) X) ],    F(w) = 1 - Phi(w)^n.

n phi Phi^(n-1) is log-concave, hence so are its two tails F and 1 - F (Prekopa), and with the density of X the
integrand is log-concave as well (docs/proofs/csh-exact.md).

A function is log-concave if its logarithm u is concave. Between two neighbouring nodes u lies above the chord
through them, and below the extension of the chord on their left and of the chord on their right. The
exponential of a line has a closed integral, so both bounds need the values of u at the nodes and nothing
else: no derivative, no guess of a remainder, and they hold whatever the spacing of the nodes. For a bell of curvature c
the upper bound is too large by a factor of about 1 + c step^2 / 6.

Every value is given as a pair, one number below and one above it, so that rounding and any error made in
computing the value are part of the bound. Values are natural logarithms; -inf stands for 0. A bound that
cannot be given is infinite.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import ArrayLike

from dpsql.accounting.gaussian import Floats
from dpsql.accounting.profile import FAR, SMALLEST, UP, stepped_up

# Lowers every lower bound on an integral by more than its rounding errors, as UP raises every upper one.
_DOWN = 1.0 - 2.0**-40
# Nodes for a single probability: the bound is then at most two millionths (relative) too large.
FINE = 8192
# More than the rounding error of the logarithm of an integrand at any node that matters.
_SLACK = 2.0**-36
# Nodes are spread where the integrand is within exp(-_DEPTH) of its largest value; tails are bounded apart.
_DEPTH = 27.0
# The mode lies between 0 and 1.21 FAR wherever the integral is in the floating-point range.
_SCAN = np.arange(-10.0, 1.25 * FAR, 0.25)
# The secant method needs far fewer; what it has not reached by then is found by stepping up.
_SECANT_STEPS = 50
# Values worked out at once.
_CHUNK = 2**20


@lru_cache(maxsize=65536)
def shown_probability(keys: int, x: float, correlation: float, nodes: int = FINE) -> float:
    """Probability that at least one of ``keys`` new keys is shown.

    Source: delta_inf of Lebeda and Retschmeier 2025, computed exactly by conditioning on the common noise where
        their Lemma 3.2 bounds it.

    Args:
        keys: number of new keys, at least 0.
        x: tau / sigma, at least 0.
        correlation: variance of the common noise over that of a key's own, at least 0.
        nodes: fewer are faster, and make the bound looser.
    Returns: a probability, rounded up (by at most two millionths of itself).

    >>> round(shown_probability(10, 4.5, 10**-0.5), 8)
    0.0004359
    """
    return float(shown_probabilities(np.array([keys]), x, correlation, nodes)[0])


def shown_probabilities(keys: ArrayLike, x: float, correlation: float, nodes: int = FINE) -> Floats:
    """`shown_probability` for many numbers of keys."""
    counts = np.asarray(keys, dtype=float)
    if correlation == 0.0 or not counts.any():
        return shown_by_own_noise(counts, min(x, FAR))
    if x > FAR * (1.0 + math.sqrt(correlation)):
        return np.where(counts > 0.0, SMALLEST, 0.0)
    result = np.zeros(counts.shape)
    single = counts == 1.0
    result[single] = shown_by_own_noise(counts[single], x / math.sqrt(1.0 + correlation))
    several = np.flatnonzero(counts > 1.0)
    spread = math.sqrt(correlation)
    for part in np.array_split(several, 1 + several.size * nodes // _CHUNK):
        low, high, step = _integrand(counts[part], np.full(part.size, x), spread, nodes)
        result[part] = np.clip(integral_above(low, high, step), SMALLEST, 1.0)
    return result


@lru_cache(maxsize=4096)
def shown_quantile(delta: float, keys: int, correlation: float) -> float:
    """Smallest x, at least 0, at which `shown_probability` is at most delta; rounded up.

    >>> round(shown_quantile(1e-5, 10, 10**-0.5), 5)
    5.45333
    """
    # Lemma 3.2 splits x in the ratio of the two noises: a safe start.
    start = -float(scipy.special.ndtri(-math.expm1(math.log1p(-delta) / (keys + 1))))
    x = max(0.0, (1.0 + math.sqrt(correlation)) * start)
    target = math.log(delta)
    before, value_before = x + 2.0**-8, math.log(shown_probability(keys, x + 2.0**-8, correlation))
    for _ in range(_SECANT_STEPS):
        value = math.log(shown_probability(keys, x, correlation))
        slope = (value_before - value) / (x - before)
        # The logarithm is concave and falls, so the line through two points cannot mislead for long.
        change = max(-x, (value - target) / slope) if slope > 0.0 else -0.5 * x
        before, value_before = x, value
        x += change
        if abs(change) <= 2.0**-36 * x:
            break
    return stepped_up(lambda x: shown_probability(keys, x, correlation) <= delta, x, step=2.0**-44, scale=1.0)


def hidden_bracket(keys: int, points: Floats, spread: float, nodes: int) -> tuple[Floats, Floats]:
    """Logarithms below and above E_X[ Phi(w - spread X)^keys ] for every point w.

    Where a key is likely to be shown the integral is taken itself, elsewhere one minus the other tail. A value
    below the floating-point range is reported as its smallest number.
    """
    if spread == 0.0:
        exact = keys * scipy.special.log_ndtr(points)
        # Rounding of a point moves the logarithm by its hazard, at most 1 + |w|, times the error.
        error = _SLACK * (np.abs(exact) + 2.0**-20)
        return exact - error, np.minimum(exact + error, 0.0)
    counts = np.full(points.size, float(keys))
    low, high, step = _integrand(counts, points, spread, nodes)
    shown_below, shown_above = integral_below(low, step), np.clip(integral_above(low, high, step), 0.0, 1.0)
    low, high, step = _integrand(counts, points, spread, nodes, hidden=True)
    below, above = integral_below(low, step), np.minimum(integral_above(low, high, step), 1.0)
    return (
        np.log(np.maximum(np.maximum(below, 1.0 - shown_above), SMALLEST)) - 2.0**-50,
        np.log(np.maximum(np.minimum(above, 1.0 - shown_below), SMALLEST)) + 2.0**-50,
    )


def shown_by_own_noise(keys: Floats, x: float) -> Floats:
    """`shown_probability` for many numbers of keys without common noise, for x up to FAR."""
    raised = -np.expm1(keys * float(scipy.special.log_ndtr(x))) * (1.0 + 2.0**-46 * (1.0 + x * x))
    return np.where(keys > 0.0, np.clip(raised, SMALLEST, 1.0), 0.0)


def _integrand(
    keys: Floats, points: Floats, spread: float, nodes: int, *, hidden: bool = False
) -> tuple[Floats, Floats, Floats]:
    """Bounds on the logarithm of the integrand at nodes that cover what matters, and their distance, per row."""
    scan = np.broadcast_to(-_SCAN if hidden else _SCAN, (points.size, _SCAN.size))
    rough = _log_integrand(scan, keys, points, spread, hidden=hidden)
    kept = rough >= rough.max(axis=1, keepdims=True) - _DEPTH
    rows = np.arange(points.size)
    ends = scan[rows, np.argmax(kept, axis=1)], scan[rows, kept.shape[1] - 1 - np.argmax(kept[:, ::-1], axis=1)]
    first, last = np.minimum(*ends) - 0.25, np.maximum(*ends) + 0.25
    step = (last - first) / (nodes - 1)
    values = _log_integrand(first[:, None] + step[:, None] * np.arange(nodes), keys, points, spread, hidden=hidden)
    return values - _SLACK, values + _SLACK, step


def _log_integrand(at: Floats, keys: Floats, points: Floats, spread: float, *, hidden: bool) -> Floats:
    log_each = keys[:, None] * scipy.special.log_ndtr(points[:, None] - spread * at)
    with np.errstate(divide="ignore"):
        log_factor = log_each if hidden else np.log(-np.expm1(log_each))
    return np.asarray(log_factor - 0.5 * at * at - 0.5 * math.log(2.0 * math.pi))


def cells_above(far_left: Floats, left: Floats, right: Floats, far_right: Floats, step: Floats | float) -> Floats:
    """Upper bound on the integral over each cell [x, x + step] of a function that is log-concave around it.

    Args:
        far_left: logarithms no larger than those of the values at x - step.
        left: logarithms no smaller than those of the values at x.
        right: logarithms no smaller than those of the values at x + step.
        far_right: logarithms no larger than those of the values at x + 2 step.
        step: above 0.
    Shapes: broadcast against each other.
    Returns: one number per cell, infinite where no line bounds the function. A cell with a 0 at both ends counts
        0; so some node of the grid, or none of the line, must hold a positive value.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        rise = np.where(np.isneginf(left), np.inf, left - far_left)
        fall = np.where(np.isneginf(right), -np.inf, far_right - right)
        meet = np.clip((right - left - fall) / (rise - fall), 0.0, 1.0)
        # Either line may be used on any part, so a wrong meeting point would cost accuracy only.
        meet = np.where(np.isposinf(rise), 0.0, np.where(np.isneginf(fall), 1.0, np.nan_to_num(meet, nan=0.5)))
        rest = 1.0 - meet
        first = meet * np.exp(left + _log_mean_exp(np.where(meet > 0.0, rise * meet, 0.0)))
        last = rest * np.exp(right + _log_mean_exp(np.where(rest > 0.0, -fall * rest, 0.0)))
        area = step * (first + last) * UP
    unbounded = np.isnan(area) | (np.isposinf(rise) & np.isneginf(fall))
    nothing = np.isneginf(left) & np.isneginf(right)
    return np.where(nothing, 0.0, np.where(unbounded, np.inf, area))


def integral_above(low: Floats, high: Floats, step: Floats) -> Floats:
    """Upper bound on the integral over the whole line of a log-concave function known at equidistant nodes.

    Args:
        low: logarithms no larger than those of the values.
        high: logarithms no smaller than those of the values.
        step: distance of the nodes, one per row.
    Shapes: low and high (rows, nodes) with at least four nodes, step (rows,).
    Returns: one number per row, infinite unless the values fall at both ends of the row.
    """
    inner = cells_above(low[:, :-3], high[:, 1:-2], high[:, 2:-1], low[:, 3:], step[:, None])
    # The cells at both ends have a line on one side only; beyond them the same line bounds the tail.
    tails = _tail(high[:, 1], low[:, 2], step) + _tail(high[:, -2], low[:, -3], step)
    return np.asarray(inner.sum(axis=1) * UP + tails)


def integral_below(low: Floats, step: Floats) -> Floats:
    """Lower bound on the integral of a log-concave function known at equidistant nodes.

    Args, Shapes: as `integral_above`.
    Returns: one number per row.
    """
    left, right = low[:, :-1], low[:, 1:]
    with np.errstate(under="ignore", invalid="ignore"):
        rise = np.where(np.isneginf(left) | np.isneginf(right), -np.inf, right - left)
        cells = np.exp(left + _log_mean_exp(rise))
    return np.asarray(step * np.where(np.isneginf(rise), 0.0, cells).sum(axis=1) * _DOWN)


def _tail(end: Floats, inner: Floats, step: Floats) -> Floats:
    """Bound on the integral beyond the node ``end``, from the line through it and its inner neighbour."""
    with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
        area = np.where(np.isneginf(end), 0.0, step * np.exp(end) / (inner - end) * UP)
    return np.asarray(np.where((inner > end) | np.isneginf(end), area, np.inf))


def _log_mean_exp(slope: Floats) -> Floats:
    """Logarithm of the mean of exp(slope x) for x between 0 and 1."""
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        steep = np.abs(slope) > 30.0
        # exp(-30) is within the rounding that the callers allow for.
        result = np.where(slope > 0.0, slope, 0.0) - np.log(np.abs(slope))
        gentle = np.where(steep | (slope == 0.0), 1.0, slope)
        return np.where(steep, result, np.where(slope == 0.0, 0.0, np.log(np.expm1(gentle) / gentle)))
