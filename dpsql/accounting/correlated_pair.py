"""Two neighbouring histograms under noise with a common term: how far apart they are, and their exact delta.

One unit raises ``changed`` of ``common`` keys by 1 and brings ``new`` keys of its own; P is the law with the
unit, Q the law without. Divided by sigma, the common counts are a Gaussian vector of covariance
I + correlation 11^T, of which only two numbers matter: z, the standardised mean of the common noise given the
counts, which also says how likely the new keys are to be shown; and the contrast between changed and unchanged
keys, independent of z. `docs/proofs/csh-exact.md` derives every formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from dpsql.accounting.exceedance import hidden_bracket, shown_probability
from dpsql.accounting.gaussian import Floats, log_delta, log_delta_error
from dpsql.accounting.log_concave import cells_above

# More than the rounding error of log p/q at any node.
_SLACK = 2.0**-38
_UP = 1.0 + 2.0**-40


@dataclass(frozen=True, slots=True)
class Noise:
    """What determines the privacy of one release.

    Attributes:
        sigma: standard deviation of the noise that each key has of its own, in units.
        correlation: variance of the common noise over sigma^2.
        aggregate_precision: sum over the aggregates of (sensitivity_l2 per key / their noise)^2.

    """

    sigma: float
    correlation: float
    aggregate_precision: float = 0.0


def shift_squared(changed: Floats, common: Floats, noise: Noise) -> Floats:
    """Squared distance of the common part's means, in standard deviations, if ``changed`` of ``common`` keys change.

    Source: Sherman and Morrison's inverse of I + correlation 11^T: m - m^2 / (j + 1/correlation), plus one
        aggregate_precision per changed key. Written without cancellation and rounded up.
    """
    unchanged = common - changed
    counts = changed * (1.0 + noise.correlation * unchanged) / (1.0 + noise.correlation * common)
    with np.errstate(over="ignore"):
        return np.asarray((counts / noise.sigma / noise.sigma + changed * noise.aggregate_precision) * _UP)


def worst_shift_squared(most_changed: Floats, common: Floats, noise: Noise) -> Floats:
    """Largest `shift_squared` over whole numbers of changed keys from 0 to ``most_changed``."""
    gain = 1.0 + noise.sigma * noise.sigma * noise.aggregate_precision
    with np.errstate(divide="ignore", over="ignore"):
        # The parabola's top; both neighbouring whole numbers are tried.
        top = (
            gain * (0.5 / noise.correlation + 0.5 * common) if noise.correlation > 0.0 else np.full_like(common, np.inf)
        )
    below = np.minimum(np.floor(top), most_changed)
    above = np.minimum(np.floor(top) + 1.0, most_changed)
    return np.maximum(shift_squared(below, common, noise), shift_squared(above, common, noise))


class CommonKeys:
    """Deltas of all pairs with one number of common and one of new keys, whatever number of keys changes."""

    def __init__(
        self, *, common: int, new: int, most_changed: int, x: float, noise: Noise, least: float, nodes: int
    ) -> None:
        """Work out how likely the new keys are to stay hidden, for equidistant values of z.

        Args:
            common: keys that others touch too, at least 1.
            new: keys of the unit alone, at least 1.
            most_changed: most keys that change, at least 1.
            x: tau / sigma.
            noise: the noise.
            least: a delta too small to matter, above 0; decides how far out z goes.
            nodes: number of values of z.

        """
        self._common, self._noise = float(common), noise
        self._share = 1.0 + noise.correlation * common
        self._shown = shown_probability(new, x, noise.correlation)
        # Either law has mass below 2^-41 of least beyond each end.
        reach = min(38.0, -float(ndtri(least * 2.0**-41)))
        self._beyond = least * 2.0**-40
        self._step = (2.0 * reach + self._shift(most_changed)) / (nodes - 3)
        self._z = reach + self._step * np.arange(2.0 - nodes, 2.0)
        slope = noise.correlation * math.sqrt(self._common / self._share)
        self._log_hidden = hidden_bracket(
            new, x - slope * self._z, math.sqrt(noise.correlation / self._share), max(64, nodes // 4)
        )

    def delta_above(self, epsilon: float, changed: int) -> float:
        """Upper bound on both deltas, of P against Q and of Q against P, if ``changed`` keys change by 1."""
        shift = self._shift(changed)
        # What is left of the squared distance once z is known: changed against unchanged keys, and aggregates.
        contrast = changed / self._noise.sigma / self._noise.sigma * (self._common - changed) / self._common
        mu = np.full(self._z.shape, math.sqrt((contrast + changed * self._noise.aggregate_precision) * _UP))
        with_unit = self._shown + self._with_unit(epsilon, mu, shift)
        return max(with_unit, self._without_unit(epsilon, mu, shift)) * _UP + self._beyond

    def _shift(self, changed: int) -> float:
        """Distance that the changed keys move the mean of z: it is N(0, 1) under P and N(-shift, 1) under Q."""
        return changed / self._noise.sigma / math.sqrt(self._common * self._share)

    def _with_unit(self, epsilon: float, mu: Floats, shift: float) -> float:
        """Integral of (p g - e^epsilon q)+ over z, log-concave since g is; g is the chance to stay hidden."""
        ratio = 0.5 * shift * shift + shift * self._z
        low, high = (
            _log_normal(self._z) + hidden + _log_stick(epsilon - hidden - ratio, mu, toward)
            for hidden, toward in zip(self._log_hidden, (-1.0, 1.0), strict=True)
        )
        if np.isneginf(high).all():
            # Nowhere at a node; and nowhere between, if the concave log(p g / q) stays below epsilon there.
            above = self._log_hidden[1] + ratio
            rise = np.maximum(above[1:] - (self._log_hidden[0] + ratio)[:-1], 0.0)
            return 0.0 if (above[1:] + rise).max() < epsilon and not mu.any() else math.inf
        return float(cells_above(low[:-3], high[1:-2], high[2:-1], low[3:], self._step).sum())

    def _without_unit(self, epsilon: float, mu: Floats, shift: float) -> float:
        """Integral of (q - e^epsilon p g)+ over z, log-concave once the concave log(p g / q) is cut to a chord.

        The chord lies below it in its cell, so the integrand rises.
        """
        loss = self._log_hidden[0] + 0.5 * shift * shift + shift * self._z
        first, rise = loss[1:-2], loss[2:-1] - loss[1:-2]
        far_left, left, right, far_right = (
            _log_normal(self._z[1:-2] + offset * self._step + shift)
            + _log_stick(epsilon + first + offset * rise, mu[1:-2], toward)
            for offset, toward in ((-1.0, -1.0), (0.0, 1.0), (1.0, 1.0), (2.0, -1.0))
        )
        return float(cells_above(far_left, left, right, far_right, self._step).sum())


def _log_normal(z: Floats) -> Floats:
    return -0.5 * z * z - 0.5 * math.log(2.0 * math.pi)


def _log_stick(epsilon: Floats, mu: Floats, toward: float) -> Floats:
    """Logarithm of the hockey-stick divergence at distance mu, rounded down (-1) or up (1)."""
    moved = epsilon - toward * _SLACK * (1.0 + np.abs(epsilon))
    return log_delta(moved, mu) + toward * log_delta_error(moved, mu)
