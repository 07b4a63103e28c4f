"""The last step of a release: rows left out of the shown groups, drawn after the numbers are stored.

Which groups are shown, and how large their numbers are, follows from stored points. Both name what is measured: the
groups, and the cut of one unit. The charge was made with that of the numbers, before any row was read, and follows from
neither (docs/proofs/left-out.md, Theorem 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dpsql.bound.coverage import numbers_of
from dpsql.bound.left_out import PART_BITS
from dpsql.bound.statement import LeftOut
from dpsql.cascade.serving import Serving
from dpsql.mechanism.measure import Grid
from dpsql.model.estimates import LinearValue
from dpsql.model.frame import PRESENCE, Frame, Statistic
from dpsql.operations.row_sql import STAND_IN_SALT
from dpsql.release.exact import Reading, no_keys, public_key_table, require_runs
from dpsql.release.left_out import LEAST_CUT_OF_ROWS, cut_exponent
from dpsql.release.noisy_table import shown_sum
from dpsql.release.number_threshold import shown_beside
from dpsql.release.offer import Offer
from dpsql.release.points import shown_frame, stored_keys
from dpsql.release.round_keys import selected_ids
from dpsql.release.runtime import Inquiry, Runtime, bounding_salt, hold_kept, hold_pairs, read_units
from dpsql.release.stored_beside import store_beside
from dpsql.state import Charged, MeasuredGroups, Point, SideTable, to_arrow

_MOST_CUT_BITS = 60
"""The largest cut, in lattice steps, is two to this power."""


def require_left_out_runs(offer: Offer, runtime: Runtime) -> None:
    """Find out that what bounds leave out can be read, of an offer that draws it; reads nothing.

    Raises:
        ReleaseError, SchemaError: as `prepare`.

    """
    frame, covered = offer.query.frame, [_covered(one) for one in offer.left_out_drawn]
    sql = LeftOut(frame, tuple((one, 0) for one in covered)).sql(STAND_IN_SALT)
    listed = no_keys(frame) if frame.has_private_keys else public_key_table(frame, runtime)
    require_runs(frame, covered, sql, listed, runtime.engine)


def hold_for_left_out(offer: Offer, reading: Reading | None, salt: bytes, runtime: Runtime) -> None:
    """Let the reading of the numbers, and that of what bounds leave out, share a table; after a charge for both."""
    frame, measured = offer.query.frame, [_covered(one) for one in offer.left_out_drawn]
    if reading:
        hold_kept(reading.bounded, measured, salt, reading.public, runtime)
        hold_pairs(frame, numbers_of(offer.drawn), reading.public, runtime)


def numbers_alone(offer: Offer) -> Offer:
    """Return an offer without its numbers of rows left out, and without their price."""
    kept = [place for place, one in enumerate(offer.servings) if one not in offer.left_out]
    hashes = {one.pin.statistic_hash for one in offer.left_out}
    return replace(
        offer,
        servings=tuple(offer.servings[place] for place in kept),
        asked=tuple(offer.asked[place] for place in kept),
        items=tuple(item for item in offer.items if item.statistic_hash not in hashes),
    )


def release_left_out(offer: Offer, keys: pa.Table | None, charged: Charged, runtime: Runtime, inquiry: Inquiry) -> None:
    """Draw and store the numbers of rows left out of an offer whose other statistics are stored.

    *Guarantee*: given all that was stored before, each number is rho-zCDP at its own level for adding or removing all
    rows of one unit, which moves it by at most 1 in units of its cut; up to the draws' precision.
    *Source*: docs/proofs/left-out.md, Lemma 1 and Theorem 3.
    *Randomness*: one draw per number.

    Args:
        offer: how the query of one frame is served.
        keys: the selected keys, of a frame whose keys are selected first.
        charged: what was charged for the offer.
        runtime: state, engine and source of noise.
        inquiry: the aim for the noise of a number, and the limit on reading raw data.

    Raises:
        EngineError: the charge stays and pays for asking again.

    """
    frame, side_table = offer.query.frame, runtime.state.side_table
    salt = bounding_salt(frame, runtime)
    if keys is not None:
        keys = shown_beside(offer, keys, runtime)
    measured, listed = _measured(offer, keys, runtime, inquiry.left_out_share)
    exact: Mapping[Statistic, int] = {}
    if listed is None or listed.num_rows:
        cuts = [(_covered(one), groups.cut_exponent) for one, groups in measured]
        exact = read_left_out(frame, cuts, salt, runtime, listed, inquiry.timeout_seconds)
    for serving, groups in measured:
        level, pin = serving.level, serving.pin
        noise = offer.histogram.measure.draw(Grid(-PART_BITS, -PART_BITS), level.sigma, 1, runtime.noise_source)
        point = Point(
            statistic_hash=pin.statistic_hash,
            rho_nano=pin.rho_nano,
            frame_hash=pin.statistic_hash,
            values=noise.values + exact.get(_covered(serving), 0),
            lattice_exponent=-PART_BITS,
            sigma=level.sigma,
            tau=None,
            threshold_delta_units=0,
            source_rho_nano=_paid_with(serving, side_table),
        )
        store_beside(point, charged, frame, side_table, pins=(pin,), measured_groups=(groups,))


def _measured(
    offer: Offer, keys: pa.Table | None, runtime: Runtime, share: float
) -> tuple[list[tuple[Serving, MeasuredGroups]], pa.Table | None]:
    """Return what is to be drawn, with what is stored of its groups and its cut, and the keys of these groups.

    The keys are shown or public ones; without GROUP BY there are none.
    """
    frame, side_table = offer.query.frame, runtime.state.side_table
    selected = selected_ids(frame, keys, runtime) if keys is not None else None
    found = shown_frame(offer, side_table, selected=selected)
    linears = {one.covered: one.value.linear for one in offer.query.estimates if isinstance(one.value, LinearValue)}
    levels = {one.level.statistic: one.disclosed.rho_nano for one in offer.servings if one is not offer.presence}
    measured = []
    for serving in offer.left_out_drawn:
        covered, pin = _covered(serving), serving.pin
        shown, sigma = shown_sum(linears[covered], found)
        least = LEAST_CUT_OF_ROWS if covered.kind == "rows" else covered.lattice_exponent
        most = covered.lattice_exponent + _MOST_CUT_BITS
        # at its own level, which is less than the level that is asked for
        cut = cut_exponent(shown, sigma, serving.level.sigma, share, least, most)
        ids = found.shown.astype(np.int64) if frame.has_private_keys else None
        groups = MeasuredGroups(
            pin.statistic_hash,
            pin.rho_nano,
            cut,
            shown,
            sigma,
            ids,
            presence_rho_nano=offer.presence.disclosed.rho_nano,
            number_rho_nano=levels.get(linears[covered].statistic or PRESENCE, 0),
        )
        measured.append((serving, groups))
    if frame.has_private_keys:
        return measured, stored_keys(frame, side_table).take(to_arrow(found.shown))
    return measured, public_key_table(frame, runtime)


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
    exact = read_units(LeftOut(frame, tuple(measured)), salt, runtime, listed, timeout_seconds).reveal()
    return {one: exact.column(f"left_{i}")[0].as_py() for i, (one, _) in enumerate(measured, start=1)}


def _paid_with(serving: Serving, side_table: SideTable) -> int | None:
    """Return the place of the number whose charge has paid for a new one. Return None if the charge is its own."""
    stored = side_table.levels(serving.pin.statistic_hash)
    top = max((one.rho_nano for one in stored), default=0)
    return top if serving.pin.rho_nano < top else None


def _covered(serving: Serving) -> Statistic:
    """Return the statistic whose bounds are measured."""
    covered = serving.level.statistic.covered
    if covered is None:
        raise AssertionError("a number of rows left out is about a statistic")
    return covered
