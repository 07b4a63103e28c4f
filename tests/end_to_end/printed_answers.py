"""Printed answers, and the limits of the lines below their tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import dpsql
from dpsql.receipts import printed_table
from dpsql.receipts.screen import MOST_CHARACTERS, MOST_LINES

_HEADS = (
    "nothing",
    "too",
    "whole",
    "missed",
    "within",
    "null",
    "error",
    "extreme",
    "bounds",
    "price",
    "groups",
    "notes",
)
"""Words that lines below an answer begin with, in their order."""


def require_short_lines(answer: dpsql.Result) -> None:
    """Require that an answer is printed with few and short lines; its table is not drawn, which takes long."""
    box = "\n".join(["┌┐", "││", f"│{'│'.join(answer.columns)}│", "└┘\n"])
    with mock.patch.object(printed_table, "_box", return_value=box):
        require_short(str(answer))


def lines_below(printed: str) -> list[str]:
    """Return the lines below the table of a printed answer."""
    return [
        line for line in printed.rpartition("┘\n")[2].splitlines() if line.strip() and not re.match(r" +\d+ rows", line)
    ]


def require_short(printed: str) -> None:
    """Require what a printed answer has below its table: at most four lines of at most 100 characters."""
    lines = lines_below(printed)
    assert 1 <= len(lines) <= MOST_LINES, printed
    assert all(len(line) <= MOST_CHARACTERS for line in lines), printed
    heads = [line.split(maxsplit=1)[0] for line in lines if not line.startswith(" ")]
    assert heads == sorted(heads, key=_HEADS.index), printed
    # rows left out, and coverage of other columns, have a line each
    assert all(heads.count(head) == 1 or head == "bounds" for head in heads), printed
    assert "price" in heads, printed
    assert "…" not in "".join(lines).replace("low … high", ""), f"a line is cut: {printed}"


@contextmanager
def short_answers() -> Iterator[None]:
    """Require of each answer that is printed from here on that it is short."""
    printed = dpsql.Result.printed

    def required(answer: dpsql.Result, **settings: bool | str) -> str:
        text = printed(answer, **settings)  # type: ignore[arg-type]
        if answer.receipt is not None:
            require_short(text)
        return text

    with mock.patch.object(dpsql.Result, "printed", required):
        yield
