"""Where pictures are drawn: matplotlib, imported when the first one is asked for, and one look for all."""

from __future__ import annotations

import importlib
import io
import re
import unicodedata
from typing import TYPE_CHECKING, Any

from dpsql.errors import MissingPackageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, EDGE, SHADE = "#222222", "#9aa5b1", "#e4e8ee"
BAR, CHARGED, FREE = "#8fbcdb", "#0072b2", "#d55e00"
_LONGEST_NAME = 40


def matplotlib_module(name: str) -> Any:
    """A module of matplotlib.

    Raises:
        MissingPackageError: matplotlib is not installed.

    """
    try:
        return importlib.import_module(name)
    except ImportError:
        pass
    # outside the handler: what an import complains of is no part of our sentence
    raise MissingPackageError("matplotlib", "plot")


def new_figure(width: float, height: float) -> Figure:
    """A figure of this size in inches, which notebooks show."""
    figure: Figure = matplotlib_module("matplotlib.pyplot").figure(figsize=(width, height), layout="constrained")
    return figure


def own_figure(width: float, height: float) -> Figure:
    """A figure that no window and no notebook knows of, to be written to a file."""
    figure: Figure = matplotlib_module("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")
    return figure


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
    matplotlib = matplotlib_module("matplotlib")
    written = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "dpsql", "svg.fonttype": "path"}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    # comments repeat the texts; the page is the smaller without them
    return re.sub(r"<!--.*?-->\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
