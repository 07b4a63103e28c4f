"""What privacy units may spend, have spent, and what one reader holds of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpsql.pictures.paper import CHARGED, FREE, INK, SHADE, name_of, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class UnitBudget:
    """The books of one privacy unit.

    Attributes:
        unit: its name.
        rho, rho_spent, rho_held: budget, spent by all, held by the reader.
        delta, delta_spent: of thresholds.
        epsilon, epsilon_spent: the same as rho and its delta, for people.
        held_by: who the reader is.

    """

    unit: str
    rho: float
    rho_spent: float
    rho_held: float
    delta: float
    delta_spent: float
    epsilon: float
    epsilon_spent: float
    held_by: str


def draw_budgets(budgets: Sequence[UnitBudget], axes: Axes | None) -> Axes:
    """Two bars a unit, of rho and of the thresholds' delta, each from nothing to the whole budget.

    Raises:
        MissingPackageError: matplotlib is not installed.

    """
    if axes is None:
        axes = new_figure(7.5, 1.6 + 0.9 * max(len(budgets), 1)).subplots()
    names: list[str] = []
    for place, budget in enumerate(budgets):
        rows = (
            ("rho", budget.rho, budget.rho_spent, f"; epsilon {budget.epsilon_spent:.3g} of {budget.epsilon:.3g}"),
            ("delta of thresholds", budget.delta, budget.delta_spent, ""),
        )
        for row, (name, whole, spent, also) in enumerate(rows):
            y = 2.4 * place + row
            names.append(f"{name_of(budget.unit)}: {name}")
            share = spent / whole if whole else 0.0
            axes.barh(y, 1.0, height=0.6, color=SHADE)
            axes.barh(y, share, height=0.6, color=CHARGED)
            text = f"{spent:.3g} of {whole:.3g} spent{also}"
            inside = share > 0.6
            axes.text(
                share - 0.01 if inside else share + 0.01, y, text,
                color="white" if inside else INK, size=8.5, va="center", ha="right" if inside else "left",
            )  # fmt: skip
        if budget.rho and budget.held_by != "everybody":
            held = budget.rho_held / budget.rho
            axes.plot([held, held], [2.4 * place - 0.38, 2.4 * place + 0.38], color=FREE, lw=2)
    holders = [name_of(budget.held_by) for budget in budgets if budget.held_by != "everybody"]
    axes.set_yticks([2.4 * place + row for place in range(len(budgets)) for row in (0, 1)], names, parse_math=False)
    axes.set(xlim=(0, 1), ylim=(2.4 * max(len(budgets), 1) - 0.9, -0.6))
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "all"])
    title = "Privacy budget" + (f"; mark: what {holders[0]} holds" if holders else "")
    axes.set_title(title, loc="left", size=11, color=INK, parse_math=False)
    tidy(axes)
    return axes
