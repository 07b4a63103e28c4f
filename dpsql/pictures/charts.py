"""Charts of what was released or stands in the books: groups as bars, budgets, and one question at many levels.

matplotlib is imported when the first picture is asked for, and all share one look.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from dpsql.errors import MissingPackageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Row = Mapping[str, Any]

INK, EDGE, SHADE = "#222222", "#9aa5b1", "#e4e8ee"
BAR, CHARGED, FREE = "#8fbcdb", "#0072b2", "#d55e00"
LIGHT_BAR = "#d6e6f2"
"""Colour of an estimate behind a number that is too low."""
_COLOURS = (INK, "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_LONGEST_NAME = 40
_MOST_NAMES = 40
_MOST_NUMBERED = 24
_LINE_SIZE = 7.0
"""Size of the letters of the lines above a picture, in points; their columns stand below each other, as in a shell."""
_LINE_HEIGHT, _LINE_WIDTH, _NAME_WIDTH = 9.5, 4.3, 5.6
"""Points that a line takes, a letter of it, and a letter of a name beside a bar."""
_POINTS_PER_INCH = 72.0


@dataclass(frozen=True, slots=True)
class Bars:
    """What is drawn; all of it was released.

    Attributes:
        title, value_name: of the picture, and of the number.
        names: one a group, as the reader knows them.
        values: NaN where a group has none.
        low, high: ends of the 95 % intervals, NaN where a number has none.
        threshold: what a group must exceed to be shown, in the units of the values; None where nothing.
        is_along: whether the groups lie along an axis, as days do.
        lines: what is said above the picture, as a shell shows it.
        whole: estimates of the whole numbers, which light bars show; None if the values are not too low.

    """

    title: str
    value_name: str
    names: Sequence[object]
    values: Floats
    low: Floats
    high: Floats
    threshold: float | None
    is_along: bool
    lines: Sequence[str] = ()
    whole: Floats | None = None


def draw_bars(bars: Bars, axes: Axes | None) -> Axes:
    """Draw into the axes, or into a figure of its own; groups stand in the order in which they are given.

    Raises:
        MissingPackageError: matplotlib is not installed.

    """
    count = len(bars.names)
    names = [name_of(name) for name in bars.names]
    if axes is None:
        axes = new_figure(*_size(bars, names)).subplots()
    places = np.arange(count)
    known = np.isfinite(bars.values)
    given = known & np.isfinite(bars.low) & np.isfinite(bars.high)
    draw_values, draw_intervals, draw_zero, set_label, axis = (
        (axes.bar, axes.vlines, axes.axhline, axes.set_ylabel, axes.yaxis)
        if bars.is_along
        else (axes.barh, axes.hlines, axes.axvline, axes.set_xlabel, axes.xaxis)
    )
    thickness = 0.8 if bars.is_along else 0.7
    if bars.whole is not None:
        draw_values(places[known], bars.whole[known], thickness, color=LIGHT_BAR)
    draw_values(places[known], bars.values[known], thickness, color=BAR)
    draw_intervals(places[given], bars.low[given], bars.high[given], color=INK, lw=1.3)
    draw_zero(0, color=EDGE, lw=0.8)
    set_label(bars.value_name, color=INK, parse_math=False)
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    if bars.is_along:
        _name_along(axes, places, names)
    else:
        axes.set_yticks(places, names, parse_math=False)
        axes.set_ylim(max(count, 1) - 0.4, -0.6)
    if bars.threshold is not None:
        _draw_threshold(axes, bars.threshold, along=bars.is_along)
    pad = 8 + _LINE_HEIGHT * len(bars.lines)
    axes.set_title(bars.title, loc="left", size=11, color=INK, pad=pad, parse_math=False)
    axes.annotate(
        "\n".join(bars.lines),
        (0, 1),
        (0, 5),
        "axes fraction",
        "offset points",
        size=_LINE_SIZE,
        family="monospace",
        color=INK,
        va="bottom",
        parse_math=False,
    )
    tidy(axes)
    return axes


def _size(bars: Bars, names: Sequence[str]) -> tuple[float, float]:
    """Return width and height in inches of a figure with room for the bars, their names and the lines above them."""
    above = _LINE_HEIGHT * len(bars.lines) / _POINTS_PER_INCH
    longest = max(map(len, bars.lines), default=0)
    beside = 0.9 if bars.is_along else 0.4 + _NAME_WIDTH * max(map(len, names), default=0) / _POINTS_PER_INCH
    wide = beside + _LINE_WIDTH * longest / _POINTS_PER_INCH
    if bars.is_along:
        return max(8.0, wide), 3.6 + above
    return max(7.0, wide), 1.2 + above + 0.26 * max(len(names), 2)


def _name_along(axes: Axes, places: npt.NDArray[np.intp], names: Sequence[str]) -> None:
    step = max(1, -(-len(names) // _MOST_NAMES))
    are_long = any(len(name) > 4 for name in names[::step])
    turned: dict[str, Any] = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if are_long else {}
    axes.set_xticks(places[::step], names[::step], parse_math=False, **turned)


def _draw_threshold(axes: Axes, threshold: float, *, along: bool) -> None:
    """The line, and the region in which no group is shown."""
    low, high = axes.get_ylim() if along else axes.get_xlim()
    ends = (min(low, 0.0), max(high, 1.1 * threshold))
    span, line, limits = (
        (axes.axhspan, axes.axhline, axes.set_ylim) if along else (axes.axvspan, axes.axvline, axes.set_xlim)
    )
    span(ends[0], threshold, color=SHADE, zorder=0, lw=0)
    line(threshold, color=FREE, lw=1.2, ls="--")
    limits(*ends)


def draw_budgets(budgets: Sequence[Row], axes: Axes | None) -> Axes:
    """Two bars a unit, of rho and of the thresholds' delta, each from nothing to the whole budget.

    Args:
        budgets: rows of ``dp_budget``, one a unit.
        axes: where to draw; by default a new figure.

    Raises:
        MissingPackageError: matplotlib is not installed.

    """
    if axes is None:
        axes = new_figure(7.5, 1.6 + 0.9 * max(len(budgets), 1)).subplots()
    names: list[str] = []
    for place, budget in enumerate(budgets):
        epsilon = f"; epsilon {budget['epsilon_spent']:.3g} of {budget['epsilon_budget']:.3g}"
        rows = (
            ("rho", budget["rho_budget"], budget["rho_spent"], epsilon)
            if budget["rho_budget"] is not None
            else ("epsilon", budget["epsilon_budget"], budget["epsilon_spent"], ""),
            ("delta of thresholds", budget["threshold_delta_budget"], budget["threshold_delta_spent"], ""),
        )
        for row, (name, whole, spent, also) in enumerate(rows):
            y = 2.4 * place + row
            names.append(f"{name_of(budget['unit'])}: {name}")
            share = spent / whole if whole else 0.0
            axes.barh(y, 1.0, height=0.6, color=SHADE)
            axes.barh(y, share, height=0.6, color=CHARGED)
            inside = share > 0.6
            axes.text(
                share - 0.01 if inside else share + 0.01,
                y,
                f"{spent:.3g} of {whole:.3g} spent{also}",
                color="white" if inside else INK,
                size=8.5,
                va="center",
                ha="right" if inside else "left",
            )
        _, whole, *_ = rows[0]
        if whole and budget["held_by"] != "everybody":
            held = budget[f"{rows[0][0]}_held"] / whole
            axes.plot([held, held], [2.4 * place - 0.38, 2.4 * place + 0.38], color=FREE, lw=2)
    holders = [name_of(budget["held_by"]) for budget in budgets if budget["held_by"] != "everybody"]
    axes.set_yticks([2.4 * place + row for place in range(len(budgets)) for row in (0, 1)], names, parse_math=False)
    axes.set(xlim=(0, 1), ylim=(2.4 * max(len(budgets), 1) - 0.9, -0.6))
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "all"])
    title = "Privacy budget" + (f"; mark: what {holders[0]} holds" if holders else "")
    axes.set_title(title, loc="left", size=11, color=INK, parse_math=False)
    tidy(axes)
    return axes


def draw_cascade(
    title: str,
    prices: Sequence[float],
    stored: Mapping[str, Sequence[Row]],
    figure: Figure | None,
    *,
    amount: str = "rho",
) -> Figure:
    """Draw the prices of the askings in their order; above them, where the reader may see any, the stored points.

    Args:
        title: of the picture.
        prices: what each asking cost.
        stored: points by statistic, as rows of ``dp_cascade``: level rho or epsilon, standard deviation sigma of
            the noise, and threshold tau, if it has one.
        figure: where to draw; by default a new one.
        amount: what levels and prices are amounts of: rho or epsilon.

    Raises:
        MissingPackageError: matplotlib is not installed.

    """
    figure = figure or new_figure(7.5, 5.6 if stored else 2.4)
    if stored:
        above, below = figure.subplots(2, 1, height_ratios=[1, 0.5])
        _draw_points(above, stored, amount)
        above.set_title(title, loc="left", size=11, color=INK)
    else:
        below = figure.subplots()
        figure.suptitle(title, x=0.01, ha="left", size=11, color=INK)
    _draw_prices(below, prices, amount)
    return figure


def _draw_points(axes: Axes, stored: Mapping[str, Sequence[Row]], amount: str) -> None:
    for place, (statistic, points) in enumerate(stored.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        ordered = sorted(points, key=lambda point: point[amount])
        axes.plot(
            [point[amount] for point in ordered],
            [point["sigma"] for point in ordered],
            "o-",
            color=colour,
            ms=5,
            lw=1,
            label=f"noise of {statistic[:8]} (standard deviation)",
        )
        cut = [(point[amount], point["tau"]) for point in ordered if point["tau"] is not None]
        if cut:
            axes.plot(
                *zip(*cut, strict=True), "s--", color=FREE, ms=5, lw=1, label=f"threshold (tau) of {statistic[:8]}"
            )
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        axis.set_minor_formatter(lambda *_: "")
    axes.set_xlabel(f"level {amount} of the statistic: less noise →", color=INK, size=9)
    axes.grid(color=EDGE, alpha=0.3, lw=0.6)
    axes.legend(frameon=False, fontsize=8.5)
    tidy(axes)


def _draw_prices(axes: Axes, prices: Sequence[float], amount: str) -> None:
    """A bar of what was spent, to which each asking adds its price; a free one is a ring above what was spent."""
    spent, free_there = 0.0, 0
    whole = sum(prices)
    for number, price in enumerate(prices, start=1):
        if price > 0:
            middle = spent + price / 2
            axes.barh(0, price, left=spent, height=0.5, color=CHARGED, alpha=0.3, edgecolor="white", lw=2)
            _mark(axes, middle, 0, number, charged=True)
            axes.annotate(
                f"{price:.3g}",
                (middle, -0.25),
                (0, -4),
                textcoords="offset points",
                ha="center",
                va="top",
                size=8.5,
                color=INK,
            )
            spent, free_there = spent + price, 0
        elif number <= _MOST_NUMBERED:
            _mark(axes, spent, 0.6 + 0.45 * free_there, number, charged=False)
            free_there += 1
    axes.set(xlim=(0, whole or 1.0), ylim=(-0.7, max(1.2, axes.get_ylim()[1])))
    axes.set_yticks([])
    axes.set_title(
        f"What each asking cost in {amount}: {whole:.6g} in all; rings: {prices.count(0)} for nothing",
        loc="left",
        size=10,
        color=INK,
    )
    tidy(axes)
    axes.spines["left"].set_visible(False)


def _mark(axes: Axes, x: float, y: float, number: int, *, charged: bool) -> None:
    colour = CHARGED if charged else FREE
    axes.plot([x], [y], "o", clip_on=False, zorder=4, mfc=colour if charged else "white", mec=colour, mew=1.4, ms=11)
    axes.text(
        x,
        y,
        str(number),
        ha="center",
        va="center_baseline",
        size=7.5,
        weight="bold",
        zorder=5,
        color="white" if charged else colour,
    )


def matplotlib_module(name: str) -> Any:
    """A module of matplotlib.

    Raises:
        MissingPackageError: matplotlib is not installed.

    """
    with contextlib.suppress(ImportError):
        return importlib.import_module(name)
    # outside the handler: what an import complains of is no part of our sentence
    raise MissingPackageError("matplotlib", "plot")


def new_figure(width: float, height: float) -> Figure:
    """A figure of this size in inches, which notebooks show."""
    return cast("Figure", matplotlib_module("matplotlib.pyplot").figure(figsize=(width, height), layout="constrained"))


def own_figure(width: float, height: float) -> Figure:
    """A figure that no window and no notebook knows of, to be written to a file."""
    return cast("Figure", matplotlib_module("matplotlib.figure").Figure(figsize=(width, height), layout="constrained"))


def tidy(axes: Axes) -> None:
    """The look that all pictures share."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(EDGE)
    axes.tick_params(color=EDGE, labelcolor=INK, labelsize=9)


def name_of(value: object) -> str:
    """A key as a picture names it: one line, not too long, and no letter that turns or hides others."""
    if isinstance(value, bytes):
        value = "".join(f"\\x{byte:02X}" for byte in value)
    text = "NULL" if value is None else str(value)
    text = "".join(" " if unicodedata.category(letter)[0] in "CZ" else letter for letter in text)
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def svg_of(figure: Figure) -> str:
    """The picture as an <svg> element that stands inside a page; letters are outlines, so it needs no font."""
    written = io.StringIO()
    with matplotlib_module("matplotlib").rc_context({"svg.hashsalt": "dpsql", "svg.fonttype": "path"}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    # comments repeat the texts; the page is the smaller without them
    return re.sub(r"<!--.*?-->\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
