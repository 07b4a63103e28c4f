"""Step 6: exact values over the keys that a frame holds, from the data or from what the frame was first released from.

The histogram of a frame with private keys is read once. It is frozen in the state file, and every later release of the
frame is drawn from it or, for sums, on its keys. Had the data changed in silence, a unit would otherwise have new keys
at every reading, each with a chance to be shown that no threshold was charged for; a key that it alone brought in once
could be anybody's later, with all that was noised for it; and more than k keys would share one common noise.

A frame's keys form an append-only dictionary; row number = key id, and a point is a vector over key ids. Every key
that the frame holds takes part in a new draw, with exact value 0 where the data now lacks it, so that which keys
have a value never tells what the data lost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.bound.aggregation import cell_columns
from dpsql.bound.coverage import PLACES
from dpsql.bound.statement import Bounded, Kind
from dpsql.engine import Engine, digest
from dpsql.errors import EngineError, ReleaseError, SchemaError
from dpsql.model.frame import KEYS_FIRST, PRESENCE, Frame, Sparsity, Statistic
from dpsql.model.identity import frame_hash
from dpsql.model.statistic_kinds import BESIDE_KINDS, COVERAGE_KINDS
from dpsql.operations.row_sql import STAND_IN_SALT
from dpsql.release.formulation import choose_formulation, groups_first, read_held_rows
from dpsql.release.public_lists import PublicLists
from dpsql.release.runtime import Runtime, read_units
from dpsql.release.sketch import sketched
from dpsql.state import Snapshot, to_arrow, to_numpy


@dataclass(frozen=True)
class Exact:
    """Exact values over key ids; a wrapper whose text shows nothing.

    Attributes:
        new_keys: keys that the frame did not hold yet, in the order of their ids; None if there are none.
        values: int64 vectors over all key ids, the new ones last, in lattice steps; of a histogram the cells of a key
            side by side.
        floor: what was subtracted from the presence counts.
        snapshot: the histogram to be frozen; None where the frame has none, or has it already.

    """

    new_keys: pa.Table | None
    values: Mapping[Statistic, npt.NDArray[np.int64]]
    floor: int = 0
    snapshot: Snapshot | None = None

    def __repr__(self) -> str:
        return "Exact(…)"


NOTHING_READ = Exact(None, {})
Places = dict[Statistic, npt.NDArray[np.int64]]
"""Exact values of coverage: the number of units in each place."""

_ONE_KEY = pa.table({"": pa.nulls(1)}).select([])
"""The key of a frame without GROUP BY, which has no columns."""


@dataclass(frozen=True)
class Reading:
    """A question to the rows for the due statistics, and the keys that its groups are aligned with.

    Attributes:
        bounded: what is asked.
        due: statistics whose values are wanted, presence first where it is among them.
        listed: keys that the statement is about, where these are known before it.
        known: keys that the frame holds, or is to hold whatever the rows are; None where rows alone tell its keys.
        is_first: whether the frame holds no keys yet.
        frozen: where the keys are those that the rows had at the frame's first release, the frozen presence counts and
            their floor, no values where there are none; None elsewhere.
        coverage: what is asked for the coverage that ``bounded`` does not read; None where none is wanted.
        public: public keys of the frame; None where keys are private.
        needs_data: whether raw rows are read at all.

    """

    bounded: Bounded
    due: tuple[Statistic, ...]
    listed: pa.Table | None = field(repr=False)
    known: pa.Table | None = field(repr=False)
    is_first: bool = True
    frozen: Exact | None = None
    coverage: Bounded | None = None
    public: pa.Table | None = field(default=None, repr=False)
    needs_data: bool = True


def matches_of(frame: Frame, left: str, right: str) -> str:
    """The condition under which rows of two tables have the same key."""
    return " AND ".join(f"{left}.{name} IS NOT DISTINCT FROM {right}.{name}" for name in frame.key_columns)


def no_keys(frame: Frame) -> pa.Table:
    """A list of keys of a frame with none on it, for what is tried before they are known."""
    return pa.table({name: pa.nulls(0) for name in frame.key_columns})


def prepare_reading(
    frame: Frame, due: tuple[Statistic, ...], runtime: Runtime, shown_keys: pa.Table | None = None
) -> Reading:
    """Find out where the values come from, and that the bounded query runs on empty tables; reads no raw row.

    Raises:
        ReleaseError: the list of public keys changed since the plan, or the rows that are needed are gone.
        SchemaError: the database cannot run the bounded query, whatever the rows are.

    """
    side_table, name = runtime.state.side_table, frame_hash(frame)
    coverage = tuple(statistic for statistic in due if statistic.kind in COVERAGE_KINDS)
    due = tuple(statistic for statistic in due if statistic.kind not in BESIDE_KINDS)
    public, held = public_key_table(frame, runtime), side_table.frame_keys(name)
    listed = public_key_table(frame.bounding.finer, runtime) if frame.bounding.finer else public
    if frame.rows.outside:
        listed = shown_keys
    known, frozen, held_keys = held, None, False
    if held is None:
        # numbers on selected keys are noised on these, whatever the rows are
        known = (shown_keys if frame.mechanism == KEYS_FIRST else public) if frame.keys else _ONE_KEY
    elif frame.is_frozen:
        listed, frozen = held, NOTHING_READ
        if snapshot := side_table.snapshot(name):
            # of keys that the frame got after the snapshot, nobody was counted
            counts = np.pad(snapshot.values, (0, held.num_rows - len(snapshot.values)))
            frozen = Exact(None, {PRESENCE: counts}, snapshot.floor)
        # where any key may be shown later, which keys the frame holds by then must not decide what is read of it
        held_keys = frame.mechanism != KEYS_FIRST
    kind: Kind = "groups"
    if frame.bounding.sparsity and frame.bounding.sparsity.kind == "sketch" and held is None:
        kind = "shards"
    elif coverage and due and not (frozen and due == (PRESENCE,)):
        kind = "covered_groups"
    reading = Reading(
        Bounded(frame, due, coverage if kind == "covered_groups" else (), kind, held_keys),
        due,
        listed,
        known,
        is_first=held is None,
        frozen=frozen,
        coverage=Bounded(frame, (), coverage, "coverage") if coverage else None,
        public=public,
        needs_data=not frozen or bool(coverage) or any(statistic != PRESENCE for statistic in due),
    )
    if reading.needs_data:
        _require_rows(reading, runtime)
    return reading


def _require_rows(reading: Reading, runtime: Runtime) -> None:
    """Refuse a reading whose rows are gone, or whose statements fail on empty tables.

    Raises:
        ReleaseError, SchemaError: as `prepare_reading`.

    """
    bounded, frame = reading.bounded, reading.bounded.frame
    if not frame.rows_sql.relation:
        rows = frame.rows
        others = ", ".join(f"{table} @ {version}" for table, version in rows.table_versions[1:])
        beside = f" (with {others})" if others else ""
        raise ReleaseError(
            f"the rows of {rows.table} in version {rows.version}{beside} are gone, or the curator archived the table; "
            "what was released of them can be asked for at the same or lower levels, and nothing else"
        )
    if bounded.kind == "shards" and not runtime.engine.has_streams:
        raise SchemaError(
            "a sketch (MISRA_GRIES) reads rows in one order, and the parts of a split table have none.",
            hint="Write mechanism = GSHM, or top_k with another mechanism: both work over parts.",
        )
    # of the formulations one is tried: all that a text writes stands in what they share
    require_runs(frame, (*reading.due, *bounded.coverage), bounded.sql(STAND_IN_SALT), reading.listed, runtime.engine)
    if reading.coverage and not bounded.coverage:
        apart = reading.coverage
        require_runs(frame, apart.coverage, apart.sql(STAND_IN_SALT), reading.public, runtime.engine)


def read_exact(reading: Reading, salt: bytes, runtime: Runtime, timeout_seconds: float | None) -> Exact:
    """Carry the reading out.

    Raises:
        EngineError: the engine failed or ran out of time.

    """
    frame = reading.bounded.frame
    if reading.frozen:
        return _on_held_keys(reading, reading.frozen, salt, runtime, timeout_seconds)
    if not frame.is_frozen:
        exact = align_groups(reading, _aggregate(reading, salt, runtime, timeout_seconds), runtime)
        # public keys are the whole dictionary from the start, so that every one of them is noised, zeros included
        return replace(exact, new_keys=reading.known) if reading.is_first and not frame.has_private_keys else exact
    if PRESENCE not in reading.due:
        raise AssertionError("the first release of a frame draws its presence count")
    # what the subtraction of the floor leaves is frozen
    sparsity = frame.bounding.sparsity
    if sparsity and sparsity.kind == "sketch":
        groups, floor = _sketch(reading, sparsity, salt, runtime, timeout_seconds)
    else:
        groups, floor = _aggregate(reading, salt, runtime, timeout_seconds), frame.bounding.minimum_units - 1
    if sparsity and sparsity.kind == "top_k":
        floor = pc.max(groups.column("floor")).as_py()
        groups = groups.filter(pc.is_valid(groups.column("units"))).drop_columns(["floor"])
    exact = align_groups(reading, groups, runtime)
    if reading.known is not None:
        exact = replace(exact, new_keys=pa.concat_tables([reading.known, *filter(None, [exact.new_keys])]))
    # at a ceiling nothing is ever drawn of it again
    snapshot = Snapshot(exact.values[PRESENCE], floor) if frame.ceiling is None else None
    return replace(exact, floor=floor, snapshot=snapshot)


def _sketch(
    reading: Reading, sparsity: Sparsity, salt: bytes, runtime: Runtime, timeout_seconds: float | None
) -> tuple[pa.Table, int]:
    """Counters above the policy's minimum, and the floor with it: true counts are below counter + floor."""
    with contextlib.closing(runtime.engine.stream(reading.bounded, salt, timeout_seconds=timeout_seconds)) as pieces:
        sketch = sketched(sparsity.k, (piece.reveal() for piece in pieces), runtime.sandbox.run)
    left_out = reading.bounded.frame.bounding.minimum_units - 1
    units = pc.subtract(sketch.counters.column("units"), left_out)
    counters = sketch.counters.set_column(sketch.counters.num_columns - 1, "units", units)
    return counters.filter(pc.greater(units, 0)), sketch.floor + left_out


