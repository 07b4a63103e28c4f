"""Identity of frames, statistics and queries: what a stored release is found by, and paid for once.

What is hashed is written out here, name by name, so that nothing of it hangs on what a field is called or on how SQL
runs. Texts in it are the canonical ones of the plan: names resolved, parts sorted, spelling settled. The SQL that runs
is made of them later (`bound.source_sql`) and may change without a change of identity.

A part that most frames lack is left out where they lack it: hashes of before the part was there stay what they were.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace

from dpsql.model.frame import Frame, Largest, Norm, Statistic
from dpsql.model.private_query import FrameQuery, PrivateQuery
from dpsql.model.query_kinds import GroupingSets
from dpsql.model.statistic_kinds import StatisticKind

NORMALISER_VERSION = 2
"""Raised whenever the same text would be normalised differently: old releases are then not found again."""

PRIORITY_VERSION = 1
"""Raised whenever the order changes by which groups and rows of a unit are kept: held keys are those of the old one.

The first is no part of a hash, because frames were there before it had a number.
"""

_IN_QUESTION: Mapping[str, StatisticKind] = {"rows_left_out": "rows_coverage", "sum_left_out": "sum_coverage"}


def frame_hash(frame: Frame) -> str:
    """Identity of a frame: everything that its groups depend on."""
    rows, bounding, sparsity, factorised = frame.rows, frame.bounding, frame.bounding.sparsity, frame.factorised
    parts = {
        "normaliser": NORMALISER_VERSION,
        "unit": rows.unit,
        "table": rows.table,
        "version": rows.version,
        "unit_column": [rows.unit_column.sql, rows.unit_column.type],
        "filters": rows.filters,
        "keys": [[key.sql, key.type] for key in frame.keys],
        "max_groups": bounding.max_groups,
        "public_keys": frame.public_keys.digest if frame.public_keys else None,
        "sparsity": sparsity and [sparsity.kind, sparsity.k],
        "minimum_units": bounding.minimum_units,
        "mechanism": frame.mechanism,
        "window": [frame.window.low, frame.window.high, frame.window.delta] if frame.window else None,
        "settings": rows.settings,
    }
    # what some frames have; nothing stands for none
    later = {
        "ceiling": frame.ceiling,
        "generation": frame.generation,
        "links": [[link.parent, link.version, link.columns, link.parent_columns] for link in rows.links],
        "source": rows.source,
        "counted_groups": bounding.counted_groups,
        "finer": bounding.finer and frame_hash(bounding.finer),
        "outside": rows.outside,
        "by_norm": bounding.by_norm,
        "max_rows": bounding.max_rows,
        "factorised": factorised and [factorised.ordering.axis, factorised.ordering.descending, factorised.sixteenths],
        "priority": PRIORITY_VERSION if PRIORITY_VERSION > 1 else None,
        "largest": frame.largest and _largest_parts(frame.largest),
    }
    return _digest(parts | {name: value for name, value in later.items() if value})


def rows_hash(frame: Frame) -> str:
    """Identity of the rows and keys of a frame, however units are bounded in them and numbers are noised."""
    rows = frame.rows
    links = [[link.parent, link.version, link.columns, link.parent_columns] for link in rows.links]
    keys = [[key.sql, key.type] for key in frame.keys]
    return _digest([rows.unit, rows.table, rows.version, rows.filters, keys, links, rows.source])


def base_hash(frame: Frame) -> str:
    """Identity of a frame but for its generation."""
    return frame_hash(replace(frame, generation=0))


def statistic_hash(statistic: Statistic, frame: Frame) -> str:
    """Identity of a statistic of a frame: what its releases are stored under."""
    parts: dict[str, object] = {
        "kind": statistic.kind,
        "low_steps": statistic.low_steps,
        "high_steps": statistic.high_steps,
        "lattice_exponent": statistic.lattice_exponent,
        "value_sql": statistic.value_sql,
        "filter_sql": statistic.filter_sql,
        "row_bounds_steps": statistic.row_bounds_steps,
        "group_bounds_steps": statistic.group_bounds_steps,
        "row_cap": statistic.limit if isinstance(statistic.limit, int) else None,
    }
    if statistic.histogram:
        parts["cell_bounds"] = (statistic.histogram.low, statistic.histogram.high)
        if statistic.histogram.finer:
            parts["finer_cells"] = True
    if statistic.cells != 1:
        parts["cells"] = statistic.cells
    if isinstance(statistic.limit, Norm):
        parts["norm"] = (statistic.limit.l2_steps, statistic.limit.centre_steps, statistic.limit.row_steps)
    return _digest({"frame": frame_hash(frame), "statistic": parts})


def _largest_parts(largest: Largest) -> list[object]:
    """Return what the counts of a question for the largest ones are, and what their keys follow from."""
    one, chosen = largest.counted, largest.chosen_by
    counted = one and [one.kind, one.high_steps, one.value_sql, one.filter_sql, one.group_bounds_steps, one.row_cap]
    by = chosen and [*chosen.point, chosen.rho_nano, chosen.error, chosen.confidence, chosen.limit]
    return [counted, by]


def query_hash(query: PrivateQuery) -> str:
    """Identity of the statistics that are asked for, whatever their order, names and post-processing."""
    match query:
        case GroupingSets():
            return _digest(sorted(part_hash(part) for part in query.parts))
        case _:
            return part_hash(query.first, *query.beside)


def part_hash(query: FrameQuery, *beside: str) -> str:
    """Identity of the statistics of one frame: of a query with one set of keys and nothing beside it, its own."""
    return _digest(
        [*sorted(statistic_hash(in_question(statistic), query.frame) for statistic in query.statistics), *beside]
    )


def in_question(statistic: Statistic) -> Statistic:
    """Return a statistic as a part of a question: coverage in place of a number of rows left out.

    So a question is the same one as before there were such numbers.
    """
    kind = _IN_QUESTION.get(statistic.kind)
    return replace(statistic, kind=kind) if kind else statistic


def reader_hash(name: str, reader: str) -> str:
    """Identity of a statistic that is released to one reader alone.

    Args:
        name: identity of the statistic.
        reader: the reader.

    """
    return _digest([name, reader])


def _digest(content: object) -> str:
    """SHA-256 of a value's JSON, in hexadecimal digits."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
