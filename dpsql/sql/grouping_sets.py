"""The grouping sets that ROLLUP, CUBE, GROUPING SETS and their mixtures stand for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from sqlglot import exp

MOST_SETS = 64
"""Largest number of grouping sets of one query; a repeated set counts each time."""

Written = tuple[exp.Expr, ...]


def written_sets(group: exp.Group) -> list[Written] | None:
    """The sets of a GROUP BY in the order of the text: every combination of one set of each of its terms.

    Returns:
        The sets, repeated as SQL repeats them; None where there are more than ``MOST_SETS``.

    """
    combined: list[Written] = [()]
    for term in group.expressions:
        # no more are looked at than show that there are too many
        sets = itertools.islice(_sets_of(term), MOST_SETS + 1)
        joined = ((*left, *right) for left, right in itertools.product(combined, sets))
        combined = list(itertools.islice(joined, MOST_SETS + 1))
        if len(combined) > MOST_SETS:
            return None
    return combined


def _sets_of(term: exp.Expr) -> Iterator[Written]:
    match term:
        case exp.Rollup():
            parts = _parts(term.expressions)
            yield from (tuple(itertools.chain(*parts[:count])) for count in range(len(parts), -1, -1))
        case exp.Cube():
            parts = _parts(term.expressions)
            choices = itertools.product((True, False), repeat=len(parts))
            yield from (tuple(itertools.chain(*itertools.compress(parts, choice))) for choice in choices)
        case exp.GroupingSets():
            yield from itertools.chain.from_iterable(map(_sets_of, term.expressions))
        case _:
            yield from _parts([term])


def _parts(expressions: Sequence[exp.Expr]) -> list[Written]:
    """Each element of a list as the expressions that go together in it."""
    return [tuple(part.expressions) if isinstance(part, exp.Tuple) else (part.unnest(),) for part in expressions]
