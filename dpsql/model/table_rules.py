"""The rules that a policy declares for one protected table, as one reader meets them."""

from __future__ import annotations

from dataclasses import dataclass

from dpsql.model.rows import LinkStep
from dpsql.operations.dialect import text_literal


@dataclass(frozen=True, slots=True)
class LevelRules:
    """Rules of the policy about the levels of a table's releases, as one reader may see them.

    Attributes:
        default_rho, default_epsilon, default_delta: how private an answer is where a query does not say.
        window: lowest and highest rho whose thresholds are paid together; None without.
        ceiling: rho at which statistics are drawn once; None where they are drawn at the level asked for.
        limit: most rho that the reader may be shown; None for any.
        coverage: whether a part of rho measures what bounds leave where a query does not say.

    """

    default_rho: float | None
    default_epsilon: float | None
    default_delta: float
    window: tuple[float, float] | None
    ceiling: float | None
    limit: float | None
    coverage: bool = False


@dataclass(frozen=True, slots=True)
class TableRules:
    """Rules of the policy for one protected table and one reader of it, in the units that a planner needs.

    Attributes:
        unit: name of the privacy unit.
        privacy_unit_column: the column that names the unit's members.
        max_groups, max_rows_per_group, max_rows_norm, max_rows_per_unit: bounds of one member; None if unnamed.
        min_units: private keys of fewer units are never shown.
        version: of the table.
        levels: of its releases.
        has_thresholds: whether the unit's budget keeps delta for thresholds, which private keys need.
        composition: how the releases of the unit add up: 'gaussian', 'zcdp' or 'pure'.
        links: tables that lead to the unit, of a linked table.
        time_zone: of its timestamps without a zone; None if the policy names none.

    """

    unit: str
    privacy_unit_column: str
    max_groups: int | None
    max_rows_per_group: int | None
    max_rows_norm: float | None
    max_rows_per_unit: int | None
    min_units: int
    version: str
    levels: LevelRules
    has_thresholds: bool
    composition: str
    links: tuple[LinkStep, ...] = ()
    time_zone: str | None = None

    @property
    def counts_epsilon(self) -> bool:
        """Return whether the unit's levels are epsilons; else they are rhos."""
        return self.composition == "pure"

    def declaration(self, table: str, setting: str) -> str:
        """Return the statement that declares one more setting of a table, ready to be pasted.

        Args:
            table: its canonical name.
            setting: name and value, as in ``max_rows_per_group := 10``.

        """
        if not self.links:
            return f"CALL dp_protect({text_literal(table)}, {setting})"
        names = [text_literal(name) for name in self.links[0].columns]
        columns = names[0] if len(names) == 1 else f"[{', '.join(names)}]"
        return f"CALL dp_link({text_literal(table)}, {columns}, {setting})"
