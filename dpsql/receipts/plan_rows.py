"""Rows of ``dp_explain``: what one offer says of its frame, its noise, its errors and its price.

A kind of query puts its table together of these (`dpsql/features/query_kind.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dpsql.cascade.serving import Draw, Lowering, Serving
from dpsql.errors import CalibrationError
from dpsql.mechanism.calibrate import calibrate
from dpsql.mechanism.csh import selection_sentence
from dpsql.mechanism.histogram import count_sigma
from dpsql.mechanism.measure import Term
from dpsql.mechanism.registry import choose_frame, histogram_of, mechanism_of
from dpsql.model.frame import PRESENCE, Frame, Norm
from dpsql.model.identity import query_hash
from dpsql.model.private_query import FrameQuery, PrivateQuery
from dpsql.model.statistic_kinds import LEFT_OUT_KINDS
from dpsql.receipts import words
from dpsql.receipts.offer_receipt import column_receipts, notes
from dpsql.receipts.receipt import ColumnReceipt
from dpsql.release.estimates import noise_sigma
from dpsql.release.offer import Offer, amounts_of, shown_threshold
from dpsql.state import DELTA_UNITS_PER_ONE, NANO_PER_RHO

Row = tuple[str, str, str]
"""Section, name and value."""
LEVELS_APART = "a level above all stored ones is a release of its own, at its full price; a lower one is free"


def price_rows(query: PrivateQuery, offers: Iterable[Offer], beside: str = "") -> list[Row]:
    """Return the rows of the price, and of the hash that the query is found by.

    Args:
        query: the plan.
        offers: how the frames are served that are paid for.
        beside: what is said after the price.

    """
    return amount_rows(query, *amounts_of(offers), beside)


def amount_rows(query: PrivateQuery, rho_nano: int, delta_units: int, beside: str = "") -> list[Row]:
    """Return the rows of a price in nano-rho and delta units, as `price_rows`."""
    measure = histogram_of(query.first.frame).measure
    return [
        ("price", measure.amount, f"{rho_nano / NANO_PER_RHO:.9g}{beside}"),
        *([] if measure.rises else [("price", "rule", LEVELS_APART)]),
        ("price", "threshold delta", f"{delta_units / DELTA_UNITS_PER_ONE:.6g}"),
        ("price", "query hash", query_hash(query)),
    ]


def offer_rows(offer: Offer) -> list[Row]:
    """Return the rows of one offer with the errors of its own columns."""
    return frame_plan_rows(offer, column_receipts(offer.query, offer.histogram, offer.noise))


def frame_plan_rows(part: Offer, columns: Sequence[ColumnReceipt]) -> list[Row]:
    """Return the rows of one offer: its frame, its noise, and the expected error of its columns."""
    query, frame = part.query, part.query.frame
    rows: list[Row] = [
        *frame_rows(frame),
        ("frame", "max_groups", groups_sentence(frame)),
        ("mechanism", "name", _mechanism_sentence(frame)),
        ("mechanism", part.histogram.measure.amount, f"{part.rho_nano / NANO_PER_RHO:.9g}"),
        ("mechanism", "this query alone", f"epsilon = {part.epsilon:.6g}, delta = {part.delta:.6g}"),
    ]
    if part.presence.tau is not None or query.request.min_units > 1:
        rows.append(("mechanism", "threshold", threshold_sentence(query, part.presence.tau)))
    return [
        *rows,
        *(("not chosen", *row) for row in _not_chosen(query)),
        *(statistic_row(serving, part) for serving in part.servings),
        *(("expected error", column.name, expected_error(column)) for column in columns),
        *(("error", "rule", note) for note in notes(part)),
    ]


def _mechanism_sentence(frame: Frame) -> str:
    """Return the sentence that says how a mechanism noises its frame."""
    sentence, sparsity = mechanism_of(frame).sentence, frame.bounding.sparsity
    return f"{sentence}; {selection_sentence(sparsity)}" if sparsity else sentence


def threshold_sentence(query: FrameQuery, tau: float | None) -> str:
    """Return the rule by which groups are shown."""
    shown, bounding = shown_threshold(query.frame, tau, query.request.min_units), query.frame.bounding
    threshold = f"{shown:.9g}"
    if bounding.max_groups == 1 and bounding.counted_groups:
        return f"a group is shown if its noisy weight exceeds {threshold}; a unit in n groups adds 1 / sqrt(n)"
    if tau is None or bounding.sparsity is None:
        return words.SHOWN_ABOVE.format(threshold=threshold)
    rule = words.SHOWN_ABOVE_LARGEST.format(threshold=threshold)
    return rule + (f", and {query.request.min_units + tau:.9g}" if query.request.min_units > 1 else "")


def _not_chosen(query: FrameQuery) -> Iterator[tuple[str, str]]:
    """Yield name and numbers of each mechanism that would have answered the same text."""
    for frame in query.alternatives:
        other = choose_frame(replace(query, frame=frame, alternatives=()))
        histogram = histogram_of(frame)
        try:
            calibration = calibrate(other, histogram)
        except CalibrationError as error:
            yield _mechanism_sentence(frame), str(error)
            continue
        sigma = count_sigma(histogram, calibration.levels[0].sigma)
        half_width = float(histogram.measure.half_width([Term(sigma)]))
        numbers = f"sigma of a count = {sigma:.9g}, 95 % half width = {half_width:.9g}"
        if query.total is not None:
            noise = {
                level.statistic: noise_sigma(level.statistic, level.sigma, histogram) for level in calibration.levels
            }
            columns = [column for column in column_receipts(other, histogram, noise) if column.sigma is not None]
            numbers = "; ".join(f"sigma of {column.name} = {column.sigma:.9g}" for column in columns)
        if calibration.cut.tau is not None:
            numbers += f"; {threshold_sentence(other, calibration.cut.tau)}"
        yield _mechanism_sentence(frame), numbers


def frame_rows(frame: Frame) -> list[Row]:
    """Return the rows that say what is grouped."""
    return [
        ("frame", "table", f"{frame.rows.table} (version {frame.rows.version})"),
        ("frame", "privacy unit", f"{frame.rows.unit}, by {frame.rows_sql.readable(frame.rows.unit_column.sql)}"),
        ("frame", "keys", ", ".join(frame.called_keys) or "(one group of all rows)"),
        ("frame", "filter", frame.rows_sql.readable(" AND ".join(frame.rows.filters)) or "(none)"),
    ]


def groups_sentence(frame: Frame) -> str:
    """Return the number of groups in which a unit counts, in words."""
    bounding = frame.bounding
    if bounding.max_groups is None:
        return "any number"
    return f"{bounding.max_groups}" + (f", with weights {bounding.counted_groups}" if bounding.counted_groups else "")


def statistic_row(serving: Serving, offer: Offer) -> Row:
    """Return the row of one statistic: the part of one unit in it, its level, its noise and its source."""
    level, statistic, histogram = serving.level, serving.level.statistic, offer.histogram
    readable = offer.query.frame.rows_sql.readable
    steps = {type(step) for step in serving.priced_steps}
    source = "to be drawn" if Draw in steps else "from what is stored" if Lowering in steps else "stored"
    if covered := statistic.covered:
        name = "groups" if covered == PRESENCE else f"{covered.kind} of {readable(covered.value_sql) or '*'}"
        noise = f"rho = {level.rho_nano / NANO_PER_RHO:.9g}, sigma = {level.sigma:.9g}"
        if statistic.kind in LEFT_OUT_KINDS:
            one_number = "one noisy number: how much bounds leave out of the shown groups, of one unit at most a cut"
            return "left out", name, f"{one_number}; {noise} cuts ({source})"
        numbers = "noisy numbers of units by how much they have, and how much of it bounds leave"
        return "coverage", name, f"{numbers}; {noise} ({source})"
    low, high = statistic.interval
    name = "distinct units" if statistic == PRESENCE else f"{statistic.kind} of {readable(statistic.value_sql) or '*'}"
    if statistic.filter_sql:
        name += f" where {readable(statistic.filter_sql)}"
    rows = ""
    if statistic.row_bounds_steps:
        least, most = (steps * statistic.lattice for steps in statistic.row_bounds_steps)
        rows = f"a row is clamped to [{least:.9g}, {most:.9g}]; "
    if cells := statistic.histogram:
        rows = f"a row is in one of {cells.count} cells of [{cells.low:.9g}, {cells.high:.9g}]; "
    exponent = statistic.lattice_exponent if histogram.measure.in_steps else statistic.noise_exponent
    adds = f"one unit adds [{low:.9g}, {high:.9g}] to a group, recentred to ±{statistic.radius:.9g}"
    if isinstance(statistic.limit, Norm):
        less = f", less {statistic.centre:.9g} in each" if statistic.centre else ""
        adds = f"one unit adds an l2 norm of at most {statistic.radius:.9g} to all groups{less}"
    return (
        "statistic",
        name,
        f"{rows}{adds}; "
        f"{histogram.measure.amount} = {level.rho_nano / NANO_PER_RHO:.9g}, "
        f"sigma = {noise_sigma(statistic, level.sigma, histogram):.9g}, "
        f"lattice = {2.0**exponent:.9g} ({source})",
    )


def expected_error(column: ColumnReceipt) -> str:
    """Return the expected error of a column, in words."""
    if column.sigma is None or column.half_width_95 is None:
        return "differs by row; see dp_interval_low and dp_interval_high"
    return f"sigma = {column.sigma:.9g}, 95 % half width = {column.half_width_95:.9g}"
