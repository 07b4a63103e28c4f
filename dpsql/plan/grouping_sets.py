"""GROUPING SETS, ROLLUP and CUBE: one frame for each set of keys, and what GROUPING() says of a row.

Where all keys are public and all aggregates add up, units are bounded by the finest groups alone, and every coarser
set is a sum of these, noised by itself: then all sets are answers to one question, and can be made to agree. Elsewhere
every set is the plain GROUP BY of its own keys, and is stored and found again as that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.model.frame import Frame
from dpsql.model.private_query import EachKey, FrameQuery, QueryOptions
from dpsql.model.query_kinds import GroupingSets
from dpsql.model.refusals import refuse_combinations, that_hold
from dpsql.model.rows import Key
from dpsql.operations.dialect import to_sql, unquoted
from dpsql.operations.trees import map_tree
from dpsql.plan.aggregates.arguments import Aggregate
from dpsql.plan.frames import GroupedSource, candidates
from dpsql.plan.keys import read_keys, read_public_keys
from dpsql.sql.clauses import is_aggregate_call
from dpsql.sql.names import ResolvedSelect
from dpsql.sql.source.sources import SelectText

_OF_SUMS = (None, "GAUSSIAN")
"""Mechanisms beside which coarser sets may be sums: these are noised by independent noise."""


def read_grouping(text: SelectText) -> SelectText:
    """Replace GROUPING() in what is shown by the flags; where there is one set, by 0."""
    resolved, refusals, flags = text.select, text.refusals, text.flags
    keys = {to_sql(key.unnest()): place for place, key in enumerate(resolved.keys)}
    if not text.has_sets and resolved.sets != (tuple(range(len(keys))),):
        raise AssertionError("a GROUP BY without grouping sets is one set of all its keys")

    def computed(call: exp.Expr) -> exp.Expr:
        written = call.expressions or list(resolved.keys)
        places = [keys.get(to_sql(part.unnest())) for part in written]
        for part, place in zip(written, places, strict=True):
            if place is None:
                refusals.add(
                    "not_grouped",
                    part,
                    f"GROUPING() takes grouping expressions, and {unquoted(part)} is none.",
                    "Name an expression of GROUP BY, as it is written there.",
                )
        found = [place for place in places if place is not None]
        bits = [flags[place].copy() if flags else exp.Literal.number(0) for place in found]
        weights = [exp.Literal.number(2**power) for power in reversed(range(len(bits)))]
        terms: list[exp.Expr] = [
            exp.Mul(this=bit, expression=weight) for bit, weight in zip(bits, weights, strict=True)
        ]
        total = functools.reduce(lambda a, b: exp.Add(this=a, expression=b), terms or [exp.Literal.number(0)])
        return exp.cast(exp.paren(total), "BIGINT", dialect="duckdb")

    def visit(node: exp.Expr) -> exp.Expr | None:
        if isinstance(node, exp.Grouping | exp.GroupingId):
            return computed(node)
        # inside of aggregates GROUPING() is refused as an aggregate
        return None if is_aggregate_call(node) else node

    def replaced(root: exp.Expr) -> exp.Expr:
        return map_tree(root.copy(), visit)

    having = None if resolved.having is None else replaced(resolved.having)
    qualify = None if resolved.qualify is None else replaced(resolved.qualify)
    items = tuple(replace(item, expression=replaced(item.expression)) for item in resolved.items)
    order = tuple(map(replaced, resolved.order))
    return replace(text, select=replace(resolved, items=items, having=having, qualify=qualify, order=order))


def distinct_sets(sets: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Every set once, those of most keys first, else in the order of the text."""
    return sorted(dict.fromkeys(sets), key=len, reverse=True)


def frames_of_sets(source: GroupedSource, aggregates: Mapping[str, Aggregate]) -> tuple[tuple[Frame, ...], ...]:
    """Of each distinct set, its frame by every mechanism that can answer it; none where something was refused."""
    text, options, found = source.text, source.text.options, []
    # the query by the keys of each set; what is shown is not part of it, nor LIMIT, which is about all sets together
    selects = [
        replace(text.select, keys=tuple(text.select.keys[i] for i in places), order=(), having=None, qualify=None)
        for places in distinct_sets(text.select.sets)
    ]
    for select in selects:
        keys = read_keys(text, select.keys)
        found.append(source.by_keys(select, keys, read_public_keys(text, select.keys, keys)))
    # a key that was refused is not in the frame, and is private all the same
    hides = any(select.keys and not frame.public_keys for select, frame in zip(selects, found, strict=True))
    known = options.given | that_hold({"public keys": not hides})
    refuse_combinations({"own_threshold", "rho_window"}, known, text.hint, text.refusals)
    is_hiding = any(frame.has_private_keys for frame in found)
    by_set = []
    for frame, select in zip(found, selects, strict=True):
        # a mechanism of hidden keys is named for the sets whose keys hide
        is_for_others = is_hiding and not frame.has_private_keys and options.mechanism == "GSHM"
        own = replace(options, mechanism=None) if is_for_others else options
        by_set.append(candidates(frame, text, own, select, aggregates, EachKey()))
    return tuple(by_set)


def sets_of(
    query: FrameQuery,
    by_set: Sequence[tuple[Frame, ...]],
    resolved: ResolvedSelect,
    keys: tuple[Key, ...],
    options: QueryOptions,
) -> GroupingSets:
    """The query as its parts, one for each distinct set.

    Args:
        query: the query on the frame of the first set.
        by_set: the frames of each distinct set, in the order of ``distinct_sets``.
        resolved: what was asked.
        keys: those of the answer, flags last.
        options: the query's.

    """
    distinct = distinct_sets(resolved.sets)
    adds_up = _adds_up(query, distinct, resolved, options)
    parts = [replace(query, frame=first, alternatives=tuple(others)) for first, *others in by_set]
    if adds_up:
        sums = (replace(frames[0], mechanism="gaussian") for frames in by_set[1:])
        parts[1:] = [replace(query, frame=frame, alternatives=()) for frame in sums]
    by_sql = {key.sql: number for number, key in enumerate(keys)}
    grouping = GroupingSets(
        all_keys=keys,
        flagged=tuple(by_sql[to_sql(key)] for key in resolved.keys),
        request=query.request,
        parts=tuple(parts),
        sets=tuple(distinct.index(one) for one in resolved.sets),
        adds_up=adds_up,
    )
    # where they add up, the others are sums of the groups of the first
    return grouping.mapped(lambda part: part)


def _adds_up(
    query: FrameQuery, distinct: Sequence[tuple[int, ...]], resolved: ResolvedSelect, options: QueryOptions
) -> bool:
    """Whether coarser sets can be sums of the finest: its keys are all there are, and public, and units count once."""
    frame = query.frame
    if len(distinct[0]) != len(resolved.keys) or not frame.public_keys or options.mechanism not in _OF_SUMS:
        return False
    if frame.public_keys.rows:
        # sums run over all combinations of keys
        return False
    if frame.bounding.counted_groups:
        # a weight keeps the norm over the finest groups, not that over sums of them
        return False
    kinds = {statistic.kind for statistic in query.statistics}
    distinct_units = any(root.find(exp.Distinct) for root in resolved.outputs)
    counts_units = "units" in kinds or query.request.min_units > 1 or distinct_units
    return kinds <= {"presence", "units", "rows", "sum"} and (frame.bounding.max_groups == 1 or not counts_units)
