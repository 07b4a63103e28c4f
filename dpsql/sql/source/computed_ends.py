"""Ends of comparisons in ON and WHERE that are computed of one side, and the columns that stand for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.model.environment import Environment
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import quote, written
from dpsql.sql.source.relation import fresh
from dpsql.sql.source.scope import named_by
from dpsql.sql.source.seen_columns import Part, SeenColumn


class ComputedEnds:
    """The sides of a FROM clause with the columns that its conditions compute.

    Attributes:
        parts: the sides, each with its computed columns so far.

    """

    def __init__(self, parts: Sequence[Part], environment: Environment, refusals: Refusals) -> None:
        self.parts = list(parts)
        self._environment = environment
        self._refusals = refusals
        self._known: dict[tuple[int, str], SeenColumn] = {}
        self._optional = set[int]()

    def add_step(self, place: int, kind: str) -> None:
        """Note that a part is joined, and so which parts an outer join may leave out of a row."""
        side = kind.split(maxsplit=1)[0]
        self._optional |= set(range(place)) if side in ("RIGHT", "FULL") else set()
        self._optional |= {place} if side in ("LEFT", "FULL") else set()

    def end(self, node: exp.Expr, place: int, taken: set[str]) -> SeenColumn:
        """Return the column that stands for an expression of one part.

        Args:
            node: the expression.
            place: the place of the part.
            taken: names of columns of the joined rows; the new one is added.

        Raises:
            SchemaError: the expression does not bind.
            UnsupportedQueryError: it is not safe on private rows, or differs where an outer join leaves the part out.

        """
        from dpsql.sql.source.computed_columns import is_null_of_nulls, with_computed  # noqa: PLC0415 — few joins

        part, text = self.parts[place], node.sql(dialect="duckdb")
        if (place, text) not in self._known:
            if place in self._optional and not is_null_of_nulls(node):
                self._refusals.refuse(
                    "source",
                    node,
                    f"{written(node)} may have a value where an outer join leaves its table out.",
                    "Compare a column, or compute it in a subquery that has this outer join.",
                )
            schema = named_by(part.relation.schema, part.qualifier)
            relation, column = with_computed(
                node, [(part.node, None)], schema, part.relation, self._environment, self._refusals
            )
            self.parts[place] = replace(part, relation=relation)
            output = replace(column, name=fresh(f"{column.name} {place}", taken))
            taken.add(output.name)
            sql = f"join_{place}.{quote(column.name)}"
            self._known[place, text] = SeenColumn(
                place, part.qualifier, written(node), column.name, sql, output, shown=False, hidden=True
            )
        return self._known[place, text]
