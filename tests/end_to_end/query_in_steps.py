"""A sixth kind of query, in one file: numbers that are released at a tenth of their level, at half, and at all of it.

The rows are read once, after the first charge. Each step is an offer, a charge and a release of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dpsql.cascade.reader import Reader
from dpsql.features.query_kind import QueryKind
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
        for step in PARTS_OF_RHO:
            yield Stage((replace(part, request=part.request.at(step * (part.request.rho or 0.0))),), reader)


KIND = InStepsKind()
