"""The points of a statistic at many levels: who may see which, which one serves, and how new ones are made of old."""

from __future__ import annotations

from dpsql.cascade.cascade import Cascade
from dpsql.noise.laws import LAWS
from dpsql.noise.sparse_gradual import SparseGradual

__all__ = ["LAWS", "Cascade", "SparseGradual"]
