"""The table that an answer is finished from: keys, noisy numbers and their intervals, one row for each shown group.

Its numbers without their bounds follow from effects of the bounds, which are read from stored points: shares that are
kept, and rows left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.bound.coverage import first_end, most_left
from dpsql.mechanism.histogram import Sequences
from dpsql.mechanism.measure import MISS
from dpsql.model.estimates import WHOLE, Linear
from dpsql.model.frame import PRESENCE, Statistic
from dpsql.model.private_query import Buckets
from dpsql.pictures.tables import digits_of
from dpsql.release.coverage import Kept, Share, kept_of
from dpsql.release.estimates import COLUMNS, EstimatedColumn, Floats, linear_value
from dpsql.release.left_out import HIGH, HIGH_MISS, LOW, LOW_MISS, LeftOut
from dpsql.release.offer import Offer
from dpsql.release.points import ShownFrame, served_point, stored_keys
from dpsql.release.top_rows import factors_of_rows
from dpsql.state import SideTable, to_arrow

Integers = npt.NDArray[np.intp]


def noisy_table(
    offer: Offer, found: ShownFrame, side_table: SideTable, upper_quantile: float | None = None
) -> pa.Table:
    """The table that the finish reads: columns key_i, agg_i, agg_i_low and agg_i_high, one row a shown group.

    Args:
        offer: how the query of one frame is served; all of it is stored.
        found: its values and shown groups.
        side_table: where keys, and points of what bounds keep, are stored.
        upper_quantile: half width of the interval whose upper end is that of whole numbers, over its standard
            deviation; None for that of `HIGH_MISS`.

    """
    query = offer.query
    columns: dict[str, pa.ChunkedArray | pa.Array] = {}
    if query.frame.keys:
        keys = stored_keys(query.frame, side_table)
        if isinstance(query.groups, Buckets):
            keys = _bucket_keys(query.groups, keys)
        taken = keys.take(to_arrow(found.shown))
        columns = {name: taken.column(name) for name in taken.column_names}
    then = found.among
    factors = factors_of_rows(offer, found) if query.finish.top else None
    for i, one in enumerate(query.estimates):
        own = replace(found, values=replace(found.values, wider=found.values.wider * factors[i])) if factors else found
        column = COLUMNS[type(one.value)](one, one.value, own.values)
        value = found.whole.get(i, column.value)[then]
        columns[f"agg_{i}"] = to_arrow(np.rint(value) if one.type in WHOLE else value, nan_as_null=True)
        columns[f"agg_{i}_low"] = to_arrow(column.low[then], nan_as_null=True)
        columns[f"agg_{i}_high"] = to_arrow(column.high[then], nan_as_null=True)
        if i in query.finish.unbounded:
            measure = offer.histogram.measure
            upper = (upper_quantile or measure.quantile(HIGH_MISS)) / measure.quantile(MISS / 2.0)
            columns |= _unbounded_columns(offer, i, own, column, side_table, upper / found.values.wider)
    if not columns:
        columns["nothing"] = to_arrow(np.zeros(len(found.shown)))
    return pa.table(list(columns.values()), list(columns))


def _bucket_keys(buckets: Buckets, keys: pa.Table) -> pa.Table:
    """Keys of groups of buckets, and one bucket of each, in the order of `Sequences.group_sums`."""
    ids = Sequences(buckets.ordering, 0).first_ids(buckets.places)
    named = {f"key_{i}": f"key_{source}" for i, source in enumerate(buckets.sources) if source is not None}
    taken = keys.take(to_arrow(ids))
    columns = {name: taken.column(column) for name, column in named.items()}
    columns["bucket"] = taken.column(f"key_{buckets.ordering.axis}")
    return pa.table(list(columns.values()), list(columns))


def kept_shares(offer: Offer, side_table: SideTable, statements: int | None = None) -> dict[Statistic, Kept | None]:
    """Return what bounding leaves of each statistic with coverage, as it is served; None if it is not stored.

    Args:
        offer: how the query of one frame is served; all of it is stored.
        side_table: where points are stored.
        statements: number of histograms whose statements hold together; by default those of the offer.

    """
    frame, counted_out = offer.query.frame, {one.level.statistic.covered for one in offer.left_out}
    asked = (one.covered for one in offer.query.statistics if one.covered)
    found: dict[Statistic, Kept | None] = {one: None for one in asked if one not in counted_out}
    for serving in offer.coverage:
        covered = serving.level.statistic.covered or PRESENCE
        point = served_point(serving, side_table)
        found[covered] = kept_of(
            point.noisy_values,
            point.sigma,
            first_end(covered),
            most_left(covered, frame),
            measure=offer.histogram.measure,
            largest=(frame.key_count or math.inf) if covered == PRESENCE else math.inf,
            statements=statements or len(offer.coverage),
        )
    return found


def left_out_numbers(offer: Offer, shown: Integers, side_table: SideTable) -> dict[Statistic, LeftOut]:
    """Return how much bounds leave out of each count and sum, as it is served.

    Args:
        offer: how the query of one frame is served; all of it is stored.
        shown: ids of the groups that the answer shows.
        side_table: where points and their groups are stored.

    """
    found, measure = {}, offer.histogram.measure
    wider = max(measure.quantile(LOW_MISS) / LOW, measure.quantile(HIGH_MISS) / HIGH)
    for serving in offer.left_out:
        point, covered = served_point(serving, side_table), serving.level.statistic.covered
        measured = side_table.measured_groups(point.statistic_hash, point.rho_nano)
        if covered is None or measured is None:
            raise AssertionError("a number of rows left out is stored with its groups")
        cut = math.ldexp(1.0, measured.cut_exponent)
        value, sigma = float(point.noisy_values[0]) * cut, point.sigma * cut * wider
        ids, total = measured.key_ids, len(served_point(offer.presence, side_table).values)
        groups = total if ids is None else len(ids)
        is_of_shown = len(shown) == total if ids is None else bool(np.isin(ids, shown).all())
        found[covered] = LeftOut(value, sigma, measured.shown, measured.shown_sigma, cut, groups, is_of_shown)
    return found


def shown_sum(linear: Linear, found: ShownFrame) -> tuple[float, float]:
    """Return the sum of the released numbers of a column over its groups, and the standard deviation of its noise.

    Args:
        linear: the number of a group.
        found: values of the groups that are added up.

    """
    frame, presence = found.values, found.values.values[PRESENCE]
    numbers = linear_value(linear, frame.values)
    norms = np.broadcast_to(frame.histogram.value_norms(), numbers.shape)
    own = frame.values[linear.statistic].noise if linear.statistic else 0.0
    variance = float(((own**2 + (linear.centre * presence.noise) ** 2) * norms**2).sum())
    # noise that all counts share adds up by their number
    correlation = frame.histogram.shape.correlation
    shared = correlation / (1.0 + correlation) * (linear.centre * presence.noise) ** 2
    count = len(numbers)
    return float(numbers.sum()), math.sqrt(variance + shared * count * max(0, count - 1))


def _unbounded_columns(
    offer: Offer,
    number: int,
    found: ShownFrame,
    column: EstimatedColumn,
    side_table: SideTable,
    upper: float | Floats,
) -> Mapping[str, pa.Array]:
    """Return an estimate of the whole number of each group, with its ends, as columns of an answer.

    Args:
        offer: how the query of one frame is served; all of it is stored.
        number: of the estimate.
        found: values and shown groups.
        column: the bounded numbers of all groups, with their intervals.
        side_table: where points are stored.
        upper: half width of the interval whose upper end is that of whole numbers, over that of ``column``.

    """
    query, then = offer.query, found.among
    estimate = query.estimates[number]
    covered = estimate.covered or PRESENCE
    ends = (column.value[then], column.low[then], column.high[then])
    if left_out := left_out_numbers(offer, found.shown, side_table).get(covered):
        wider = replace(found.values, wider=found.values.wider * upper)
        highs = COLUMNS[type(estimate.value)](estimate, estimate.value, wider).high[then]
        ends = _whole_numbers(left_out, ends, highs, is_count=estimate.type in WHOLE)
    else:
        shares = kept_shares(offer, side_table)
        # without a histogram nothing can be left out; of the row of the other groups nothing is measured
        if query.frame.rows.outside or covered in shares:
            kept = shares.get(covered)
            ends = _unbounded_of(*ends, kept.ratio if kept else None)
    names = (f"agg_{number}_unbounded{end}" for end in ("", "_low", "_high"))
    return {name: to_arrow(one, nan_as_null=True) for name, one in zip(names, ends, strict=True)}


def _unbounded_of(value: Floats, low: Floats, high: Floats, share: Share | None) -> tuple[Floats, Floats, Floats]:
    """Return the ratio estimate of numbers without their bounds, and the ends of its interval.

    It is right where bounding leaves the same share of every group, and no unit is beyond the size of the share. The
    interval is of the noise in both, and of nothing else. It holds where each of both intervals does.

    Args:
        value: the bounded number of each group.
        low: lower end of its interval.
        high: upper end.
        share: what bounding leaves. NaN comes where it is None, or may be 0.

    """
    part, least, most = (share.value, share.low, share.high) if share and share.low > 0.0 else (math.nan,) * 3
    # the end that is further from 0 is that of the smaller share
    ends = np.stack([low / least, low / most, high / least, high / most])
    return value / part, ends.min(axis=0), ends.max(axis=0)


def _whole_numbers(
    left_out: LeftOut, column: tuple[Floats, Floats, Floats], highs: Floats, *, is_count: bool
) -> tuple[Floats, Floats, Floats]:
    """Return estimates of whole numbers with their ends, in the digits that numbers are printed with.

    Args:
        left_out: what bounds leave out.
        column: the bounded numbers, with the ends of their intervals.
        highs: their upper ends of which those of whole numbers are made.
        is_count: whether the numbers are shown as whole ones.

    """
    values, low, high = column
    halves = (high - low) / 2.0
    halves = halves[np.isfinite(halves) & (halves > 0.0)]
    digits = 0 if is_count or not halves.size else digits_of(float(halves.min()))
    shown = np.rint(values) if is_count else values
    estimates = np.maximum(shown, np.round(left_out.estimated(values), digits)) if left_out.is_too_low else shown
    scale = 10.0**digits
    return estimates, low, np.ceil(left_out.upper_ends(highs) * scale) / scale
