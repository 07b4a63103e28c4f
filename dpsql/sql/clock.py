"""Days and hours of timestamps with a zone: on which clock a query reads them.

The engine is pinned to UTC. A policy may name another zone for a table. Then every part that reads a clock is written
with that zone: a date part, a truncation, a cast to a date, a comparison with a date, a step of days. What the query
itself writes with AT TIME ZONE is left as it is.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlglot import exp

from dpsql.model.environment import Column
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import written
from dpsql.sql.row_rules import ZONE_CALL

ZONED = "TIMESTAMP WITH TIME ZONE"
_UTC = "UTC"
_LOCAL_TYPES = ("DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")
_LOCAL_CASTS = ("DATE", "TIMESTAMP", "TIMESTAMPNTZ", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")
_FINE = {"hour", "minute", "second", "millisecond", "microsecond", "epoch"}
"""Units of steps and differences that are the same in every zone."""
_PARTS = (
    exp.Year, exp.Quarter, exp.Month, exp.Week, exp.Day, exp.Hour, exp.Minute, exp.Second, exp.DayOfWeek,
    exp.DayOfWeekIso, exp.DayOfYear, exp.DayOfMonth, exp.WeekOfYear, exp.Dayname, exp.Monthname, exp.LastDay,
    exp.TimeToStr, exp.Date,
)  # fmt: skip
"""Calls that read a clock of their only value."""
_NAMED_PARTS = {"weekday", "isoyear", "yearweek", "decade", "century"}
_COMPARISONS = (
    exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Between, exp.In,
    exp.Coalesce, exp.Greatest, exp.Least, exp.Nullif, exp.If, exp.Case,
)  # fmt: skip
"""Operators and calls whose operands become one type."""
_CHOICES = (exp.Coalesce, exp.Greatest, exp.Least, exp.Nullif, exp.If, exp.Case)
_TEXTS = ("VARCHAR", "TEXT", "CHAR")
_WITHOUT_ZONE = re.compile(
    r"\s*-?\d+([-/ \\])\d\d?\1\d\d?(\s*\(BC\))?([ T]+\d\d?:\d\d?(:\d\d?(\.\d*)?)?)?\s*", re.IGNORECASE
)
"""Texts of a timestamp that name no zone."""
_NAMED_ARGUMENTS = (exp.Kwarg, exp.PropertyEQ)


def with_clock(root: exp.Expr, columns: Sequence[Column], refusals: Refusals) -> exp.Expr:
    """Return an expression in which every clock is that of the zone which the policy names; ``root`` changes.

    Zones of clocks that are read are noted in ``refusals.zones``. Two zones in one operation are refused.
    """
    clock = _Clock({one.name: one.type for one in columns}, {one.name: one.zone for one in columns}, refusals)
    holder = exp.Paren(this=root)
    clock.read(holder)
    found = holder.this
    found.parent = None
    return found  # type: ignore[no-any-return]


def date_in(moment: dt.datetime, columns: Sequence[Column], node: exp.Expr, refusals: Refusals) -> dt.date:
    """Return the date of a moment in the zone of the policy.

    Two zones are refused, and so are short names such as PST, which Python does not know.
    """
    zones = {zone for column in columns for zone in column.zone.split()}
    refusals.zones.update(zones)
    if zones <= {_UTC}:
        return moment.date()
    try:
        (zone,) = zones
        return moment.astimezone(ZoneInfo(zone)).date()
    except (ValueError, ZoneInfoNotFoundError):
        refusals.add(
            "row_syntax",
            node,
            f"{written(node)} has no date that is known in {' and '.join(sorted(zones))}.",
            "Write the date, as in DATE '2026-01-31'.",
        )
        return moment.date()


def _zones(root: exp.Expr, zones: Mapping[str, str]) -> frozenset[str]:
    return frozenset(zone for column in root.find_all(exp.Column) for zone in zones.get(column.name, "").split())


@dataclass(frozen=True, slots=True)
class _Clock:
    """Writes zones into one expression.

    Attributes:
        types: DuckDB types of columns, by their names.
        zones: zones that the policy names for their tables, else empty texts.
        refusals: collects.

    """

    types: Mapping[str, str]
    zones: Mapping[str, str]
    refusals: Refusals

    def read(self, node: exp.Expr) -> None:
        """Write the zone into a node and all below it."""
        if isinstance(node, _NAMED_ARGUMENTS):
            return
        for child in list(node.iter_expressions()):
            self.read(child)
        to_local, to_zoned, is_kept = self._read_parts(node)
        if not to_local and not to_zoned:
            return
        zone = self._zone(node)
        self.refusals.zones.add(zone or _UTC)
        if zone in ("", _UTC):
            return
        for part in to_local:
            part.replace(_at(zone, part.copy()))
        for part in to_zoned:
            operand = part.this if isinstance(part, exp.Cast) and part is node else part
            part.replace(_at(zone, exp.cast(operand.copy(), "TIMESTAMP", dialect="duckdb")))
        if is_kept:
            node.replace(_at(zone, node.copy()))

    def _read_parts(self, node: exp.Expr) -> tuple[list[exp.Expr], list[exp.Expr], bool]:
        """Return the parts to read on the clock, those that a clock showed, and whether the node is one of the latter.

        The first become timestamps without a zone. The others become timestamps with one.
        """
        operands = list(_operands(node))
        zoned = [part for part in operands if self._kind(part) == ZONED]
        local = [part for part in operands if self._is_local(part)]
        if isinstance(node, exp.Cast):
            name = node.to.this.name
            if name == "TIMESTAMPTZ" and local:
                return [], [node], False
            if (name in _TEXTS and zoned) or (name == "TIMESTAMPTZ" and not zoned and _may_be_text(node.this)):
                self._refuse_text(node)
            return (zoned if name in _LOCAL_CASTS else []), [], False
        if isinstance(node, exp.Concat | exp.DPipe) and zoned:
            self._refuse_text(node)
        if isinstance(node, _COMPARISONS):
            return [], [part for group in _of_one_type(node) for part in self._local_beside_zoned(group)], False
        if isinstance(node, exp.DateBin):
            return zoned, [], bool(zoned)
        unit = _unit(node)
        if isinstance(node, exp.Add | exp.Sub | exp.DateAdd):
            steps = bool(unit) and unit not in _FINE
            return (zoned, [], True) if steps and zoned else ([], [], False)
        if isinstance(node, exp.TimestampTrunc):
            return (zoned, [], True) if zoned and (unit == "hour" or unit not in _FINE) else ([], [], False)
        if isinstance(node, exp.DateDiff) or _called(node) == "date_sub":
            if unit in _FINE:
                return [], local if zoned else [], False
            return zoned, [], False
        return zoned if _reads_part(node, unit) else [], [], False

    def _local_beside_zoned(self, group: Collection[exp.Expr]) -> list[exp.Expr]:
        """Return the values without a zone, if one of the others has a zone."""
        is_zoned = any(self._kind(part) == ZONED for part in group)
        return [part for part in group if self._is_local(part)] if is_zoned else []

    def _refuse_text(self, node: exp.Expr) -> None:
        """Refuse a text of a timestamp with a zone, or a timestamp made of a text, where the clock is not UTC.

        DuckDB reads and writes such a text on the clock of its session, which is UTC here.
        """
        zone = self._zone(node)
        self.refusals.zones.add(_UTC)
        if zone not in ("", _UTC):
            self.refusals.add(
                "row_syntax",
                node,
                f"{written(node)} has its text in UTC, and the time zone of the table is {zone}.",
                f"Write CAST(CAST(t AS TIMESTAMP) AS VARCHAR), or CAST(s AS TIMESTAMP) AT TIME ZONE '{zone}'.",
            )

    def _zone(self, node: exp.Expr) -> str:
        """Return the zone of the columns in a node, of what it stands in, or of all rows; empty if none is named."""
        above: exp.Expr | None = node
        found: frozenset[str] = frozenset()
        while above is not None and not found:
            found, above = _zones(above, self.zones), above.parent
        found = found or frozenset(zone for zones in self.zones.values() for zone in zones.split())
        if len(found) > 1:
            listed = " and ".join(sorted(found))
            self.refusals.add(
                "row_syntax",
                node,
                f"{written(node)} reads clocks of two time zones, {listed}.",
                "Name one of them, as in t AT TIME ZONE 'UTC'.",
            )
        return min(found, default="")

    def _is_local(self, node: exp.Expr) -> bool:
        """Check that a value is a date, a timestamp without a zone, or a text of one."""
        text = node.unnest()
        if isinstance(text, exp.Literal) and text.is_string:
            return _WITHOUT_ZONE.fullmatch(text.name) is not None
        return self._kind(node) == "TIMESTAMP"

    def _kind(self, node: exp.Expr) -> str:
        """Return ``ZONED``, TIMESTAMP for what has no zone (a DATE, too), and an empty text for all others."""
        if isinstance(node, exp.Column):
            kind = self.types.get(node.name, "")
            return kind if kind == ZONED else "TIMESTAMP" if kind in _LOCAL_TYPES else ""
        if isinstance(node, exp.Cast):
            name = node.to.this.name
            return ZONED if name == "TIMESTAMPTZ" else "TIMESTAMP" if name in _LOCAL_CASTS else ""
        if isinstance(node, exp.Date | exp.LastDay) or _called(node) == "make_date":
            return "TIMESTAMP"
        if _called(node) == ZONE_CALL:
            kind = self._kind(node.expressions[-1])
            return {ZONED: "TIMESTAMP", "TIMESTAMP": ZONED}.get(kind, "")
        if isinstance(node, exp.Paren | exp.TimestampTrunc | exp.DateAdd):
            return self._kind(node.this)
        if isinstance(node, exp.DateBin):
            return self._kind(node.expression)
        if isinstance(node, exp.Add | exp.Sub):
            if isinstance(node.this, exp.Interval):
                return self._kind(node.expression)
            return self._kind(node.this) if isinstance(node.expression, exp.Interval) else ""
        if isinstance(node, _CHOICES):
            kinds = {self._kind(part) for part in _values(node)}
            return ZONED if ZONED in kinds else "TIMESTAMP" if "TIMESTAMP" in kinds else ""
        return ""


def _at(zone: str, operand: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=ZONE_CALL, expressions=[exp.Literal.string(zone), operand])


def _called(node: exp.Expr) -> str:
    """Return the name of a call that has no node of its own, in small letters."""
    return node.name.lower() if isinstance(node, exp.Anonymous) else ""


def _operands(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the parts that have a value; the units and names of a call, which are texts, too."""
    if isinstance(node, exp.TimeToStr):
        yield node.this
    elif _called(node) in ("date_part", "date_sub"):
        yield from node.expressions[1:]
    else:
        yield from (part for part in node.iter_expressions() if not isinstance(part, exp.Var | exp.DataType))


