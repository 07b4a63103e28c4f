"""How large a query may be: beyond, planning it would take minutes, and so would DuckDB to plan what comes of it.

Every limit is one of the text; none depends on rows, or on how fast a machine is.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dpsql.query.frame import Statistic
from dpsql.query.refusals import Refusals

MOST_LISTED = 2_000
"""Most values in one list of IN."""
MOST_NODES = 20_000
"""Most columns, literals, calls and operators in a statement."""
MOST_TYPED_NODES = 20_000
"""Most of them in all parts that are given a type, where a part counts again in each part around it."""
MOST_STATISTICS = 200
"""Most statistics beside the presence count: each is a column of the bounded query."""
MOST_APART = 10
"""Most of them that are read from rows of their own: quantiles of different values, and distinct values."""
_ELSEWHERE = "Let the curator put them into a public table, and join it or write IN (SELECT …)."


def check_size(tree: exp.Expr, refusals: Refusals) -> None:
    """Refuse a statement that is too large to be planned.

    Raises:
        UnsupportedQueryError: it has too many parts; nothing else is said then.

    """
    for count, node in enumerate(tree.walk(), start=1):
        if isinstance(node, exp.In) and len(node.expressions) > MOST_LISTED:
            refusals.refuse(
                "size", node, f"a list of IN has at most {MOST_LISTED:,} values, and this one "
                f"{len(node.expressions):,}.", _ELSEWHERE,
            )  # fmt: skip
        if count > MOST_NODES:
            refusals.refuse(
                "size", tree, f"a query has at most {MOST_NODES:,} columns, literals, calls and operators.", _ELSEWHERE
            )


def check_statistics(statistics: Sequence[Statistic], node: exp.Expr, refusals: Refusals) -> None:
    """Refuse more statistics than one bounded query can have.

    Raises:
        UnsupportedQueryError: there are too many.

    """
    if len(statistics) - 1 > MOST_STATISTICS:
        refusals.refuse(
            "size", node, f"a query has at most {MOST_STATISTICS} different statistics, and this one "
            f"{len(statistics) - 1:,}.", "Ask for some of them in a query of their own, of the same rows and groups.",
        )  # fmt: skip
    apart = [one for one in statistics if one.kind in ("histogram", "values")]
    if len(apart) > MOST_APART:
        refusals.refuse(
            "size", node, f"a query has quantiles of different values and counts of distinct values at most "
            f"{MOST_APART} together, and this one {len(apart)}.",
            "Ask for some of them in a query of their own, of the same rows and groups; all quantiles of one value "
            "count once.",
        )  # fmt: skip
