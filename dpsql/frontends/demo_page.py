"""The tour's pictures as one page of HTML that needs no other file and asks nothing of the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from dpsql.pictures.paper import own_figure, svg_of
from dpsql.session import Result, Session, plot_budget, plot_cascade

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 52rem; margin: 2rem auto;
       padding: 0 1rem }
pre { background: #f4f6f8; padding: .7rem 1rem; overflow-x: auto; font-size: .85rem }
figure { margin: 0 } svg { width: 100%; height: auto }
table { border-collapse: collapse; font-size: .9rem } th, td { padding: .1rem .7rem; text-align: left }
summary { cursor: pointer; color: #0072b2 }
"""
_GROUPS_SHOWN = 25


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: a heading, a paragraph, SQL, a picture as SVG, and a table that is HTML already."""

    title: str
    text: str
    sql: str
    picture: str
    table: str = ""


def sections_of(curator: Session, flights: tuple[str, Result], visits: tuple[str, Result]) -> list[Section]:
    """The parts of the tour that can be seen; what is drawn was released to Ana, or is a fact of the books.

    Args:
        curator: who looks at the books.
        flights: Ana's first question, with its answer.
        visits: her second.

    Raises:
        MissingPackageError: matplotlib is not installed.

    """
    figure = own_figure(8, 7.2)
    flights[1].plot("aircraft", ax=figure.subplots(), rows=_GROUPS_SHOWN)
    many = own_figure(8, 7.2)
    flights[1].plot("flights", ax=many.subplots(), rows=_GROUPS_SHOWN)
    means = own_figure(8, 7.2)
    visits[1].plot("mean", ax=means.subplots(), rows=_GROUPS_SHOWN)
    budget = own_figure(8, 3)
    plot_budget(curator, ax=budget.subplots())
    return [
        Section(
            "Aircraft per destination",
            "Every aircraft counts once in a destination, so little noise is enough. Ana does not know the list of "
            "destinations beforehand: a destination is shown only where its noisy count of aircraft exceeds the "
            "threshold, so that none is named because of a single aircraft.",
            flights[0],
            svg_of(figure),
            flights[1]._repr_html_(),
        ),
        Section(
            "Flights per destination",
            "The same release. One aircraft may add many flights to a destination, so these counts need more noise.",
            "",
            svg_of(many),
        ),
        Section(
            "Average cost per diagnosis",
            "An average is a noisy sum over a noisy count: the fewer patients a diagnosis has, the wider its interval.",
            visits[0],
            svg_of(means),
            visits[1]._repr_html_(),
        ),
        Section(
            "One question at many levels",
            "Asked again at a higher level the question costs the difference; at the same level or a lower one, by "
            "anybody, nothing. Noise and threshold fall as the level rises.",
            "",
            svg_of(_cascade(curator, flights[1])),
        ),
        Section("What is left", "All answers together, of all that may ever be learned.", "", svg_of(budget)),
    ]


def _cascade(curator: Session, answer: Result) -> Figure:
    if answer.receipt is None:
        raise AssertionError("a private answer has a receipt")
    return plot_cascade(curator, answer.receipt.query_hash, figure=own_figure(8, 5.6))


def page_of(sections: Sequence[Section]) -> str:
    """The page."""
    parts = []
    for section in sections:
        code = f"<pre>{escape(section.sql)}</pre>" if section.sql else ""
        table = f"<details><summary>the numbers</summary>{section.table}</details>" if section.table else ""
        picture = f'<figure role="img" aria-label="{escape(section.title)}">{section.picture}</figure>'
        parts.append(
            f"<section><h2>{escape(section.title)}</h2><p>{escape(section.text)}</p>{code}{picture}{table}</section>"
        )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>dpsql: a tour</title>'
        f"<style>{_STYLE}</style></head><body><h1>dpsql: a tour in pictures</h1>"
        "<p>Private answers on the sample data. All that is drawn was released to an analyst, or stands in the books; "
        "the true numbers are nowhere in this page.</p>"
        f"{''.join(parts)}</body></html>\n"
    )
