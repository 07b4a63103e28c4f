"""The plan of a query: mechanism, noise, threshold, expected error and price, by the offers that it is answered by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dpsql.answer.estimates import Z_95, noise_sigma
from dpsql.answer.offer import (
    Offer,
    column_receipts,
    current,
    held_histogram,
    notes,
    offers_of,
    shown_threshold,
)
from dpsql.answer.result import ColumnReceipt, Result
from dpsql.cascade.reader import Reader
from dpsql.cascade.serving import Draw, Lowering, Serving
from dpsql.errors import CalibrationError
from dpsql.features.auto import origin_sentence
from dpsql.features.auto_price import answer_delta_units, asked_nano, may_come, open_price
from dpsql.features.joint_release import (
    joint_columns,
    joint_guarantee_of,
    joint_notes,
    joint_terms,
    other_notes,
    other_offer,
)
from dpsql.features.key_rounds import KeyRounds, round_offers, rounds_note
from dpsql.features.keys_first import KeysAndNumbers, keys_first_note
from dpsql.mechanism.calibrate import calibrate
from dpsql.mechanism.csh import selection_sentence
from dpsql.mechanism.histogram import count_sigma
from dpsql.mechanism.registry import choose_frame, histogram_of, mechanism_of
from dpsql.model.frame import PRESENCE, Frame, Norm
from dpsql.model.identity import query_hash
from dpsql.model.private_query import (
    AutoBounds,
    AutoGroups,
    FrameQuery,
    GroupingSets,
    KeysAlone,
    KeysFirst,
    PrivateQuery,
    WithOtherGroup,
)
from dpsql.session.lookups import text_table
from dpsql.state import DELTA_UNITS_PER_ONE, NANO_PER_RHO, State

Row = tuple[str, str, str]
"""Section, name and value."""


def describe_table(query: PrivateQuery) -> Result:
    """FROM dp_describe($$…$$): names and types of the answer's columns; reads and spends nothing."""
    return text_table(("column_name", "column_type"), [(one.name, one.type) for one in query.shown])


def explain_table(query: PrivateQuery, state: State, reader: Reader) -> Result:
    """FROM dp_explain($$…$$): mechanism, noise, threshold, expected error and price; reads and spends nothing.

    What is stored at the level asked for or above it would be served as stored, so its noise is what is shown.
    """
    if query.first.is_open:
        return _open_table(query, state, reader)
    query, or_less = query.mapped(lambda part: current(part, state, reader)), ""
    if isinstance(query, KeysAlone):
        offers = round_offers(KeyRounds.of(query.first, reader).planned(state), state)
    elif isinstance(query, KeysFirst):
        parts = KeysAndNumbers.of(query, state, reader)
        offers = parts.offers(state)
        if parts.may_cost_less(offers):
            or_less = ", or less where the first round finds nearly all keys"
    else:
        offers = offers_of(query.parts, state, reader)
    items = [item for part in offers for item in part.items]
    price_rho = sum(item.rho_nano for item in items) / NANO_PER_RHO
    price_delta = sum(item.delta_units for item in items) / DELTA_UNITS_PER_ONE
    if isinstance(query, GroupingSets):
        rows = _set_rows(query, offers)
    elif isinstance(query, KeysAlone):
        rows = _round_rows(query.first, offers)
    elif isinstance(query, KeysFirst):
        rows = _keys_first_rows(query, offers)
    else:
        (only,) = offers
        rows = _explained(only, column_receipts(only.query, only.histogram, only.noise))
    if isinstance(query, WithOtherGroup):
        rows += _other_rows(query, offers[0], state, reader)
    rows += [
        ("price", "rho", f"{price_rho:.9g}{or_less}"),
        ("price", "threshold delta", f"{price_delta:.6g}"),
        ("price", "query hash", query_hash(query)),
    ]
    return text_table(("section", "name", "value"), rows)


