"""Chunks of rows as the helper reads them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dpsql.frontends.shell.frames import chunks, read_chunks, wire_type

TABLE = pa.table({"k": ["a", None, ""], "n": pa.array([1, None, 3], pa.int64()), "b": [True, None, False]})
TYPES = [wire_type("VARCHAR"), wire_type("BIGINT"), wire_type("BOOLEAN")]


def test_rows_arrive_as_they_left() -> None:
    arrived = pa.table(read_chunks(chunks(TABLE, TYPES), TYPES), names=TABLE.column_names)
    assert arrived.equals(TABLE)


def test_rows_that_are_cut_off_are_an_error_wherever_that_is() -> None:
    """Arrow believes the sizes that it is told, and would read what lies behind."""
    (whole,) = chunks(TABLE, TYPES)
    for size in range(len(whole)):
        with pytest.raises(ValueError, match="ends early"):
            read_chunks([whole[:size]], TYPES)
