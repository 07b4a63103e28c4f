"""Surroundings of one question: who asks, state, engine and noise, the salt of bounds, and pairs that readings share.

A claim is the most that a question may be charged whose charge follows from released numbers. Readers with a limit may
not see these numbers, and a charge reveals them. So for such a reader the question counts with its claim, which follows
from its text and the policy.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from dpsql.bound.coverage import numbers_of
from dpsql.bound.kept_pairs import KeptPairs
from dpsql.bound.pairs import Pairs
from dpsql.bound.statement import Bounded, Statement
from dpsql.cascade.reader import Reader
from dpsql.engine import Engine, ExactTable, Mark, Sandbox
from dpsql.errors import SchemaError
from dpsql.mechanism.measure import Level
from dpsql.model.frame import Frame, Statistic
from dpsql.model.identity import base_hash, frame_hash, rows_hash
from dpsql.noise.entropy import NoiseSource
from dpsql.release.formulation import groups_first
from dpsql.release.held_pairs import HeldPairs
from dpsql.release.left_out import SHARE
from dpsql.release.offer import Offer
from dpsql.state import Charged, State, TableMark


@dataclass(frozen=True)
class Runtime:
    """Things that the steps of one question run on.

    Attributes:
        state: the state file.
        engine: reads raw rows.
        sandbox: computes of what may be shown.
        noise_source: draws all noise.
        asked_at: to the second; the time that its releases have in the state file. That of their end would tell their
            reader how long the rows took.
        logs_changes: whether the log is told where rows changed within a version; not where others read it.
        until_end: ends with the question, and what it holds with it.
        held: at most one table of pairs.

    """

    state: State
    engine: Engine
    sandbox: Sandbox
    noise_source: NoiseSource
    asked_at: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC).replace(microsecond=0))
    logs_changes: bool = True
    until_end: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    held: list[HeldPairs] = field(default_factory=list)

    def pairs_of(self, frame: Frame) -> HeldPairs | None:
        """Return the pairs of a frame's rows and keys that the readings of the question share. Return None if none."""
        return next((held for held in self.held if held.serves(frame)), None)


@dataclass(frozen=True, slots=True)
class Claim:
    """The most that a question may be charged.

    Attributes:
        question: its text, options and reader; empty if its statistics follow from its text, and only their levels
            from released numbers: then each statistic is recorded at its cap.
        rho_nano, delta_units: the amounts, if it has a text.

    """

    question: str = ""
    rho_nano: int = 0
    delta_units: int = 0

    def of(self, frame: Frame) -> tuple[object, ...]:
        """Return the claim as it is recorded with a release of a frame."""
        if not self.question:
            return (rows_hash(frame),)
        return (rows_hash(frame), self.question, self.rho_nano, self.delta_units)


@dataclass(frozen=True, slots=True)
class Inquiry:
    """The reader and the question that the releases of a query are recorded under.

    Attributes:
        reader: who asks, with their clearance; who is charged for in the state file.
        query_hash: of the whole query.
        timeout_seconds: limit on reading raw data, for each frame.
        auto_charge: what was charged for the histograms that AUTO chose by.
        first_charge: what was charged for a first round of key selection that the plan rests on.
        drawn_once: whether each frame is drawn a single time, as a round of key selection is.
        is_shown: whether the releases are shown, and recorded. A first round that is drawn before the plan is known is
            recorded with the answer.
        claim: the most that the query may be charged, if its charge follows from released numbers.
        left_out_share: aim for the noise of a number of rows left out, as a part of the shown numbers together.
        later: identities of statistics that the query may be charged for after its steps, each at its highest level.

    """

    reader: Reader
    query_hash: str
    timeout_seconds: float | None
    auto_charge: Charged
    first_charge: Charged = field(default_factory=Charged)
    drawn_once: bool = False
    is_shown: bool = True
    claim: Claim | None = None
    left_out_share: float = SHARE
    later: tuple[tuple[str, Level], ...] = ()