def _set_rows(sets: GroupingSets, offers: Sequence[Offer]) -> list[Row]:
    """Each grouping set, and what holds for all together."""
    rows: list[Row] = []
    for part, columns in zip(offers, joint_columns(sets, offers), strict=True):
        keys = ", ".join(part.query.frame.called_keys) or "()"
        rows += [("grouping set", "keys", keys), *_explained(part, columns)]
    epsilon, delta = joint_guarantee_of(sets.request, offers)
    return [
        *rows,
        ("all sets", "rho", f"{sum(part.rho_nano for part in offers) / NANO_PER_RHO:.9g}"),
        ("all sets", "this query alone", f"epsilon = {epsilon:.6g}, delta = {delta:.6g}"),
        *(("all sets", "rule", note) for note in joint_notes(sets)),
    ]


def _round_rows(query: FrameQuery, offers: Sequence[Offer]) -> list[Row]:
    """Each round of key selection, and what holds for all together."""
    return [*_each_round(offers), *_joint_rows("all rounds", query, offers, rounds_note(offers))]


def _each_round(offers: Sequence[Offer]) -> Iterator[Row]:
    for i, part in enumerate(offers, start=1):
        yield ("round", "number", f"{i}")
        yield from _explained(part, ())


def _joint_rows(section: str, query: FrameQuery, offers: Sequence[Offer], note: str) -> list[Row]:
    """What holds for several releases together."""
    epsilon, delta = joint_guarantee_of(query.request, offers)
    auto_nano = sum(level.rho_nano for part in offers for level in part.query.auto_levels)
    return [
        (section, "rho", f"{(sum(part.rho_nano for part in offers) + auto_nano) / NANO_PER_RHO:.9g}"),
        (section, "this query alone", f"epsilon = {epsilon:.6g}, delta = {delta:.6g}"),
        (section, "rule", note),
    ]


def _keys_first_rows(query: KeysFirst, offers: Sequence[Offer]) -> list[Row]:
    """Each round of key selection, the numbers on the selected keys, and what holds for all together."""
    *rounds, numbers = offers
    return [
        *_each_round(rounds),
        *_explained(numbers, column_receipts(numbers.query, numbers.histogram, numbers.noise)),
        *_joint_rows("keys and numbers", query.first, offers, keys_first_note(rounds)),
    ]


def _other_rows(asked: WithOtherGroup, groups: Offer, state: State, reader: Reader) -> list[Row]:
    """The row of the groups that are not shown; which these are is known when they are drawn."""
    row = other_offer(asked, groups, state, reader)
    rho, epsilon, delta = joint_terms(groups, row)
    price = sum(item.rho_nano for item in row.items) / NANO_PER_RHO
    columns = column_receipts(row.query, row.histogram, row.noise)
    return [
        *(("other group", *_statistic_row(serving, row)[1:]) for serving in row.servings),
        *(("other group", column.name, _expected(column)) for column in columns),
        *(("other group", "rule", note) for note in other_notes(asked)),
        ("with other group", "rho", f"{rho:.9g}"),
        ("with other group", "this query alone", f"epsilon = {epsilon:.6g}, delta = {delta:.6g}"),
        ("with other group", "price", f"rho = {price:.9g} more, nothing where the shown groups have one already"),
    ]


def _explained(part: Offer, columns: Sequence[ColumnReceipt]) -> list[Row]:
    """What is grouped, how it is noised, and with which error."""
    query, frame = part.query, part.query.frame
    rows: list[Row] = [
        *_frame_rows(frame),
        ("frame", "max_groups", _groups_sentence(frame)),
        ("mechanism", "name", _mechanism_sentence(frame)),
        ("mechanism", "rho", f"{part.rho_nano / NANO_PER_RHO:.9g}"),
        ("mechanism", "this query alone", f"epsilon = {part.epsilon:.6g}, delta = {part.delta:.6g}"),
    ]
    if part.presence.tau is not None or query.request.min_units > 1:
        rows.append(("mechanism", "threshold", _threshold_sentence(query, part.presence.tau)))
    return [
        *rows,
        *(("not chosen", *row) for row in _not_chosen(query)),
        *(_statistic_row(serving, part) for serving in part.servings),
        *(("expected error", column.name, _expected(column)) for column in columns),
        *(("error", "rule", note) for note in notes(part)),
    ]


