"""Step 7, the end: which keys and numbers a reader sees of stored points; post-processing of what was paid for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.query.frame import PRESENCE, Frame, Statistic
from dpsql.query.identity import frame_hash, statistic_hash
from dpsql.query.private_query import Buckets, PrivateQuery
from dpsql.release.estimates import NoisyValues, estimate_column, noise_sigma, read_values
from dpsql.release.histogram import Histogram
from dpsql.release.noise import shown_keys
from dpsql.release.sequences import Sequences
from dpsql.session.serving import Serving
from dpsql.state import Point, SideTable

Columns = dict[str, pa.ChunkedArray | pa.Array]


@dataclass(frozen=True)
class Stored:
    """The points and keys of a frame, as the side table has them."""

    frame: Frame
    side_table: SideTable

    def point(self, statistic: Statistic, rho_nano: int, release_nano: int = 0) -> Point:
        """The point at a level; of an independent release, the one that was made of it there."""
        point = self.side_table.point(statistic_hash(statistic, self.frame), rho_nano, release_nano)
        if point is None:
            raise AssertionError("what is served is stored")
        return point

    def served(self, serving: Serving) -> Point:
        """The point that a statistic is served by."""
        return self.point(serving.statistic, serving.level.rho_nano, serving.place_nano)

    def keys(self) -> pa.Table | None:
        """All keys; None before the first release."""
        return self.side_table.frame_keys(frame_hash(self.frame))


@dataclass(frozen=True)
class Agreed:
    """Values that are shown.

    Attributes:
        values: of every statistic.
        whole: of estimates that are rounded together with others, by their number.
        roundings: how many roundings are in each of these.

    """

    values: Mapping[Statistic, NoisyValues]
    whole: Mapping[int, npt.NDArray[np.float64]]
    roundings: int


def noisy_table(
    query: PrivateQuery,
    histogram: Histogram,
    servings: tuple[Serving, ...],
    stored: Stored,
    agreed: Agreed | None = None,
) -> pa.Table:
    """The table that the finish reads: columns key_i, agg_i, agg_i_low and agg_i_high, one row a shown group.

    Args:
        query: on one frame.
        histogram: how its presence count is noised.
        servings: how each statistic is served.
        stored: points and keys.
        agreed: values of all keys, in place of those that are read from the points; public keys only.

    """
    points = {serving.statistic: stored.served(serving) for serving in servings}
    shown = _shown(query, histogram, servings[0], points[PRESENCE], stored)
    added, lost = _floors(query.frame, points[PRESENCE])
    # what is read from under the noise, or added up, needs all keys; hidden ones are left out first
    first, then = (shown, slice(None)) if query.frame.has_private_keys else (slice(None), shown)
    if agreed is None:
        read = {
            statistic: read_values(
                statistic,
                point_values(point).reshape(-1, statistic.cells)[first].ravel()
                + (added if statistic == PRESENCE else 0.0),
                noise_sigma(statistic, point.sigma, histogram),
                histogram,
            )
            for statistic, point in points.items()
        }
        agreed = Agreed(read, {}, 1)
    columns = _key_columns(query, stored.keys(), shown)
    for i, estimate in enumerate(query.estimates):
        column = estimate_column(estimate, query.buckets, agreed.values, histogram, agreed.roundings)
        value = agreed.whole.get(i, column.value)[then]
        columns[f"agg_{i}"] = pa.array(np.rint(value) if estimate.type == "BIGINT" else value, from_pandas=True)
        columns[f"agg_{i}_low"] = pa.array(column.low[then])
        columns[f"agg_{i}_high"] = pa.array((column.high + lost * estimate.numerator.centre)[then])
    if not columns:
        columns["nothing"] = pa.array(np.zeros(len(shown)))
    return pa.table(columns)


def shown_key_table(query: PrivateQuery, histogram: Histogram, presence: Serving, stored: Stored) -> pa.Table:
    """Keys of the groups that are shown, in the order in which the frame holds them."""
    served = stored.served(presence)
    keys = stored.keys()
    if keys is None:
        raise AssertionError("what is served has keys")
    return keys.take(pa.array(_shown(query, histogram, presence, served, stored)))


def _shown(
    query: PrivateQuery, histogram: Histogram, presence: Serving, served: Point, stored: Stored
) -> npt.NDArray[np.intp]:
    """Groups that may be shown: those that charged points have shown, and that pass the reader's own rule."""
    if not query.frame.has_private_keys:
        counts = histogram.values(point_values(served))
        if query.buckets is not None:
            counts = Sequences(query.buckets.ordering, 0).group_sums(counts, query.buckets.places)
        return shown_keys(counts, 0.0, None, query.min_units)
    passed = np.zeros(len(served.values), dtype=np.bool_)
    for level in presence.keys_from:
        point = stored.point(PRESENCE, level.rho_nano)
        if point.tau is None:
            raise AssertionError("keys are shown by charged points")
        passed[shown_keys(point_values(point), 0.0, point.tau, 1)] = True
    if query.min_units > 1:
        floor, _ = _floors(query.frame, served)
        own = np.zeros(len(passed), dtype=np.bool_)
        own[shown_keys(point_values(served) + floor, 0.0, presence.tau or 0.0, query.min_units)] = True
        passed &= own
    return np.flatnonzero(passed)


def point_values(point: Point) -> npt.NDArray[np.float64]:
    """What is stored, in the aggregate's units; of a presence count less the floor."""
    return point.values.astype(np.float64) * 2.0**point.lattice_exponent


def _floors(frame: Frame, presence: Point) -> tuple[float, float]:
    """What is added to every count again, and how much more may be missing from it.

    What a sketch subtracted is no part of a count for sure: of any one key it is something from nothing to all of it.
    """
    floor = presence.floor * 2.0**presence.lattice_exponent
    if frame.sparsity is None or frame.sparsity.kind == "top_k":
        return floor, 0.0
    minimum = float(frame.minimum_units - 1)
    return minimum, max(0.0, floor - minimum)


def _key_columns(query: PrivateQuery, keys: pa.Table | None, shown: npt.NDArray[np.intp]) -> Columns:
    if not query.frame.keys or keys is None:
        return {}
    columns = keys if query.buckets is None else _bucket_keys(query.buckets, keys)
    taken = columns.take(pa.array(shown))
    return {name: taken.column(name) for name in taken.column_names}


def _bucket_keys(buckets: Buckets, keys: pa.Table) -> pa.Table:
    """Keys of groups of buckets, and one bucket of each, in the order of `Sequences.group_sums`."""
    ids = Sequences(buckets.ordering, 0).first_ids(buckets.places)
    named = {f"key_{i}": f"key_{source}" for i, source in enumerate(buckets.sources) if source is not None}
    taken = keys.take(pa.array(ids))
    columns = {name: taken.column(column) for name, column in named.items()}
    return pa.table(columns | {"bucket": taken.column(f"key_{buckets.ordering.axis}")})
