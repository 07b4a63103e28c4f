"""Which mechanisms can answer a query: frames that differ in sparsity and mechanism alone, the best not chosen yet.

Correlated noise needs a number of keys that is enforced: a public list, or the subtraction of the (k+1)-th largest
presence count. A number that somebody declares, and that the data might break, is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.query.aggregate_calls import is_aggregate_call
from dpsql.query.aggregate_source import Aggregate
from dpsql.query.clauses import MAX_GROUPS_LIMIT, Clauses
from dpsql.query.dialect import to_sql
from dpsql.query.frame import Factorised, Frame, Mechanism, Sparsity, Statistic
from dpsql.query.keys import Ordering
from dpsql.query.names import ResolvedSelect
from dpsql.query.options import QueryOptions
from dpsql.query.private_query import Buckets
from dpsql.query.refusals import Refusals

_ON_PUBLIC_KEYS: dict[str, Mechanism] = {
    "GAUSSIAN": "gaussian",
    "CORRELATED_GAUSSIAN": "correlated_gaussian",
    "DISCRETE_CORRELATED_GAUSSIAN": "discrete_correlated_gaussian",
    "FACTORISED_GAUSSIAN": "factorised_gaussian",
}
_ON_PRIVATE_KEYS: dict[str, Mechanism] = {
    "GSHM": "gshm",
    "CSH": "csh",
    "MISRA_GRIES": "csh",
}
NOT_AFTER_AUTO = ("DISCRETE_CORRELATED_GAUSSIAN", "CSH", "MISRA_GRIES")

_HEADROOM = 2
"""LIMIT n pre-selects this many times n groups: a group is shown where it exceeds the largest one left out by more than
the threshold, and of exactly n groups the last would hardly ever do so."""


def mechanisms(
    frame: Frame,
    clauses: Clauses,
    resolved: ResolvedSelect,
    aggregates: Mapping[str, Aggregate],
    buckets: Buckets | None,
    refusals: Refusals,
) -> tuple[Frame, ...]:
    """The frame by every mechanism that can answer it, at least one unless a refusal was noted."""
    options, clause = clauses.options, clauses.select[0]
    if resolved.keys and not (
        _can_be_weighted(frame, options, clause, refusals) and _can_be_auto(options, clause, refusals)
    ):
        return ()
    # a key that was refused is not in the frame, and is private all the same
    if not resolved.keys or frame.public_keys is not None:
        totals = [aggregate.estimate.total for aggregate in aggregates.values()]
        along = [buckets.ordering] if buckets is not None else [total.ordering for total in totals if total is not None]
        statistics = [one for aggregate in aggregates.values() for one in aggregate.statistics]
        return _on_public_keys(frame, options, along[0] if along else None, statistics, clause, refusals)
    if options.mechanism in _ON_PUBLIC_KEYS:
        refusals.add(
            "mechanism", clause, f"{options.mechanism} noises every key of a public list, and these keys have none.",
            "Write mechanism = GSHM, or declare the keys with CALL dp_domain('table', 'column', keys := [...]).",
        )  # fmt: skip
        return ()
    if options.mechanism == "MISRA_GRIES" or options.sketch_size is not None:
        return _by_sketch(frame, options, aggregates, clause, refusals)
    return _by_threshold(frame, options, wanted_rows(clauses, resolved, aggregates), resolved.keys[0], refusals)


def _can_be_auto(options: QueryOptions, clause: exp.Expr, refusals: Refusals) -> bool:
    """Whether the noise that is asked for composes with what AUTO was told; notes a refusal where it does not."""
    if options.max_groups_contributed != "AUTO":
        return True
    if options.mechanism in NOT_AFTER_AUTO or options.top_k is not None or options.sketch_size is not None:
        refusals.add(
            "mechanism", clause, "max_groups_contributed = AUTO goes with GAUSSIAN, CORRELATED_GAUSSIAN or GSHM.",
            "Leave mechanism, top_k and sketch_size out, or name the number of groups.",
        )  # fmt: skip
        return False
    return True


def _can_be_weighted(frame: Frame, options: QueryOptions, clause: exp.Expr, refusals: Refusals) -> bool:
    """Whether the noise that is asked for has an analysis with weighted units; notes a refusal where it has none."""
    if options.bounding != "L2":
        return True
    if options.mechanism not in (None, "GAUSSIAN", "GSHM") or options.top_k is not None or options.sketch_size:
        refusals.add(
            "mechanism", clause, "bounding = L2 goes with independent noise, on keys that nothing selects.",
            "Leave mechanism, top_k and sketch_size out, or leave bounding out.",
        )  # fmt: skip
        return False
    if frame.max_groups is None:
        refusals.add(
            "max_groups_missing", clause, "bounding = L2 needs the number of groups in which a unit counts fully.",
            "Write OPTIONS (max_groups_contributed = 4, bounding = L2).",
        )  # fmt: skip
        return False
    return True


def wanted_rows(clauses: Clauses, resolved: ResolvedSelect, aggregates: Mapping[str, Aggregate]) -> int | None:
    """The n of ``ORDER BY count(DISTINCT unit) DESC LIMIT n``; None where the query asks for anything else.

    HAVING drops rows after the order is made, so the rows that it leaves need not be among the n largest.
    """
    if clauses.limit is None or resolved.having is not None or not resolved.order:
        return None
    first = resolved.order[0]
    aggregate = aggregates.get(to_sql(first.this)) if is_aggregate_call(first.this) else None
    if aggregate is None or not first.args.get("desc"):
        return None
    numerator = aggregate.estimate.numerator
    plain = aggregate.estimate.denominator is None and aggregate.estimate.total is None
    presence = plain and numerator.statistic is None and numerator.centre == 1.0
    rows = clauses.limit + (clauses.offset or 0)
    return rows if presence and 1 <= _HEADROOM * rows <= MAX_GROUPS_LIMIT else None


def _on_public_keys(
    frame: Frame,
    options: QueryOptions,
    along: Ordering | None,
    statistics: Sequence[Statistic],
    clause: exp.Expr,
    refusals: Refusals,
) -> tuple[Frame, ...]:
    if options.top_k is not None or options.sketch_size is not None:
        refusals.add(
            "mechanism", clause, "every listed key is answered, so there is nothing to pre-select.",
            "Leave top_k and sketch_size out; ORDER BY and LIMIT on the answer cost nothing.",
        )  # fmt: skip
        return ()
    if options.mechanism in _ON_PRIVATE_KEYS:
        refusals.add(
            "mechanism", clause, f"{options.mechanism} hides keys behind a threshold, which listed keys do not need.",
            "Leave mechanism out, and hide small groups with min_privacy_units_per_group, which costs nothing.",
        )  # fmt: skip
        return ()
    independent = replace(frame, mechanism="gaussian")
    if options.bounding == "L2" and (frame.counted_groups is not None or options.max_groups_contributed == "AUTO"):
        return (independent,)
    if along is not None and any(one.cells > 1 for one in statistics):
        refusals.add(
            "running_total", clause, "quantiles go neither with running totals nor with buckets.",
            "Ask for them apart.",
        )  # fmt: skip
        return ()
    if along is not None or options.mechanism == "FACTORISED_GAUSSIAN":
        return _for_totals(independent, options, along, clause, refusals)
    if options.mechanism is not None:
        return (replace(frame, mechanism=_ON_PUBLIC_KEYS[options.mechanism]),)
    several = frame.key_count is not None and frame.key_count > 1
    return (independent, replace(frame, mechanism="correlated_gaussian")) if several else (independent,)


def _for_totals(
    independent: Frame, options: QueryOptions, along: Ordering | None, clause: exp.Expr, refusals: Refusals
) -> tuple[Frame, ...]:
    if along is None:
        refusals.add(
            "mechanism", clause, "FACTORISED_GAUSSIAN noises running totals, and this query has none.",
            "Leave mechanism out, or ask for sum(…) OVER (ORDER BY key).",
        )  # fmt: skip
        return ()
    if options.mechanism not in (None, "GAUSSIAN", "FACTORISED_GAUSSIAN"):
        refusals.add(
            "mechanism", clause, "noise that all keys share adds up in a running total.",
            "Leave mechanism out, or name GAUSSIAN or FACTORISED_GAUSSIAN.",
        )  # fmt: skip
        return ()
    # which power of the totals is noised depends on its noise, and is chosen with it
    factorised = replace(independent, mechanism="factorised_gaussian", factorised=Factorised(along, 0))
    found = {"GAUSSIAN": (independent,), "FACTORISED_GAUSSIAN": (factorised,)}
    return found.get(options.mechanism or "", (independent, factorised))


def _by_sketch(
    frame: Frame,
    options: QueryOptions,
    aggregates: Mapping[str, Aggregate],
    clause: exp.Expr,
    refusals: Refusals,
) -> tuple[Frame, ...]:
    if options.mechanism != "MISRA_GRIES" or options.sketch_size is None or options.top_k is not None:
        refusals.add(
            "mechanism", clause, "mechanism = MISRA_GRIES and sketch_size belong together, without top_k.",
            "Write OPTIONS (mechanism = MISRA_GRIES, sketch_size = 1000).",
        )  # fmt: skip
        return ()
    if any(aggregate.statistics for aggregate in aggregates.values()):
        refusals.add(
            "mechanism", clause, "a Misra-Gries sketch counts distinct units and nothing else.",
            "Ask for count(DISTINCT …) of the privacy unit alone, or write top_k = k instead of MISRA_GRIES.",
        )  # fmt: skip
        return ()
    return (replace(frame, mechanism="csh", sparsity=Sparsity("sketch", options.sketch_size)),)


def _by_threshold(
    frame: Frame, options: QueryOptions, rows: int | None, key: exp.Expr, refusals: Refusals
) -> tuple[Frame, ...]:
    k = options.top_k if options.top_k is not None else rows and _HEADROOM * rows
    asked = _ON_PRIVATE_KEYS[options.mechanism] if options.mechanism is not None else None
    found: list[Frame] = []
    if options.top_k is None and frame.max_groups is not None and asked in (None, "gshm"):
        found.append(replace(frame, mechanism="gshm"))
    elif k is not None:
        found += [
            replace(frame, mechanism=name, sparsity=Sparsity("top_k", k))
            for name in _MECHANISMS_AFTER_TOP_K
            if asked in (None, name)
        ]
    elif asked in (None, "gshm"):
        refusals.add(
            "max_groups_missing", key, "neither policy nor query says how many groups one unit may touch.",
            "Write OPTIONS (max_groups_contributed = 4), declare max_groups_contributed in dp_protect, or ask for the "
            "largest groups alone: ORDER BY count(DISTINCT …) DESC LIMIT 100, or OPTIONS (top_k = 200).",
        )  # fmt: skip
    else:
        refusals.add(
            "mechanism", key, f"{options.mechanism} needs a number of keys that is enforced, whatever the data are.",
            "Add top_k = 100 to OPTIONS, or ORDER BY count(DISTINCT …) DESC LIMIT 100.",
        )  # fmt: skip
    return tuple(found)


_MECHANISMS_AFTER_TOP_K: tuple[Mechanism, ...] = ("csh", "gshm")