def _on_held_keys(
    reading: Reading, frozen: Exact, salt: bytes, runtime: Runtime, timeout_seconds: float | None
) -> Exact:
    """The frozen counts where they are due, and sums on the frozen keys, or on these and on all others of the rows."""
    if reading.due == (PRESENCE,):
        return frozen
    exact = align_groups(reading, _aggregate(reading, salt, runtime, timeout_seconds), runtime)
    if exact.new_keys is None:
        return replace(frozen, values={**exact.values, **frozen.values})
    if reading.bounded.frame.mechanism != KEYS_FIRST:
        raise EngineError("the keys that a frame holds do not match themselves", withheld=False)
    counts = {one: np.pad(values, (0, exact.new_keys.num_rows)) for one, values in frozen.values.items()}
    return replace(exact, values={**exact.values, **counts}, floor=frozen.floor)


def _aggregate(reading: Reading, salt: bytes, runtime: Runtime, timeout_seconds: float | None) -> pa.Table:
    bounded, listed = reading.bounded, reading.listed
    if runtime.pairs_of(bounded.frame):
        return read_units(bounded, salt, runtime, listed, timeout_seconds).reveal()
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    if bounded.kind == "groups" and bounded.frame.rows.source:
        return read_held_rows(bounded, salt, runtime.engine, listed, deadline).reveal()
    fastest = partial(choose_formulation, bounded, salt, runtime.engine, listed, deadline)
    exact = runtime.engine.exact(bounded, salt, fastest, listed_keys=listed, timeout_seconds=timeout_seconds)
    return exact.reveal()


