"""Reasons why a query has no private answer, and the table of what it cannot have together.

All reasons are collected (`Refusals`), so that they are reported at once. In the table, a thing is an option that is
given, by its name; an option with its word, as in ``mechanism = CSH``; or what is known of the query, of its keys,
aggregates or mechanism (`Known`). Whoever reads a part of a query calls `refuse_combinations` with the things that are
known by then. The pages show the table: ``python -m tests.documents.reference``.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NoReturn

from sqlglot import exp

from dpsql.errors import Refusal, UnsupportedQueryError
from dpsql.model.combinations import COMBINATIONS, Known
from dpsql.operations.dialect import span_of

CODES: dict[str, str] = {
    "after": "around private queries, something that is not computed from their answers and public tables",
    "aggregate": "an aggregate function without a private form",
    "aggregate_argument": "an argument that an aggregate does not take",
    "bounds_missing": "an aggregate whose contribution per unit is not bounded",
    "bounds_invalid": "bounds that are not two finite numbers in order",
    "buckets": "buckets that the query cannot be added up from",
    "clause": "a clause that has no private form",
    "group_by_form": "a form of GROUP BY that has no private form",
    "interval_argument": "dp_interval_low, dp_unbounded or dp_within_target of what is not the alias of one aggregate",
    "key_type": "a group key whose type cannot be released",
    "limit_form": "a LIMIT or OFFSET that is not a whole number",
    "literal": "a literal that cannot be cast to the type of what it is compared or computed with",
    "max_groups_missing": "neither policy nor query says how many groups one unit may touch",
    "mechanism": "a mechanism that cannot answer this query, or that lacks what it needs",
    "nested_aggregate": "an aggregate inside an aggregate",
    "no_aggregate": "a query that releases rows and no aggregate",
    "not_grouped": "a column that is neither grouped nor aggregated",
    "order_by_form": "an ORDER BY term that is no expression over the result's columns",
    "option": "an option that is unknown, doubled or out of range",
    "privacy_level_missing": "neither policy nor query says how private the answer shall be",
    "public_keys_missing": "keys without a public list, where PUBLIC_GROUPS or a unit without thresholds needs one",
    "row_function": "a function that is not on the allow-list of row expressions",
    "row_type": "a type that row expressions cannot be computed with",
    "row_syntax": "syntax that is not allowed inside a row expression",
    "source": "a source, or a join of sources, whose rows are not each one unit's",
    "running_total": "a window over aggregates that is no running total along public keys",
    "single_units": "private groups of one unit each, of which hardly any could ever be shown",
    "size": "more values, parts or statistics than a query may have",
    "star": "a star in the select list",
    "window": "a window over rows, or one over the noisy result that has no form",
    "value_type": "an aggregate over a type that it does not take",
}


@dataclass
class Refusals:
    """A list that grows while a query is read; ``raise_if_any`` ends it."""

    text: str
    found: list[Refusal] = field(default_factory=list)
    zones: set[str] = field(default_factory=set)
    """Time zones whose clocks the text reads of timestamps with a zone, without naming them."""
    searches: dict[int, Any] = field(default_factory=dict)
    """Calls with a pattern that were read so far, for ``sql.pattern_rules``."""

    def add(self, code: str, node: exp.Expr | None, message: str, hint: str, analyst_hint: str | None = None) -> None:
        """Note one refusal; ``code`` is a key of CODES."""
        if code not in CODES:
            raise KeyError(code)
        span = span_of(node, self.text) if node is not None else None
        refusal = Refusal(code, message, hint, span, analyst_hint)
        if refusal not in self.found:
            self.found.append(refusal)

    def refuse(self, code: str, node: exp.Expr | None, message: str, hint: str) -> NoReturn:
        """Note a refusal after which nothing more can be said, and raise all of them."""
        self.add(code, node, message, hint)
        self.raise_if_any()
        raise AssertionError("a refusal was just added")

    def raise_if_any(self, beyond: int = 0) -> None:
        """Raise UnsupportedQueryError with all refusals in the order of the text, if there are more than ``beyond``."""
        if len(self.found) > beyond:
            self.found.sort(key=lambda refusal: refusal.span.start if refusal.span else -1)
            raise UnsupportedQueryError(self.found)


def that_hold(known: Mapping[Known, object]) -> frozenset[str]:
    """The things that a query has, of those that it may have."""
    return frozenset(thing for thing, holds in known.items() if holds)


def refuse_combinations(
    things: AbstractSet[str],
    known: AbstractSet[str],
    node: exp.Expr | None,
    refusals: Refusals,
    *,
    first: bool = False,
    **words: object,
) -> bool:
    """Note a refusal for each of some things that does not go with another one that the query has.

    Args:
        things: those that are asked about.
        known: the things that the query has.
        node: where the refusals point to.
        refusals: collects.
        first: note the first one and no more.
        words: what stands for the names in messages and hints.

    Returns:
        Whether there is one.

    """
    asked = things & known
    found = [one for one in COMBINATIONS if one.thing in asked and not known.isdisjoint(one.beside)]
    for one in found[: 1 if first else None]:
        analyst_hint = None if one.analyst_hint is None else one.analyst_hint.format(**words)
        refusals.add(one.code, node, one.message.format(**words), one.hint.format(**words), analyst_hint)
    return bool(found)
