"""``other_group``: one more row for the rows of all groups that are not shown, and what it is a release of.

The row is a release of its own, a query without GROUP BY on the rows whose key is not among the shown ones. Which these
are is told by an earlier release, so that the two compose adaptively: for every set of shown keys, a unit moves the
count of the row by at most 1, and a sum by at most max_groups times what it adds to one group, to which the sum of its
rows is clamped (docs/proofs/other-group.md).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sqlglot import exp

from dpsql.query.bound import listed_join
from dpsql.query.dialect import quote
from dpsql.query.frame import Frame, Statistic
from dpsql.query.identity import frame_hash
from dpsql.query.names import ResolvedSelect
from dpsql.query.options import QueryOptions
from dpsql.query.refusals import Refusals
from dpsql.query.relation import Owner
from dpsql.query.shielded import one_spelling, shielded, without_statistics

_NOT_KNOWN = "not known before the keys are shown"


def check_other_group(options: QueryOptions, resolved: ResolvedSelect, clause: exp.Expr, refusals: Refusals) -> bool:
    """Whether the row is asked for and can be there, as far as the text says; notes a refusal where it cannot."""
    if options.other_group is None:
        return False
    before = len(refusals.found)
    if len(resolved.sets) > 1 or not resolved.keys:
        refusals.add(
            "option", clause, "other_group is for one set of keys in GROUP BY.",
            "Leave other_group out, or ask with one GROUP BY.",
        )  # fmt: skip
    if options.buckets is not None:
        refusals.add(
            "option", clause, "of buckets every key is shown, so that there is no other group.",
            "Leave other_group out.",
        )  # fmt: skip
    if options.max_groups_contributed == "AUTO":
        refusals.add(
            "option", clause, "sums of other groups are bounded by max_groups, which AUTO leaves open.",
            "Write max_groups_contributed = 4, or leave other_group out.",
        )  # fmt: skip
    return len(refusals.found) == before


def check_outside(frame: Frame, asked: Collection[Statistic], clause: exp.Expr, refusals: Refusals) -> None:
    """Note a refusal for keys that have no other group or no place for its name, and for bounds that AUTO finds."""
    if asked:
        refusals.add(
            "bounds_invalid", clause, "AUTO finds bounds of what a unit adds to the groups, not to the other group.",
            "Name bounds, or leave other_group out.",
        )  # fmt: skip
    if frame.public_keys is not None:
        refusals.add(
            "option", clause, "keys of a public list are all shown, so that there is no other group.",
            "Leave other_group out.",
        )  # fmt: skip
    elif frame.keys and all(key.type != "VARCHAR" for key in frame.keys):
        refusals.add(
            "option", clause, "no key is a text, so that no column can name the other group.",
            "Cast a key, as in GROUP BY CAST(year AS VARCHAR).",
        )  # fmt: skip
    if frame.max_groups is None:
        refusals.add(
            "option", clause, "sums of other groups are bounded by max_groups, and this query has none.",
            "Write max_groups_contributed = 4, or leave other_group out.",
        )  # fmt: skip


def over_groups(owner: Owner, max_groups: int) -> Owner:
    """The owner of rows of which a unit has as many as it may have in several groups together."""
    most = owner.rules.max_rows_per_group
    return replace(owner, rules=replace(owner.rules, max_rows_per_group=most and most * max_groups))


def outside_frame(base: Frame, grouped: Frame) -> Frame:
    """The frame of the rows outside the shown groups of another one, with nothing said yet of which these are.

    Args:
        base: what that one groups, without its keys.
        grouped: it.

    """
    return replace(base, relation=_rows_outside(grouped), outside=_NOT_KNOWN)


def outside_of(frame: Frame, grouped: Frame, shown: str) -> Frame:
    """The frame of the rows outside a set of shown groups, by a digest of their keys.

    It is another one for every other set, so that a set that is shown again finds what was released beside it.
    """
    return replace(frame, outside=f"{frame_hash(grouped)} {shown}")


def _rows_outside(grouped: Frame) -> str:
    """The rows whose key is not listed, read as the bounded query of the groups reads them; empty if they are gone."""
    if not grouped.relation:
        return ""
    unit = grouped.unit_column.sql
    names = [quote(f"privacy key {i}") for i in range(len(grouped.keys))]
    pairs = list(zip(names, grouped.keys, strict=True))
    keys = ", ".join(f"{shielded(key.sql, unit, grouped.types)} AS {name}" for name, key in pairs)
    spelled = ", ".join(f"{one_spelling(name, key.type)} AS {name}" for name, key in pairs)
    rows = without_statistics(grouped.relation, [key.sql for key in grouped.keys])
    join = listed_join("keyed", names, grouped, "ANTI")
    return (
        f"(SELECT * EXCLUDE ({', '.join(names)}) FROM "
        f"(SELECT * REPLACE ({spelled}) FROM (SELECT *, {keys} FROM {rows})) AS keyed {join})"
    )