def align_groups(reading: Reading, exact: pa.Table, runtime: Runtime) -> Exact:
    """Match exact groups, with key columns and int64 columns for the statistics, to the keys that are known.

    Coverage that was read beside the groups has places in place of keys.
    """
    covered: Mapping[Statistic, npt.NDArray[np.int64]] = {}
    if "measure" in exact.column_names:
        exact, covered = _split_coverage(reading.bounded.coverage, exact)
    names = reading.bounded.frame.key_columns
    others = [statistic for statistic in reading.due if statistic != PRESENCE]
    columns = {PRESENCE: ("units",)} | {other: cell_columns(i, other) for i, other in enumerate(others, start=1)}
    order = ", ".join(f"e.{name} NULLS LAST" for name in names)
    if not names:
        table, new_keys = exact, None
    elif reading.known is None:
        table = runtime.sandbox.run(f"SELECT e.* FROM exact e ORDER BY {order}", {"exact": exact})
        new_keys = table.select(names)
    else:
        known = reading.known
        numbered = known.append_column("key_id", to_arrow(np.arange(known.num_rows)))
        values = ", ".join(f"coalesce(e.{name}, 0) AS {name}" for one in columns.values() for name in one)
        keys = ", ".join(f"e.{name} AS {name}" for name in names)
        table = runtime.sandbox.run(
            f"SELECT h.key_id AS key_id, {keys}, {values} FROM exact e FULL JOIN held h "
            f"ON {matches_of(reading.bounded.frame, 'e', 'h')} "
            f"ORDER BY h.key_id NULLS LAST, {order}",
            {"exact": exact, "held": numbered},
        )
        fresh = table.slice(known.num_rows).select(names)
        new_keys = fresh if fresh.num_rows else None
    vectors = {
        statistic: np.stack([to_numpy(table.column(cell)).astype(np.int64) for cell in cells], axis=1).ravel()
        for statistic, cells in columns.items()
    }
    return Exact(new_keys, {**vectors, **covered})


