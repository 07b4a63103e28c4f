"""An answer with several grouping sets: one table and one receipt, and values that agree where sets are sums of one.

Everything here is post-processing of stored points, and of the plan.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dpsql.query.frame import PRESENCE, Statistic
from dpsql.query.identity import query_hash
from dpsql.query.private_query import Estimate, Grouping, PrivateQuery
from dpsql.release.calibrate import MOST_DRAWN
from dpsql.release.consistent import (
    Marginal,
    consistent_values,
    consistent_variances,
    roundings,
    whole_marginals,
)
from dpsql.release.estimates import NoisyValues, linear_value, noise_sigma
from dpsql.release.joint import Shown, joint_guarantee
from dpsql.release.window import charged_delta
from dpsql.session.prepared import Prepared
from dpsql.session.receipt import columns_with, with_price
from dpsql.session.result import ColumnReceipt, Receipt, SetReceipt
from dpsql.session.shown import Agreed, Stored, noisy_table, point_values
from dpsql.state import DELTA_UNITS_PER_ONE, Charged

Noise = Mapping[Statistic, float]
_DECIMAL = re.compile(r"DECIMAL\(\d+,(\d+)\)")


def joint_table(query: PrivateQuery, prepared: Sequence[Prepared], stored: Sequence[Stored]) -> pa.Table:
    """The table that the finish reads: the rows of every grouping set, with NULL for the keys that a set leaves out."""
    grouping = _grouping(query)
    agreed = _agreed(grouping, prepared, stored)
    tables = [
        _placed(
            grouping,
            part.query,
            noisy_table(part.query, part.histogram, part.servings, points, values),
        )
        for part, points, values in zip(prepared, stored, agreed, strict=True)
    ]
    return pa.concat_tables([tables[place] for place in grouping.sets], promote_options="permissive")


def joint_guarantee_of(query: PrivateQuery, prepared: Sequence[Prepared]) -> tuple[float, float]:
    """(epsilon, delta) of all sets together, both rounded up."""
    shown = [
        Shown(
            part.histogram,
            sum(serving.guaranteed_nano for serving in part.servings),
            _threshold_delta(part),
            tuple(serving.statistic for serving in part.servings),
            1 if all(serving.is_single_draw for serving in part.servings) else MOST_DRAWN,
        )
        for part in prepared
    ]
    return joint_guarantee(shown, query.request)


def joint_receipt(query: PrivateQuery, prepared: Sequence[Prepared], receipts: Sequence[Receipt]) -> Receipt:
    """The receipt of all sets together, before a price is known."""
    grouping = _grouping(query)
    epsilon, delta = joint_guarantee_of(query, prepared)
    columns = joint_columns(grouping, prepared)
    own = [replace(receipt, columns=shown) for receipt, shown in zip(receipts, columns, strict=True)]
    first = receipts[0]
    return replace(
        first,
        query_hash=query_hash(query),
        mechanism=", ".join(dict.fromkeys(receipt.mechanism for receipt in receipts)),
        rho=math.fsum(receipt.rho for receipt in receipts),
        epsilon=epsilon,
        delta=delta,
        max_keys=None,
        threshold=None,
        columns=largest_columns(columns),
        notes=tuple(dict.fromkeys((*(note for receipt in receipts for note in receipt.notes), *joint_notes(grouping)))),
        sets=tuple(
            SetReceipt(tuple(key.sql for key in part.query.frame.keys), receipt)
            for part, receipt in zip(prepared, own, strict=True)
        ),
    )


def joint_price(receipt: Receipt, prepared: Sequence[Prepared], charged: Charged) -> Receipt:
    """The receipt with what was charged, for all sets and for each."""
    sets = tuple(
        replace(one, receipt=with_price(one.receipt, charged.part(part.items)))
        for one, part in zip(receipt.sets, prepared, strict=True)
    )
    return replace(with_price(receipt, charged), sets=sets)


def joint_columns(grouping: Grouping, prepared: Sequence[Prepared]) -> list[tuple[ColumnReceipt, ...]]:
    """Of each set the noise of its columns."""
    lengths = _agree(grouping, prepared)
    rounded = roundings(lengths, _marginals(prepared, PRESENCE)) if lengths else (1,) * len(prepared)
    return [
        columns_with(part.query, part.histogram, noise, count)
        for part, noise, count in zip(prepared, _noises(grouping, prepared), rounded, strict=True)
    ]


def joint_notes(grouping: Grouping) -> tuple[str, ...]:
    """What holds for the sets together."""
    found = ["errors differ by grouping set; what is stated of a column is the largest of them"]
    if grouping.adds_up:
        found.append("rows of a finer set add up to those of a coarser one")
    else:
        found.append("each grouping set is a release of its own, so that its rows need not add up to another's")
    return tuple(found)


def _grouping(query: PrivateQuery) -> Grouping:
    if query.grouping is None:
        raise AssertionError("a query with one set of keys is answered by itself")
    return query.grouping


def _placed(grouping: Grouping, part: PrivateQuery, table: pa.Table) -> pa.Table:
    """The rows of one set with the columns of all."""
    places = grouping.places(part)
    keys = len(grouping.keys) - len(grouping.flagged)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        f"key_{place}": table.column(f"key_{places.index(place)}") if place in places else pa.nulls(table.num_rows)
        for place in range(keys)
    }
    for i, place in enumerate(grouping.flagged):
        columns[f"key_{keys + i}"] = pa.array(np.full(table.num_rows, int(place not in places)))
    others = (name for name in table.column_names if not name.startswith("key_"))
    return pa.table(columns | {name: table.column(name) for name in others})


def _marginals(prepared: Sequence[Prepared], statistic: Statistic) -> list[Marginal]:
    """What is known of one statistic of the finest set, which comes first."""
    finest = prepared[0].query.frame.keys
    found = []
    for part in prepared:
        sigma = next(serving.level.sigma for serving in part.servings if serving.statistic == statistic)
        axes = tuple(finest.index(key) for key in part.query.frame.keys)
        if statistic == PRESENCE:
            found.append(Marginal(axes, sigma**2, part.histogram.correlation * sigma**2))
        else:
            found.append(Marginal(axes, noise_sigma(statistic, sigma, part.histogram) ** 2))
    return found


def _agree(grouping: Grouping, prepared: Sequence[Prepared]) -> tuple[int, ...]:
    """Lengths of the finest set's keys where values are made to agree; empty where they are not, or are none."""
    public = prepared[0].query.frame.public_keys
    return public.lengths if grouping.adds_up and public is not None and public.count else ()


