"""Subqueries row by row: projection, filter and UNION ALL keep whose every row is.

Each row comes of one row of the source, by expressions that see that row alone, and is of the same unit. No expression
can fail on a row: what would is NULL there (``total``), as in the query above it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

from sqlglot import exp

from dpsql.errors import SchemaError
from dpsql.model.environment import Column, Environment, JoinedName, KeyPath, TableSchema, bounds_of, types_of
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import quote, span_of, to_sql
from dpsql.operations.row_sql import is_plain, shielded, total_condition_sql, without_statistics
from dpsql.sql.intervals import Columns, interval_of
from dpsql.sql.names import SelectItem
from dpsql.sql.row_types import check_expressions, checked_conditions, uses_of
from dpsql.sql.source.relation import HIDDEN_UNIT, Owner, Relation, fresh, renamed
from dpsql.sql.source.row_bounds import added, with_levels_of

_MOST_NAMES = 8
"""Ways to name one set of unique columns that are kept track of."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A column that a subquery shows: its name to the query above, its SQL, and its place in the rows."""

    name: str
    sql: str
    column: Column


def projected(
    items: Sequence[SelectItem],
    filters: Sequence[exp.Expr],
    relation: Relation,
    environment: Environment,
    refusals: Refusals,
) -> Relation:
    """The rows of a SELECT without groups.

    Raises:
        SchemaError: an expression does not bind.
        UnsupportedQueryError: an expression is not one of those that are safe on private rows.

    """
    columns = relation.schema.columns
    check_expressions([*(item.expression for item in items), *filters], columns, environment, refusals)
    conditions = checked_conditions(filters, columns, environment, refusals)
    return selected(relation, shown_columns(items, relation.schema, environment, refusals.text), conditions)


def filtered(relation: Relation, filters: Sequence[exp.Expr], environment: Environment, refusals: Refusals) -> Relation:
    """The rows that pass conditions, with all their columns.

    Raises:
        SchemaError: a condition does not bind.
        UnsupportedQueryError: one is not of those that are safe on private rows.

    """
    if not filters:
        return relation
    check_expressions(filters, relation.schema.columns, environment, refusals)
    conditions = checked_conditions(filters, relation.schema.columns, environment, refusals)
    source = without_statistics(relation.schema.relation, conditions)
    text = f"(SELECT * FROM {source}{_where(total_condition_sql(sql, relation.schema.types) for sql in conditions)})"
    return replace(
        relation,
        schema=replace(relation.schema, relation=text if relation.schema.relation else ""),
        identity=f"(FROM {relation.identity}{_where(conditions)})",
        is_table=False,
    )


def shown_columns(
    items: Sequence[SelectItem], schema: TableSchema, environment: Environment, text: str
) -> tuple[Shown, ...]:
    """The columns of a select list, each under a name of its own."""
    parts = [(item.expression, to_sql(item.expression)) for item in items]
    shown: list[Shown] = []
    for item, (node, sql), kind in zip(items, parts, types_of(environment, schema.columns, parts, text), strict=True):
        output = fresh(item.name, [one.column.name for one in shown])
        # no policy speaks of what is computed
        origin = schema.origin(node.name) if isinstance(node, exp.Column) else ("", output)
        null = kind == '"NULL"'
        column = Column(
            output,
            "INTEGER" if null else kind,
            True,
            origin,
            _bounds(node, schema, environment),
            uses_of(sql, schema.columns),
            zones_in(node, schema),
        )
        shown.append(Shown(item.name, f"CAST({sql} AS INTEGER)" if null else sql, column))
    return tuple(shown)


def zones_in(node: exp.Expr, schema: TableSchema) -> str:
    """Return the time zones of the columns that an expression reads."""
    zoned = {column.name: column for column in schema.columns if column.zone}
    return zones_of(zoned[one.name] for one in node.find_all(exp.Column) if one.name in zoned) if zoned else ""


def zones_of(columns: Iterable[Column]) -> str:
    """Return the time zones of several columns together, as one column has them."""
    return " ".join(sorted({zone for column in columns for zone in column.zone.split()}))


