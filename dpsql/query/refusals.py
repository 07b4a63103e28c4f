"""Collects every reason why a query has no private answer, so that all are reported at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from sqlglot import exp

from dpsql.errors import Refusal, UnsupportedQueryError
from dpsql.query.dialect import span_of

CODES: dict[str, str] = {
    "after": "around a private query, something that is not computed of its answer alone",
    "aggregate": "an aggregate function without a private form",
    "aggregate_argument": "an argument that an aggregate does not take",
    "bounds_missing": "an aggregate whose contribution per unit is not bounded",
    "bounds_invalid": "bounds that are not two finite numbers in order",
    "buckets": "buckets that the query cannot be added up from",
    "clause": "a clause that has no private form",
    "group_by_form": "a form of GROUP BY that has no private form",
    "interval_argument": "dp_interval_low/high of something that is not the alias of one aggregate",
    "key_type": "a group key whose type cannot be released",
    "limit_form": "a LIMIT or OFFSET that is not a whole number",
    "max_groups_missing": "neither policy nor query says how many groups one unit may touch",
    "mechanism": "a mechanism that cannot answer this query, or that lacks what it needs",
    "nested_aggregate": "an aggregate inside an aggregate",
    "no_aggregate": "a query that releases rows and no aggregate",
    "not_grouped": "a column that is neither grouped nor aggregated",
    "order_by_form": "an ORDER BY term that is no expression over the result's columns",
    "option": "an option that is unknown, doubled or out of range",
    "privacy_level_missing": "neither policy nor query says how private the answer shall be",
    "public_keys_missing": "PUBLIC_GROUPS over keys without a public list",
    "row_function": "a function that is not on the allow-list of row expressions",
    "row_type": "a type that row expressions cannot be computed with",
    "row_syntax": "syntax that is not allowed inside a row expression",
    "source": "a source, or a join of sources, whose rows are not each one unit's",
    "running_total": "a window over aggregates that is no running total along public keys",
    "single_units": "private groups of one unit each, of which hardly any could ever be shown",
    "size": "more values, parts or statistics than a query may have",
    "star": "a star in the select list",
    "window": "a window over the noisy result that has no form",
    "value_type": "an aggregate over a type that it does not take",
}


@dataclass
class Refusals:
    """A list that grows while a query is read; ``raise_if_any`` ends it."""

    text: str
    found: list[Refusal] = field(default_factory=list)

    def add(self, code: str, node: exp.Expr | None, message: str, hint: str) -> None:
        """Note one refusal; ``code`` is a key of CODES."""
        if code not in CODES:
            raise KeyError(code)
        refusal = Refusal(code, message, hint, span_of(node, self.text) if node is not None else None)
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
