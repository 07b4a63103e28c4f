"""The receipt of an offer: its levels, the noise of its columns, and the rules that its numbers do not show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce

import numpy as np

from dpsql.cascade.serving import Serving
from dpsql.mechanism.calibrate import ROOM, levels_of
from dpsql.mechanism.histogram import Histogram
from dpsql.mechanism.measure import MISS, Term
from dpsql.mechanism.registry import histogram_of
from dpsql.mechanism.too_little import fits_window
from dpsql.model.auto_level import AutoLevel
from dpsql.model.estimates import EXTREMES, IN_PLACE_OF, WHOLE, AnyUnit, BoundedValue, NotFound, NoValue, Quantile
from dpsql.model.frame import COUNT_LATTICE_EXPONENT, PRESENCE, Norm, Statistic
from dpsql.model.identity import part_hash
from dpsql.model.private_query import AutoGroups, Buckets, FrameQuery
from dpsql.model.statistic_kinds import DISTINCT_KINDS
from dpsql.model.top_rows import WINDOW, TopRows
from dpsql.receipts import bounds_line, level_words, phrases, words
from dpsql.receipts.receipt import ColumnReceipt, Receipt
from dpsql.release.estimates import linear_noises, noise_sigma, norms_of
from dpsql.release.offer import Offer, shown_threshold
from dpsql.release.top_rows import row_order, side_of
from dpsql.state import DELTA_UNITS_PER_ONE, NANO_PER_RHO, Charged


def with_price(receipt: Receipt, charged: Charged) -> Receipt:
    """Return the receipt with its charges."""
    rho, delta = charged.rho_nano / NANO_PER_RHO, charged.delta_units / DELTA_UNITS_PER_ONE
    return replace(receipt, charged_rho=rho, charged_delta=delta, reused=not charged.charge_ids)


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
        amount=offer.histogram.measure.amount,
    )


def column_receipts(
    query: FrameQuery,
    histogram: Histogram,
    noise: Mapping[Statistic, float],
    roundings: int = 1,
    miss: float = MISS,
) -> tuple[ColumnReceipt, ...]:
    """Return the noise of every result column that is one aggregate, from the noise of its statistics.

    Args:
        query: on one frame.
        histogram: how its presence count is noised.
        noise: standard deviation of what was noised of each statistic.
        roundings: how many roundings are in a value that is shown as a whole number.
        miss: probability with which intervals miss; receipts have those of 95 %.

    """
    found, frame = [], query.frame
    shown = [(one.name, query.estimates[one.estimate]) for one in query.finish.columns if one.estimate is not None]
    for name, estimate in shown:
        value = estimate.value
        if isinstance(value, NoValue):
            continue
        statistic, rounded = value.linears[0].statistic or PRESENCE, roundings * (estimate.type in WHOLE)
        if isinstance(value, BoundedValue):
            bounds = value.bounds if math.isfinite(value.bounds[1]) else None
            found.append(ColumnReceipt(name, estimate.name, bounds, None, None, None, None, statistic.lattice))
            continue
        interval, linf, l2 = statistic.interval, statistic.radius * frame.finer_per_group, histogram.sum_l2(statistic)
        if statistic == PRESENCE and frame.bounding.sparsity:
            # what a floor is subtracted from may all move because of a unit with one group
            l2 = statistic.radius * math.sqrt(frame.bounding.sparsity.k)
        largest = norms_of(value, query.groups, histogram).max(initial=0.0)
        noises = [Term(largest * one.sigma, one.step) for one in linear_noises(value.linear, noise)]
        is_whole = histogram.measure.in_steps and not any(one.step % 1.0 for one in noises)
        sigma = float(reduce(np.hypot, [*(one.sigma for one in noises), math.sqrt((not is_whole) * rounded / 12.0)]))
        half_width = float(histogram.measure.half_width(noises, rounded, miss))
        found.append(ColumnReceipt(name, estimate.name, interval, linf, l2, sigma, half_width, statistic.lattice))
    return tuple(found)


def asked_sigmas(query: FrameQuery) -> dict[Statistic, float]:
    """Return the standard deviation of the noise of each statistic of a query by rho, at the level asked for.

    Raises:
        CalibrationError: a level rounds to nothing, or its noise cannot be drawn.

    """
    levels, _ = levels_of(query, histogram_of(query.frame), query.request.rho or 0.0)
    return {level.statistic: level.sigma for level in levels}


def asked_columns(query: FrameQuery, miss: float = MISS) -> tuple[ColumnReceipt, ...]:
    """Return the noise of every result column of a query by rho, as it is drawn at the level asked for.

    Args:
        query: on one frame.
        miss: probability with which intervals miss.

    Raises:
        CalibrationError: as `asked_sigmas`.

    """
    histogram = histogram_of(query.frame)
    noise = {one: noise_sigma(one, sigma, histogram) for one, sigma in asked_sigmas(query).items()}
    return column_receipts(query, histogram, noise, miss=miss)


def may_have_threshold(query: FrameQuery) -> bool:
    """Return whether a query by rho needs no threshold at the level asked for, or its delta covers one.

    Raises:
        CalibrationError: as `asked_sigmas`.

    """
    histogram, window = histogram_of(query.frame), query.frame.window
    if not histogram.hides:
        return True
    levels, _ = levels_of(query, histogram, query.request.rho or 0.0)
    imprecisions = [level.noise_delta for level in levels]
    if window:
        return fits_window(imprecisions, window)
    return query.request.delta > ROOM * math.fsum(imprecisions)


def notes(offer: Offer) -> tuple[str, ...]:
    """Return the rules that shape the answer and that its numbers alone do not show."""
    query, frame = offer.query, offer.query.frame
    bounding, rows = frame.bounding, frame.rows_sql
    found = [words.WITHOUT_UNIT.format(column=rows.readable(frame.rows.unit_column.sql)), *rows.cuts]
    found += [words.SEARCHED] * ("regexp_" in f"{rows.relation}{frame.rows.filters}{frame.keys}{query.statistics}")
    found += [words.SINGLE_ROW.format(unit=frame.rows.unit, tables=tables) for tables in frame.rows_sql.single]
    found += [frame.rows_sql.bounds] if frame.rows_sql.bounds else []
    found += [words.CLOCK.format(zone=zone) for zone in frame.rows_sql.zones]
    if query.request.target:
        found.append(words.ASKED_HALF_WIDTHS.format(widths=level_words.half_widths(query.request.target)))
    found += _bounding_notes(query)
    if query.auto:
        found += _auto_notes(query)
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
        found += _level_notes(presence, offer.histogram.measure.amount)
    if offer.chosen_nano:
        found.append(words.LEVEL_CHOSEN.format(rho=offer.chosen_nano / NANO_PER_RHO))
    if bounding.sparsity:
        if query.request.min_units > 1:
            found.append(words.ALSO_EXCEEDS.format(minimum=query.request.min_units))
        of_kind = words.OF_SKETCH if bounding.sparsity.kind == "sketch" else words.OF_LARGEST
        found.append(of_kind.format(counters=bounding.sparsity.k, groups=bounding.sparsity.k))
    found += [
        words.DISTINCT_VALUES.format(values=most)
        for most in sorted({one.values_kept for one in query.statistics if one.kind in DISTINCT_KINDS})
    ]
    found += _quantile_notes(query)
    if any(isinstance(estimate.value, AnyUnit) for estimate in query.estimates):
        found.append(words.TRUTH_VALUE)
    found += [
        words.ROWS_SCALED.format(rows=f"{most:,} row{'' if most == 1 else 's'}")
        for most in sorted({one.row_cap for one in query.statistics if one.row_cap})
    ]
    return tuple(dict.fromkeys(found))


def _auto_notes(query: FrameQuery) -> Iterator[str]:
    """Yield a sentence for each choice of AUTO, and for each column that is NULL."""
    unit = query.frame.rows.unit
    for estimate in query.estimates:
        if isinstance(value := estimate.value, NoValue):
            yield phrases.without_bounds(estimate.name, unit, value.not_found.reason, value.cure)
    for asked, level in zip(query.auto, query.auto_levels, strict=True):
        if isinstance(asked, AutoGroups):
            yield words.AUTO_GROUPS.format(groups=query.frame.bounding.max_groups, level=_chosen_at(level))
        elif isinstance(asked.bounds, NotFound):
            yield words.AUTO_NO_BOUNDS.format(column=asked.name, level=_chosen_at(level))
            if asked.instead:
                yield phrases.one_row(asked.name, unit, asked.bounds.reason, asked.instead)
        elif asked.is_norm and not query.frame.bounding.by_norm:
            yield from _rows_notes(query, math.ceil(asked.bounds[1]), _chosen_at(level))
        elif asked.is_norm:
            yield words.AUTO_NORM.format(norm=asked.bounds[1], column=asked.name, level=_chosen_at(level))
        else:
            low, high = asked.bounds
            yield words.AUTO_BOUNDS.format(low=low, high=high, column=asked.name, level=_chosen_at(level))


def _rows_notes(query: FrameQuery, rows: int, level: str) -> Iterator[str]:
    """Yield how many rows of a unit count in a group, and of which columns that changes the weights of people."""
    yield words.AUTO_ROWS.format(rows=phrases.number_of(rows, "row"), level=level)
    columns = [
        one.name
        for one in query.estimates
        if isinstance(one.value, BoundedValue)
        and any(linear.statistic and linear.statistic.row_cap for linear in one.value.linears)
    ]
    if columns and not query.has_one_row:
        yield bounds_line.weights(columns, rows, query.frame.rows.unit, has_groups=bool(query.frame.keys))


def _chosen_at(level: AutoLevel) -> str:
    """Return the level of a histogram, and whether its choice lasts."""
    at = words.AUTO_LEVEL.format(rho=level.rho_nano / NANO_PER_RHO)
    return (words.AUTO_SURE if level.is_sure else words.AUTO_UNSURE).format(level=at)


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
        yield from _unusual_quantiles(query)


def _unusual_quantiles(query: FrameQuery) -> Iterator[str]:
    """Yield which columns are quantiles in place of extremes, and which are lists without intervals."""
    shown = query.finish.columns
    names: dict[tuple[str, str], list[str]] = {}
    for number, one in enumerate(query.estimates):
        if isinstance(one.value, Quantile) and one.value.extreme:
            columns = [column.name for column in shown if column.estimate == number]
            bounds = phrases.interval_of(one.value.bounds, are_times=one.type != "DOUBLE")
            asked = names.setdefault((one.value.extreme, bounds), [])
            asked.extend(columns or [one.name.partition(IN_PLACE_OF)[2]])
    for (extreme, bounds), columns in names.items():
        quantile = f"{float(EXTREMES[extreme]):.0%}".replace("%", " %")
        told = {"columns": phrases.listed(columns), "quantile": quantile, "extreme": extreme, "bounds": bounds}
        yield words.EXTREME.format(**told)
    if lists := [column.name for column in shown if column.type.endswith("[]") and column.estimate is None]:
        yield words.NO_INTERVAL.format(columns=phrases.listed(lists))


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


def _level_notes(presence: Serving, amount: str) -> Iterator[str]:
    """Yield the levels of an answer beside that of its numbers, which are amounts of rho or epsilon."""
    disclosed_nano = presence.disclosed.rho_nano
    is_beyond = disclosed_nano > presence.level.rho_nano
    if is_beyond and presence.keys_from:
        yield words.KEYS_OF_RELEASE.format(amount=amount, level=disclosed_nano / NANO_PER_RHO)
    if len(presence.keys_from) > 1 and presence.stands_alone:
        beside = (presence.guaranteed_nano - disclosed_nano) / NANO_PER_RHO
        yield words.KEYS_OF_OTHERS.format(amount=amount, level=beside)
    if is_beyond and not presence.keys_from:
        yield words.LATTICE_SEEN.format(rho=disclosed_nano / NANO_PER_RHO)


def notes_of_rows(query: FrameQuery) -> tuple[str, ...]:
    """Return what plans and receipts say of rows that are picked by their numbers."""
    finish, order, found = query.finish, row_order(query), list[str]()
    if order and _leaves_out(order.top, query.frame.key_count):
        found.append(words.LIMIT_WIDENS.format(side=side_of(order.top)))
    elif finish.top and isinstance(query.estimates[finish.top.estimate].value, AnyUnit):
        # truth values are made of noisy numbers, and keys decide between equal ones
        found.append(words.PICKED.format(clause="LIMIT"))
    if finish.picks:
        found.append(words.RANKED if finish.picks == WINDOW else words.PICKED.format(clause=finish.picks))
    return tuple(found)


def _leaves_out(top: TopRows, groups: int | None) -> bool:
    """Return whether some, but not all, of a number of groups may be left out; None stands for an unknown number."""
    return top.limit > 0 and (groups is None or top.offset > 0 or top.limit < groups)
