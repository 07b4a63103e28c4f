"""A query with several grouping sets: one frame for each set, and whether the coarser ones are sums of the finest.

Where all keys are public and all aggregates add up, units are bounded by the finest groups alone, and every coarser
set is a sum of these, noised by itself: then all sets are answers to one question, and can be made to agree. Elsewhere
every set is the plain GROUP BY of its own keys, and is stored and found again as that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.query.aggregate_source import Aggregate
from dpsql.query.clauses import Clauses
from dpsql.query.dialect import to_sql
from dpsql.query.frame import Frame
from dpsql.query.keys import Key
from dpsql.query.mechanism import mechanisms
from dpsql.query.names import ResolvedSelect
from dpsql.query.options import QueryOptions
from dpsql.query.private_query import Grouping, PrivateQuery
from dpsql.query.refusals import Refusals

_OF_SUMS = (None, "GAUSSIAN")
"""Mechanisms beside which coarser sets may be sums: these are noised by independent noise."""


def distinct_sets(sets: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Every set once, those of most keys first, else in the order of the text."""
    return sorted(dict.fromkeys(sets), key=len, reverse=True)


def check_beside_sets(
    options: QueryOptions, resolved: ResolvedSelect, hint: exp.Expr | None, refusals: Refusals
) -> None:
    """Note a refusal for what goes with one set of keys only, where there are several."""
    if len(resolved.sets) == 1:
        return
    if options.max_groups_contributed == "AUTO":
        refusals.add(
            "option", hint, "AUTO chooses for one set of keys.",
            "Write max_groups_contributed = 4, or ask with one GROUP BY.",
        )  # fmt: skip
    if options.buckets is not None:
        refusals.add(
            "buckets", hint, "buckets add one set of keys up.", "Leave buckets out, or ask with one GROUP BY.",
        )  # fmt: skip
    if options.top_k is not None or options.sketch_size is not None or options.mechanism in ("CSH", "MISRA_GRIES"):
        refusals.add(
            "mechanism", hint, "the largest groups are those of one set of keys.",
            "Leave top_k and sketch_size out, or ask with one GROUP BY.",
        )  # fmt: skip


def frames_of_sets(
    found: Sequence[Frame],
    selects: Sequence[ResolvedSelect],
    clauses: Clauses,
    aggregates: Mapping[str, Aggregate],
    refusals: Refusals,
) -> list[tuple[Frame, ...]]:
    """Of each set, its frame by every mechanism that can answer it."""
    hiding = any(frame.has_private_keys for frame in found)
    by_set = []
    for frame, select in zip(found, selects, strict=True):
        options = clauses.options
        if hiding and not frame.has_private_keys and options.mechanism == "GSHM":
            # it is named for the sets whose keys hide
            options = replace(options, mechanism=None)
        # LIMIT is about all sets together
        own = replace(clauses, options=options, limit=None, offset=None)
        by_set.append(mechanisms(frame, own, select, aggregates, None, refusals))
    return by_set


def query_of_sets(
    query: PrivateQuery,
    by_set: Sequence[tuple[Frame, ...]],
    resolved: ResolvedSelect,
    keys: tuple[Key, ...],
    options: QueryOptions,
) -> PrivateQuery:
    """The query as its parts, one for each distinct set.

    Args:
        query: the query on the frame of the first set.
        by_set: of each distinct set its frames, in the order of ``distinct_sets``.
        resolved: what was asked.
        keys: those of the answer, flags last.
        options: the query's.

    """
    distinct = distinct_sets(resolved.sets)
    adds_up = _adds_up(query, distinct, resolved, options)
    parts = [replace(query, frame=frames[0], alternatives=frames[1:]) for frames in by_set]
    if adds_up:
        sums = (replace(frames[0], mechanism="gaussian") for frames in by_set[1:])
        parts[1:] = [replace(query, frame=frame, alternatives=()) for frame in sums]
    by_sql = {key.sql: number for number, key in enumerate(keys)}
    grouping = Grouping(
        keys=keys,
        flagged=tuple(by_sql[to_sql(key)] for key in resolved.keys),
        parts=tuple(parts),
        sets=tuple(distinct.index(one) for one in resolved.sets),
        adds_up=adds_up,
    )
    return replace(query, grouping=grouping.with_first(parts[0]))


def _adds_up(
    query: PrivateQuery, distinct: Sequence[tuple[int, ...]], resolved: ResolvedSelect, options: QueryOptions
) -> bool:
    """Whether coarser sets can be sums of the finest: its keys are all there are, and public, and units count once."""
    frame = query.frame
    if len(distinct[0]) != len(resolved.keys) or frame.public_keys is None or options.mechanism not in _OF_SUMS:
        return False
    if frame.counted_groups is not None:
        # a weight keeps the norm over the finest groups, not that over sums of them
        return False
    kinds = {statistic.kind for statistic in query.statistics}
    distinct_units = any(root.find(exp.Distinct) for root in resolved.outputs)
    counts_units = "units" in kinds or query.min_units > 1 or distinct_units
    return kinds <= {"presence", "units", "rows", "sum"} and (frame.max_groups == 1 or not counts_units)
