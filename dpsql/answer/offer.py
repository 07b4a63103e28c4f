"""Steps 4 and 5 without the charge: serving, guarantee and price of a query, or of each of its grouping sets.

Plans are explained by the same offers as they are answered by. The receipt of an answer is written from the offer and
the levels that serve it: nothing of the data beyond what is shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dpsql.answer import words
from dpsql.answer.auto_notes import auto_notes
from dpsql.answer.charge_items import asked_at, charge_items
from dpsql.answer.estimates import Z_95, linear_noise, noise_sigma, norms_of, shown_sigma
from dpsql.answer.receipt import ColumnReceipt, Receipt
from dpsql.answer.top_rows import notes_of_rows
from dpsql.cascade.reader import Reader
from dpsql.cascade.serving import Serving
from dpsql.cascade.servings import servings_of
from dpsql.errors import AccessError
from dpsql.mechanism.calibrate import (
    Calibration,
    Level,
    calibrate,
    guarantee,
    independent_guarantee,
    unasked_nano,
    window_guarantee,
)
from dpsql.mechanism.histogram import Histogram, Shape
from dpsql.mechanism.registry import histogram_of
from dpsql.model.estimates import AnyUnit, BoundedValue, NoValue, Quantile
from dpsql.model.frame import COUNT_LATTICE_EXPONENT, PRESENCE, Frame, Norm, Statistic
from dpsql.model.identity import base_hash, in_question, part_hash, statistic_hash
from dpsql.model.private_query import Buckets, FrameQuery
from dpsql.model.statistic_kinds import COVERAGE_KINDS, LEFT_OUT_KINDS
from dpsql.state import DELTA_UNITS_PER_ONE, NANO_PER_RHO, Charged, ChargeItem, State


@dataclass(frozen=True)
class Offer:
    """Query of one frame with the way it will be served; nothing is charged, read or drawn yet.

    Attributes:
        query: on the current generation of its frame.
        histogram: how the presence count is noised.
        servings: how each statistic is served, presence first.
        epsilon, delta: guarantee of what is served together with the keys that are shown, both rounded up.
        asked_nano: level in nano-rho that was asked for, all statistics together.
        items: the price.
        auto_nano: levels that the guarantee covers because of AUTO, as in `Calibration`, and because of `chosen_nano`.
        asked: each statistic at the highest level that could be charged for it, whatever is stored.
        cut_delta: delta of the threshold that could be charged, whatever is stored.
        chosen_nano: levels that the guarantee covers because released numbers chose the level of a stored point.

    """

    query: FrameQuery
    histogram: Histogram
    servings: tuple[Serving, ...]
    epsilon: float
    delta: float
    asked_nano: int
    items: tuple[ChargeItem, ...]
    auto_nano: int
    asked: tuple[Level, ...]
    cut_delta: float
    chosen_nano: int = 0

    @property
    def presence(self) -> Serving:
        """Serving of the presence count."""
        return self.servings[0]

    @property
    def coverage(self) -> tuple[Serving, ...]:
        """Servings of the coverage."""
        return tuple(serving for serving in self.servings if serving.level.statistic.kind in COVERAGE_KINDS)

    @property
    def left_out(self) -> tuple[Serving, ...]:
        """Servings of the numbers of rows left out."""
        return tuple(serving for serving in self.servings if serving.level.statistic.kind in LEFT_OUT_KINDS)

    @property
    def draws_left_out(self) -> bool:
        """Return whether a number of rows left out is drawn."""
        return any(one.is_drawn for one in self.left_out)

    @property
    def drawn(self) -> tuple[Statistic, ...]:
        """Statistics with a point that is drawn from exact values."""
        return tuple(serving.level.statistic for serving in self.servings if serving.is_drawn)

    @property
    def rho_nano(self) -> int:
        """Levels that are served, added up."""
        return sum(serving.level.rho_nano for serving in self.servings)

    @property
    def noise(self) -> dict[Statistic, float]:
        """Standard deviation of each statistic's point, in the units of the aggregate."""
        levels = (serving.level for serving in self.servings)
        return {level.statistic: noise_sigma(level.statistic, level.sigma, self.histogram) for level in levels}


