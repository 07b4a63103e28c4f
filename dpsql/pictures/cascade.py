"""One question at many levels: what each asking cost, and how noise and threshold fall as the level rises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpsql.pictures.paper import CHARGED, EDGE, FREE, INK, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = (INK, "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MOST_NUMBERED = 24


@dataclass(frozen=True, slots=True)
class StoredPoint:
    """A point of a statistic: its level, the standard deviation of its noise, and its threshold if it has one."""

    rho: float
    sigma: float
    tau: float | None


@dataclass(frozen=True, slots=True)
class Asked:
    """One asking: the level of the answer and what it cost, in rho."""

    rho: float
    charged_rho: float


def draw_cascade(
    title: str, asked: Sequence[Asked], stored: Mapping[str, Sequence[StoredPoint]], figure: Figure | None
) -> Figure:
    """Prices of the askings in their order; above them, where the reader may see them, the points that are stored.

    Raises:
        MissingPackageError: matplotlib is not installed.

    """
    figure = figure or new_figure(7.5, 5.6 if stored else 2.4)
    if stored:
        above, below = figure.subplots(2, 1, height_ratios=[1, 0.5])
        _draw_points(above, stored)
        above.set_title(title, loc="left", size=11, color=INK)
        _draw_prices(below, asked)
    else:
        below = figure.subplots()
        _draw_prices(below, asked)
        figure.suptitle(title, x=0.01, ha="left", size=11, color=INK)
    return figure


def _draw_points(axes: Axes, stored: Mapping[str, Sequence[StoredPoint]]) -> None:
    for place, (statistic, points) in enumerate(stored.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        ordered = sorted(points, key=lambda point: point.rho)
        axes.plot(
            [point.rho for point in ordered], [point.sigma for point in ordered], "o-",
            color=colour, ms=5, lw=1, label=f"noise of {statistic[:8]} (standard deviation)",
        )  # fmt: skip
        cut = [(point.rho, point.tau) for point in ordered if point.tau is not None]
        if cut:
            axes.plot(
                *zip(*cut, strict=True), "s--", color=FREE, ms=5, lw=1, label=f"threshold (tau) of {statistic[:8]}"
            )
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        axis.set_minor_formatter(lambda *_: "")
    axes.set_xlabel("level rho of the statistic: less noise →", color=INK, size=9)
    axes.grid(color=EDGE, alpha=0.3, lw=0.6)
    axes.legend(frameon=False, fontsize=8.5)
    tidy(axes)


def _draw_prices(axes: Axes, asked: Sequence[Asked]) -> None:
    """A bar of what was spent, to which each asking adds its price; a free one is a ring above what was spent."""
    spent, free_there = 0.0, 0
    whole = sum(one.charged_rho for one in asked)
    for number, one in enumerate(asked, start=1):
        if one.charged_rho > 0:
            axes.barh(0, one.charged_rho, left=spent, height=0.5, color=CHARGED, alpha=0.3, edgecolor="white", lw=2)
            _mark(axes, spent + one.charged_rho / 2, 0, number, charged=True)
            axes.annotate(
                f"{one.charged_rho:.3g}", (spent + one.charged_rho / 2, -0.25), (0, -4), textcoords="offset points",
                ha="center", va="top", size=8.5, color=INK,
            )  # fmt: skip
            spent, free_there = spent + one.charged_rho, 0
        elif number <= _MOST_NUMBERED:
            _mark(axes, spent, 0.6 + 0.45 * free_there, number, charged=False)
            free_there += 1
    axes.set(xlim=(0, whole or 1.0), ylim=(-0.7, max(1.2, axes.get_ylim()[1])))
    axes.set_yticks([])
    free = sum(one.charged_rho == 0 for one in asked)
    axes.set_title(
        f"What each asking cost in rho: {whole:.6g} in all; rings: {free} for nothing",
        loc="left", size=10, color=INK,
    )  # fmt: skip
    tidy(axes)
    axes.spines["left"].set_visible(False)


def _mark(axes: Axes, x: float, y: float, number: int, *, charged: bool) -> None:
    colour: str = CHARGED if charged else FREE
    look: dict[str, Any] = {"mfc": colour if charged else "white", "mec": colour, "mew": 1.4, "ms": 11}
    axes.plot([x], [y], "o", clip_on=False, zorder=4, **look)
    axes.text(
        x, y, str(number), ha="center", va="center_baseline", size=7.5, weight="bold", zorder=5,
        color="white" if charged else colour,
    )  # fmt: skip