def _mechanism_sentence(frame: Frame) -> str:
    """What a frame's mechanism does."""
    sentence, sparsity = mechanism_of(frame).sentence, frame.bounding.sparsity
    return f"{sentence}; {selection_sentence(sparsity)}" if sparsity else sentence


def _threshold_sentence(query: FrameQuery, tau: float | None) -> str:
    """Which keys are shown."""
    threshold = shown_threshold(query.frame, tau, query.request.min_units)
    if tau is None or query.frame.bounding.sparsity is None:
        return f"a key is shown if its noisy count of units exceeds {threshold:.9g}"
    rule = f"a key is shown if its noisy count of units exceeds the largest group left out by more than {threshold:.9g}"
    return rule + (f", and {query.request.min_units + tau:.9g}" if query.request.min_units > 1 else "")


def _not_chosen(query: FrameQuery) -> Iterator[tuple[str, str]]:
    """Name and numbers of each mechanism that would have answered the same text."""
    for frame in query.alternatives:
        other = choose_frame(replace(query, frame=frame, alternatives=()))
        histogram = histogram_of(frame)
        try:
            calibration = calibrate(other, histogram)
        except CalibrationError as error:
            yield _mechanism_sentence(frame), str(error)
            continue
        sigma = count_sigma(histogram, calibration.levels[0].sigma)
        numbers = f"sigma of a count = {sigma:.9g}, 95 % half width = {Z_95 * sigma:.9g}"
        if query.total is not None:
            noise = {
                level.statistic: noise_sigma(level.statistic, level.sigma, histogram) for level in calibration.levels
            }
            columns = [column for column in column_receipts(other, histogram, noise) if column.sigma is not None]
            numbers = "; ".join(f"sigma of {column.name} = {column.sigma:.9g}" for column in columns)
        if calibration.cut.tau is not None:
            numbers += f"; {_threshold_sentence(other, calibration.cut.tau)}"
        yield _mechanism_sentence(frame), numbers


def _frame_rows(frame: Frame) -> list[Row]:
    return [
        ("frame", "table", f"{frame.rows.table} (version {frame.rows.version})"),
        ("frame", "privacy unit", f"{frame.rows.unit}, by {frame.rows_sql.readable(frame.rows.unit_column.sql)}"),
        ("frame", "keys", ", ".join(frame.called_keys) or "(one group of all rows)"),
        ("frame", "filter", frame.rows_sql.readable(" AND ".join(frame.rows.filters)) or "(none)"),
    ]


