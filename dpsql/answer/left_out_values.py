"""Exact values of what bounds leave out, from a statement of its own after the numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dpsql.answer.exact import Runtime
from dpsql.answer.held_pairs import read_units
from dpsql.bound.coverage import unclamped
from dpsql.bound.formulations import Formulation
from dpsql.bound.left_out import left_out_sql
from dpsql.bound.pairs import Pairs
from dpsql.model.frame import Frame, Statistic


def read_left_out(
    frame: Frame,
    measured: Sequence[tuple[Statistic, int]],
    salt: bytes,
    runtime: Runtime,
    listed: pa.Table | None,
    timeout_seconds: float | None,
) -> dict[Statistic, int]:
    """Return the sums over units of what bounds leave out of them."""

    def write(formulation: Formulation, pairs: Pairs | None) -> str:
        return left_out_sql(
            frame, measured, salt, formulation=formulation, pairs=pairs, are_listed=frame.has_private_keys
        )

    statistics = [one for covered, _ in measured for one in (covered, unclamped(covered))]
    exact = read_units(frame, statistics, write, runtime, listed, timeout_seconds).reveal()
    return {covered: exact.column(f"left_{i}")[0].as_py() for i, (covered, _) in enumerate(measured, start=1)}
