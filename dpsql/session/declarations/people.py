"""People under two budgets: a declaration that gives them a second one is refused, until the curator decides.

Two signs can be seen: a key that is called like the key of another unit, and a table or view whose rows are those of
another unit's table. The key of a table is its unit column, or the columns of its link. A copy of a protected table
under other names looks like any table.

The curator decides by ``separate_people := true``. This decides about the name of a key for two units: each of them has
a table with such a key, and one of the two tables was declared with these words. A third table needs no words then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpsql.engine import Engine
from dpsql.errors import PolicyError
from dpsql.model.environment import TableSchema, folded
from dpsql.model.similar_names import as_written
from dpsql.operations.dialect import text_literal
from dpsql.plan.environment.links import unit_column
from dpsql.session.declarations.arguments import BUDGET, Arguments
from dpsql.session.declarations.sources import rows_from, sources_of
from dpsql.state import Policy, ProtectedTable


def same_key(columns: Sequence[str], unit: str, policy: Policy) -> ProtectedTable | None:
    """Return a table of another unit with a key of these names that the curator did not decide about, or None.

    Args:
        columns: the key of a new table.
        unit: of the new table.
        policy: without the new table.

    """
    named = set(map(folded, columns))
    found = [one for one in policy.tables if set(map(folded, _key(one, policy))) == named]
    own = [one.separate_people for one in found if one.unit == unit]
    for other in found:
        said = [one.separate_people for one in found if one.unit == other.unit]
        is_decided = own and (any(own) or any(said))
        if other.unit != unit and not is_decided:
            return other
    return None


def reason_of(other: ProtectedTable, policy: Policy) -> str:
    """Return why the table that `same_key` found seems to hold the people of a new one."""
    key = ", ".join(map(repr, _key(other, policy)))
    return f"it is linked by {key}, too" if policy.link(other.table) else f"its unit column is called {key}, too"


def _key(table: ProtectedTable, policy: Policy) -> tuple[str, ...]:
    """Return the columns of a table that name its unit, or lead to it."""
    link = policy.link(table.table)
    return link.columns if link else (table.privacy_unit_column,)


def _same_rows(schema: TableSchema, unit: str, policy: Policy, engine: Engine) -> tuple[ProtectedTable, str] | None:
    """Return a table of another unit that is made of the same rows, and one of their sources; None if there is none."""
    others = [one for one in policy.tables if one.unit != unit]
    own = rows_from(schema, policy, engine) if others else frozenset()
    for other in others:
        read = own & sources_of(other.table, policy, engine)
        if read:
            return other, min(read)
    return None


def require_other_people(
    arguments: Arguments,
    schema: TableSchema,
    protected: ProtectedTable,
    link_columns: Sequence[str],
    policy: Policy,
    engine: Engine,
) -> None:
    """Refuse to give people a second budget.

    Args:
        arguments: of ``dp_protect`` or ``dp_link``.
        schema: the table.
        protected: as it shall be declared.
        link_columns: its columns that lead to its unit through another table; none if a column names its unit.
        policy: what is declared.
        engine: knows tables and views.

    Raises:
        PolicyError: they seem to have a budget; says what to write.

    """
    before = policy.protected_table(schema.canonical)
    # declarations of this table are replaced
    tables = tuple(one for one in policy.tables if one.table != schema.canonical)
    public = tuple(one for one in policy.public if one.table != schema.canonical)
    policy = replace(policy, tables=tables, public=public)
    if other := same_key(link_columns or (protected.privacy_unit_column,), protected.unit, policy):
        reason, by_key = reason_of(other, policy), True
    elif found := _same_rows(schema, protected.unit, policy, engine):
        other, source = found
        reason, by_key = f"both are made of {source!r}", False
    else:
        return
    if by_key and (link_columns or policy.link(other.table)):
        same = _as_declared(other, schema, policy, engine, ", replace := true" if before else "")
    elif link_columns:
        named = f"unit := {text_literal(protected.unit)}, replace := true"
        same = f"first write CALL dp_protect({text_literal(other.table)}, {named})"
    else:
        replaced = ", replace := true" if before and not arguments.flag("replace") else ""
        instead = _in_place(arguments, "unit", *BUDGET, "separate_people")
        same = f"write unit := {text_literal(other.unit)}{replaced}{instead}"
    raise PolicyError(
        f"{schema.canonical!r} seems to hold the people of {other.table!r}, which has the budget of unit "
        f"{other.unit!r}: {reason}. If these are the same people, {same}; if they are others, add "
        f"separate_people := true{_in_place(arguments, 'separate_people')}"
    )


def _as_declared(other: ProtectedTable, schema: TableSchema, policy: Policy, engine: Engine, replaced: str) -> str:
    """Return how a table is declared for the unit of another table whose key it has, as a part of a sentence."""
    table, link, unit = text_literal(schema.canonical), policy.link(other.table), unit_column(policy, other.table)
    if schema.column(unit):
        named = f"unit := {text_literal(other.unit)}, privacy_unit_column := {text_literal(unit)}"
        return f"write CALL dp_protect({table}, {named}{replaced})"
    if not link or not engine.is_base_table(schema):
        return f"give it a column {unit!r} with the unit, and protect it by that column"
    parents = (f"{link.parent}.{as_written(name)}" for name in link.parent_columns)
    own, key = (", ".join(map(text_literal, names)) for names in (link.columns, parents))
    own, key = (names if len(link.columns) == 1 else f"[{names}]" for names in (own, key))
    return f"write CALL dp_link({table}, {own}, parent := {key}{replaced})"


def _in_place(arguments: Arguments, *names: str) -> str:
    """Return which of the given arguments another one replaces, as the end of a cure."""
    given = [name for name in names if arguments.names_any(name)]
    if "unit" in given:
        given[0] = f"unit := {text_literal(arguments.read('unit', str) or '')}"
    return f" in place of {' and '.join(given)}" if given else ""