def _open_table(asked_query: PrivateQuery, state: State, reader: Reader) -> Result:
    """The plan of a query that leaves something to AUTO: what AUTO costs, and noise for some of its choices."""
    query = asked_query.first
    options = [current(option, state, reader) for option in may_come(query)]
    calibrations = [calibrate(option, held_histogram(option, state)) for option in options]
    first = calibrations[0]
    items = open_price(query)
    if isinstance(asked_query, KeysFirst):
        # whatever AUTO chooses, these are their levels
        parts = KeysAndNumbers.of(asked_query, state, reader)
        offers = parts.offers(state)
        epsilon, delta = joint_guarantee_of(query.request, offers)
        rho_nano, delta_units = parts.price_while_open(state)
        total_nano = sum(part.rho_nano for part in offers) + first.auto_nano
    else:
        reader.require(asked_nano(query, first))
        epsilon, delta, rho_nano = first.epsilon, first.delta, first.rho_nano
        delta_units, total_nano = answer_delta_units(first), first.rho_nano + first.auto_nano
    asked = list(zip(query.auto, query.auto_levels, strict=True))
    numbers = [
        (
            "frame",
            "max_groups",
            f"AUTO: one of {len(one.candidates)} numbers from {one.candidates[0]} to {one.candidates[-1]}, chosen from "
            f"a noisy histogram of units by their number of groups, {origin_sentence(level)}",
        )
        for one, level in asked
        if isinstance(one, AutoGroups)
    ]
    bounds = [
        ("bounds", one.name, f"AUTO: found in {_values_sentence(one)}, {origin_sentence(level)}")
        for one, level in asked
        if isinstance(one, AutoBounds)
    ]
    rows = [
        *_frame_rows(query.frame),
        *(numbers or [("frame", "max_groups", _groups_sentence(query.frame))]),
        *bounds,
        ("mechanism", "rho", f"{total_nano / NANO_PER_RHO:.9g}"),
        ("mechanism", "this query alone", f"epsilon = {epsilon:.6g}, delta = {delta:.6g}"),
    ]
    for option, calibration in zip(options, calibrations, strict=True):
        sigma = noise_sigma(PRESENCE, calibration.levels[0].sigma, calibration.histogram)
        threshold = "" if calibration.cut.tau is None else f"; {_threshold_sentence(option, calibration.cut.tau)}"
        groups = f"with max_groups = {option.frame.bounding.max_groups}"
        rows.append((groups, "distinct units", f"sigma of a count = {sigma:.9g}{threshold}"))
    rho_nano += sum(item.rho_nano for item in items)
    delta_units += sum(item.delta_units for item in items)
    rows += [
        ("price", "rho", f"{rho_nano / NANO_PER_RHO:.9g}, or less where an answer is stored"),
        ("price", "threshold delta", f"{delta_units / DELTA_UNITS_PER_ONE:.6g}"),
    ]
    return text_table(("section", "name", "value"), rows)


def _values_sentence(asked: AutoBounds) -> str:
    """Which histograms bounds are found in."""
    if asked.is_norm:
        return "a noisy histogram of units by the norm of what they have in all groups"
    return "noisy histograms of units by their largest and smallest values"


def _groups_sentence(frame: Frame) -> str:
    bounding = frame.bounding
    if bounding.max_groups is None:
        return "any number"
    return f"{bounding.max_groups}" + (f", with weights {bounding.counted_groups}" if bounding.counted_groups else "")


def _statistic_row(serving: Serving, offer: Offer) -> Row:
    level, statistic, histogram = serving.level, serving.level.statistic, offer.histogram
    readable = offer.query.frame.rows_sql.readable
    steps = {type(step) for step in serving.steps}
    source = "to be drawn" if Draw in steps else "from what is stored" if Lowering in steps else "stored"
    if covered := statistic.covered:
        name = "groups" if covered == PRESENCE else f"{covered.kind} of {readable(covered.value_sql) or '*'}"
        return (
            "coverage",
            name,
            "noisy numbers of units by how much they have, and how much of it bounds leave; "
            f"rho = {level.rho_nano / NANO_PER_RHO:.9g}, sigma = {level.sigma:.9g} ({source})",
        )
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
    adds = f"one unit adds [{low:.9g}, {high:.9g}] to a group, recentred to ±{statistic.radius:.9g}"
    if isinstance(statistic.limit, Norm):
        less = f", less {statistic.centre:.9g} in each" if statistic.centre else ""
        adds = f"one unit adds an l2 norm of at most {statistic.radius:.9g} to all groups{less}"
    return (
        "statistic",
        name,
        f"{rows}{adds}; "
        f"rho = {level.rho_nano / NANO_PER_RHO:.9g}, sigma = {noise_sigma(statistic, level.sigma, histogram):.9g}, "
        f"lattice = {2.0**statistic.noise_exponent:.9g} ({source})",
    )


def _expected(column: ColumnReceipt) -> str:
    if column.sigma is None or column.half_width_95 is None:
        return "differs by row; see dp_interval_low and dp_interval_high"
    return f"sigma = {column.sigma:.9g}, 95 % half width = {column.half_width_95:.9g}"
