"""Frames that differ in one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpsql.model.frame import Frame


def with_relation(frame: Frame, relation: str) -> Frame:
    """The same frame of rows that are read elsewhere."""
    return replace(frame, rows_sql=replace(frame.rows_sql, relation=relation))


def with_bounding(frame: Frame, **changes: Any) -> Frame:
    """The same frame, bounded in another way."""
    return replace(frame, bounding=replace(frame.bounding, **changes))
