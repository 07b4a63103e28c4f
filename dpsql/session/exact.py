"""Step 6: exact values over the keys that a frame holds, from the data or from what the frame was first released from.

The histogram of a frame with private keys is read once. It is frozen in the state file, and every later release of the
frame is drawn from it or, for sums, on its keys. Had the data changed in silence, a unit would otherwise have new keys
at every reading, each with a chance to be shown that no threshold was charged for; a key that it alone brought in once
could be anybody's later, with all that was noised for it; and more than k keys would share one common noise.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.engine import Engine, Sandbox, digest
from dpsql.errors import EngineError, ReleaseError
from dpsql.mechanisms.entropy import Entropy
from dpsql.query.added_up import exact_sql
from dpsql.query.bound import approximate_sizes_sql
from dpsql.query.frame import PRESENCE, Frame, Sparsity, Statistic
from dpsql.query.histogram_sql import cell_columns
from dpsql.query.identity import frame_hash
from dpsql.query.kept import Formulation, chooses_groups, fastest, fastest_in_the_end
from dpsql.query.salt import STAND_IN_SALT
from dpsql.query.sketch_sql import sketch_sql
from dpsql.release.align import align_groups
from dpsql.release.sketch import sketched
from dpsql.session.policy_view import SchemaView
from dpsql.session.trial import require_runs
from dpsql.state import Snapshot, State

_FIRST_ROWS = 500_000
"""Looked at before all rows are, to choose a formulation: counting what all rows hold can take a fifth of the query."""


@dataclass(frozen=True)
class Rooms:
    """What the steps of one question run on.

    Attributes:
        state, engine, sandbox, entropy: the rooms themselves.
        asked_at: to the second; the time that its releases have in the books. That of their end would tell their
            reader how long the rows took.
        logs_changes: whether the log is told where rows changed within a version; not where others read it.

    """

    state: State
    engine: Engine
    sandbox: Sandbox
    entropy: Entropy
    asked_at: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC).replace(microsecond=0))
    logs_changes: bool = True


@dataclass(frozen=True)
class Exact:
    """Exact values over key ids; a wrapper whose text shows nothing.

    Attributes:
        new_keys: keys that the frame did not hold yet, in the order of their ids; None if there are none.
        values: int64 vectors over all key ids, in lattice steps.
        floor: what was subtracted from the presence counts.
        snapshot: the histogram to be frozen; None where the frame has none, or has it already.

    """

    new_keys: pa.Table | None
    values: Mapping[Statistic, npt.NDArray[np.int64]]
    floor: int
    snapshot: Snapshot | None

    def __repr__(self) -> str:
        return "Exact(…)"


@dataclass(frozen=True)
class Reading:
    """Where the exact values of the due statistics are to come from.

    Attributes:
        due: statistics whose values are wanted, presence first where it is among them.
        public_keys: the frame's public keys, one row each; None where keys are private.
        finer_keys: those of the finer frame that bounds its units; None where there is none.
        held: keys that the frame holds; None before its first release.
        snapshot: the frozen histogram; None where there is none.
        shown_keys: keys of the groups that a frame of other rows is outside of; None for other frames.

    """

    frame: Frame
    due: tuple[Statistic, ...]
    public_keys: pa.Table | None
    finer_keys: pa.Table | None
    shown_keys: pa.Table | None
    held: pa.Table | None = field(repr=False)
    snapshot: Snapshot | None = field(repr=False)

    @property
    def needs_data(self) -> bool:
        """Whether raw rows are read at all."""
        return not self.frame.is_frozen or self.is_first or any(statistic != PRESENCE for statistic in self.due)

    @property
    def is_first(self) -> bool:
        """Whether the frame's keys are yet to be found."""
        return self.held is None

    @property
    def listed(self) -> pa.Table | None:
        """Keys that the bounded query is about, where these are known before it."""
        if self.frame.is_frozen:
            return None if self.is_first else self.held
        if self.shown_keys is not None:
            return self.shown_keys
        return self.public_keys if self.finer_keys is None else self.finer_keys

    def sql(self, salt: bytes, formulation: Formulation = "groups_first") -> str:
        """The bounded query; nothing of the data."""
        sparsity = self.frame.sparsity
        if sparsity is not None and sparsity.kind == "sketch" and self.is_first:
            return sketch_sql(self.frame, salt)
        others = (statistic for statistic in self.due if statistic != PRESENCE)
        held_keys = self.frame.is_frozen and not self.is_first
        return exact_sql(self.frame, (PRESENCE, *others), salt, held_keys=held_keys, formulation=formulation)


