"""``other_group``: one more row for the rows of all groups that are not shown, and what it is a release of.

The row is a release of its own, a query without GROUP BY on the rows whose key is not among the shown ones. Which these
are is told by an earlier release, so that the two compose adaptively: for every set of shown keys, a unit moves the
count of the row by at most 1, and a sum by at most max_groups times what it adds to one group, to which the sum of its
rows is clamped (docs/proofs/other-group.md).
"""

from __future__ import annotations

from dataclasses import replace

from dpsql.bound.aggregation import listed_join
from dpsql.model.frame import Bounding, Frame
from dpsql.model.identity import frame_hash
from dpsql.operations.dialect import quote
from dpsql.operations.row_sql import one_spelling, shielded, without_statistics
from dpsql.sql.source.relation import Owner

_NOT_KNOWN = "not known before the keys are shown"


def over_groups(owner: Owner, max_groups: int) -> Owner:
    """The owner of rows of which a unit has as many as it may have in several groups together."""
    most = owner.rules.max_rows_per_group
    return replace(owner, rules=replace(owner.rules, max_rows_per_group=most and most * max_groups))


def outside_frame(grouped: Frame) -> Frame:
    """The frame of the rows outside the shown groups of another one, with nothing said yet of which these are."""
    rows = replace(grouped.rows, outside=_NOT_KNOWN)
    rows_sql = replace(grouped.rows_sql, relation=rows_outside(grouped))
    return Frame(rows, rows_sql, Bounding(max_groups=1), ceiling=grouped.ceiling)


def outside_of(frame: Frame, grouped: Frame, shown: str) -> Frame:
    """The frame of the rows outside a set of shown groups, by a digest of their keys.

    It is another one for every other set, so that a set that is shown again finds what was released beside it.
    """
    return replace(frame, rows=replace(frame.rows, outside=f"{frame_hash(grouped)} {shown}"))


def rows_outside(grouped: Frame) -> str:
    """The rows whose key is not listed, read as the bounded query of the groups reads them; empty if they are gone."""
    if not grouped.rows_sql.relation:
        return ""
    unit = grouped.rows.unit_column.sql
    names = [quote(f"privacy key {i}") for i in range(len(grouped.keys))]
    pairs = list(zip(names, grouped.keys, strict=True))
    keys = ", ".join(f"{shielded(key.sql, unit, grouped.rows_sql.types)} AS {name}" for name, key in pairs)
    spelled = ", ".join(f"{one_spelling(name, key.type)} AS {name}" for name, key in pairs)
    rows = without_statistics(grouped.rows_sql.relation, [key.sql for key in grouped.keys])
    join = listed_join("keyed", names, grouped, "ANTI")
    return (
        f"(SELECT * EXCLUDE ({', '.join(names)}) FROM "
        f"(SELECT * REPLACE ({spelled}) FROM (SELECT *, {keys} FROM {rows})) AS keyed {join})"
    )
