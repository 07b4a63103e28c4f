"""A law with longer tails than Gaussian noise, for tests that everybody asks the measure for its law."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsql.mechanism.gaussian_measure import GaussianMeasure
from dpsql.mechanism.measure import Floats, Measure

_ROOT = math.sqrt(2.0)


@dataclass(frozen=True, slots=True)
class LaplaceMeasure(GaussianMeasure):
    """Quantiles and tails of Laplace noise; all else is that of another law."""

    def quantile(self, miss: float) -> float:
        """Return the quantile of the Laplace law."""
        return -math.log(2.0 * miss) / _ROOT

    def tail(self, size: npt.ArrayLike) -> Floats:
        """Return the probability that Laplace noise exceeds a size."""
        sizes = np.asarray(size, dtype=np.float64)
        beyond = 0.5 * np.exp(-_ROOT * np.abs(sizes))
        return np.where(sizes > 0.0, beyond, 1.0 - beyond)

    def mean_above(self, size: npt.ArrayLike) -> Floats:
        """Return E[x; x > size] by the tails."""
        return Measure.mean_above(self, size)


LAPLACE = LaplaceMeasure("zcdp")