def offers_of(parts: Sequence[FrameQuery], state: State, reader: Reader) -> tuple[Offer, ...]:
    """Return how queries of frames that are released together are served.

    Args:
        parts: as `current` gives them.
        state: the state file.
        reader: who asks, with their clearance, which holds for all parts together.

    Raises:
        AccessError, CalibrationError: nothing was charged or read.

    """
    calibrations = [calibrate(part, held_histogram(part, state)) for part in parts]
    asked_nano = sum(calibration.rho_nano for calibration in calibrations)
    if any(part.unasked for part in parts):
        # whether a reader may ask does not hang on what AUTO found
        reader.require(asked_nano + sum(map(unasked_nano, parts, calibrations)))
    if not all(part.frame.rows_sql.relation for part in parts):
        from dpsql.answer.gone_rows import measurable  # noqa: PLC0415 — few queries need it

        calibrations = [measurable(*each, state, reader) for each in zip(parts, calibrations, strict=True)]
    offers = []
    for part, asked in zip(parts, calibrations, strict=True):
        calibration, chosen_nano, serve = asked, 0, servings_of
        if reader.rho_limit is not None:
            from dpsql.cascade.seen import seen_servings  # noqa: PLC0415 — few readers have a limit

            serve = seen_servings
        servings = serve(part, calibration, state, reader, asked_nano)
        if len(servings) < len(calibration.levels):
            served = {in_question(one.level.statistic) for one in servings}
            levels = tuple(one for one in calibration.levels if in_question(one.statistic) in served)
            calibration = replace(calibration, levels=levels)
        if any(one.disclosed.rho_nano != one.pin.asked_rho_nano for one in servings):
            from dpsql.answer.chosen_levels import nano_of_choices  # noqa: PLC0415 — few queries need it

            chosen_nano = nano_of_choices(servings, part.frame, state)
            calibration = replace(calibration, auto_nano=calibration.auto_nano + chosen_nano)
        guaranteed = _guarantee(part, calibration, servings)
        items = charge_items(servings, calibration.histogram)
        asked_levels = asked_at(part.frame.ceiling, calibration) if part.frame.ceiling else calibration.levels
        terms = (*guaranteed, calibration.rho_nano, items, calibration.auto_nano, asked_levels, calibration.cut.delta)
        offers.append(Offer(part, calibration.histogram, servings, *terms, chosen_nano))
    return tuple(offers)


def current(query: FrameQuery, state: State, reader: Reader) -> FrameQuery:
    """Return the query on the last generation of its frame, or on the next one if a refresh is asked for.

    Of several frames the finest comes first: units of sums are bounded by the salt of its generation.

    Raises:
        AccessError: a reader with a limit asks for a refresh, which adds to what they hold of the same rows.

    """
    refresh = query.request.refresh
    if refresh and reader.has_limit:
        raise AccessError(
            f"a refresh is one more release of the same rows, and {reader.name!r} has a limit; the curator can refresh"
        )
    last = state.side_table.generation(base_hash(query.frame))
    generation = 0 if last is None else last + refresh
    return replace(query, frame=replace(query.frame, generation=generation))


def held_histogram(query: FrameQuery, state: State) -> Histogram:
    """Return how noise is added to the presence count; a frame with a stored point keeps its shape."""
    stored = state.side_table.levels(statistic_hash(PRESENCE, query.frame))
    shape = Shape(stored[0].correlation, stored[0].floor_correlation) if stored else None
    return histogram_of(query.frame, shape)


def _guarantee(query: FrameQuery, calibration: Calibration, servings: tuple[Serving, ...]) -> tuple[float, float]:
    """(epsilon, delta) of what is served together with the keys that are shown, both rounded up.

    Raises:
        CalibrationError: no guarantee can be computed.

    """
    levels = tuple(serving.level for serving in servings)
    presence, histogram, delta = servings[0], calibration.histogram, query.request.delta
    disclosed, keys_from = (presence.disclosed, *levels[1:]), presence.keys_from
    if query.frame.window:
        return window_guarantee(histogram, disclosed, query.frame.window, calibration.auto_nano)
    asked = [level.rho_nano for level in levels] == [level.rho_nano for level in calibration.levels]
    single = all(serving.is_single_draw for serving in servings) and len(keys_from) <= 1
    if asked and single and presence.tau == calibration.cut.tau:
        return calibration.epsilon, calibration.delta
    if len(keys_from) > 1 and presence.stands_alone:
        rho_nano = sum(serving.guaranteed_nano for serving in servings) + calibration.auto_nano
        return independent_guarantee(histogram, levels, rho_nano, presence.keys_delta, delta)
    # the keys are those that charged points have shown, so what the highest of these guarantees is part of it
    tau = keys_from[0].tau if keys_from else None
    others = math.fsum(keys.delta for keys in keys_from if keys.rho_nano < presence.disclosed.rho_nano)
    epsilon, total = guarantee(histogram, disclosed, tau, delta, calibration.auto_nano)
    return epsilon, min(1.0, (total + others) * (1.0 + 2.0**-51))


