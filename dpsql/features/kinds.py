"""The kinds of a private query: one row for each, with what prices, releases and explains its queries.

Most rows name a module, which is imported when a query of its kind is asked first, so that no query opens the files of
other kinds. A new kind is a class of `PrivateQuery`, a module with its ``KIND``, and a row here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dpsql.features import one_set
from dpsql.features.query_kind import QueryKind
from dpsql.model.private_query import PrivateQuery
from dpsql.model.query_kinds import (
    AutoHalfWidths,
    GroupingSets,
    KeysAlone,
    KeysFirst,
    LargestWithin,
    OneSet,
    WithinTarget,
    WithOtherGroup,
)

KINDS: dict[type[PrivateQuery], QueryKind[Any] | str] = {
    OneSet: one_set.KIND,
    AutoHalfWidths: "dpsql.features.auto_half_widths",
    WithinTarget: "dpsql.features.target",
    LargestWithin: "dpsql.features.largest_within",
    KeysAlone: "dpsql.features.keys_alone",
    KeysFirst: "dpsql.features.keys_first",
    GroupingSets: "dpsql.features.grouping_sets",
    WithOtherGroup: "dpsql.features.other_group",
}


def kind_of(query: PrivateQuery) -> QueryKind[Any]:
    """Return the kind of a query."""
    row = KINDS[type(query)]
    if not isinstance(row, str):
        return row
    kind: QueryKind[Any] = import_module(row).KIND
    return kind
