"""Columns of public tables that the keys of a query decide, since a join looks them up by a unique key."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from sqlglot import exp

from dpsql.plan.keys import unlisted_keys
from dpsql.sql.clauses import conjuncts, is_plain_table
from dpsql.sql.source.sources import SelectText


def looked_up_tables(text: SelectText, select: exp.Select, keys: Collection[exp.Expr]) -> frozenset[str]:
    """Return how a SELECT calls the public tables of which each group has one row; in small letters.

    A column of such a table may be a key, too, without another group. Return none if a key has a public list: with a
    key more, the keys would be private.

    Args:
        text: the query.
        select: its SELECT as it is written.
        keys: expressions that it groups by, as they are written.

    """
    if text.has_sets or len(unlisted_keys(text, text.select.keys)) < len(text.select.keys):
        return frozenset()
    return frozenset(_looked_up(text, select, keys))


def _looked_up(text: SelectText, select: exp.Select, keys: Collection[exp.Expr]) -> Iterator[str]:
    schemas = text.environment.schemas
    for join in select.args.get("joins") or ():
        table, condition = join.this, join.args.get("on")
        schema = schemas.resolve([part.name for part in table.parts]) if is_plain_table(table) else None
        if schema is None or condition is None or not text.environment.policy.is_public(schema.canonical):
            continue
        called = table.alias_or_name.lower()
        unique = {names[0] for names in schemas.unique_columns(schema) if len(names) == 1}
        for part in conjuncts(condition):
            sides = (part.this, part.expression) if isinstance(part, exp.EQ) else ()
            own = [side for side in sides if isinstance(side, exp.Column) and side.table.lower() == called]
            if own and own[0].name in unique and any(side in keys for side in sides):
                yield called
