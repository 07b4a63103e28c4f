"""Step 7, the draw: exact lattice values become a noisy point."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpsql.mechanisms.entropy import Entropy
from dpsql.mechanisms.rounded_gaussian import RoundedGaussian
from dpsql.query.private_query import Statistic


def noisy_values(
    exact: npt.NDArray[np.int64], statistic: Statistic, sigma: float, entropy: Entropy
) -> npt.NDArray[np.int64]:
    """Exact lattice values plus rounded Gaussian noise of standard deviation ``sigma`` (in the aggregate's units).

    *Guarantee*: with sigma = radius * sqrt(max_groups / (2 rho)) the vector is rho-zCDP for adding or removing all
    rows of one unit, up to the draws' precision: one unit moves at most max_groups entries by at most the
    statistic's radius, so the l2 sensitivity is radius * sqrt(max_groups).
    *Source*: Bun and Steinke 2016, Proposition 1.6; rounding is post-processing (docs/proofs/rounded-gaussian.md).
    *Assumes*: entries are below 2**62 in size (`bound` clamps them) and ``sigma`` is that of a `Level`, hence can be
    drawn. A draw is below 2**49 steps in size, so the result fits 64 bits, and nothing here fails on what the data are.
    *Randomness*: one draw per entry.
    """
    noise = RoundedGaussian(sigma / statistic.lattice).draw(len(exact), entropy)
    return exact + noise


def shown_keys(presence: npt.NDArray[np.int64], tau_steps: int | None, min_units: int) -> npt.NDArray[np.intp]:
    """Ids of the keys that may be shown: noisy presence count > min_units + tau, or all keys if they are public.

    With ``min_units`` above 1 the rule is stricter than the one that was charged, hence post-processing of it.
    """
    if tau_steps is None:
        threshold = min_units if min_units > 1 else None
    else:
        threshold = max(1, min_units) + tau_steps
    if threshold is None:
        return np.arange(len(presence), dtype=np.intp)
    return np.flatnonzero(presence > threshold)
