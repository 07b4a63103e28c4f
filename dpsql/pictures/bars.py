"""Released numbers of groups as bars, each with its 95 % interval, and where groups are too small to be shown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpsql.pictures.paper import BAR, EDGE, FREE, INK, SHADE, name_of, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]
_MOST_NAMES = 40


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
        remark: a sentence under the picture.

    """

    title: str
    value_name: str
    names: Sequence[object]
    values: Floats
    low: Floats
    high: Floats
    threshold: float | None
    is_along: bool
    remark: str = ""


def draw_bars(bars: Bars, axes: Axes | None) -> Axes:
    """Draw into the axes, or into a figure of its own; groups stand in the order in which they are given.

    Raises:
        MissingPackageError: matplotlib is not installed.

    """
    count = len(bars.names)
    if axes is None:
        size = (8.0, 4.2) if bars.is_along else (7.0, 1.7 + 0.26 * max(count, 2))
        axes = new_figure(*size).subplots()
    places = np.arange(count)
    known = np.isfinite(bars.values)
    given = known & np.isfinite(bars.low) & np.isfinite(bars.high)
    names = [name_of(name) for name in bars.names]
    if bars.is_along:
        axes.bar(places[known], bars.values[known], width=0.8, color=BAR)
        axes.vlines(places[given], bars.low[given], bars.high[given], color=INK, lw=1.3)
        axes.axhline(0, color=EDGE, lw=0.8)
        _name_along(axes, places, names)
        axes.set_ylabel(bars.value_name, color=INK, parse_math=False)
    else:
        axes.barh(places[known], bars.values[known], height=0.7, color=BAR)
        axes.hlines(places[given], bars.low[given], bars.high[given], color=INK, lw=1.3)
        axes.axvline(0, color=EDGE, lw=0.8)
        axes.set_yticks(places, names, parse_math=False)
        axes.set_ylim(max(count, 1) - 0.4, -0.6)
        axes.set_xlabel(bars.value_name, color=INK, parse_math=False)
    if bars.threshold is not None:
        _draw_threshold(axes, bars.threshold, along=bars.is_along)
    (axes.yaxis if bars.is_along else axes.xaxis).set_major_formatter(lambda value, _: f"{value:,.10g}")
    caption = _caption(bars, any_interval=bool(given.any()))
    axes.set_title(bars.title, loc="left", size=11, color=INK, pad=8 + 12 * len(caption), parse_math=False)
    axes.annotate(
        "\n".join(caption), (0, 1), (0, 5), "axes fraction", "offset points",
        size=8.5, color=INK, va="bottom", parse_math=False,
    )  # fmt: skip
    tidy(axes)
    return axes


def _name_along(axes: Axes, places: npt.NDArray[np.intp], names: Sequence[str]) -> None:
    step = max(1, -(-len(names) // _MOST_NAMES))
    axes.set_xticks(places[::step], names[::step], parse_math=False)
    if any(len(name) > 4 for name in names[::step]):
        for label in axes.get_xticklabels():
            label.set(rotation=60, ha="right", rotation_mode="anchor")


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


def _caption(bars: Bars, *, any_interval: bool) -> list[str]:
    """What the picture shows, in lines of at most 90 letters."""
    sentences = ["Lines are 95 % intervals of the noise."] if any_interval else []
    if bars.threshold is not None:
        sentences.append(f"Shaded: below {bars.threshold:,.6g} a group is not shown.")
    text = " ".join([*sentences, bars.remark]).strip()
    return textwrap.wrap(text, 90)
