"""Quantiles of Gaussian noise on numbers whose release ends by what was released (docs/proofs/target.md).

The level rises in steps, and each number is a point of one Brownian motion. Steps that end when numbers are near enough
to each other end at chosen noise, so intervals are wider than those of a level that was fixed before.
"""

from __future__ import annotations

from collections.abc import Mapping

Table = tuple[tuple[float, float], ...]
"""Half widths of intervals over their standard deviation, each for relative errors up to a number."""
QUANTILES: Mapping[float, Table] = {
    0.9: ((0.2, 1.73), (0.3, 1.77), (0.5, 1.87)),
    0.95: ((0.2, 2.04), (0.3, 2.06), (0.5, 2.17)),
    0.99: ((0.2, 2.65), (0.3, 2.66), (0.5, 2.74)),
}
"""Quantiles of the rule, by its confidence. `python -m benchmarks.target_intervals` computes them."""
INTERVALS: Mapping[float, Table] = {
    0.9: ((0.2, 2.04), (0.3, 2.09), (0.5, 2.21)),
    0.95: QUANTILES[0.95],
    0.99: QUANTILES[0.95],
}
"""Quantiles of the 95 % intervals that are shown, by the confidence of the rule that ended the steps."""


def entry(table: Table, error: float) -> float:
    """Return the entry of a table for a relative error."""
    return next(quantile for largest, quantile in table if error <= largest)
