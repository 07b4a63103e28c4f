"""Probabilities of the difference of two negative binomial numbers, in log space."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from scipy.special import gammaln, logsumexp

from dpsql.errors import CalibrationError
from dpsql.noise.divisible.law import Logs
from dpsql.noise.entropy import Integers

_NODE_DISTANCE = 1 / 24
_NEGLIGIBLE = 45.0
_BLOCK = 1 << 11
_MOST_TERMS = 1 << 22
_MOST_WORK = 10**9


def log_pmf(sizes: Integers, shape: Fraction, decay: float) -> Logs:
    """Return the logarithms of the probabilities of `sizes`, whole numbers of at least 0.

    *Source*: Harrison and Manurangsi 2025, equation (2). Its hypergeometric function is an integral of positive terms
    for shapes below 1, and a sum of positive terms for others: docs/proofs/divisible-noise.md, 2.
    """
    if shape == 1:
        line: Logs = math.log(math.tanh(decay / 2)) - decay * sizes.astype(np.float64)
        return line
    distinct, places = np.unique(sizes, return_inverse=True)
    values = np.empty(distinct.size)
    for start in range(0, distinct.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        if shape < 1:
            values[part] = _by_integral(distinct[part], shape, decay)
        else:
            values[part] = _by_sum(distinct[part], float(shape), decay)
    result: Logs = values[places].reshape(sizes.shape)
    return result


def _by_integral(sizes: Integers, shape: Fraction, decay: float) -> Logs:
    """Return Euler's integral over u = -log(t) by the trapezoidal rule, after u = exp(s - exp(-s))."""
    beta, rest = float(shape), float(1 - shape)
    # Left of the first node u^(1 - beta) is negligible, right of the last one exp(-beta u) is.
    first = -math.log(_NEGLIGIBLE / rest) - 1
    last = math.log(_NEGLIGIBLE / beta) + 1
    s = np.arange(math.floor(first / _NODE_DISTANCE), math.ceil(last / _NODE_DISTANCE) + 1) * _NODE_DISTANCE
    log_u = s - np.exp(-s)
    u = np.exp(log_u)
    tiny = u < 1e-12
    # log((1 - exp(-u)) / u) and log(1 - exp(-2 decay - u)).
    log_one = np.where(tiny, 0.0, np.log(-np.expm1(-np.where(tiny, 1.0, u))) - log_u)
    log_two = np.log(-np.expm1(-2 * decay - u))
    weights = rest * log_u + np.log1p(np.exp(-s)) - beta * (u + log_one + log_two) + math.log(_NODE_DISTANCE)
    log_p = math.log(-math.expm1(-decay))
    constant = 2 * beta * log_p + math.log(math.sin(math.pi * min(beta, rest)) / math.pi)
    sums = np.asarray(logsumexp(weights - sizes[:, None] * u, axis=1), dtype=np.float64)
    logs: Logs = constant - decay * sizes.astype(np.float64) + sums
    return logs


def _by_sum(sizes: Integers, beta: float, decay: float) -> Logs:
    """Return the logarithms of sums over s of P(NB = s) P(NB = s + size)."""
    terms = 64 + math.ceil((_NEGLIGIBLE + 4 * beta + 2 * beta * math.log1p(1 / decay)) / decay)
    if terms > _MOST_TERMS or terms * sizes.size > _MOST_WORK:
        raise CalibrationError(
            "these probabilities ask for too many operations: take a larger decay or a smaller shape"
        )
    s = np.arange(terms, dtype=np.float64)
    log_p = math.log(-math.expm1(-decay))
    own = gammaln(beta + s) - gammaln(1 + s) - math.lgamma(beta) - 2 * decay * s
    logs = np.empty(sizes.size)
    for place, size in enumerate(sizes.tolist()):
        shifted = gammaln(beta + s + size) - gammaln(1 + s + size) - math.lgamma(beta)
        logs[place] = 2 * beta * log_p - decay * size + float(logsumexp(own + shifted))
    return logs
