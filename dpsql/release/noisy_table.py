"""The table that an answer is finished from: keys, noisy numbers and their intervals, one row for each shown group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.mechanism.histogram import Sequences
from dpsql.model.private_query import Buckets
from dpsql.release.bound_effects import unbounded_columns
from dpsql.release.estimates import COLUMNS, Z_95
from dpsql.release.left_out import Z_HIGH
from dpsql.release.offer import Offer
from dpsql.release.points import Agreed, shown_frame, stored_keys
from dpsql.release.top_rows import factors_of_rows
from dpsql.state import SideTable, to_arrow


def noisy_table(
    offer: Offer,
    side_table: SideTable,
    agreed: Agreed | None = None,
    selected: npt.NDArray[np.intp] | None = None,
    quantile: float = Z_95,
    upper_quantile: float = Z_HIGH,
) -> pa.Table:
    """The table that the finish reads: columns key_i, agg_i, agg_i_low and agg_i_high, one row a shown group.

    Args:
        offer: how the query of one frame is served; all of it is stored.
        side_table: where points and keys are stored.
        agreed: values of all keys, in place of those that are read from the points; public keys only.
        selected: ids of the keys that another release has selected, in the order in which they are shown; None where
            the points of this one say which are.
        quantile: half width of an interval of a count, a sum or an average over its standard deviation.
        upper_quantile: likewise of the interval whose upper end is that of whole numbers.

    """
    query, found = offer.query, shown_frame(offer, side_table, agreed, selected, quantile)
    columns: dict[str, pa.ChunkedArray | pa.Array] = {}
    if query.frame.keys:
        keys = stored_keys(query.frame, side_table)
        if isinstance(query.groups, Buckets):
            keys = _bucket_keys(query.groups, keys)
        taken = keys.take(to_arrow(found.shown))
        columns = {name: taken.column(name) for name in taken.column_names}
    then = found.among
    factors = factors_of_rows(offer, found) if query.finish.top else None
    for i, estimate in enumerate(query.estimates):
        own = replace(found, values=replace(found.values, wider=factors[i])) if factors else found
        column = COLUMNS[type(estimate.value)](estimate, estimate.value, own.values)
        value = found.whole.get(i, column.value)[then]
        columns[f"agg_{i}"] = to_arrow(np.rint(value) if estimate.type == "BIGINT" else value, nan_as_null=True)
        columns[f"agg_{i}_low"] = to_arrow(column.low[then], nan_as_null=True)
        columns[f"agg_{i}_high"] = to_arrow(column.high[then], nan_as_null=True)
        if i in query.finish.unbounded:
            columns |= unbounded_columns(offer, i, own, column, side_table, upper_quantile)
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
