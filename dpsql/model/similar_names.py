"""Suggestions for a name that is not known: the names that look most like it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from sqlglot import exp

from dpsql.model.environment import folded
from dpsql.operations.dialect import unquoted

_MOST_LETTERS = 64
"""Longer names are not compared: the comparison takes time that grows with the square of their length."""
_MOST_SHOWN = 2
_LEAST_ALIKE = 0.7


def as_written(name: str) -> str:
    """Return a column's name as it is written in a query: in quotes if it needs them."""
    return unquoted(exp.to_identifier(name))


def did_you_mean(name: str, known: Iterable[str], form: str = "{}", least: float = _LEAST_ALIKE) -> str:
    """Return the question whether a similar name was meant, or an empty text if no known name is similar.

    Args:
        name: as written.
        known: the names that may be told to whoever asks, as they are written in a query.
        form: how a name is written in the query; ``{}`` stands for it.
        least: how much two names are alike at least, from 0 to 1.

    >>> did_you_mean("vists", ["visits", "bills"])
    'Did you mean visits?'
    >>> did_you_mean("epsilo", ["rho"])
    ''

    """
    if len(name) > _MOST_LETTERS:
        return ""
    by_folded = {folded(one.replace('"', "")): one for one in known}
    found = difflib.get_close_matches(folded(name), by_folded, _MOST_SHOWN, least)
    shown = " or ".join(form.format(by_folded[one]) for one in found)
    return f"Did you mean {shown}?" if shown else ""