def with_price(receipt: Receipt, charged: Charged) -> Receipt:
    """Return the receipt with its charges."""
    return replace(
        receipt,
        charged_rho=charged.rho_nano / NANO_PER_RHO,
        charged_delta=charged.delta_units / DELTA_UNITS_PER_ONE,
        reused=not charged.charge_ids,
    )


def make_receipt(offer: Offer) -> Receipt:
    """Build the receipt without charges, at the levels that will be served. These may be higher than requested."""
    query, frame = offer.query, offer.query.frame
    return Receipt(
        query_hash=part_hash(query),
        table=frame.rows.table,
        version=frame.rows.version,
        unit=frame.rows.unit,
        mechanism=offer.histogram.name,
        rho=(offer.rho_nano + sum(level.rho_nano for level in query.auto_levels)) / NANO_PER_RHO,
        epsilon=offer.epsilon,
        delta=offer.delta,
        charged_rho=0.0,
        charged_delta=0.0,
        reused=True,
        max_groups=frame.bounding.max_groups,
        max_keys=frame.key_count,
        threshold=shown_threshold(frame, offer.presence.tau, query.request.min_units),
        columns=column_receipts(query, offer.histogram, offer.noise),
        notes=notes(offer),
        asked_rho=(offer.asked_nano + sum(level.share_nano for level in query.auto_levels)) / NANO_PER_RHO,
    )


def asked_together(receipts: Sequence[Receipt]) -> float:
    """Return the level that was asked for by all parts of a query together."""
    return math.fsum(receipt.asked_rho or 0.0 for receipt in receipts)


def shown_threshold(frame: Frame, tau: float | None, min_units: int) -> float | None:
    """Return the number that a noisy count of units must exceed for its key to be shown.

    After top-k or of a sketch it stands on top of what was subtracted, which is itself an answer and no part of this.
    """
    if tau is None:
        return float(min_units) if min_units > 1 else None
    if frame.bounding.sparsity:
        return 1.0 + tau
    return max(frame.bounding.minimum_units, min_units) + tau


def column_receipts(
    query: FrameQuery, histogram: Histogram, noise: Mapping[Statistic, float], roundings: int = 1
) -> tuple[ColumnReceipt, ...]:
    """Return the noise of every result column that is one aggregate, from the noise of its statistics."""
    found, frame = [], query.frame
    shown = [(one.name, query.estimates[one.estimate]) for one in query.finish.columns if one.estimate is not None]
    for name, estimate in shown:
        value = estimate.value
        if isinstance(value, NoValue):
            continue
        statistic = value.linears[0].statistic or PRESENCE
        if isinstance(value, BoundedValue):
            found.append(ColumnReceipt(name, estimate.name, value.bounds, None, None, None, None, statistic.lattice))
            continue
        l2 = histogram.sum_l2(statistic)
        if statistic == PRESENCE and frame.bounding.sparsity:
            # what a floor is subtracted from may all move because of a unit with one group
            l2 = statistic.radius * math.sqrt(frame.bounding.sparsity.k)
        largest = norms_of(value, query.groups, histogram).max(initial=0.0)
        sigma = float(shown_sigma(estimate, linear_noise(value.linear, noise) * largest, roundings))
        bounds, linf = statistic.interval, statistic.radius * frame.finer_per_group
        found.append(ColumnReceipt(name, estimate.name, bounds, linf, l2, sigma, Z_95 * sigma, statistic.lattice))
    return tuple(found)


