"""Linked tables: the relation that leads each row to its unit, through the parents that hold its key.

A parent's key is unique, so a row meets one parent row or none, and rows of one unit come from rows of that unit alone:
the joined rows of a unit are a function of its own rows in all tables of the chain (docs/privacy.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpsql.engine import Engine
from dpsql.errors import SchemaError
from dpsql.model.environment import Column, KeyPath, TableSchema, folded
from dpsql.model.rows import LinkStep
from dpsql.operations.comparisons import compared_type, comparison
from dpsql.operations.dialect import quote
from dpsql.state import Policy


def link_steps(policy: Policy, table: str) -> tuple[LinkStep, ...]:
    """The parents that a row has to meet to find its unit; none where a column of the table is the unit itself."""
    steps: list[LinkStep] = []
    while link := policy.link(table):
        parent = policy.protected_table(link.parent)
        if not parent or len(steps) > len(policy.links):
            raise SchemaError(f"the parent {link.parent!r} of a linked table is not protected any more.")
        if not policy.link(link.parent) and link.parent_columns == (parent.privacy_unit_column,):
            # the key of the last parent is the unit, and the link holds it
            return tuple(steps)
        steps.append(LinkStep(link.columns, link.parent, link.parent_columns, parent.version))
        table = link.parent
    return tuple(steps)


def unit_column(policy: Policy, table: str) -> str:
    """Name of the column that holds the unit: the table's own, or the one that its last parent lends it."""
    steps = link_steps(policy, table)
    last = steps[-1].parent if steps else table
    declared, link = policy.protected_table(last), policy.link(last)
    if not declared:
        raise SchemaError(f"table {last!r} is not protected any more.")
    return link.columns[0] if link else declared.privacy_unit_column


def key_paths(schema: TableSchema, policy: Policy, engine: Engine) -> tuple[KeyPath, ...]:
    """What of a protected table leads to its unit, besides the unit: its own key, and those that its link holds.

    The key of a table whose constraint is gone leads nowhere; what is not read any more may still be asked for.
    """
    paths = []
    link = policy.link(schema.canonical)
    if link and (columns := _columns(schema, link.columns)):
        paths.append(_path(link.parent, link.parent_columns, columns))
    keys = dict.fromkeys(one.parent_columns for one in policy.links if one.parent == schema.canonical)
    for key in keys:
        columns = _columns(schema, key)
        if columns and (not schema.relation or engine.is_unique(schema, key)):
            # a UNIQUE constraint lets rows have no key
            always = not any(column.nullable for column in columns)
            paths.append(replace(_path(schema.canonical, key, columns), always=always))
    return tuple(paths)


def _columns(schema: TableSchema, names: Sequence[str]) -> tuple[Column, ...]:
    """The columns of these names; none at all where one of them is gone."""
    found = tuple(column for column in map(schema.column, names) if column)
    return found if len(found) == len(names) else ()


def _path(parent: str, key: Sequence[str], columns: Sequence[Column]) -> KeyPath:
    """The way through a parent's key, in one order of its columns however the link was written."""
    pairs = sorted(zip(map(folded, key), (column.name for column in columns), strict=True))
    return KeyPath(f"{parent} ({', '.join(name for name, _ in pairs)})", tuple(column for _, column in pairs))


def linked(schema: TableSchema, policy: Policy, engine: Engine) -> TableSchema:
    """The table with the unit of its last parent as one more column; the table itself where it has its unit.

    Raises:
        SchemaError: a parent, or a column of the chain, is gone.

    """
    if not policy.protected_table(schema.canonical):
        return schema
    schema = replace(schema, paths=key_paths(schema, policy, engine))
    steps = link_steps(policy, schema.canonical)
    if not steps or not schema.relation:
        return schema
    name = unit_column(policy, schema.canonical)
    if schema.column(name):
        raise SchemaError(f"{schema.canonical!r} has a column {name!r}, which is what its link lends it.")
    joins, before = [f"{schema.relation} AS step_0"], schema
    for place, step in enumerate(steps, start=1):
        parent = engine.find(step.parent)
        if not parent:
            raise SchemaError(f"the table {step.parent!r} that leads to the privacy unit is gone.")
        if not engine.is_unique(parent, step.parent_columns):
            raise SchemaError(
                f"the table {step.parent!r} that leads to the privacy unit has lost the constraint on its key.",
                hint="The curator adds it again: a row must meet one parent at most.",
            )
        pairs = zip(step.columns, step.parent_columns, strict=True)
        equal = [_equal(before, place - 1, column, parent, place, key) for column, key in pairs]
        joins.append(f"{parent.relation} AS step_{place} ON {' AND '.join(equal)}")
        before = parent
    unit = before.column(name)
    if not unit:
        raise SchemaError(f"the table {before.canonical!r} has lost its privacy unit column {name!r}.")
    relation = f"(SELECT step_0.*, step_{len(steps)}.{quote(unit.name)} AS {quote(name)} FROM {' JOIN '.join(joins)})"
    return replace(schema, relation=relation, columns=(*schema.columns, Column(name, unit.type, True)))


def _equal(child: TableSchema, child_place: int, column: str, parent: TableSchema, place: int, key: str) -> str:
    own, other = child.column(column), parent.column(key)
    if not own or not other or not compared_type(own.type, other.type):
        raise SchemaError(f"the link from {child.canonical!r} to {parent.canonical!r} has lost a column, or its type.")
    # a constraint keeps bytes apart, and a collation may hold two of them equal
    ends = f"step_{child_place}.{quote(own.name)}", f"step_{place}.{quote(other.name)}"
    return comparison(ends[0], "=", ends[1], (own.type, other.type))
