"""Exact values of what bounds leave out, from the tables that the question holds or from the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa

from dpsql.bound.coverage import unclamped
from dpsql.bound.formulations import Formulation
from dpsql.bound.kept_pairs import KeptPairs
from dpsql.bound.left_out import left_out_sql
from dpsql.bound.pairs import Pairs
from dpsql.model.frame import Frame, Statistic
from dpsql.release.exact import Runtime
from dpsql.release.held_pairs import read_units


def read_left_out(
    frame: Frame,
    measured: Sequence[tuple[Statistic, int]],
    salt: bytes,
    runtime: Runtime,
    listed: pa.Table | None,
    timeout_seconds: float | None,
) -> Mapping[Statistic, int]:
    """Return what bounds leave out of statistics, in steps of 2**-20 of their cuts (`bound.left_out`).

    Args:
        frame: what is grouped, and how units are bounded.
        measured: bounded statistics, each once, with the exponent of its cut.
        salt: the salt of the frame, that of the numbers.
        runtime: what the question runs on.
        listed: the shown keys of a frame with private keys, or the public keys. None if there are no keys.
        timeout_seconds: limit of time.

    Raises:
        EngineError: it failed or ran out of time; the message is constant.

    """
    statistics = [one for one, _ in measured]
    exact = read_units(
        frame,
        (*statistics, *map(unclamped, statistics)),
        partial(write_left_out, frame, measured, salt),
        runtime,
        listed,
        timeout_seconds,
    ).reveal()
    return {one: exact.column(f"left_{i}")[0].as_py() for i, one in enumerate(statistics, start=1)}


def write_left_out(
    frame: Frame,
    measured: Sequence[tuple[Statistic, int]],
    salt: bytes,
    formulation: Formulation = "groups_first",
    pairs: Pairs | KeptPairs | None = None,
) -> str:
    """Return the statement of ``read_left_out``; the arguments are its, and those of ``left_out_sql``."""
    are_listed = frame.has_private_keys
    if isinstance(pairs, KeptPairs):
        return pairs.left_out_sql(measured, are_listed=are_listed)
    return left_out_sql(frame, measured, salt, formulation=formulation, pairs=pairs, are_listed=are_listed)