def notes(offer: Offer) -> tuple[str, ...]:
    """Return the rules that shape the answer and that its numbers alone do not show."""
    query, frame = offer.query, offer.query.frame
    bounding = frame.bounding
    column = frame.rows_sql.readable(frame.rows.unit_column.sql)
    found = [words.WITHOUT_UNIT.format(column=column), *frame.rows_sql.cuts]
    if frame.rows_sql.single:
        from dpsql.answer import join_words  # noqa: PLC0415 — few queries need it

        found += [join_words.single_row(frame.rows.unit, tables) for tables in frame.rows_sql.single]
    found += [frame.rows_sql.bounds] if frame.rows_sql.bounds else []
    found += [words.CLOCK.format(zone=zone) for zone in frame.rows_sql.zones]
    if query.request.target:
        from dpsql.answer import half_width_words  # noqa: PLC0415 — few queries need it

        found.append(half_width_words.asked_half_widths(query.request.target))
    found += _bounding_notes(query)
    if query.auto:
        found += auto_notes(query)
    found += notes_of_rows(query) if query.finish.top or query.finish.picks else ()
    if query.total:
        found.append(words.LARGEST_ERROR)
    if isinstance(query.groups, Buckets):
        found.append(words.ADDED_UP)
    if frame.factorised:
        found.append(words.PARTIAL_SUMS)
    if offer.histogram.hides and query.estimates:
        found.append(words.LEANS_UP)
    presence = offer.presence
    if presence.disclosed.rho_nano > presence.level.rho_nano or len(presence.keys_from) > 1:
        found += _level_notes(presence)
    if offer.chosen_nano:
        found.append(words.LEVEL_CHOSEN.format(rho=offer.chosen_nano / NANO_PER_RHO))
    if bounding.sparsity:
        if query.request.min_units > 1:
            found.append(words.ALSO_EXCEEDS.format(minimum=query.request.min_units))
        of_kind = words.OF_SKETCH if bounding.sparsity.kind == "sketch" else words.OF_LARGEST
        found.append(of_kind.format(counters=bounding.sparsity.k, groups=bounding.sparsity.k))
    found += [
        words.DISTINCT_VALUES.format(values=most)
        for most in sorted({statistic.interval[1] for statistic in query.statistics if statistic.kind == "values"})
    ]
    found += _quantile_notes(query)
    if any(isinstance(estimate.value, AnyUnit) for estimate in query.estimates):
        found.append(words.TRUTH_VALUE)
    found += [
        words.ROWS_SCALED.format(rows=f"{most:,} row{'' if most == 1 else 's'}")
        for most in sorted({one.row_cap for one in query.statistics if one.row_cap})
    ]
    return tuple(found)


def _bounding_notes(query: FrameQuery) -> Iterator[str]:
    """Yield the rules by which the groups and rows of a unit are bounded."""
    frame, bounding, max_groups = query.frame, query.frame.bounding, query.frame.bounding.max_groups
    if bounding.counted_groups and bounding.counted_groups != max_groups:
        weighted = words.WEIGHTED.format(groups=max_groups, most=bounding.counted_groups)
        too_low = words.WEIGHTED_COUNTS if bounding.by_norm else words.WEIGHTED_SUMS
        yield too_low.format(weighted=weighted) if query.estimates else weighted
    elif not bounding.finer and (max_groups or math.inf) < (frame.key_count or math.inf):
        yield words.COUNTS_IN.format(groups=f"{max_groups} group{'' if max_groups == 1 else 's'}")
    if bounding.by_norm:
        yield from _norm_notes(query)
    if bounding.finer:
        yield words.FINER_GROUPS.format(keys=", ".join(bounding.finer.called_keys))


def _quantile_notes(query: FrameQuery) -> Iterator[str]:
    """Yield the cells that quantiles are read from, once for those that are read from cells of one kind."""
    names: dict[tuple[int, str], list[str]] = {}
    for one in query.estimates:
        if isinstance(one.value, Quantile) and (cells := one.value.histogram.histogram):
            widths = cells.widths(are_times=one.type != "DOUBLE")
            names.setdefault((cells.count, widths), []).append(one.name)
    for (count, widths), quantiles in names.items():
        yield words.CELLS.format(columns=", ".join(dict.fromkeys(quantiles)), cells=count, widths=widths)


def _norm_notes(query: FrameQuery) -> Iterator[str]:
    """Yield how many rows of a unit are read, and how its part in each number is scaled down."""
    if most := query.frame.bounding.max_rows:
        yield words.ROWS_READ.format(rows=most)
    for estimate in query.estimates:
        normed = [one.statistic for one in estimate.value.linears if one.statistic]
        statistic = next((one for one in normed if isinstance(one.limit, Norm)), None)
        if not statistic or not isinstance(statistic.limit, Norm):
            continue
        if rows := statistic.limit.row_steps:
            norm = math.ldexp(rows, COUNT_LATTICE_EXPONENT)
            yield words.ROWS_TO_NORM.format(column=estimate.name, norm=norm)
        else:
            less = words.LESS_CENTRE.format(centre=statistic.centre) if statistic.centre else ""
            yield words.SUM_TO_NORM.format(column=estimate.name, less=less, norm=statistic.radius)


def _level_notes(presence: Serving) -> Iterator[str]:
    """Yield the levels of an answer beside that of its numbers."""
    disclosed_nano = presence.disclosed.rho_nano
    is_beyond = disclosed_nano > presence.level.rho_nano
    if is_beyond and presence.keys_from:
        yield words.KEYS_OF_RELEASE.format(rho=disclosed_nano / NANO_PER_RHO)
    if len(presence.keys_from) > 1 and presence.stands_alone:
        yield words.KEYS_OF_OTHERS.format(rho=(presence.guaranteed_nano - disclosed_nano) / NANO_PER_RHO)
    if is_beyond and not presence.keys_from:
        yield words.LATTICE_SEEN.format(rho=disclosed_nano / NANO_PER_RHO)
