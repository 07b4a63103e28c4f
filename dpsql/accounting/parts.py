"""A threshold on values of which one unit has several, of any sizes, whose l2 norm is at most 1.

`sparse_histogram` has equal parts. Rows of a unit may lie in one large key and many small ones, and one of these may be
likelier to pass.
"""

from __future__ import annotations

import math

import numpy as np
import scipy

_STEPS_PER_UNIT = 400.0
"""Steps of the logarithm of a squared part between which the bound is taken at the worse end."""
_HALVINGS = 80
_ROUNDING = 1.0 + 1e-9


def delta_of_parts(tau: float, sigma: float, parts: int) -> float:
    """Return the most probability that a part of a unit passes a threshold, rounded up.

    With f(s) = -ln Phi((1 + tau - sqrt(s)) / sigma) for a part of square s, none of the parts passes with probability
    exp(-sum of f). Let H be the supremum of f(s) / s over s from 1 / parts to 1. Parts of a square of at least
    1 / parts have together at most H, as their squares add up to at most 1; the others, at most ``parts`` of them,
    have at most parts * f(1 / parts).

    *Guarantee*: for every vector of at most so many parts >= 0 with an l2 norm of at most 1, independent Gaussian
    noise of standard deviation sigma on each, and the threshold 1 + tau. *Source*: docs/proofs/key-rounds.md, Lemma 6.

    Args:
        tau: threshold less 1.
        sigma: noise, at norm 1.
        parts: most parts of a unit, at least 1.

    """
    squares = np.exp(np.linspace(-math.log(parts), 0.0, 2 + math.ceil(_STEPS_PER_UNIT * math.log(parts))))
    exponents = -scipy.special.log_ndtr((1.0 + tau - np.sqrt(squares)) / sigma)
    # f rises with s: between two squares f(s) / s is at most f of the larger over the smaller
    large = float(exponents[-1]) if parts == 1 else float((exponents[1:] / squares[:-1]).max())
    small = parts * float(exponents[0])
    return min(1.0, -math.expm1(-(large + small)) * _ROUNDING)


def threshold_of_parts(delta: float, sigma: float, parts: int) -> float:
    """Return a tau whose `delta_of_parts` is at most delta, and hardly less."""
    low, high = 0.0, sigma
    while delta_of_parts(high, sigma, parts) > delta:
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if delta_of_parts(middle, sigma, parts) > delta else (low, middle)
    return high