def bounding_frames(frame: Frame) -> tuple[Frame, ...]:
    """Return a frame, with the one in whose finer groups units are bounded if there is one."""
    return tuple(filter(None, (frame, frame.bounding.finer)))


def bounding_salt(frame: Frame, runtime: Runtime) -> bytes:
    """Return the salt by which units are bounded, that of the finest frame; store frames that are not stored yet."""
    salt = b""
    for one in bounding_frames(frame):
        tables = [name for name, _ in one.rows.table_versions]
        salt = runtime.state.side_table.frame_salt(
            frame_hash(one), one.rows.unit, tables, base_hash(one), one.generation
        )
    return salt


def read_marks(
    table_versions: Sequence[tuple[str, str]], engine: Engine, found: Mapping[str, Mark] | None = None
) -> tuple[TableMark, ...]:
    """Return the marks of tables in their versions, as they are now if none were found with the rows."""
    found = found or engine.marks([table for table, _ in table_versions])
    return tuple(
        TableMark(table, version, tuple(found[table].items())) for table, version in table_versions if table in found
    )


def read_units(
    statement: Statement,
    salt: bytes,
    runtime: Runtime,
    listed_keys: pa.Table | None,
    timeout_seconds: float | None,
) -> ExactTable:
    """Return the exact rows of a statement, over the pairs that the question holds, or over the rows.

    The arguments and errors are those of ``HeldPairs.read``.
    """
    if held := runtime.pairs_of(statement.frame):
        return held.read(statement, salt, listed_keys, timeout_seconds)
    return runtime.engine.exact(statement, salt, groups_first, listed_keys=listed_keys, timeout_seconds=timeout_seconds)


def hold_shared_pairs(frame: Frame, planned: Sequence[Offer], runtime: Runtime) -> None:
    """Let the readings of releases on private keys that follow each other share their pairs.

    Args:
        frame: a frame of the rows and keys.
        planned: the releases.
        runtime: what the question runs on.

    """
    drawn = [offer.drawn for offer in planned if offer.drawn]
    if len(drawn) > 1:
        hold_pairs(frame, numbers_of([one for statistics in drawn for one in statistics]), None, runtime)


def hold_pairs(frame: Frame, statistics: Sequence[Statistic], listed: pa.Table | None, runtime: Runtime) -> None:
    """Let the readings of a question share the pairs of a frame's rows; reads nothing.

    Args:
        frame: a frame of the question.
        statistics: those whose numbers later readings need.
        listed: the public keys of the frame.
        runtime: what the question runs on.

    """
    if runtime.pairs_of(frame) or not runtime.engine.has_own_cursors:
        return
    pairs = Pairs.of(frame, statistics)
    if pairs is None:
        return
    # each statement by itself was tried; if they do not run together, each reads the rows
    with contextlib.suppress(SchemaError):
        runtime.engine.run_empty([pairs.sql()], listed_keys=listed)
        # tables of other rows end before
        runtime.until_end.close()
        held = HeldPairs(pairs, listed, runtime.engine)
        runtime.held[:] = [held]
        runtime.until_end.callback(held.close)


def hold_kept(
    bounded: Bounded, measured: Sequence[Statistic], salt: bytes, listed: pa.Table | None, runtime: Runtime
) -> None:
    """Let the reading of numbers and that of what they leave out share one table; reads nothing.

    Args:
        bounded: the reading of the numbers.
        measured: the statistics of which it is read afterwards what bounds leave out.
        salt: the salt of the frame.
        listed: the public keys of the frame.
        runtime: what the question runs on.

    """
    frame = bounded.frame
    kept = KeptPairs.of(frame, bounded.statistics, measured, salt) if bounded.kind == "groups" else None
    if kept is None:
        return
    hold_pairs(frame, kept.needed, listed, runtime)
    if held := runtime.pairs_of(frame):
        # if it does not run, each statement reads the pairs or the rows
        with contextlib.suppress(SchemaError):
            runtime.engine.run_empty([kept.sql("groups_first", None)], listed_keys=listed)
            held.keep(kept)
