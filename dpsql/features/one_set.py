"""Queries by one set of keys."""

from __future__ import annotations

from collections.abc import Iterator

from dpsql.cascade.reader import Reader
from dpsql.features.query_kind import QueryKind
from dpsql.model.query_kinds import OneSet
from dpsql.release.stages import Stage
from dpsql.state import State


class OneSetKind(QueryKind[OneSet]):
    """Queries by one set of keys."""

    def stages(self, query: OneSet, _state: State, reader: Reader) -> Iterator[Stage]:
        """Yield the only frame."""
        yield Stage(query.parts, reader)


KIND = OneSetKind()
