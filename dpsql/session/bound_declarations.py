"""Declared bounds beside the rows that they keep, and declarations of other bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpsql.operations.dialect import text_literal
from dpsql.receipts.bound_words import Spread, groups_words, kept_words, keys_words, rows_words, values_words
from dpsql.release.bound_errors import Bounds, Grouping, Integers
from dpsql.release.bound_grid import Choice
from dpsql.release.raw_groups import QUANTILES, ValueSpread
from dpsql.state import Policy, ProtectedTable

_UNIT_SHARE = 0.99


def declared_spreads(
    table: ProtectedTable,
    groupings: Sequence[Grouping],
    spreads: Mapping[str, ValueSpread],
    values: Mapping[str, Bounds],
    rows: int,
) -> dict[str, list[Spread]]:
    """Return each bound of a table, with the rows that it keeps and the numbers of units.

    Args:
        table: what is declared.
        groupings: the groupings.
        spreads: how values of columns lie.
        values: the declared bounds of these columns.
        rows: number of the rows that have a unit.

    """
    found: dict[str, list[Spread]] = {}
    for name, bound in (("max_groups_contributed", table.max_groups), ("max_rows_per_group", table.max_rows_per_group)):
        is_groups = name == "max_groups_contributed"
        shares = {one: one.kept_rows(bound, None) if is_groups else one.kept_rows(None, bound) for one in groupings}
        worst = min(groupings, key=lambda one: (shares[one], -_numbers(one, is_groups=is_groups).mean()))
        numbers = _numbers(worst, is_groups=is_groups)
        words = groups_words if is_groups else rows_words
        ends = worst.pairs.unit_quantile(numbers, _UNIT_SHARE), int(numbers.max())
        listed = [Spread(f"by {worst.name}", words(*ends, table.unit))]
        if bound:
            kept = kept_words({one.name: share for one, share in shares.items()})
            listed.insert(0, Spread("keeps", kept))
        found[f"{name} = {bound:,}" if bound else f"{name}, not declared"] = listed
    first, last = QUANTILES.index(0.01), QUANTILES.index(0.99)
    for column, spread in spreads.items():
        bounds = values[column]
        middle = spread.low, spread.quantiles[first], spread.quantiles[last], spread.high
        words_of_values = values_words(spread.inside[bounds], spread.kept[bounds], middle, column)
        found[f"bounds of {column}"] = [Spread(f"[{bounds[0]:.9g}, {bounds[1]:.9g}]", words_of_values)]
    for one in groupings:
        if one.is_listed:
            share = float(one.pairs.rows.sum()) / one.share / rows
            listed_keys = len(one.pairs.names) + one.pairs.empty
            spread_of_keys = Spread(f"{listed_keys:,} keys", keys_words(min(1.0, share), listed_keys, one.pairs.empty))
            found[f"public keys of {one.name}"] = [spread_of_keys]
    return found


def _numbers(grouping: Grouping, *, is_groups: bool) -> Integers:
    """Return the number of groups of each unit, or its most rows in one of them, in each of its groups."""
    return grouping.pairs.groups if is_groups else grouping.pairs.most_rows


def declarations_of(
    best: Choice, table: ProtectedTable, policy: Policy, values: Mapping[str, Bounds]
) -> list[tuple[str, str]]:
    """Return the declarations that change the bounds of a table to others, each with its place."""
    named = []
    if best.max_groups != table.max_groups:
        named.append(f"max_groups_contributed := {best.max_groups}")
    if best.max_rows != table.max_rows_per_group:
        named.append(f"max_rows_per_group := {best.max_rows}")
    calls = [(table.table, _table_call(table, policy, named))] if named else []
    for column, (low, high) in best.values:
        if values.get(column) != (low, high):
            bounds = f"[{low:.9g}, {high:.9g}]"
            calls.append((f"{table.table}.{column}", _domain_call(table, column, f"bounds := {bounds}")))
    return calls


def undone_bounds(table: ProtectedTable, policy: Policy, values: Mapping[str, Bounds]) -> list[tuple[str, str]]:
    """Return the declarations that remove all bounds of a table, each with its place."""
    declared = {"max_groups_contributed": table.max_groups, "max_rows_per_group": table.max_rows_per_group}
    named = [f"{name} := NULL" for name, value in declared.items() if value]
    calls = [(table.table, _table_call(table, policy, [*named, "replace := true"]))] if named else []
    removed = "bounds := NULL, replace := true"
    return calls + [(f"{table.table}.{column}", _domain_call(table, column, removed)) for column in values]


def _table_call(table: ProtectedTable, policy: Policy, named: Sequence[str]) -> str:
    """Return the declaration of some settings of a table."""
    link = policy.link(table.table)
    name = text_literal(table.table)
    if link is None:
        return f"CALL dp_protect({', '.join([name, *named])});"
    own = ", ".join(map(text_literal, link.columns))
    own = own if len(link.columns) == 1 else f"[{own}]"
    return f"CALL dp_link({', '.join([name, own, *named])});"


def _domain_call(table: ProtectedTable, column: str, setting: str) -> str:
    """Return the declaration of the bounds of a column."""
    return f"CALL dp_domain({text_literal(table.table)}, {text_literal(column)}, {setting});"
