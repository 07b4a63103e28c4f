"""The sets of expressions that ROLLUP, CUBE, GROUPING SETS and their mixtures stand for, as SQL has it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from sqlglot import exp

MOST_SETS = 64
"""Most grouping sets of one query, repeated ones included."""

Written = tuple[exp.Expr, ...]


def has_sets(group: exp.Group) -> bool:
    """Whether a GROUP BY names sets of its own."""
    return any(isinstance(part, exp.GroupingSets | exp.Cube | exp.Rollup) for part in group.expressions)


def written_sets(group: exp.Group) -> list[Written] | None:
    """The sets of a GROUP BY in the order of the text: every combination of one set of each of its terms.

    Returns:
        The sets, repeated as SQL repeats them; None where there are more than ``MOST_SETS``.

    """
    combined: list[Written] = [()]
    for term in group.expressions:
        sets = _sets_of(term)
        if sets is None or len(sets) * len(combined) > MOST_SETS:
            return None
        combined = [(*left, *right) for left, right in itertools.product(combined, sets)]
    return combined


def _sets_of(term: exp.Expr) -> list[Written] | None:
    if isinstance(term, exp.Rollup):
        parts = _parts(term.expressions)
        return [_joined(parts[:count]) for count in range(len(parts), -1, -1)]
    if isinstance(term, exp.Cube):
        parts = _parts(term.expressions)
        if 2 ** len(parts) > MOST_SETS:
            return None
        kept = itertools.product((True, False), repeat=len(parts))
        return [_joined(list(itertools.compress(parts, choice))) for choice in kept]
    if isinstance(term, exp.GroupingSets):
        found: list[Written] = []
        for part in term.expressions:
            sets = _sets_of(part)
            if sets is None:
                return None
            found += sets
        return found
    return _parts([term])


def _parts(expressions: Sequence[exp.Expr]) -> list[Written]:
    """Each element of a list as the expressions that go together in it."""
    return [tuple(part.expressions) if isinstance(part, exp.Tuple) else (part.unnest(),) for part in expressions]


def _joined(parts: Sequence[Written]) -> Written:
    return tuple(itertools.chain.from_iterable(parts))
