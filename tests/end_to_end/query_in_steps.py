"""A sixth kind of query, in one file: numbers that are released at a tenth of their level, at half, and at all of it.

The rows are read once, after the first charge. Each step is an offer, a charge and a release of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dpsql.cascade.reader import Reader
from dpsql.features.query_kind import QueryKind
from dpsql.mechanism.calibrate import calibrate
from dpsql.mechanism.registry import histogram_of
from dpsql.model.frame import NANO
from dpsql.model.private_query import PrivateQuery
from dpsql.release.stages import Stage
from dpsql.state import State

PARTS_OF_RHO = (0.1, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class InSteps(PrivateQuery):
    """A query by one set of keys whose level rises while it is answered."""


class InStepsKind(QueryKind[InSteps]):
    """Queries whose level rises while they are answered."""

    def stages(self, query: InSteps, _state: State, reader: Reader) -> Iterator[Stage]:
        """Yield the same frame at each level."""
        part = query.first
        whole = calibrate(part, histogram_of(part.frame)).rho_nano
        by_auto = sum(level.share_nano for level in part.auto_levels)
        for step in PARTS_OF_RHO:
            request = part.request.at((step * whole + by_auto) / NANO)
            yield Stage((replace(part, request=request),), reader)


KIND = InStepsKind()