def prepare_reading(
    frame: Frame, due: tuple[Statistic, ...], rooms: Rooms, shown_keys: pa.Table | None = None
) -> Reading:
    """Find out where the values come from, and that the bounded query runs on empty tables; reads no raw row.

    Raises:
        ReleaseError: the list of public keys changed since the plan, or the rows that are needed are gone.
        SchemaError: the database cannot run the bounded query, whatever the rows are.

    """
    held = rooms.state.side_table.frame_keys(frame_hash(frame))
    snapshot = rooms.state.side_table.snapshot(frame_hash(frame)) if frame.is_frozen else None
    finer_keys = None if frame.finer is None else public_key_table(frame.finer, rooms)
    reading = Reading(frame, due, public_key_table(frame, rooms), finer_keys, shown_keys, held, snapshot)
    if reading.needs_data and not frame.relation:
        others = ", ".join(f"{table} @ {version}" for table, version in frame.table_versions[1:])
        beside = f" (with {others})" if others else ""
        raise ReleaseError(
            f"the rows of {frame.table} in version {frame.version}{beside} are gone; what was released of them can be "
            "asked for at the same or lower levels, and nothing else"
        )
    if reading.needs_data:
        # of the formulations one is tried: all that a text writes stands in what they share
        require_runs(frame, due, [reading.sql(STAND_IN_SALT)], reading.listed, rooms)
    return reading


def read_exact(reading: Reading, salt: bytes, rooms: Rooms, timeout_seconds: float | None) -> Exact:
    """Carry the reading out.

    Raises:
        EngineError: the engine failed or ran out of time.

    """
    if not reading.frame.is_frozen:
        return _grouped(reading, salt, rooms, timeout_seconds)
    return (_first if reading.is_first else _on_held_keys)(reading, salt, rooms, timeout_seconds)


def _grouped(reading: Reading, salt: bytes, rooms: Rooms, timeout_seconds: float | None) -> Exact:
    """Every group of the data, in the order of the frame's keys."""
    exact = _aggregate(reading, salt, rooms, timeout_seconds)
    # public keys are the whole dictionary from the start, so that every one of them is noised, zeros included
    known = reading.held if reading.held is not None else reading.public_keys
    new_keys, values = _aligned(reading, exact, known, rooms)
    if reading.held is None and reading.public_keys is not None:
        new_keys = reading.public_keys
    return Exact(new_keys, values, 0, None)


def _first(reading: Reading, salt: bytes, rooms: Rooms, timeout_seconds: float | None) -> Exact:
    """What the subtraction of the floor leaves, to be frozen."""
    if PRESENCE not in reading.due:
        raise AssertionError("the first release of a frame draws its presence count")
    sparsity = reading.frame.sparsity
    if sparsity is not None and sparsity.kind == "sketch":
        exact, floor = _sketch(reading, sparsity, salt, rooms, timeout_seconds)
    elif sparsity is not None:
        table = _aggregate(reading, salt, rooms, timeout_seconds)
        floor = pc.max(table.column("floor")).as_py()
        exact = table.filter(pc.is_valid(table.column("units"))).drop_columns(["floor"])
    else:
        exact, floor = _aggregate(reading, salt, rooms, timeout_seconds), reading.frame.minimum_units - 1
    new_keys, values = _aligned(reading, exact, None, rooms)
    # at a ceiling nothing is ever drawn of it again
    snapshot = Snapshot(values[PRESENCE], floor) if reading.frame.ceiling is None else None
    return Exact(new_keys, values, floor, snapshot)