def _noises(grouping: Grouping, prepared: Sequence[Prepared]) -> list[Noise]:
    """Of each set, standard deviations of its statistics as they are shown."""
    lengths = _agree(grouping, prepared)
    statistics = [serving.statistic for serving in prepared[0].servings]
    if not lengths:
        return [
            {
                serving.statistic: noise_sigma(serving.statistic, serving.level.sigma, part.histogram)
                for serving in part.servings
            }
            for part in prepared
        ]
    by_statistic = {
        statistic: consistent_variances(lengths, _marginals(prepared, statistic)) for statistic in statistics
    }
    return [
        {statistic: math.sqrt(variances[place]) for statistic, variances in by_statistic.items()}
        for place in range(len(prepared))
    ]


def _agreed(grouping: Grouping, prepared: Sequence[Prepared], stored: Sequence[Stored]) -> list[Agreed | None]:
    """Of each set, values that agree with those of the others; None where they stay what was noised."""
    lengths = _agree(grouping, prepared)
    if not lengths:
        return [None] * len(prepared)
    noises = _noises(grouping, prepared)
    values: list[dict[Statistic, NoisyValues]] = [{} for _ in prepared]
    for number, serving in enumerate(prepared[0].servings):
        noisy = [
            point_values(points.served(part.servings[number])) for part, points in zip(prepared, stored, strict=True)
        ]
        found = consistent_values(lengths, _marginals(prepared, serving.statistic), noisy)
        for place, cells in enumerate(found):
            sigma = noises[place][serving.statistic]
            values[place][serving.statistic] = NoisyValues(cells, np.full(1, sigma), sigma)
    marginals = _marginals(prepared, PRESENCE)
    whole = {
        i: whole_marginals(lengths, marginals, linear_value(estimate.numerator, values[0]), step)
        for i, estimate in enumerate(prepared[0].query.estimates)
        if (step := _step(estimate)) is not None
    }
    return [
        Agreed(own, {i: shown[place] for i, shown in whole.items()}, rounded)
        for place, (own, rounded) in enumerate(zip(values, roundings(lengths, marginals), strict=True))
    ]


def _step(estimate: Estimate) -> float | None:
    """What a sum is shown in whole multiples of: 1, or the last digit of a DECIMAL; None for others."""
    scale = _DECIMAL.fullmatch(estimate.type)
    if estimate.denominator is not None or (estimate.type != "BIGINT" and scale is None):
        return None
    return 1.0 if scale is None else 10.0 ** -int(scale[1])


def _threshold_delta(part: Prepared) -> float:
    """What the thresholds cost that the shown keys have passed."""
    presence, window = part.servings[0], part.query.frame.window
    if window is not None:
        return charged_delta(part.histogram, window)
    stored = sum(level.threshold_delta_units for level in presence.keys_from) / DELTA_UNITS_PER_ONE
    due = (cut.delta for cut in (presence.cut, presence.ceiling_cut) if cut is not None)
    return math.fsum([stored, *due])


def largest_columns(parts: Sequence[tuple[ColumnReceipt, ...]]) -> tuple[ColumnReceipt, ...]:
    """Of each column the part in which it has the most noise."""
    return tuple(max(one, key=lambda column: column.sigma or 0.0) for one in zip(*parts, strict=True))
