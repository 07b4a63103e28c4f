"""The warning that a column of an answer has no number at all, with the reason that the receipt gives."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from dpsql.session import Receipt

_PACKAGE = __name__.partition(".")[0]


def warn_of_empty(columns: Sequence[str], receipt: Receipt | None, *, value: str) -> None:
    """Warn once that columns have no number in any group; do nothing if there is no such column.

    Args:
        columns: their names.
        receipt: of the answer.
        value: what stands in place of a number, ``NaN`` or ``null``.

    """
    if not columns:
        return
    reasons: dict[str, list[str]] = {}
    for name in columns:
        reasons.setdefault(_reason(name, receipt), []).append(name)
    sentences = [f"{', '.join(names)}: {value} in every group, {reason}" for reason, names in reasons.items()]
    warnings.warn("\n".join(sentences), UserWarning, stacklevel=_level_of_caller())


def _reason(column: str, receipt: Receipt | None) -> str:
    """Return the reason that the receipt gives for a column, or what else makes a number unknown."""
    for note in receipt.missing if receipt else ():
        names, is_null, why = note.partition(" is NULL, ")
        if is_null and column in names.split(", "):
            return why
    return "because the noise hides what it is computed from; ask with more epsilon or rho"


def _level_of_caller() -> int:
    """Return the level of the first frame outside dpsql, as `warnings.warn` counts it from its own caller."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        level, frame = level + 1, frame.f_back
    return level
