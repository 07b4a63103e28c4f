"""What a query measures: its aggregates, the statistics that they are made of, and the share of rho of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from sqlglot import exp

from dpsql.model.estimates import UNITS, RunningSum
from dpsql.model.frame import KEYS_FIRST, PRESENCE, Frame, Norm, Statistic
from dpsql.model.private_query import NO_BOUNDS, AutoBounds
from dpsql.model.refusals import refuse_combinations, that_hold
from dpsql.model.rows import Key, PublicKeys
from dpsql.model.statistic_kinds import APART_KINDS, DISTINCT_KINDS
from dpsql.operations.dialect import to_sql
from dpsql.plan.aggregates.arguments import Aggregate, read_aggregate
from dpsql.plan.aggregates.registry import BY_NAME
from dpsql.plan.aggregates.running_totals import read_total
from dpsql.plan.aggregates.source import AggregateSource, BoundsNotFoundError, RefusedCallError
from dpsql.plan.features.auto import asked_frame
from dpsql.sql.clauses import is_interval_call
from dpsql.sql.names import ResolvedSelect
from dpsql.sql.source.sources import SelectText

_MOST_EXTREMES = 7
"""Sums whose bounds AUTO finds in one query: with max_groups they are what `calibrate.MOST_AUTO_DRAWS` draws cover."""


def read_aggregates(
    resolved: ResolvedSelect, source: AggregateSource, keys: Sequence[Key], public: PublicKeys | None
) -> dict[str, Aggregate]:
    """Aggregates by their normalised text, in the order of their first use."""
    aggregates: dict[str, Aggregate] = {}
    calls: dict[str, exp.Expr] = {}
    for node in resolved.calls:
        calls.setdefault(to_sql(node), node)
    for text, node in calls.items():
        with suppress(RefusedCallError):
            if isinstance(node, exp.Window):
                read = partial(_read_total, node=node, keys=keys, public=public, before=tuple(aggregates.values()))
            else:
                read = partial(_read_aggregate, node=node)
            aggregates[text] = _by_found_bounds(read, source, node) if source.found_bounds else read(source)
    if resolved.having is not None:
        refuse_combinations(
            {"running totals"}, measured_things(aggregates) | {"HAVING"}, resolved.having, source.refusals
        )
    if not (calls or resolved.keys or any(is_interval_call(node) for root in resolved.outputs for node in root.walk())):
        _refuse_rows(resolved, source)
    return aggregates


def _refuse_rows(resolved: ResolvedSelect, source: AggregateSource) -> None:
    """Note that a query has no aggregate, unless it calls one by a wrong name, which is refused already."""
    from dpsql.sql.function_refusals import meant_aggregate  # noqa: PLC0415 — only if a text is refused

    nodes = (node for root in resolved.outputs for node in root.walk())
    is_refused = any(refusal.code == "row_function" for refusal in source.refusals.found)
    if is_refused and any(map(meant_aggregate, nodes)):
        return
    source.refusals.add(
        "no_aggregate",
        resolved.outputs[0],
        "a query without an aggregate would release rows as they are.",
        "Ask for count(*), sum(…) or avg(…), or for keys alone, as in SELECT DISTINCT city.",
    )


def _read_aggregate(source: AggregateSource, node: exp.Expr) -> Aggregate:
    return read_aggregate(node, BY_NAME, source)


def _read_total(
    source: AggregateSource,
    node: exp.Expr,
    keys: Sequence[Key],
    public: PublicKeys | None,
    before: Sequence[Aggregate],
) -> Aggregate:
    return read_total(source, node, keys, public, before)


def _by_found_bounds(
    read: Callable[[AggregateSource], Aggregate], source: AggregateSource, node: exp.Expr
) -> Aggregate:
    """Return an aggregate with the bounds that AUTO found, or without a value if there are none.

    Raises:
        RefusedCallError: the call cannot be read whatever AUTO found.

    """
    noted = len(source.refusals.found)
    try:
        return read(source)
    except (BoundsNotFoundError, RefusedCallError) as refused:
        from dpsql.plan.features.unbounded_column import without_bounds  # noqa: PLC0415 — few queries need it

        del source.refusals.found[noted:]
        return without_bounds(read, source, refused, node)


def statistics_of(
    aggregates: Sequence[Aggregate], frame: Frame, min_units: int
) -> tuple[tuple[Statistic, ...], tuple[float, ...]]:
    """The distinct statistics, presence first, and their shares of rho.

    The shares minimise the sum of the relative variances: an estimate lattice*s + centre*presence has variance
    proportional to radius²/w_s + centre²/w_presence, so w_s goes as radius and w_presence as the root of the sum of
    the centres squared, all relative to the largest value that one unit can add (with 1 for the presence count's
    own use). ``weight =>`` multiplies a statistic's share.
    """
    asked: dict[Statistic, float] = {}
    for aggregate in aggregates:
        for statistic in aggregate.statistics:
            asked[statistic] = max(asked.get(statistic, 0.0), aggregate.weight)
    # sorted, so that the order of columns changes no share, not even in its last digit
    ordered = sorted(asked, key=repr)
    if frame.bounding.by_norm or frame.mechanism == KEYS_FIRST:
        own, relative = _sizes_beside_presence(ordered, aggregates, frame, min_units)
    else:
        own, relative = 1.0, [(one, one.radius, max(abs(bound) for bound in one.interval)) for one in ordered]
    presence = math.sqrt(math.fsum([own**2, *((one.centre / largest) ** 2 for one, _, largest in relative)]))
    shares = [presence, *(asked[one] * radius / largest for one, radius, largest in relative)]
    total = math.fsum(shares)
    return (PRESENCE, *ordered), tuple(share / total for share in shares)


_UNASKED_PRESENCE = 1.0 / 16.0
"""Of the presence count, beside 1 where it is asked for: every frame has one, and the next query may count units."""


def _sizes_beside_presence(
    ordered: Sequence[Statistic], aggregates: Sequence[Aggregate], frame: Frame, min_units: int
) -> tuple[float, list[tuple[Statistic, float, float]]]:
    """What the presence count is worth by itself; and statistics, each with its radius in a group and largest value.

    Of a norm C over at most m groups these are about C / sqrt(m), and so much from the centre. No presence count is
    asked for where keys are shown whatever it says, and no unit is counted.
    """
    counts_units = any(linear == UNITS.linear for one in aggregates for linear in one.estimate.value.linears)
    hides = frame.has_private_keys and frame.mechanism != KEYS_FIRST
    own = 1.0 if counts_units or min_units > 1 or hides else _UNASKED_PRESENCE
    radii = [
        one.radius / math.sqrt(frame.unit_groups) if isinstance(one.limit, Norm) else one.radius for one in ordered
    ]
    return own, [(one, radius, abs(one.centre) + radius) for one, radius in zip(ordered, radii, strict=True)]


def auto_bounds(
    source: AggregateSource, frames: tuple[Frame, ...], select: Sequence[exp.Expr]
) -> tuple[AutoBounds, ...]:
    """What AUTO is asked of the sums whose bounds are left to it, and what it found for them before."""
    if not frames:
        return ()
    frame = asked_frame(frames[0])
    found = tuple(
        AutoBounds(name, statistic, frame, source.found_bounds.get(statistic, NO_BOUNDS), source.instead.get(statistic))
        for statistic, name in source.asked.items()
    )
    if len(found) > _MOST_EXTREMES:
        source.refusals.add(
            "bounds_invalid",
            select[0],
            f"AUTO finds the bounds of at most {_MOST_EXTREMES} sums of a query.",
            "Ask them apart, or name bounds.",
        )
    return found


def measured_things(aggregates: Mapping[str, Aggregate]) -> frozenset[str]:
    """Things known of the aggregates of a query."""
    kinds = {statistic.kind for aggregate in aggregates.values() for statistic in aggregate.statistics}
    return that_hold(
        {
            "running totals": any(isinstance(one.estimate.value, RunningSum) for one in aggregates.values()),
            "DISTINCT values": kinds.intersection(DISTINCT_KINDS),
            "quantiles": "histogram" in kinds,
            "DISTINCT values or quantiles": kinds.intersection(APART_KINDS),
            "more than count(DISTINCT unit)": kinds,
        }
    )


def check_beside_buckets(text: SelectText, aggregates: Mapping[str, Aggregate], min_units: int, *, once: bool) -> None:
    """Note a refusal for what buckets do not add up to: distinct units, unless each is in one bucket."""
    found = that_hold({"min_privacy_units_per_group, units in several groups": min_units > 1 and not once})
    refuse_combinations({"buckets"}, {"buckets"} | measured_things(aggregates) | found, text.hint, text.refusals)
    for call in [] if once else [call for root in text.select.outputs for call in root.find_all(exp.Distinct)]:
        known = {"buckets", "count(DISTINCT unit), units in several groups"}
        refuse_combinations({"buckets"}, known, call.parent, text.refusals)