def _values(node: exp.Expr) -> Collection[exp.Expr]:
    """Return the values of which a choice gives one."""
    if isinstance(node, exp.Case):
        branches = [branch.args["true"] for branch in node.args["ifs"]]
        return [*branches, *filter(None, [node.args.get("default")])]
    if isinstance(node, exp.If):
        return [part for part in (node.args.get("true"), node.args.get("false")) if part]
    return list(node.iter_expressions())


def _of_one_type(node: exp.Expr) -> list[Collection[exp.Expr]]:
    """Return the values in a comparison or a choice which DuckDB gives one type, in one group or two."""
    if isinstance(node, exp.Case):
        compared = [node.this, *(branch.this for branch in node.args["ifs"])] if node.this else []
        return [compared, _values(node)]
    if isinstance(node, exp.If):
        # a branch of CASE is a value of the whole
        return [] if isinstance(node.parent, exp.Case) else [_values(node)]
    return [list(_operands(node))]


def _may_be_text(node: exp.Expr) -> bool:
    """Check that a value without a known clock may be a text that a row holds."""
    return not isinstance(node.unnest(), exp.Literal | exp.Null)


def _unit(node: exp.Expr) -> str:
    """Return the unit of a call or a step, in small letters; empty if there is none."""
    if isinstance(node, exp.Add | exp.Sub | exp.DateAdd):
        steps = [part for part in (node.this, node.expression) if isinstance(part, exp.Interval)]
        unit = steps[0].args.get("unit") if steps else None
    elif _called(node) in ("date_part", "date_sub"):
        unit = next(iter(node.expressions), None)
    else:
        unit = node.this if isinstance(node, exp.Extract) else node.args.get("unit")
    return unit.name.lower().removesuffix("s") if isinstance(unit, exp.Expr) else ""


def _reads_part(node: exp.Expr, unit: str) -> bool:
    """Check that a call reads a part of a clock; seconds since 1970 are the same on every clock."""
    if isinstance(node, exp.Extract) or _called(node) == "date_part":
        return unit != "epoch"
    return isinstance(node, _PARTS) or _called(node) in _NAMED_PARTS
