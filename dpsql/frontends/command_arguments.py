"""Arguments that commands of the command line share, and those of the server."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpsql.frontends.server.settings import Settings
from dpsql.frontends.text_formats import TEXT_FORMATS


def argument(*names: str, **settings: Any) -> Callable[[argparse.ArgumentParser], object]:
    """Return a function that adds an argument to a parser."""
    return lambda parser: parser.add_argument(*names, **settings)


def _half_widths(text: str) -> float | dict[str, float]:
    """Return the half width of a text, or half widths by column.

    >>> _half_widths("50"), _half_widths("visits=50,cost=5e3")
    (50.0, {'visits': 50.0, 'cost': 5000.0})

    Raises:
        ValueError: a half width is no number, or a column stands twice.

    """
    if "=" not in text:
        return float(text)
    named = [one.rpartition("=") for one in text.split(",")]
    widths = {name: float(width) for name, _, width in named}
    if len(widths) < len(named):
        raise ValueError(text)
    return widths


def add_privacy(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say how private or how exact an answer shall be."""
    level = parser.add_mutually_exclusive_group()
    level.add_argument("--rho", type=float, metavar="R", help="zCDP level of the query")
    level.add_argument("--epsilon", type=float, metavar="E", help="the same as epsilon, together with delta")
    level.add_argument(
        "--target-half-width",
        type=_half_widths,
        metavar="W",
        help="half width of counts and sums in place of a level: 50, or by column visits=50,cost=5000",
    )
    level.add_argument(
        "--target-relative-error",
        type=float,
        metavar="A",
        help="relative error of counts, sums and averages in place of a level: 0.1; needs --max-rho or --max-epsilon",
    )
    parser.add_argument("--delta", type=float, metavar="D", help="delta of the query")
    parser.add_argument("--at-least", type=float, metavar="S", help="share of the groups within the relative error")
    parser.add_argument(
        "--method",
        metavar="M",
        help="CORRELATED: as many of the largest counts within the relative error as the level buys",
    )
    parser.add_argument("--confidence", type=float, metavar="C", help="confidence of a target: 0.9, 0.95 or 0.99")
    parser.add_argument("--max-rho", type=float, metavar="R", help="the highest rho that a target may take")
    parser.add_argument("--max-epsilon", type=float, metavar="E", help="the highest epsilon that a target may take")


DATABASE = (
    argument("database", type=Path, metavar="DB", help="a DuckDB file or a folder of parts; it is opened read-only"),
    argument(
        "--state", type=Path, metavar="FILE", help="state file with policy, ledger and releases (default: DB.dpsql)"
    ),
)
READER = (argument("--analyst", metavar="NAME", help="ask in this analyst's name (a name in the books, not a lock)"),)
OUTPUT = (
    argument(
        "--format",
        choices=("box", *TEXT_FORMATS, "parquet"),
        default="box",
        help="json: one document, also of a refusal; jsonl: its rows, one a line; markdown: a table with intervals",
    ),
    argument("--output", type=Path, metavar="FILE", help="write there instead of to the screen"),
)
_SETTINGS = Settings()
SERVE = (
    argument("--listen", required=True, metavar="HOST:PORT", help="where analysts connect; port 0: any free"),
    argument("--analysts", required=True, type=Path, metavar="FILE", help="tokens, made by dpsql token"),
    argument("--certificate", type=Path, metavar="PEM", help="TLS certificate chain"),
    argument("--key", type=Path, metavar="PEM", help="its private key"),
    argument("--plain-http", action="store_true", help="no TLS, though other machines can connect"),
    argument("--curator-listen", metavar="HOST:PORT", help="where the curator sees metrics and all releases"),
    argument("--curator-tokens", type=Path, metavar="FILE", help="tokens of the name curator"),
    argument("--ask-by-get", action="store_true", help="let GET /v1/result.parquet?sql=… ask, and charge"),
    argument(
        "--workers",
        type=int,
        default=_SETTINGS.workers,
        metavar="N",
        help="questions worked on at a time (default %(default)s)",
    ),
    argument(
        "--at-once",
        type=int,
        default=_SETTINGS.at_once,
        metavar="N",
        help="the same of one analyst; more than 1 lets them time one question by another (default %(default)s)",
    ),
    argument(
        "--waiting",
        type=int,
        default=_SETTINGS.waiting,
        metavar="N",
        help="questions of one analyst that may wait (default %(default)s)",
    ),
    argument(
        "--timeout",
        type=float,
        default=_SETTINGS.timeout_seconds,
        metavar="SECONDS",
        help="most time until an answer (default %(default)s)",
    ),
    argument(
        "--first-answer",
        type=float,
        default=_SETTINGS.first_answer_seconds,
        metavar="SECONDS",
        help="answers are shown after this time, or 2, 4, 8 … times it; 0: at once (default %(default)s)",
    ),
)
