"""Identity of frames, statistics and queries: what a stored release is found by, and paid for once.

What is hashed is written out here, name by name, so that nothing of it hangs on what a field is called or on how SQL
runs. Texts in it are the canonical ones of the plan: names resolved, parts sorted, spelling settled. The SQL that runs
is made of them later (`bound.source_sql`) and may change without a change of identity.

A part that most frames lack is left out where they lack it: hashes of before the part was there stay what they were.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from dpsql.query.frame import Frame, Statistic
from dpsql.query.private_query import PrivateQuery

NORMALISER_VERSION = 2
"""Raised whenever the same text would be normalised differently: old releases are then not found again."""

PRIORITY_VERSION = 1
"""Raised whenever the order changes by which groups and rows of a unit are kept: held keys are those of the old one.

The first is no part of a hash, because frames were there before it had a number.
"""


def frame_hash(frame: Frame) -> str:
    """Identity of a frame: everything that its groups depend on."""
    return _digest(_given(_later_parts(frame)) | _parts(frame))


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
        "row_cap": statistic.row_cap,
    }
    if statistic.cells != 1:
        parts["cells"] = statistic.cells
    if statistic.cell_bounds is not None:
        parts["cell_bounds"] = statistic.cell_bounds
    return _digest({"frame": frame_hash(frame), "statistic": parts})


def query_hash(query: PrivateQuery) -> str:
    """Identity of the statistics that are asked for, whatever their order, names and post-processing."""
    if query.grouping is not None:
        return _digest(sorted(query_hash(part) for part in query.grouping.parts))
    hashes = sorted(statistic_hash(statistic, query.frame) for statistic in query.statistics)
    return _digest(hashes if query.other is None else [*hashes, "other group"])


def _parts(frame: Frame) -> dict[str, object]:
    """What every frame has."""
    return {
        "normaliser": NORMALISER_VERSION,
        "unit": frame.unit,
        "table": frame.table,
        "version": frame.version,
        "unit_column": [frame.unit_column.sql, frame.unit_column.type],
        "filters": frame.filters,
        "keys": [[key.sql, key.type] for key in frame.keys],
        "max_groups": frame.max_groups,
        "public_keys": frame.public_keys.digest if frame.public_keys else None,
        "sparsity": [frame.sparsity.kind, frame.sparsity.k] if frame.sparsity else None,
        "minimum_units": frame.minimum_units,
        "mechanism": frame.mechanism,
        "window": [frame.window.low, frame.window.high, frame.window.delta] if frame.window else None,
        "settings": frame.settings,
    }


def _later_parts(frame: Frame) -> dict[str, object]:
    """What some frames have; nothing stands for none."""
    factorised = frame.factorised
    return {
        "ceiling": frame.ceiling,
        "generation": frame.generation,
        "links": frame.links,
        "source": frame.source,
        "counted_groups": frame.counted_groups,
        "finer": frame.finer and frame_hash(frame.finer),
        "outside": frame.outside,
        "factorised": factorised and [factorised.ordering.axis, factorised.ordering.descending, factorised.sixteenths],
        "priority": PRIORITY_VERSION if PRIORITY_VERSION > 1 else None,
    }


def _given(parts: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in parts.items() if value}


def _digest(content: object) -> str:
    """SHA-256 of a value's JSON, in hexadecimal digits."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
