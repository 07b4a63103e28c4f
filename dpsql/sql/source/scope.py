"""The queries that WITH names, and the place where each of them is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlglot import exp

from dpsql.model.environment import folded


@dataclass(frozen=True, slots=True)
class Scope:
    """Names that a query can read beside those of tables.

    Attributes:
        queries: the queries that WITH names, each with the scope in which it is read.
        depth: number of queries around this one.

    """

    queries: Mapping[str, tuple[exp.CTE, Scope]]
    depth: int

    def deeper(self) -> Scope:
        """Return the scope of a query inside this one."""
        return Scope(self.queries, self.depth + 1)

    def naming(self, ctes: Iterable[exp.CTE]) -> Scope:
        """Return the scope of a query that names others, each of which sees those before it."""
        queries = dict(self.queries)
        for cte in ctes:
            queries[folded(cte.alias)] = (cte, Scope(dict(queries), self.depth))
        return Scope(queries, self.depth)
