"""Step 7, the draw: exact lattice values become a noisy point."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpsql.mechanisms.entropy import Entropy
from dpsql.mechanisms.rounded_gaussian import RoundedGaussian
from dpsql.mechanisms.running_totals import FractionalSum
from dpsql.query.frame import Statistic
from dpsql.release.histogram import Histogram


def noisy_values(
    exact: npt.NDArray[np.int64], statistic: Statistic, sigma: float, histogram: Histogram, entropy: Entropy
) -> npt.NDArray[np.int64]:
    """Exact lattice values, in steps of the noise, plus Gaussian noise of standard deviation ``sigma`` rounded to them.

    *Guarantee*: with sigma = sum_l2 / sqrt(2 rho) the vector is rho-zCDP for adding or removing all rows of one unit,
    up to the draws' precision: the histogram says what is noised, and by how much one unit moves it in the l2 norm.
    *Source*: Bun and Steinke 2016, Proposition 1.6; rounding is post-processing (docs/proofs/rounded-gaussian.md).
    *Assumes*: entries are below 2**62 in size (`bound` clamps them) and ``sigma`` is that of a `Level`, hence can be
    drawn. A draw is below 2**49 steps in size, so the result fits 64 bits, and nothing here fails on what the data are.
    *Shapes*: one entry a key; of a histogram one a key and cell, a key's cells side by side.
    *Randomness*: one draw per entry.
    """
    noise = RoundedGaussian(sigma * 2.0**-statistic.noise_exponent).draw(len(exact), entropy)
    shift = statistic.lattice_exponent - statistic.noise_exponent
    if statistic.cells == 1:
        return histogram.spread(exact, shift) + noise
    return FractionalSum(statistic.cells).transform(exact.reshape(-1, statistic.cells), shift).ravel() + noise


def shown_keys(
    counts: npt.NDArray[np.float64], floor: float, tau: float | None, min_units: int
) -> npt.NDArray[np.intp]:
    """Ids of the keys that may be shown.

    Args:
        counts: noisy presence counts less the floor.
        floor: what was subtracted from them, as it is shown.
        tau: threshold that was charged; None if the keys are public.
        min_units: the reader's own rule, on counts with their floor; above 1 it is post-processing of what may be
            shown anyway.

    """
    if tau is None:
        passes = counts > min_units if min_units > 1 else np.ones(len(counts), dtype=np.bool_)
    else:
        passes = counts > 1.0 + tau
        if min_units > 1:
            passes &= counts + floor > min_units + tau
    return np.flatnonzero(passes)