def _sketch(
    reading: Reading, sparsity: Sparsity, salt: bytes, rooms: Rooms, timeout_seconds: float | None
) -> tuple[pa.Table, int]:
    """Counters above the policy's minimum, and the floor with it: true counts are below counter + floor."""
    with contextlib.closing(rooms.engine.stream(reading.sql(salt), timeout_seconds=timeout_seconds)) as pieces:
        sketch = sketched(sparsity.k, (piece.reveal() for piece in pieces), rooms.sandbox.run)
    left_out = reading.frame.minimum_units - 1
    units = pc.subtract(sketch.counters.column("units"), left_out)
    counters = sketch.counters.set_column(sketch.counters.num_columns - 1, "units", units)
    return counters.filter(pc.greater(units, 0)), sketch.floor + left_out


def _on_held_keys(reading: Reading, salt: bytes, rooms: Rooms, timeout_seconds: float | None) -> Exact:
    """The frozen counts where they are due, and sums on the frozen keys."""
    values: dict[Statistic, npt.NDArray[np.int64]] = {}
    if reading.needs_data:
        exact = _aggregate(reading, salt, rooms, timeout_seconds)
        new_keys, values = _aligned(reading, exact, reading.held, rooms)
        if new_keys is not None:
            raise EngineError("the keys that a frame holds do not match themselves", withheld=False)
    if reading.snapshot is None:
        return Exact(None, values, 0, None)
    return Exact(None, values | {PRESENCE: reading.snapshot.values}, reading.snapshot.floor, None)


def _aggregate(reading: Reading, salt: bytes, rooms: Rooms, timeout_seconds: float | None) -> pa.Table:
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    sql = reading.sql(salt, _fastest(reading, salt, rooms, deadline))
    return rooms.engine.aggregate(sql, listed_keys=reading.listed, timeout_seconds=_left(deadline)).reveal()


def _fastest(reading: Reading, salt: bytes, rooms: Rooms, deadline: float | None) -> Formulation:
    """How the bounded query is written: all ways have one result, and none fails for want of sizes."""
    frame = reading.frame.finer or reading.frame
    # rows are cut by windows, and DuckDB 2.0 never ends where a join of windows is read up to a limit
    if not chooses_groups(frame) or frame.cuts:
        return "groups_first"
    others = tuple(statistic for statistic in reading.due if statistic != PRESENCE)
    has_native = rooms.engine.has_native()
    with contextlib.suppress(EngineError):
        for most_rows in (_FIRST_ROWS, None):
            sql = approximate_sizes_sql(frame, salt, most_rows)
            sizes = rooms.engine.sizes(sql, listed_keys=reading.listed, timeout_seconds=_left(deadline))
            chosen = fastest(frame, others, sizes, has_native=has_native)
            if sizes.rows < _FIRST_ROWS or chosen == fastest_in_the_end(frame, others, has_native=has_native):
                break
        return chosen
    return "groups_first"


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


def _aligned(
    reading: Reading, exact: pa.Table, known: pa.Table | None, rooms: Rooms
) -> tuple[pa.Table | None, dict[Statistic, npt.NDArray[np.int64]]]:
    key_names = tuple(f"key_{i}" for i in range(len(reading.frame.keys)))
    aligned = align_groups(exact, known, key_names, rooms.sandbox.run)
    others = [statistic for statistic in reading.due if statistic != PRESENCE]
    values = {statistic: cell_values(aligned.values, i, statistic) for i, statistic in enumerate(others, start=1)}
    return aligned.new_keys, {PRESENCE: aligned.values["units"]} | values


def cell_values(values: Mapping[str, npt.NDArray[np.int64]], i: int, statistic: Statistic) -> npt.NDArray[np.int64]:
    """The vector of a statistic: of a histogram the cells of a key side by side."""
    return np.stack([values[name] for name in cell_columns(i, statistic)], axis=1).ravel()


def public_key_table(frame: Frame, rooms: Rooms) -> pa.Table | None:
    """The frame's public keys, one row each; None where keys are private.

    Raises:
        ReleaseError: the list changed since the plan.

    """
    public = frame.public_keys
    if public is None:
        return None
    view = SchemaView(rooms.state.policy(), rooms.engine, rooms.sandbox)
    table = view.public_key_table(public.columns, [key.type for key in frame.keys])
    if digest(table) != public.digest:
        raise ReleaseError("the public keys changed while the query was planned; nothing was charged, ask again")
    return table
