"""People under two budgets: a declaration that gives them a second one is refused, until the curator decides.

Two signs can be seen: a column that is called like the unit column of another unit, and a table or view whose rows are
those of another unit's table. A copy of a protected table under other names looks like any table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dpsql.engine import Engine
from dpsql.errors import PolicyError
from dpsql.model.environment import TableSchema, folded
from dpsql.session.declarations.sources import rows_from, sources_of
from dpsql.state import Policy, ProtectedTable


def same_column(columns: Iterable[str], table: str, unit: str, policy: Policy) -> ProtectedTable | None:
    """A table of another unit whose unit column is called like one of these; None where there is none.

    None, too, for a unit that other tables have: it is told apart from all others by its name.
    """
    if any(one.unit == unit and one.table != table for one in policy.tables):
        return None
    named = {folded(column) for column in columns}
    others = (one for one in policy.tables if one.unit != unit and not policy.link(one.table))
    return next((one for one in others if folded(one.privacy_unit_column) in named), None)


def _same_people(
    schema: TableSchema, columns: Iterable[str], unit: str, policy: Policy, engine: Engine
) -> Iterator[tuple[ProtectedTable, str]]:
    """Tables of other units that seem to hold the same people, each with the reason."""
    column = same_column(columns, schema.canonical, unit, policy)
    if column:
        yield column, f"its unit column is called {column.privacy_unit_column!r}, too"
    others = [one for one in policy.tables if one.unit != unit]
    own = rows_from(schema, policy, engine) if others else frozenset()
    for other in others:
        read = own & sources_of(other.table, policy, engine)
        if read:
            yield other, f"both are made of {min(read)!r}"


def require_other_people(
    schema: TableSchema, columns: Iterable[str], unit: str, policy: Policy, engine: Engine
) -> None:
    """Refuse to give people a second budget.

    Raises:
        PolicyError: they seem to have one; says what to write.

    """
    for other, reason in _same_people(schema, columns, unit, policy, engine):
        raise PolicyError(
            f"{schema.canonical!r} seems to hold the people of {other.table!r}, which has the budget of unit "
            f"{other.unit!r}: {reason}. Say unit := '{other.unit}' if these are the same people, or "
            "separate_people := true if they are others"
        )
