"""Rows that a query can read, and whose they are: a table, tables joined, or what a subquery makes of them.

The invariant that every rule keeps, and that a proof of privacy needs: for every unit, the rows of a relation that
carry it are a function of that unit's rows in the protected tables, and of public tables. Rows that carry no unit may
depend on anything; they are dropped before anything is counted (docs/proofs/relations.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from dpsql.query.environment import KeyPath, TableRules, TableSchema, folded

HIDDEN_UNIT = "privacy unit"
"""Name of the unit's column where a query names none; in the rows only, never in reach of a query."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose rows a private relation holds.

    Attributes:
        rules: of its protected tables together.
        unit: the column that names the unit.
        always: columns that hold the unit in every row that has one, ``unit`` among them.
        sometimes: columns that hold it where they are not NULL.
        paths: what else leads to the unit: keys of tables that lie between a row and its unit.

    """

    rules: TableRules
    unit: str
    always: frozenset[str]
    sometimes: frozenset[str]
    paths: tuple[KeyPath, ...]

    @property
    def names_unit(self) -> frozenset[str]:
        """Columns whose value, where there is one, is the row's unit."""
        return self.always | self.sometimes


@dataclass(frozen=True, slots=True)
class Relation:
    """Rows as SQL, as an identity, and with their owner.

    Attributes:
        schema: how they are read, and their columns; the text is empty where a table, or a version of it, is gone.
        owner: None where all of them are public.
        identity: what they are made of, with versions in place of what changes; part of hashes.
        reads: every table in it, with its version.
        matches: most rows that public tables make of one protected row.
        is_table: whether it is one table by itself.
        unique: sets of columns; no two rows have the same values, none of them NULL, in all columns of one.
        cuts: sentences about rows of one unit that joins leave out.

    """

    schema: TableSchema
    owner: Owner | None
    identity: str
    reads: tuple[tuple[str, str], ...]
    matches: int = 1
    is_table: bool = False
    unique: frozenset[frozenset[str]] = frozenset()
    cuts: tuple[str, ...] = ()


def renamed(owner: Owner, outputs: Mapping[str, Collection[str]], unit: str) -> Owner:
    """The owner of rows that show some of its columns under other names, each under any number of them.

    Args:
        owner: of the rows before.
        outputs: their columns, and what each is called now.
        unit: what the unit is called now.

    """

    def shown(names: Collection[str]) -> frozenset[str]:
        return frozenset(output for name in names for output in outputs.get(name, ()))

    paths = [
        replace(path, columns=tuple(min(outputs[name]) for name in path.columns))
        for path in owner.paths
        if all(outputs.get(name) for name in path.columns)
    ]
    return Owner(owner.rules, unit, shown(owner.always) | {unit}, shown(owner.sometimes), tuple(paths))


def optional(owner: Owner) -> Owner:
    """The owner of rows that an outer join may leave out of the rows of another one."""
    paths = tuple(replace(path, always=False) for path in owner.paths)
    return replace(owner, always=frozenset(), sometimes=owner.names_unit, paths=paths)


def with_columns_of(owner: Owner, other: Owner) -> Owner:
    """The owner of rows joined with rows of the same unit, with what both say of it."""
    return replace(
        owner,
        always=owner.always | other.always,
        sometimes=(owner.sometimes | other.sometimes) - owner.always - other.always,
        paths=tuple(dict.fromkeys((*owner.paths, *other.paths))),
    )


def together(one: TableRules, other: TableRules) -> TableRules:
    """What the policy says about rows of two tables: bounds that suit both, and of levels and limits the stricter."""
    return replace(
        one,
        max_groups=_largest(one.max_groups, other.max_groups),
        max_rows_per_group=_largest(one.max_rows_per_group, other.max_rows_per_group),
        default_rho=_smallest(one.default_rho, other.default_rho),
        default_epsilon=_smallest(one.default_epsilon, other.default_epsilon),
        default_delta=min(one.default_delta, other.default_delta),
        min_units=max(one.min_units, other.min_units),
        rho_window=one.rho_window or other.rho_window,
        rho_ceiling=_smallest(one.rho_ceiling, other.rho_ceiling),
        rho_limit=_smallest(one.rho_limit, other.rho_limit),
    )


def _largest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _smallest(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)


def are_one_unit(left: Owner, right: Owner, equal: Collection[tuple[str, str]]) -> bool:
    """Whether rows that agree on pairs of columns, of the left and of the right, are of one unit.

    The unit's own columns lead to it, and so does a whole key that both sides hold of the same table.
    """
    if left.rules.unit != right.rules.unit:
        return False
    if any(one in left.names_unit and other in right.names_unit for one, other in equal):
        return True
    return any(
        one.space == other.space and all(pair in equal for pair in zip(one.columns, other.columns, strict=True))
        for one in left.paths
        for other in right.paths
    )


def fresh(name: str, taken: Collection[str]) -> str:
    """A column name that is not taken, as DuckDB compares names."""
    folded_names = {folded(other) for other in taken}
    while folded(name) in folded_names:
        name += "_"
    return name