def _bounds(node: exp.Expr, schema: TableSchema, environment: Environment) -> tuple[float, float] | None:
    # rows that a join leaves out have no value, so nothing is sure to be there
    found = interval_of(node, Columns(lambda name: bounds_of(schema, name, environment), lambda _: False))
    return found.floats() if found.is_finite else None


def selected(relation: Relation, shown: Sequence[Shown], conditions: Sequence[str]) -> Relation:
    """The relation that a SELECT makes of another one: its columns, and the unit if none of them is the unit.

    Args:
        relation: what is read.
        shown: the columns, computed of its own.
        conditions: what rows have to fulfil.

    """
    owner, held_by = relation.owner, relation.unit_sql
    outputs: dict[str, list[str]] = defaultdict(list)
    by_quoted = {quote(column.name): column.name for column in relation.schema.columns}
    for one in shown:
        if is_plain(one.sql) and one.sql in by_quoted:
            outputs[by_quoted[one.sql]].append(one.column.name)
    columns = [one.column for one in shown]
    listed = [f"{shielded(one.sql, held_by, relation.schema.types)} AS {quote(one.column.name)}" for one in shown]
    if owner:
        units = [name for source_name in sorted(owner.always) for name in outputs[source_name]]
        unit = units[0] if units else fresh(HIDDEN_UNIT, [column.name for column in columns])
        if not units:
            columns.append(Column(unit, relation.unit_type, True, relation.schema.origin(owner.unit)))
            listed.append(f"{held_by} AS {quote(unit)}")
        held, owner = owner.unit, renamed(owner, outputs, unit)
        outputs[held] += [] if units else [unit]
    plain = len(columns) == len(shown) and all(one.name == one.column.name for one in shown)
    source = without_statistics(relation.schema.relation, [*(one.sql for one in shown), *conditions])
    where = _where(total_condition_sql(sql, relation.schema.types) for sql in conditions)
    schema = replace(
        relation.schema,
        relation=f"(SELECT {', '.join(listed)} FROM {source}{where})" if relation.schema.relation else "",
        columns=tuple(columns),
        names=() if plain else tuple(JoinedName("", one.name, one.column.name, hidden=False) for one in shown),
        paths=(),
    )
    meant = ", ".join(f"{one.sql} AS {quote(one.column.name)}" for one in shown)
    identity = f"(SELECT {meant} FROM {relation.identity}{_where(conditions)})"
    return replace(
        relation,
        schema=schema,
        owner=owner,
        identity=identity,
        is_table=False,
        unique=shown_unique(relation.unique, outputs),
    )


def shown_unique(unique: Iterable[Collection[str]], outputs: Mapping[str, Sequence[str]]) -> frozenset[frozenset[str]]:
    """What is unique of columns that are shown under other names, some of them several times."""
    found = (names for names in unique if all(outputs.get(name) for name in names))
    called = (islice(product(*(outputs[name] for name in sorted(names))), _MOST_NAMES) for names in found)
    return frozenset(frozenset(names) for several in called for names in several)


def _where(conditions: Iterable[str]) -> str:
    joined = " AND ".join(conditions)
    return f" WHERE {joined}" if joined else ""


def called(relation: Relation, qualifier: str, names: Sequence[exp.Expr], text: str) -> Relation:
    """The relation under an alias, with the names that ``AS t(a, b)`` gives its first columns.

    Raises:
        SchemaError: there are more names than columns.

    """
    visible = relation.schema.visible
    if not names and not relation.schema.names:
        return relation
    if len(names) > len(visible):
        raise SchemaError(
            f"{qualifier!r} has {len(visible)} columns and is given {len(names)} names.", span=span_of(names[-1], text)
        )
    given = [name.name for name in names] + [one.declared for one in visible[len(names) :]]
    called = tuple(
        JoinedName(qualifier, name, one.output, hidden=False) for name, one in zip(given, visible, strict=True)
    )
    return replace(relation, schema=replace(relation.schema, names=called))


