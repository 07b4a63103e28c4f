"""Histograms for tests that need no frame."""

from __future__ import annotations

from dpsql.mechanism import csh
from dpsql.mechanism.csh import SubtractedHistogram
from dpsql.mechanism.independent_gaussian import IndependentHistogram
from dpsql.mechanism.measure import Shape
from dpsql.model.frame import Sparsity


def independent(groups: int, *, hides: bool = False) -> IndependentHistogram:
    """Noise of its own for every key, of which a unit touches so many."""
    return IndependentHistogram(
        name="gshm" if hides else "gaussian", unit_groups=groups, draws=groups, sum_draws=groups, hides=hides
    )


def subtracted(k: int, max_groups: int | None, correlation: float, floor_correlation: float) -> SubtractedHistogram:
    """What top-k pre-processing leaves."""
    return csh.subtracted(Sparsity("top_k", k), max_groups, Shape(correlation, floor_correlation))
