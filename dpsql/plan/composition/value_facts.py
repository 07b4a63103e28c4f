"""Facts about values of the rows that a query reads, before it is taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from dpsql.errors import SchemaError, UnsupportedQueryError
from dpsql.plan.composition.bins import names_of_bins
from dpsql.plan.composition.kinds import QueryRows
from dpsql.sql.source.scope import Scope


@dataclass(frozen=True, slots=True)
class ValueFacts:
    """Finds facts about values of one query.

    Attributes:
        rows: finds out what rows are.
        select: the query.
        scope: the queries that it can name.

    """

    rows: QueryRows
    select: exp.Select
    scope: Scope

    def is_column(self, column: exp.Column) -> bool:
        """Check that a name means a column of the rows, whatever the aliases of the query are."""
        try:
            self.rows.read_value(column, self.select, self.scope)
        except (SchemaError, UnsupportedQueryError):
            return False
        return True

    def names_of_bins(self, value: exp.Expr, ends: Sequence[exp.Expr], node: exp.Expr) -> tuple[list[exp.Expr], str]:
        """Return how DuckDB calls the bins of a value with these ends, and the type of these names."""
        column, bind = self.rows.read_value(value, self.select, self.scope), self.rows.environment.schemas.bind_after
        return names_of_bins(ends, column.type if column else "", bind, node, self.rows.refusals)

    def listed_keys(self, value: exp.Expr) -> tuple[str, ...]:
        """Return the keys that are declared for a value as literals, as SQL, in their order."""
        column = self.rows.read_value(value, self.select, self.scope)
        if column is None or column.origin is None:
            return ()
        listed = self.rows.environment.policy.listed_keys(*column.origin)
        return tuple(f"CAST({one} AS {column.type})" for one in listed)