def stacked(parts: Sequence[Relation], node: exp.Expr, environment: Environment, refusals: Refusals) -> Relation:
    """Return the rows of several relations one after the other; a column is bounded if it is bounded in all of them.

    Raises:
        UnsupportedQueryError: they are of different units, or their columns of different types.

    """
    _refuse_unlike(parts, node, refusals)
    declared = [one.declared for one in parts[0].schema.visible]
    names: list[str] = []
    for name in declared:
        names.append(fresh(name, names))
    alike = [_under_names(part, names) for part in parts]
    unit = fresh(HIDDEN_UNIT, names)
    listed = ", ".join(map(quote, names))
    texts = [
        f"SELECT {listed}{f', {part.unit_sql} AS {quote(unit)}' if part.owner else ''} FROM {part.schema.relation}"
        for part in alike
    ]
    first = alike[0].schema
    columns = [column for column in first.columns if column.name in names]
    for place, column in enumerate(columns):
        held_by = [found for part in alike if (found := part.schema.column(column.name))]
        columns[place] = replace(column, uses=max(found.uses for found in held_by), zone=zones_of(held_by))
        if len({(part.schema.origin(column.name), one.bounds) for part, one in zip(alike, held_by, strict=True)}) > 1:
            bounds = [bounds_of(part.schema, column.name, environment) for part in alike]
            columns[place] = replace(columns[place], origin=("", column.name), bounds=_around(bounds))
    owner = _of_all([part.owner for part in alike if part.owner], unit)
    if owner and alike[0].owner:
        held = first.column(alike[0].owner.unit)
        columns += [replace(held, name=unit)] if held else []
    readable = all(part.schema.relation for part in parts)
    return Relation(
        schema=replace(
            first,
            relation=f"({' UNION ALL '.join(texts)})" if readable else "",
            columns=tuple(columns),
            names=tuple(JoinedName("", *pair, hidden=False) for pair in zip(declared, names, strict=True)),
        ),
        owner=owner,
        identity=f"({' UNION ALL '.join(part.identity for part in alike)})",
        reads=tuple(dict.fromkeys(read for part in parts for read in part.reads)),
        matches=sum(part.matches for part in parts),
        cuts=tuple(dict.fromkeys(sentence for part in parts for sentence in part.cuts)),
        single=tuple(dict.fromkeys(sentence for part in parts for sentence in part.single)),
    )


def _around(bounds: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    """Return the narrowest bounds that hold all of some bounds; None if one of them is None."""
    known = [pair for pair in bounds if pair]
    return (min(low for low, _ in known), max(high for _, high in known)) if len(known) == len(bounds) else None


def _refuse_unlike(parts: Sequence[Relation], node: exp.Expr, refusals: Refusals) -> None:
    """Refuse relations whose rows are of different units, or whose columns are of different types."""
    before = len(refusals.found)
    if len({tuple(column.type for column in part.shown) for part in parts}) > 1:
        refusals.add(
            "source", node, "UNION ALL of columns of different numbers or types.", "Cast them to the same types."
        )
    if len({part.owner.rules.unit if part.owner else None for part in parts}) > 1:
        refusals.add(
            "source",
            node,
            "UNION ALL of rows of different units, or of public and protected rows.",
            "Put together rows of one unit.",
        )
    elif len({part.unit_type for part in parts}) > 1:
        # DuckDB would cast them to one type, which may fail, and may hold two units equal
        refusals.add(
            "source", node, "UNION ALL of rows whose units have several types.", "Cast the unit's column in a view."
        )
    refusals.raise_if_any(before)


def _under_names(relation: Relation, names: Sequence[str]) -> Relation:
    shown = [
        Shown(name, quote(column.name), replace(column, name=name, origin=relation.schema.origin(column.name)))
        for name, column in zip(names, relation.shown, strict=True)
    ]
    return selected(relation, shown, ())


def _of_all(owners: Sequence[Owner], unit: str) -> Owner | None:
    """The owner of rows of which each is of one of these; a column says what all of them let it say."""
    if not owners:
        return None
    always = frozenset.intersection(*(owner.always for owner in owners))
    named = frozenset.intersection(*(owner.names_unit for owner in owners))
    paths = [
        KeyPath(path.space, path.columns, all(replace(path, always=True) in owner.paths for owner in owners))
        for path in owners[0].paths
        if all((path.space, path.columns) in {(one.space, one.columns) for one in owner.paths} for owner in owners)
    ]
    first = added(owners)
    for owner in owners[1:]:
        first = replace(first, rules=with_levels_of(first.rules, owner.rules))
    return replace(first, unit=unit, always=always | {unit}, sometimes=named - always, paths=tuple(paths))
