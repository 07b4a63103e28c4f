"""The probability that any of n new keys is shown when their noise shares one common term.

Divided by sigma, the noise of key i is Z_i + sqrt(correlation) X with independent standard normal Z_i and X, and
the key, whose count is 1, is shown if that exceeds x = tau / sigma. Given X the keys are independent, so

    shown(n) = E_X[ F(x - sqrt(correlation) X) ],    F(w) = 1 - Phi(w)^n.

n phi Phi^(n-1) is log-concave, hence so are its two tails F and 1 - F (Prekopa), and with the density of X the
integrand is log-concave as well. That is all the bounds of `log_concave` need (docs/proofs/csh-exact.md).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr, ndtri

from dpsql.accounting.gaussian import Floats
from dpsql.accounting.log_concave import integral_above, integral_below

# Nodes for a single probability: the bound is then at most two millionths (relative) too large.
FINE = 8192
# Half-widths of the noise beyond which the tail, even of MOST_GROUPS keys, is below the floating-point range.
FAR = 40.0
# More than the rounding error of the logarithm of an integrand at any node that matters.
_SLACK = 2.0**-36
# Nodes are spread where the integrand is within exp(-_DEPTH) of its largest value; tails are bounded apart.
_DEPTH = 27.0
# The mode lies between 0 and 1.21 FAR wherever the integral is in the floating-point range.
_SCAN = np.arange(-10.0, 1.25 * FAR, 0.25)
_SMALLEST = math.nextafter(0.0, 1.0)
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
        return _independent(counts, min(x, FAR))
    if x > FAR * (1.0 + math.sqrt(correlation)):
        return np.where(counts > 0.0, _SMALLEST, 0.0)
    result = np.zeros(counts.shape)
    single = counts == 1.0
    result[single] = _independent(counts[single], x / math.sqrt(1.0 + correlation))
    several = np.flatnonzero(counts > 1.0)
    spread = math.sqrt(correlation)
    for part in np.array_split(several, 1 + several.size * nodes // _CHUNK):
        points = np.full(part.size, x)
        low, high, step = _integrand(counts[part], points, spread, nodes)
        result[part] = np.clip(integral_above(low, high, step), _SMALLEST, 1.0)
    return result


@lru_cache(maxsize=4096)
def shown_quantile(delta: float, keys: int, correlation: float, nodes: int = FINE) -> float:
    """Smallest x, at least 0, at which `shown_probability` is at most delta; rounded up.

    >>> round(shown_quantile(1e-5, 10, 10**-0.5), 5)
    5.45333
    """
    # Lemma 3.2 splits x in the ratio of the two noises: a safe start.
    start = -float(ndtri(-math.expm1(math.log1p(-delta) / (keys + 1))))
    x = max(0.0, (1.0 + math.sqrt(correlation)) * start)
    target = math.log(delta)
    before, value_before = x + 2.0**-8, math.log(shown_probability(keys, x + 2.0**-8, correlation, nodes))
    for _ in range(_SECANT_STEPS):
        value = math.log(shown_probability(keys, x, correlation, nodes))
        slope = (value_before - value) / (x - before)
        # The logarithm is concave and falls, so the line through two points cannot mislead for long.
        change = max(-x, (value - target) / slope) if slope > 0.0 else -0.5 * x
        before, value_before = x, value
        x += change
        if abs(change) <= 2.0**-36 * x:
            break
    step = 2.0**-44
    while shown_probability(keys, x, correlation, nodes) > delta:
        x = math.nextafter(x * (1.0 + step) + step, math.inf)
        step *= 2.0
    return x


def hidden_bracket(keys: int, points: Floats, spread: float, nodes: int) -> tuple[Floats, Floats]:
    """Logarithms below and above E_X[ Phi(w - spread X)^keys ] for every point w.

    Where a key is likely to be shown the integral is taken itself, elsewhere one minus the other tail. A value
    below the floating-point range is reported as its smallest number.
    """
    if spread == 0.0:
        exact = keys * log_ndtr(points)
        # Rounding of a point moves the logarithm by its hazard, at most 1 + |w|, times the error.
        error = _SLACK * (np.abs(exact) + 2.0**-20)
        return exact - error, np.minimum(exact + error, 0.0)
    counts = np.full(points.size, float(keys))
    low, high, step = _integrand(counts, points, spread, nodes)
    shown_below, shown_above = integral_below(low, step), np.clip(integral_above(low, high, step), 0.0, 1.0)
    low, high, step = _integrand(counts, points, spread, nodes, hidden=True)
    below, above = integral_below(low, step), np.minimum(integral_above(low, high, step), 1.0)
    return (
        np.log(np.maximum(np.maximum(below, 1.0 - shown_above), _SMALLEST)) - 2.0**-50,
        np.log(np.maximum(np.minimum(above, 1.0 - shown_below), _SMALLEST)) + 2.0**-50,
    )


def _independent(keys: Floats, x: float) -> Floats:
    shown = -np.expm1(keys * float(log_ndtr(x)))
    raised = np.minimum(1.0, shown * (1.0 + 2.0**-46 * (1.0 + x * x)))
    return np.where(keys > 0.0, np.maximum(raised, _SMALLEST), 0.0)


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
    log_each = keys[:, None] * log_ndtr(points[:, None] - spread * at)
    with np.errstate(divide="ignore"):
        log_factor = log_each if hidden else np.log(-np.expm1(log_each))
    return np.asarray(log_factor - 0.5 * at * at - 0.5 * math.log(2.0 * math.pi))
