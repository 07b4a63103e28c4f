"""Keys that a PRIMARY KEY or UNIQUE constraint keeps unique: each group is one row, so it is of one privacy unit.

Constraints are facts of the catalog. No row is read for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

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
    names = text.owner.always
    if any(unique <= names for unique in text.relation.unique):
        return True
    return text.relation.is_table and bool(
        text.environment.schemas.unique_within(text.relation.schema, tuple(sorted(names)))
    )
