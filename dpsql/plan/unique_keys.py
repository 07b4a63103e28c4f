"""Keys that a PRIMARY KEY or UNIQUE constraint keeps unique: each group is one row, so it is of one privacy unit.

Constraints are facts of the catalog. No row is read for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.model.frame import Frame
from dpsql.model.private_query import FrameQuery
from dpsql.operations.dialect import quote
from dpsql.sql.source.sources import SelectText


def unique_keys(text: SelectText, written: Sequence[exp.Expr]) -> list[exp.Expr]:
    """Return keys on which no two rows agree, except where one of them is NULL; an empty list if there are none.

    A unique column of one joined table may repeat in the joined rows. Then it is not returned.

    Args:
        text: the query.
        written: its keys.

    """
    relation, columns = text.relation, {key.name: key for key in written if isinstance(key, exp.Column)}
    unique = sorted(sorted(names) for names in relation.unique if names <= set(columns))
    if not unique and columns and relation.is_table:
        # no other part of a plan asks what is unique in one table alone
        unique = text.environment.schemas.unique_within(relation.schema, tuple(sorted(columns)))
    return [columns[name] for name in next(iter(unique), ())]


def units_have_one_row(text: SelectText) -> bool:
    """Check that a constraint keeps the unit of each row unique."""
    return _has_unique(text, text.owner.always)


def with_row_facts(query: FrameQuery, text: SelectText) -> FrameQuery:
    """Return the query with what constraints say of the rows of a unit: in all, and in each group."""
    has_one_row = units_have_one_row(text)
    has_one_in_group = has_one_row or _has_one_row_in_group(text, query.frame)
    return replace(query, has_one_row=has_one_row, has_one_row_in_group=has_one_in_group)


def _has_one_row_in_group(text: SelectText, frame: Frame) -> bool:
    """Check that a constraint keeps the unit of each row of a group unique.

    A constraint lets rows with NULL repeat, so the keys must be public, and none of them NULL. It compares texts by
    their bytes, so no key may hold other texts equal.
    """
    if not frame.public_keys or any(frame.public_keys.with_null):
        return False
    schema, schemas = text.relation.schema, text.environment.schemas
    keys = {key.sql for key in frame.keys}
    named = [column for column in schema.columns if quote(column.name) in keys]
    if not _has_unique(text, text.owner.always.union(column.name for column in named)):
        return False
    texts = (column.name for column in named if column.type == "VARCHAR")
    return not any(schemas.has_collation(schema.origin(name)) for name in texts)


def _has_unique(text: SelectText, names: frozenset[str]) -> bool:
    """Check that a constraint keeps some of the columns unique in the rows of a query."""
    if any(unique <= names for unique in text.relation.unique):
        return True
    # a kept plan asks this again, so that what follows from a constraint ends with it
    found = text.environment.schemas.unique_columns(text.relation.schema) if text.relation.is_table else ()
    return any(names.issuperset(columns) for columns in found)
