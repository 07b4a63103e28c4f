"""Rows that are split by a text of theirs: ``SELECT unnest(string_split(tags, '|')) AS tag FROM post``.

Each row becomes a row for each part of its text, of the same unit. So the invariant of ``relation`` holds: the rows of
a unit are a function of its own rows. A text is cut to ``MAX_SPLIT`` characters and a list to ``MOST_PARTS`` parts,
so that no row costs more than a constant. What is not split is left out, and the receipt says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.model.environment import Column, Environment, JoinedName, types_of
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import quote, to_sql, written
from dpsql.operations.row_sql import shielded, without_statistics
from dpsql.sql.clauses import Clauses, qualifier_of
from dpsql.sql.names import resolve_names
from dpsql.sql.row_types import check_expressions, uses_of
from dpsql.sql.source.borders import bordered, hides_joins
from dpsql.sql.source.join_rows import MOST_MATCHES
from dpsql.sql.source.relation import Relation, fresh
from dpsql.sql.source.row_bounds import multiplied
from dpsql.sql.source.scope import named_by

MAX_SPLIT = 1_000
"""Characters of a text that is split."""
MOST_PARTS = 32
"""Parts of a text that become rows."""

_FORM = "SELECT unnest(string_split(s, '|')) AS part FROM t"
_RULE = "rows with several parts of a text"


def is_split(node: exp.Expr) -> bool:
    """Return whether a source or an item of a select list makes several rows of one."""
    return isinstance(node.unalias(), exp.Explode | exp.Unnest)


def split_items(
    relation: Relation, clauses: Clauses, environment: Environment, refusals: Refusals
) -> tuple[Relation, Clauses]:
    """Return rows with a column of parts, and the clauses in which it stands for the call of unnest().

    Args:
        relation: the rows of the FROM clause.
        clauses: the clauses of a subquery; one item of its select list calls unnest().
        environment: binds the type of the text.
        refusals: collects.

    Raises:
        UnsupportedQueryError: the call is not of the known form.

    """
    calls = [item for item in clauses.select if is_split(item)]
    if len(calls) > 1 or clauses.group or clauses.having:
        refusals.refuse(
            "source",
            calls[-1],
            "a subquery with unnest() has one call of it, and no groups.",
            f"Group around it, as in SELECT part, count(*) FROM ({_FORM}) GROUP BY part.",
        )
    (call,) = calls
    found, column = _with_parts(relation, call.unalias(), clauses, environment, refusals)
    # a hidden column is named with its table alone, and no star shows it
    table = qualifier_of(clauses.source)
    names = (*_names(relation, clauses), JoinedName(table, column.name, column.name, hidden=bool(table)))
    named = exp.column(column.name, table=table or None, quoted=True)
    item = exp.alias_(named, call.alias or written(call.unalias()), quoted=True)
    for part in item.find_all(exp.Identifier):
        part.meta.update(call.meta)
    select = tuple(item if one is call else one for one in clauses.select)
    return replace(found, schema=replace(found.schema, names=names)), replace(clauses, select=select)


def split_source(
    relation: Relation, call: exp.Expr, clauses: Clauses, environment: Environment, refusals: Refusals
) -> Relation:
    """Return rows with a column of parts, under the name that the FROM clause gives to it.

    Args:
        relation: the rows of the sources before.
        call: the call of unnest().
        clauses: the clauses, without the call.
        environment: binds the type of the text.
        refusals: collects.

    Raises:
        UnsupportedQueryError: the call is not of the known form.

    """
    alias = call.args.get("alias")
    columns = alias.args.get("columns") or () if alias else ()
    if len(columns) > 1 or call.args.get("offset"):
        refusals.refuse(
            "source",
            call,
            "unnest() has one column.",
            "Name one, as in FROM t, unnest(string_split(s, '|')) AS p(part).",
        )
    found, column = _with_parts(relation, call, clauses, environment, refusals)
    declared = columns[0].name if columns else "unnest"
    names = (*_names(relation, clauses), JoinedName(qualifier_of(call), declared, column.name, hidden=False))
    return replace(found, schema=replace(found.schema, names=names))


def _names(relation: Relation, clauses: Clauses) -> Sequence[JoinedName]:
    """Return the names of the columns of a FROM clause."""
    return named_by(relation.schema, qualifier_of(clauses.source)).names


def _with_parts(
    relation: Relation, call: exp.Expr, clauses: Clauses, environment: Environment, refusals: Refusals
) -> tuple[Relation, Column]:
    """Return the split rows, and the column of their parts."""
    split = (call.expressions or [call.this])[0]
    separator = split.expression if isinstance(split, exp.Split) else None
    if not (isinstance(separator, exp.Literal) and separator.is_string and separator.name):
        from dpsql.sql.function_hints import LIST_OF_ROWS  # noqa: PLC0415 — only if a text is refused

        refusals.refuse(
            "source",
            call,
            "unnest() takes a text that is split by a literal here.",
            LIST_OF_ROWS if split.find(exp.GenerateSeries) else f"Use a subquery, as in {_FORM}.",
        )
    inner = Clauses(clauses.sources, select=(split.this,), inside=True)
    (item,) = resolve_names(inner, relation.schema, environment, refusals).items
    columns = relation.schema.columns
    check_expressions([item.expression], columns, environment, refusals)
    sql = to_sql(item.expression)
    (kind,) = types_of(environment, columns, [(item.expression, sql)], refusals.text)
    if kind != "VARCHAR":
        refusals.refuse("source", call, f"{written(split.this)} is no text.", "Split a column of texts.")
    if relation.matches * MOST_PARTS > MOST_MATCHES:
        refusals.refuse(
            "source",
            call,
            f"a row would become more than {MOST_MATCHES:,}: {relation.matches:,} rows of {MOST_PARTS} parts each.",
            "Split one text once, and join public tables around it by a unique key.",
        )
    name = fresh("part of a text", [column.name for column in columns])
    column = Column(name, kind, True, ("", name), uses=uses_of(sql, columns))
    rows = relation.schema.relation
    rows = bordered(rows) if hides_joins(relation, environment) else rows
    value = f"left({shielded(sql, relation.unit_sql, relation.schema.types)}, {MAX_SPLIT})"
    parts = f"unnest(list_slice(string_split({value}, {to_sql(separator)}), 1, {MOST_PARTS}))"
    text = f"(SELECT *, {parts} AS {quote(name)} FROM {without_statistics(rows, [sql])})" if rows else ""
    meant = f"unnest(string_split({sql}, {to_sql(separator)}))"
    cut = f"of one text at most {MOST_PARTS} parts of its first {MAX_SPLIT:,} characters become rows"
    return replace(
        relation,
        schema=replace(relation.schema, relation=text, columns=(*columns, column)),
        owner=multiplied(relation.owner, _RULE) if relation.owner else None,
        identity=f"(SELECT *, {meant} AS {quote(name)} FROM {relation.identity})",
        matches=relation.matches * MOST_PARTS,
        is_table=False,
        unique=frozenset(),
        cuts=tuple(dict.fromkeys((*relation.cuts, cut))),
    ), column
