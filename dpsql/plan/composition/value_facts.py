"""Facts about values of the rows that a query reads, before it is taken apart."""

from __future__ import annotations

import re
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

    def advised_bins(self, value: exp.Expr) -> str:
        """Return bins of a value as an example; empty for a value that has none."""
        try:
            column = self.rows.read_value(value, self.select, self.scope)
        except (SchemaError, UnsupportedQueryError):
            return ""
        kind = column.type if column else ""
        if re.match(r"U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|FLOAT|DOUBLE|DECIMAL", kind):
            return "[10, 20, 30]"
        return "[DATE '2026-01-01', DATE '2026-02-01']" if kind.startswith(("DATE", "TIMESTAMP")) else ""

    def listed_keys(self, value: exp.Expr) -> tuple[str, ...]:
        """Return the keys that are declared for a value as literals, as SQL, in their order."""
        column = self.rows.read_value(value, self.select, self.scope)
        if column is None or column.origin is None:
            return ()
        listed = self.rows.environment.policy.listed_keys(*column.origin)
        return tuple(f"CAST({one} AS {column.type})" for one in listed)
