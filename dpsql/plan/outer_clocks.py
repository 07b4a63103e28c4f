"""Clocks around a private query: days and hours of the answer's timestamps are those of the zone of the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.model.environment import Column
from dpsql.model.refusals import Refusals
from dpsql.sql.clock import ZONED, with_clock
from dpsql.sql.row_rules import ZONE_CALL

Bind = Callable[[exp.Select], Sequence[tuple[str, str]]]
"""Returns names and types of the columns of a SELECT around the answer."""


def write_clocks(outer: exp.Select, zones: str, bind: Bind, refusals: Refusals) -> None:
    """Write the zone into all expressions of a query around the answer, in place.

    Args:
        outer: the query.
        zones: those of the answer's timestamps.
        bind: binds a part of the query.
        refusals: collects operations that read two zones.

    """
    # what is inside is read first
    for select in reversed(list(outer.find_all(exp.Select))):
        if not select.args.get("from_"):
            continue
        rows = exp.select("*").from_(select.args["from_"].this.copy())
        kinds = [Column(name, kind, True) for name, kind in bind(rows)]
        columns = [replace(one, zone=zones) if one.type == ZONED else one for one in kinds]
        if any(one.zone for one in columns):
            _write_into(select, columns, bind, refusals)


def _write_into(select: exp.Select, columns: Sequence[Column], bind: Bind, refusals: Refusals) -> None:
    """Write the zone into one SELECT; its columns keep their names."""
    items, names = select.expressions, [name for name, _ in bind(select)]
    stars = [place for place, item in enumerate(items) if item.is_star]
    for place, item in enumerate(items):
        found = _written(item, columns, refusals)
        if found == item:
            continue
        if not isinstance(item, exp.Alias):
            # places are counted from the end where a star stands before
            name = names[place - len(items) if stars and stars[0] < place else place]
            found = exp.alias_(found, name, quoted=True)
        item.replace(found)
    for part in ("where", "group", "having", "qualify", "order"):
        node = select.args.get(part)
        if node:
            node.replace(_written(node, columns, refusals))


def _written(node: exp.Expr, columns: Sequence[Column], refusals: Refusals) -> exp.Expr:
    """Return a copy of an expression with the zone in it; timestamps that no clock of the zone shows are NULL."""
    found = with_clock(node.copy(), columns, refusals)
    for call in list(found.find_all(exp.Anonymous)):
        if call.name == ZONE_CALL and call.parent:
            call.replace(exp.Anonymous(this="TRY", expressions=[call.copy()]))
    return found
