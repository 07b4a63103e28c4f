"""Names that a query can read: those of queries that WITH names, and those of columns with their table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.model.environment import JoinedName, TableSchema, folded


@dataclass(frozen=True, slots=True)
class Scope:
    """Names that a query can read beside those of tables.

    Attributes:
        queries: the queries that WITH names, each with the scope in which it is read.
        depth: number of queries around this one.

    """

    queries: Mapping[str, tuple[exp.CTE, Scope]]
    depth: int

    @property
    def named(self) -> dict[str, exp.CTE]:
        """The queries that WITH names, without their scopes."""
        return {name: cte for name, (cte, _) in self.queries.items()}

    def deeper(self) -> Scope:
        """Return the scope of a query inside this one."""
        return Scope(self.queries, self.depth + 1)

    def naming(self, ctes: Iterable[exp.CTE]) -> Scope:
        """Return the scope of a query that names others, each of which sees those before it."""
        queries = dict(self.queries)
        for cte in ctes:
            queries[folded(cte.alias)] = (cte, Scope(dict(queries), self.depth))
        return Scope(queries, self.depth)


@dataclass(frozen=True, slots=True)
class PrivateInside:
    """A subquery that groups rows of several units, which is a private query by itself.

    Attributes:
        node: its SELECT.
        queries: the queries that WITH names where it stands.

    """

    node: exp.Select
    queries: Mapping[str, exp.CTE]


def named_by(schema: TableSchema, qualifier: str) -> TableSchema:
    """Return the columns of a source, each under the name of its table."""
    names = (JoinedName(qualifier, one.declared, one.output, one.hidden) for one in schema.visible)
    return replace(schema, names=schema.names or tuple(names))
