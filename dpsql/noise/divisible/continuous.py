"""Continuous noise from discrete noise: whole multiples of a spacing, and Laplace noise that fills the gaps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpsql.errors import CalibrationError
from dpsql.noise.divisible.discrete_laplace import DiscreteLaplace
from dpsql.noise.divisible.gdl import GeneralizedDiscreteLaplace
from dpsql.noise.divisible.law import (
    MOST_CHANGE,
    WIDENED,
    DivisibleLaw,
    gamma_for,
    require_epsilon,
    require_size,
    require_whole,
    rounded_up,
)
from dpsql.noise.divisible.msd_laplace import MultiScaleLaplace
from dpsql.noise.divisible.split import Numbers, discrete_variance, least_splits, squares_to

_NEGLIGIBLE = 45.0
_BLOCK = 1 << 10


@dataclass(frozen=True, slots=True)
class TransformedLaplace:
    """Continuous noise spacing X + Y, with X from a law on whole numbers and Laplace noise Y of scale `scale`.

    Floating-point numbers cannot carry continuous noise without telling something of the exact value. So nothing is
    drawn from this law itself: `on_lattice` gives its exact form on a lattice, which costs the same.

    *Guarantee*: an exact real number plus this noise is epsilon(max_change)-DP for changes of at most max_change.
    *Source*: Harrison and Manurangsi 2025, Theorem 21; docs/proofs/divisible-noise.md, 6.
    *Symbols*: `spacing` is r. *Args*: `whole` is the law of X, or None for Laplace noise alone.
    *Raises*: CalibrationError for a spacing or scale that is not above 0.
    """

    spacing: float
    whole: MultiScaleLaplace | GeneralizedDiscreteLaplace | None
    scale: float

    def __post_init__(self) -> None:
        if not (0 < self.spacing < math.inf and 0 < self.scale < math.inf):
            raise CalibrationError(f"spacing and scale must be above 0, got {self.spacing!r} and {self.scale!r}")

    @classmethod
    def of(cls, epsilon: float, max_change: float) -> TransformedLaplace:
        """Return the law with the best spacing and split of epsilon; plain Laplace noise where that is better.

        >>> round(TransformedLaplace.of(8, 1).variance, 4)
        0.0117
        """
        wanted, change = require_epsilon(epsilon), require_size(max_change)
        scales = np.arange(1, min(MOST_CHANGE, 8 * math.ceil(math.exp(wanted / 3))) + 1).astype(np.float64)
        squares = squares_to(scales)

        def variance(split: Numbers) -> Numbers:
            variances: Numbers = (squares * discrete_variance(wanted - split) + 0.5 / split**2) / scales**2
            return variances

        splits = least_splits(wanted, variance, scales.size)
        best = int(np.argmin(variance(splits)))
        split, spacing = float(splits[best]), change / float(scales[best])
        whole = MultiScaleLaplace(1, int(scales[best]), gamma_for(wanted - split))
        plain = cls(change, None, change / wanted * WIDENED)
        return min(plain, cls(spacing, whole, spacing / (2 * split) * WIDENED), key=lambda law: law.variance)

    @classmethod
    def of_theorem_21(cls, epsilon: float, max_change: float, *, generalized: bool = False) -> TransformedLaplace:
        """Return the printed law: 1 of epsilon for Y, and e^(epsilon / 3) multiples, rounded up.

        X is multi-scale noise, or generalized discrete Laplace noise by Theorem 15 if `generalized`.

        *Raises*: CalibrationError for an epsilon below 2, or at most about 4.5 if `generalized`.
        """
        wanted, change = require_epsilon(epsilon), require_size(max_change)
        if wanted < 2:
            raise CalibrationError(f"Theorem 21 needs an epsilon of at least 2, got {wanted:.4g}")
        scales = require_whole("e^(epsilon / 3)", math.ceil(math.exp(wanted / 3)), MOST_CHANGE)
        spacing = change / scales
        if generalized:
            return cls(spacing, GeneralizedDiscreteLaplace.of_theorem_15(wanted - 1, scales), spacing / 2 * WIDENED)
        return cls(spacing, MultiScaleLaplace(1, scales, gamma_for(wanted - 1)), spacing / 2 * WIDENED)

    @property
    def variance(self) -> float:
        """Return the variance of spacing X + Y."""
        whole = 0.0 if self.whole is None else self.whole.variance
        return self.spacing**2 * whole + 2 * self.scale**2

    def density(self, x: Numbers) -> Numbers:
        """Return the density: a mixture of Laplace densities around the multiples of the spacing."""
        places = np.atleast_1d(np.asarray(x, dtype=np.float64))
        if self.whole is None:
            return np.exp(-np.abs(places) / self.scale) / (2 * self.scale)
        reach = math.ceil((float(np.abs(places).max(initial=0)) + _NEGLIGIBLE * self.scale) / self.spacing)
        multiples = np.arange(-reach, reach + 1)
        chances = np.exp(self.whole.log_pmf(multiples)) / (2 * self.scale)
        densities = np.empty(places.size)
        for start in range(0, places.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            distance = np.abs(places[part, None] - self.spacing * multiples)
            densities[part] = np.exp(-distance / self.scale) @ chances
        return densities

    def epsilon(self, max_change: float) -> float:
        """Return the epsilon that Theorem 21 proves for changes up to `max_change`, rounded up."""
        change = require_size(max_change)
        nearest = 0 if self.whole is None else math.floor(change / self.spacing * (1 - 1e-12) + 0.5)
        if self.whole is None or nearest == 0:
            return rounded_up(change / self.scale)
        return rounded_up(self.whole.epsilon(nearest) + self.spacing / (2 * self.scale))

    def on_lattice(self, steps: int = 1024) -> DivisibleLaw:
        """Return the law on a lattice of `steps` steps for each spacing, with the same epsilon and exact draws.

        Exact values have to be whole numbers of these steps: a change of max_change is steps max_change / spacing of
        them. The variance is counted in squared steps.

        *Raises*: CalibrationError if `whole` is generalized discrete Laplace noise, or `steps` is odd.
        """
        if require_whole("steps", steps, MOST_CHANGE) % 2:
            raise CalibrationError(f"steps must be even, got {steps}")
        fine = gamma_for(self.spacing / self.scale / steps)
        if self.whole is None:
            return DiscreteLaplace(fine)
        if isinstance(self.whole, GeneralizedDiscreteLaplace):
            raise CalibrationError("only multi-scale noise has a lattice form: take TransformedLaplace.of")
        return MultiScaleLaplace(steps, self.whole.scales, self.whole.coarse, fine)
