"""A looser profile of the Gaussian sparse histogram, which the exact one is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpsql.accounting.gaussian import log_delta_up, round_delta_up
from dpsql.accounting.sparse_histogram import SparseProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedDeltasProfile(SparseProfile):
    """Profile of the Gaussian sparse histogram by the looser sum of both extreme cases.

    Guarantee: as `Profile`.
    Source: Google Anonymization Team 2020, as restated in the correlated stability histogram paper, Lemma 2.6.
    """

    def _delta(self, epsilon: float, tau: float) -> float:
        squared = self._squared_distance()
        if not math.isfinite(squared):
            return 1.0
        only_common = round_delta_up(float(log_delta_up(epsilon, math.sqrt(squared))))
        return min(1.0, math.nextafter(self._threshold_delta(tau) + only_common, math.inf))
