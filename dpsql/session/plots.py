"""Pictures of the books: budgets, and one question at many levels. A handle draws what it may look up, no more."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dpsql.errors import AccessError, PolicyError, StateError
from dpsql.pictures.charts import Row, draw_budgets, draw_cascade
from dpsql.receipts.result import Result
from dpsql.session.runner import Parameters
from dpsql.session.session import connect

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEWEST_LETTERS = 6


class Handle(Protocol):
    """A session, or a handle of an analyst, here or at a server."""

    def sql(self, text: str, params: Parameters = None) -> Result:
        """Run one statement."""


def plot_budget(books: Handle | str | os.PathLike[str], unit: str | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw the budgets of privacy units, their spent parts, and the part that an asking analyst holds.

    Args:
        books: a session, an analyst's handle, or the path of a state file.
        unit: one privacy unit; by default all.
        ax: where to draw; by default a figure of its own.

    Raises:
        MissingPackageError: matplotlib is not installed (``pip install 'dpsql[plot]'``).
        PolicyError: there is no such unit.
        StateError: there is no such state file.

    """
    text, parameters = ("FROM dp_budget()", {}) if unit is None else ("FROM dp_budget($unit)", {"unit": unit})
    with _opened(books) as handle:
        answer = handle.sql(text, parameters)
    return draw_budgets(answer.arrow().to_pylist(), ax)


def plot_cascade(books: Handle | str | os.PathLike[str], query_hash: str, *, figure: Figure | None = None) -> Figure:
    """Draw the price of each request of one question and, for the curator, noise and threshold of its points.

    An analyst's handle draws the askings that were theirs, and no points.

    Args:
        books: a session, an analyst's handle, or the path of a state file.
        query_hash: of the question, as in its receipt and ``dp_releases()``; its first six letters are enough.
        figure: where to draw; by default a new one.

    Raises:
        MissingPackageError: matplotlib is not installed (``pip install 'dpsql[plot]'``).
        PolicyError: no release that the handle may look up has this hash.
        StateError: there is no such state file.

    """
    if len(query_hash) < _FEWEST_LETTERS:
        raise PolicyError(f"a query hash is named by its first {_FEWEST_LETTERS} letters or more")
    with _opened(books) as handle:
        releases = handle.sql("FROM dp_releases()").arrow().to_pylist()
        found = [one for one in releases if one["query_hash"].startswith(query_hash)]
        if not found:
            raise PolicyError(f"no release has the query hash {query_hash!r}; dp_releases() lists them")
        points = []
        with contextlib.suppress(AccessError):
            points = handle.sql("FROM dp_cascade($hash)", {"hash": query_hash}).arrow().to_pylist()
    stored: dict[str, list[Row]] = {}
    for point in points:
        stored.setdefault(point["statistic"], []).append(point)
    amount = "rho" if found[0]["charged_rho"] is not None else "epsilon"
    prices = [one[f"charged_{amount}"] for one in found]
    title = f"Question {query_hash[:8]}, asked {len(prices)} times"
    return draw_cascade(title, prices, stored, figure, amount=amount)


def _opened(books: Handle | str | os.PathLike[str]) -> contextlib.AbstractContextManager[Handle]:
    if not isinstance(books, str | os.PathLike):
        return contextlib.nullcontext(books)
    if not Path(books).is_file():
        raise StateError(f"there is no state file {books}")
    return connect(":memory:", state=books)
