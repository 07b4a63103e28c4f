"""Steps 5 to 7 for frames that are released together: charge, exact values, points.

Charge, read, draw, store, show, in this order. The charge is durable before any raw row is read; a point is durable
before anything of it is shown. What was charged but never stored was never shown, and asking the same again uses that
charge up.

A frame is *read* once and may be *released* several times on that reading, each time with an offer and a charge of its
own (`charge_offers`, `read_frame`, `release_frame`). `release_prepared` does it once for each frame.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from dpsql.model.frame import Frame
from dpsql.model.identity import frame_hash
from dpsql.model.statistic_kinds import LEFT_OUT_KINDS
from dpsql.release.changed_tables import change_sentences, tell_curator
from dpsql.release.exact import NOTHING_READ, Exact, Reading, prepare_reading, read_coverage, read_exact
from dpsql.release.left_out_stage import hold_for_left_out, release_left_out, require_left_out_runs
from dpsql.release.offer import Offer
from dpsql.release.points import new_points
from dpsql.release.public_lists import PublicLists
from dpsql.release.round_keys import add_keys
from dpsql.release.runtime import Inquiry, Runtime, bounding_frames, bounding_salt, read_marks
from dpsql.release.stored_beside import store_beside
from dpsql.state import Additions, AutoChoice, Charged, KeyList, Release, TableMark


@dataclass(frozen=True)
class FrameValues:
    """Exact values of a frame as one reading gave them; they stay in memory and are never stored but by a release.

    Attributes:
        exact: the values; new keys and frozen counts only until a release has stored them.
        marks: marks of the tables that were read.
        is_released: whether a release was made of them already.

    """

    exact: Exact
    marks: tuple[TableMark, ...] = ()
    is_released: bool = False

    def has(self, reading: Reading) -> bool:
        """Check whether these are the values of a reading, too."""
        return self.exact.values.keys() >= {*reading.due, *(reading.coverage.coverage if reading.coverage else ())}

    def __repr__(self) -> str:
        return "FrameValues(…)"


NO_VALUES = FrameValues(NOTHING_READ)
"""Values of a frame of which nothing is drawn."""


@dataclass(frozen=True)
class Prepared:
    """Frames that are released together, with all of it that can fail before the charge; nothing is charged yet.

    Attributes:
        offers: how each frame is served.
        readings: of each, where the exact values of what is drawn come from; None where nothing is.
        keys: the keys that numbers are released on, if these were selected first.

    """

    offers: tuple[Offer, ...]
    readings: tuple[Reading | None, ...]
    keys: pa.Table | None = None


def prepare(offers: Sequence[Offer], runtime: Runtime, keys: pa.Table | None = None) -> Prepared:
    """Find out that frames can be released as they are offered; charges, stores and reads nothing.

    Args:
        offers: how the frames are served.
        runtime: what the steps run on.
        keys: those of the groups that a frame of other rows is outside of.

    Raises:
        ReleaseError: the list of public keys changed since the plan, or the rows that are needed are gone.
        SchemaError: the database cannot run a bounded query.

    """
    return Prepared(tuple(offers), tuple(_reading_of(offer, runtime, keys) for offer in offers), keys)


def _reading_of(offer: Offer, runtime: Runtime, keys: pa.Table | None) -> Reading | None:
    """Return the reading of the numbers that an offer draws. Return None if it draws none."""
    if offer.left_out_drawn:
        require_left_out_runs(offer, runtime)
    numbers = tuple(one for one in offer.drawn if one.kind not in LEFT_OUT_KINDS)
    return prepare_reading(offer.query.frame, numbers, runtime, keys) if numbers else None


def release_prepared(
    prepared: Prepared, runtime: Runtime, inquiry: Inquiry, earlier: FrameValues = NO_VALUES
) -> tuple[Charged, FrameValues]:
    """Charge frames together; then read each, draw what is not stored, and store it with its release.

    Args:
        prepared: the frames.
        runtime: what the steps run on.
        inquiry: who asks.
        earlier: values of the only frame, if it was read for the same question; it is not read again if they suffice.

    Returns:
        What was charged, and the values of the only frame for its next release.

    Raises:
        BudgetError: nothing was charged or read.
        EngineError: the charge stays and pays for asking again.
        ReleaseError: AUTO chose otherwise for the same reader and level, or another process released a frame that is
            released once, meanwhile; the charge stays.

    """
    charged, kept = charge_offers(prepared.offers, runtime, inquiry), earlier
    for offer, reading in zip(prepared.offers, prepared.readings, strict=True):
        frame, values = offer.query.frame, NO_VALUES
        if offer.left_out_drawn:
            hold_for_left_out(offer, reading, bounding_salt(frame, runtime), runtime)
        if reading:
            is_known = earlier.has(reading)
            values = earlier if is_known else read_frame(reading, charged, runtime, inquiry.timeout_seconds)
        after = release_frame(offer, values, charged, runtime, inquiry)
        kept = after if reading else kept
        if offer.left_out_drawn:
            release_left_out(offer, prepared.keys, charged, runtime, inquiry)
    return charged, kept


def charge_offers(offers: Sequence[Offer], runtime: Runtime, inquiry: Inquiry) -> Charged:
    """Charge offers of one unit together, and return what was charged; durable when this returns.

    Raises:
        BudgetError: nothing was charged.

    """
    items = tuple(item for offer in offers for item in offer.items)
    if not items:
        return Charged()
    reader = inquiry.reader
    return runtime.state.ledger.charge(offers[0].query.frame.rows.unit, items, reader.name, reader.planned_at)


def read_frame(reading: Reading, charged: Charged, runtime: Runtime, timeout_seconds: float | None) -> FrameValues:
    """Read the exact values of a frame, after a charge for what is drawn of them first.

    A reading may have more statistics than the first release draws. The others are drawn later, each after its own
    charge.

    Args:
        reading: where the values come from.
        charged: what was charged before.
        runtime: state, engine and sandbox.
        timeout_seconds: limit on reading raw data.

    Raises:
        EngineError: the charge stays and pays for asking again.

    """
    if not charged.charge_ids:
        raise AssertionError("rows are read after a charge")
    frame, exact, apart = reading.bounded.frame, NOTHING_READ, reading.coverage
    salt = bounding_salt(frame, runtime)
    if reading.due:
        exact = read_exact(reading, salt, runtime, timeout_seconds)
    if apart and not exact.values.keys() >= set(apart.coverage):
        covered = read_coverage(apart, salt, runtime.engine, reading.public, timeout_seconds)
        exact = replace(exact, values={**exact.values, **covered})
    if reading.frozen and exact.new_keys is not None:
        add_keys(frame, exact.new_keys, runtime)
        exact = replace(exact, new_keys=None)
    held = runtime.pairs_of(frame)
    found = held.marks if held else None
    marks = read_marks(frame.rows.table_versions, runtime.engine, found) if reading.needs_data else ()
    return FrameValues(exact, marks)


def release_frame(
    part: Offer, values: FrameValues, charged: Charged, runtime: Runtime, inquiry: Inquiry
) -> FrameValues:
    """Draw what is not stored of one frame, or derive it from stored points, and store it with its release.

    Args:
        part: how the frame is served.
        values: exact values of all that is drawn.
        charged: what was charged for the offers that this one was charged with.
        runtime: state and source of noise.
        inquiry: who asks. What AUTO charged is recorded with this release.

    Returns:
        The values for the next release on the same reading.

    Raises:
        ReleaseError: as `release_prepared`; the charge stays.

    """
    frame, state, exact = part.query.frame, runtime.state, values.exact
    beside = {serving.pin.statistic_hash for serving in (*part.coverage, *part.left_out)}
    changed = tuple(mark.table for mark in values.marks if state.history.differences(mark))
    release = _release(part, inquiry.auto_charge + charged.part(part.items), changed, inquiry, runtime.asked_at)
    points, thresholds = new_points(part, exact, state.side_table, runtime.noise_source)
    for point in points:
        if point.statistic_hash in beside:
            store_beside(point, charged, frame, state.side_table)
    numbers = [item for item in part.items if item.statistic_hash not in beside]
    additions = Additions(
        new_keys=exact.new_keys,
        points=[point for point in points if point.statistic_hash not in beside],
        charge_ids=charged.part(numbers).charge_ids,
        release=release if inquiry.is_shown else None,
        snapshot=exact.snapshot,
        thresholds=thresholds,
        # so that the same question at the same level stays the same for its reader
        choices=[
            AutoChoice(one.statistic_hash, inquiry.reader.name, one.share_nano, one.rho_nano, one.limit_nano)
            for one in part.query.auto_levels
        ],
        marks=values.marks,
        lists=_new_lists(frame, runtime),
        # a number of rows left out is pinned with its draw, which follows
        pins=tuple(one.pin for one in part.servings if inquiry.is_shown and one not in part.left_out_drawn),
        drawn_once=inquiry.drawn_once,
    )
    state.side_table.store(frame_hash(frame), additions)
    if changed and runtime.logs_changes and not values.is_released:
        tell_curator(release.analyst, change_sentences(release))
    return replace(values, exact=replace(exact, new_keys=None, snapshot=None), is_released=True)


def _new_lists(frame: Frame, runtime: Runtime) -> list[KeyList]:
    """Return the public lists of keys that are not stored yet; an earlier version has the lists of its time."""
    new = []
    for one in bounding_frames(frame):
        if (public := one.public_keys) and one.rows_sql.relation:
            types = [key.type for key in one.keys]
            # combinations of keys are one list
            listed_types = [", ".join(types)] if public.rows else types
            listed = list(zip(public.columns, listed_types, public.list_digests, strict=True))
            if all(runtime.state.history.is_last_list(*column, kind, digest) for column, kind, digest in listed):
                continue
            blobs = PublicLists(runtime.state.policy(), runtime.engine, runtime.sandbox).blobs(public, types)
            for (column, kind, digest), blob in zip(listed, blobs, strict=True):
                if hashlib.sha256(blob).hexdigest() == digest:
                    new.append(KeyList(*column, kind, digest, blob))
    return new


def _release(
    part: Offer, charged: Charged, changed: tuple[str, ...], inquiry: Inquiry, asked_at: dt.datetime
) -> Release:
    """The record of one frame's release; who is shown it is shown what AUTO chose by, too."""
    frame = part.query.frame
    histograms = {level.statistic_hash: level.rho_nano for level in part.query.auto_levels}
    cut = (part.cut_delta, frame.window is not None)
    return Release(
        analyst=inquiry.reader.name,
        query_hash=inquiry.query_hash,
        at=asked_at,
        statistics=(*(serving.pin.statistic_hash for serving in part.servings), *dict(inquiry.later), *histograms),
        levels=(
            *(
                (serving.disclosed.rho_nano, serving.release_nano, asked.rho_nano, asked.noise_delta, *cut)
                for serving, asked in zip(part.servings, part.asked, strict=True)
            ),
            # whether they are charged follows from released numbers, so each step tells of them
            *((0, 0, level.rho_nano, level.noise_delta, *cut) for _, level in inquiry.later),
            *((level, 0) for level in histograms.values()),
        ),
        mechanism=part.histogram.name,
        rho_nano=part.rho_nano,
        epsilon=part.epsilon,
        delta=part.delta,
        charged_rho_nano=charged.rho_nano,
        charged_delta_units=charged.delta_units,
        reused=not charged.charge_ids,
        table_versions=frame.rows.table_versions,
        changed=changed,
        claim=inquiry.claim.of(frame) if inquiry.claim else (),
    )
