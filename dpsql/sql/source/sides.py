"""The sides of a FROM clause, put together: how they are joined, which of their rows, and the relation of it all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.model.environment import Environment
from dpsql.model.refusals import Refusals
from dpsql.sql.clauses import Clauses
from dpsql.sql.names import resolve_names
from dpsql.sql.source.join_order import Apart
from dpsql.sql.source.join_rows import filtering_pairs, has_too_many_matches, joined
from dpsql.sql.source.joins import Joins, read_joins
from dpsql.sql.source.kept_lists import kept_rows
from dpsql.sql.source.projections import filtered
from dpsql.sql.source.relation import Relation
from dpsql.sql.source.row_bounds import decided_columns
from dpsql.sql.source.row_cut import early_filters
from dpsql.sql.source.row_growth import growth
from dpsql.sql.source.scope import named_by
from dpsql.sql.source.seen_columns import Part

Conditions = Sequence[exp.Expr]
"""Conditions that have to hold all together."""


def joined_sides(
    parts: Sequence[Part], where: Conditions, environment: Environment, refusals: Refusals
) -> tuple[Relation, Conditions, Relation | None]:
    """Return the joined rows of several sources, what is left of WHERE, and the public rows that the join keeps.

    Raises:
        SchemaError: a name in ON or USING is not there, or is there more than once.
        UnsupportedQueryError: the join has no private form.

    """

    def read(*, every: bool) -> tuple[Conditions, Joins]:
        left, joins = read_with(frozenset(), every=every)
        apart = filtering_pairs(joins, environment)
        return read_with(apart, every=every) if apart else (left, joins)

    def read_with(apart: Apart, *, every: bool) -> tuple[Conditions, Joins]:
        left, joins = read_joins(where, parts, environment, refusals, apart, every=every)
        own = dict(enumerate(step.own for step in joins.steps))
        return left, _with_own_rows(joins, own, environment, refusals)

    left, joins = read(every=False)
    if joins.spares and has_too_many_matches(joins, environment):
        left, joins = read(every=True)
    joins = replace(joins, decided=tuple(decided_columns(left, joins.columns)))
    left, early = early_filters(left, joins, growth(joins).places)
    relation = joined(_with_own_rows(joins, early, environment, refusals), environment, refusals)
    # where a condition dropped rows of another side before, the join kept none
    return relation, left, None if early else kept_rows(joins)


def _with_own_rows(
    joins: Joins, conditions: Mapping[int, Conditions], environment: Environment, refusals: Refusals
) -> Joins:
    """Return the joins with those rows of their sides that pass conditions of these sides alone."""
    parts = list(joins.parts)
    for place, own in conditions.items():
        if own:
            part = parts[place]
            # they are resolved as those of a query over this part alone
            clauses = Clauses(((part.node, None),), where=tuple(own), inside=True)
            schema = named_by(part.relation.schema, part.qualifier)
            filters = resolve_names(clauses, schema, environment, refusals).filters
            parts[place] = replace(part, relation=filtered(part.relation, filters, environment, refusals))
    return replace(joins, parts=tuple(parts))
