"""What a query measures: its aggregates, the statistics that they are made of, and the share of rho of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sqlglot import exp

from dpsql.query.aggregate_calls import is_aggregate_call, is_interval_call
from dpsql.query.aggregate_source import Aggregate
from dpsql.query.aggregates import AggregateReader
from dpsql.query.auto import asked_frame
from dpsql.query.clauses import Clauses
from dpsql.query.dialect import to_sql
from dpsql.query.frame import PRESENCE, Frame, Statistic
from dpsql.query.mechanism import NOT_AFTER_AUTO
from dpsql.query.names import ResolvedSelect
from dpsql.query.options import QueryOptions
from dpsql.query.private_query import AutoBounds, ToldBounds
from dpsql.query.refusals import Refusals
from dpsql.query.totals import TotalsReader

_MOST_EXTREMES = 7
"""Sums whose bounds AUTO finds in one query: with max_groups they are what `calibrate.MOST_TOLD` draws cover."""


def read_aggregates(
    resolved: ResolvedSelect, reader: AggregateReader, totals: TotalsReader, refusals: Refusals
) -> dict[str, Aggregate]:
    """Aggregates by their normalised text, in the order of their first use."""
    roots = resolved.outputs
    aggregates: dict[str, Aggregate] = {}
    seen: set[str] = set()
    for root in roots:
        for node in root.walk(prune=is_aggregate_call):
            if not is_aggregate_call(node) or to_sql(node) in seen:
                continue
            seen.add(to_sql(node))
            aggregate = totals.read(node) if isinstance(node, exp.Window) else reader.read(node)
            if aggregate is not None:
                aggregates[to_sql(node)] = aggregate
    if resolved.having is not None and any(aggregate.estimate.total for aggregate in aggregates.values()):
        refusals.add(
            "running_total", resolved.having, "HAVING would take groups out of a running total.",
            "Leave it out, and filter the answer.",
        )  # fmt: skip
    if not seen and not any(is_interval_call(node) for root in roots for node in root.walk()):
        refusals.add(
            "no_aggregate", roots[0], "a query without an aggregate would release rows or keys as they are.",
            "Add count(*), sum(…) or avg(…).",
        )  # fmt: skip
    return aggregates


def statistics_of(aggregates: Sequence[Aggregate]) -> tuple[tuple[Statistic, ...], tuple[float, ...]]:
    """The distinct statistics, presence first, and their shares of rho.

    The shares minimise the sum of the relative variances: an estimate lattice*s + centre*presence has variance
    proportional to radius²/w_s + centre²/w_presence, so w_s goes as radius and w_presence as the root of the sum of
    the centres squared, all relative to the largest value that one unit can add (with 1 for the presence count's
    own use). ``weight =>`` multiplies a statistic's share.
    """
    asked: dict[Statistic, float] = {}
    for aggregate in aggregates:
        for statistic in aggregate.statistics:
            asked[statistic] = max(asked.get(statistic, 0.0), aggregate.weight or 1.0)
    # sorted, so that the order of columns changes no share, not even in its last digit
    ordered = sorted(asked, key=repr)
    scales = [max(abs(bound) for bound in statistic.interval) for statistic in ordered]
    relative = list(zip(ordered, scales, strict=True))
    presence = math.sqrt(math.fsum([1.0, *((statistic.centre / scale) ** 2 for statistic, scale in relative)]))
    shares = [presence, *(asked[statistic] * statistic.radius / scale for statistic, scale in relative)]
    total = math.fsum(shares)
    return (PRESENCE, *ordered), tuple(share / total for share in shares)


def auto_bounds(
    asked: Mapping[Statistic, str], frames: tuple[Frame, ...], told: ToldBounds, clauses: Clauses, refusals: Refusals,
    *, several: bool,
) -> tuple[AutoBounds, ...]:  # fmt: skip
    """What AUTO is asked of the sums whose bounds are left to it, and what it told of them before."""
    if not frames:
        return ()
    frame = asked_frame(frames[0])
    found = tuple(AutoBounds(name, statistic, frame, told.get(statistic)) for statistic, name in asked.items())
    if len(found) > _MOST_EXTREMES:
        refusals.add(
            "bounds_invalid", clauses.select[0], f"AUTO finds the bounds of at most {_MOST_EXTREMES} sums of a query.",
            "Ask them apart, or name bounds.",
        )  # fmt: skip
    if found and several:
        refusals.add(
            "bounds_invalid", clauses.select[0], "AUTO finds bounds for one set of keys.",
            "Name bounds, or ask with one GROUP BY.",
        )  # fmt: skip
    if found and (clauses.options.mechanism in NOT_AFTER_AUTO or any(frame.sparsity for frame in frames)):
        refusals.add(
            "mechanism", clauses.select[0], "AUTO goes with GAUSSIAN, CORRELATED_GAUSSIAN or GSHM.",
            "Leave mechanism and top_k out, write max_groups_contributed, or name bounds.",
        )  # fmt: skip
    return found


def check_weights(
    options: QueryOptions, aggregates: Mapping[str, Aggregate], hint: exp.Expr | None, refusals: Refusals
) -> None:
    """Note a refusal for what has no weight where units in many groups count with one."""
    if options.bounding == "L2" and any(one.kind in ("values", "histogram") for one in _measured(aggregates)):
        refusals.add(
            "mechanism", hint, "distinct values and the rows of a quantile have no weight: they count or they do not.",
            "Leave bounding = L2 out, or ask for them apart.",
        )  # fmt: skip


def check_beside_buckets(
    resolved: ResolvedSelect,
    aggregates: Mapping[str, Aggregate],
    min_units: int,
    hint: exp.Expr | None,
    *,
    once: bool,
    refusals: Refusals,
) -> None:
    """Note a refusal for what buckets do not add up to: distinct units, unless each is in one bucket."""
    if any(aggregate.estimate.total for aggregate in aggregates.values()):
        refusals.add(
            "buckets", hint, "running totals and buckets go along a key in two ways.", "Ask for one of them.",
        )  # fmt: skip
    if any(one.kind == "values" for one in _measured(aggregates)):
        refusals.add(
            "buckets", hint, "a value in two buckets would count twice.", "Leave count(DISTINCT …) or buckets out.",
        )  # fmt: skip
    if once:
        return
    for root in resolved.outputs:
        for call in root.find_all(exp.Distinct):
            refusals.add(
                "buckets", call.parent, "a unit in two buckets would count twice.",
                "Write OPTIONS (max_groups_contributed = 1), count rows, or leave buckets out.",
            )  # fmt: skip
    if min_units > 1:
        refusals.add(
            "buckets", hint, "units in several buckets would count several times towards min_privacy_units_per_group.",
            "Write OPTIONS (max_groups_contributed = 1), or leave buckets out.",
        )  # fmt: skip


def _measured(aggregates: Mapping[str, Aggregate]) -> list[Statistic]:
    return [statistic for aggregate in aggregates.values() for statistic in aggregate.statistics]
