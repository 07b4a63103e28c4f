"""From exact groups to stored, noisy points and the values that are shown."""

from __future__ import annotations

from dpsql.mechanisms.laws import LAWS
from dpsql.mechanisms.sparse_gradual import SparseGradual
from dpsql.release.lossless import Cascade

__all__ = ["LAWS", "Cascade", "SparseGradual"]
