"""The correlated mechanism itself, on a partition of its outputs: an oracle that shares no formula with the product."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import norm

Floats = NDArray[np.float64]
# The common noise, in its own standard deviations; the trapezoid rule converges geometrically here.
COMMON = np.linspace(-8.5, 8.5, 97)
_WEIGHTS = norm.pdf(COMMON) * (COMMON[1] - COMMON[0])


def output_law(
    counts: tuple[int, ...],
    *,
    sigma: float,
    tau: float,
    correlation: float,
    edges: Sequence[Floats],
    hidden_weight: Floats | None = None,
    shared: bool = True,
    beside: Sequence[Floats] = (),
) -> Floats:
    """Law of what is shown: per key "hidden" or the cell, between its edges, of its noisy count; 0 is never shown.

    A partition of the outputs loses privacy loss, never adds any. ``hidden_weight`` reweighs the common noise;
    with ``shared`` off every key draws a common noise of its own, which is the planted fault. ``beside`` are laws
    of whatever else is shown, one row per value of the common noise in `COMMON`.
    """
    spread = sigma * math.sqrt(correlation)
    weights = _WEIGHTS if hidden_weight is None else _WEIGHTS * hidden_weight
    tables = list(beside)
    for count, bounds in zip(counts, edges, strict=True):
        table = np.zeros((COMMON.size, bounds.size + 1))
        if count == 0:
            table[:, 0] = 1.0
        else:
            centre = count + spread * COMMON[:, None] if shared else np.full((COMMON.size, 1), float(count))
            scaled = (np.append(bounds, np.inf) - centre) / (sigma if shared else math.hypot(sigma, spread))
            below, above = norm.cdf(scaled), norm.sf(scaled)
            table[:, 0] = below[:, 0]
            # From the nearer tail, so that even tiny cells keep their digits.
            table[:, 1:] = np.where(scaled[:, :-1] > 0.0, -np.diff(above, axis=1), np.diff(below, axis=1))
        tables.append(table)
    joint = weights[:, None]
    for table in tables[:-1]:
        joint = (joint[:, :, None] * table[:, None, :]).reshape(COMMON.size, -1)
    return np.asarray(joint.T @ tables[-1]).ravel()


def deltas(p: Floats, q: Floats, epsilon: float) -> tuple[float, float]:
    """Hockey-stick divergences of p against q and of q against p."""
    factor = math.exp(epsilon)
    return float(np.maximum(p - factor * q, 0.0).sum()), float(np.maximum(q - factor * p, 0.0).sum())


def renyi(p: Floats, q: Floats, order: float) -> float:
    """Renyi divergence of two laws on the same cells."""
    kept = p > 0.0
    if (q[kept] <= 0.0).any():
        return math.inf
    return float(logsumexp(order * np.log(p[kept]) + (1.0 - order) * np.log(q[kept]))) / (order - 1.0)


def monotone_pairs(
    k: int, unit_keys: int, values: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All pairs (with the unit, without it) of histograms on k keys with these counts; keys' order does not matter."""
    each = [(count, count + step) for count in values for step in (0, 1)]
    for keys in itertools.combinations_with_replacement(each, k):
        changed = sum(after - before for before, after in keys)
        if 1 <= changed <= unit_keys:
            yield tuple(after for _, after in keys), tuple(before for before, _ in keys)