def read_coverage(
    bounded: Bounded, salt: bytes, engine: Engine, listed_keys: pa.Table | None, timeout_seconds: float | None
) -> Places:
    """Return the number of units in each place, of a query that reads nothing else.

    Raises:
        EngineError: the engine failed or ran out of time.

    """
    exact = engine.exact(bounded, salt, groups_first, listed_keys=listed_keys, timeout_seconds=timeout_seconds)
    return _places_of(bounded.coverage, exact.reveal())


def _split_coverage(coverage: Sequence[Statistic], exact: pa.Table) -> tuple[pa.Table, Places]:
    """Return the groups of ``one_pass_sql``, and the number of units in each place."""
    is_group = pc.is_null(exact.column("measure"))
    places = _places_of(coverage, exact.filter(pc.invert(is_group)))
    return exact.filter(is_group).drop_columns(["measure", "place"]), places


def _places_of(coverage: Sequence[Statistic], exact: pa.Table) -> Places:
    measures, places, units = (to_numpy(exact.column(name)) for name in ("measure", "place", "units"))
    counts = np.zeros((len(coverage), PLACES), dtype=np.int64)
    counts[measures - 1, places] = units
    return dict(zip(coverage, counts, strict=True))


def public_key_table(frame: Frame, runtime: Runtime) -> pa.Table | None:
    """The frame's public keys, one row each; None where keys are private.

    Raises:
        ReleaseError: the list changed since the plan.

    """
    public = frame.public_keys
    if not public:
        return None
    view = PublicLists(runtime.state.policy(), runtime.engine, runtime.sandbox)
    table = view.public_key_table(public, [key.type for key in frame.keys])
    if digest(table) != public.digest:
        raise ReleaseError("the public keys changed while the query was planned; nothing was charged, ask again")
    return table


def require_runs(
    frame: Frame, statistics: Sequence[Statistic], query: str, listed: pa.Table | None, engine: Engine
) -> None:
    """Refuse what fails on empty tables.

    Args:
        frame: what is grouped.
        statistics: what is measured.
        query: what runs for it.
        listed: keys that the query is about.
        engine: where it will run.

    Raises:
        SchemaError: it fails; the error names the expression where one alone fails.

    """
    with contextlib.suppress(SchemaError):
        engine.run_empty([query], listed_keys=listed)
        return
    from dpsql.release.trial import refusal_of  # noqa: PLC0415 — only a refused question needs it

    raise refusal_of(frame, statistics, engine)
