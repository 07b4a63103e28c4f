"""The kinds of a private query: one row for each, with what prices, releases and explains its queries.

Most rows name a module, which is imported when a query of its kind is asked first, so that no query opens the files of
other kinds. A new kind is a class of `PrivateQuery`, a module with its ``KIND``, and a row here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dpsql.features import one_set
from dpsql.features.query_kind import CappedKind, FixedNoiseKind, OpenQueryKind, QueryKind
from dpsql.model.private_query import PrivateQuery
from dpsql.model.query_kinds import (
    AutoHalfWidths,
    GroupingSets,
    KeysAlone,
    KeysFirst,
    OneSet,
    WithinTarget,
    WithOtherGroup,
)

KINDS: dict[type[PrivateQuery], QueryKind[Any] | str] = {
    OneSet: one_set.KIND,
    AutoHalfWidths: "dpsql.features.auto_half_widths",
    WithinTarget: "dpsql.features.target",
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


def with_cap(query: PrivateQuery) -> PrivateQuery:
    """Return a query whose level has a cap with what follows from it, and any other query as it is."""
    kind = kind_of(query)
    return kind.capped(query) if isinstance(kind, CappedKind) else query


def asked_cap(query: PrivateQuery) -> tuple[str, float] | None:
    """Return the option that says the cap of a query's level, and its value. Return None if there is no cap."""
    kind = kind_of(query)
    return kind.asked_cap(query) if isinstance(kind, CappedKind) else None


def open_kind_of(query: PrivateQuery) -> OpenQueryKind[Any]:
    """Return the kind of a query that leaves something to AUTO."""
    kind = kind_of(query)
    if not isinstance(kind, OpenQueryKind):
        raise AssertionError("a kind of query that goes with AUTO has its terms before AUTO has chosen")
    return kind


def fixed_noise_kind_of(query: PrivateQuery) -> FixedNoiseKind[Any]:
    """Return the kind of a query whose level follows from half widths."""
    kind = kind_of(query)
    if not isinstance(kind, FixedNoiseKind):
        raise AssertionError("a kind of query that goes with half widths has noise that its level fixes")
    return kind
