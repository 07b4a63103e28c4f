"""Step 7: points that are not stored yet, from exact values or from points that are; and what is shown of points.

A rise averages the top of a cascade with a fresh release at the difference of levels. Every other new point is made of
stored ones. The keys of a frame never change: public keys are all there from the start, private ones are frozen. What a
reader sees of stored points is post-processing of what was paid for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.cascade.serving import Draw, KeySelection, Lowering, Serving
from dpsql.errors import StateError
from dpsql.mechanism.histogram import Histogram
from dpsql.mechanism.measure import Grid, Measure, NoisyHistogram, Placed
from dpsql.model.estimates import UNITS
from dpsql.model.frame import NOISE_GRID_EXPONENT, PRESENCE, Frame, Statistic
from dpsql.model.identity import frame_hash
from dpsql.model.statistic_kinds import BESIDE_KINDS, COVERAGE_KINDS, LEFT_OUT_KINDS
from dpsql.noise.entropy import NoiseSource
from dpsql.noise.running_totals import FractionalSum
from dpsql.release.estimates import NoisyFrame, NoisyValues, added_up, noise_sigma, read_values
from dpsql.release.exact import Exact
from dpsql.release.offer import Offer
from dpsql.state import Point, SideTable, Threshold, delta_units_up, to_arrow


@dataclass(frozen=True)
class PointSource:
    """Sources of new points of one statistic.

    Attributes:
        statistic: what is noised.
        statistic_hash: what its points are stored under.
        frame_hash: the frame whose keys they belong to; its own hash if it has public places in place of keys.
        measure: the law of the noise.
        histogram: how the presence count of that frame is noised; None of a statistic that has places.
        exact: exact values of what is drawn.
        side_table: where points are stored.
        noise_source: where noise comes from.
        new: points that are to be stored.

    """

    statistic: Statistic
    statistic_hash: str
    frame_hash: str
    measure: Measure
    histogram: Histogram | None
    exact: Exact
    side_table: SideTable
    noise_source: NoiseSource
    new: list[Point] = field(default_factory=list)

    def placed(self, rho_nano: int, release_nano: int = 0) -> Placed:
        """A stored point, or a new one.

        Raises:
            StateError: it is of another grid.

        """
        stored = self.side_table.point(self.statistic_hash, rho_nano, release_nano)
        point = next((one for one in self.new if one.rho_nano == rho_nano), stored)
        if not point or point.lattice_exponent != self.statistic.noise_exponent:
            raise StateError("a stored point is not what its frame needs; declare a new version of the table")
        return Placed(rho_nano, point.sigma, NoisyHistogram(point.values, point.floor))


def new_points(
    offer: Offer, exact: Exact, side_table: SideTable, noise_source: NoiseSource
) -> tuple[list[Point], list[Threshold]]:
    """Draw and make what is not stored, but for numbers of rows left out, which are drawn after these.

    Args:
        offer: how the query of one frame is served.
        exact: exact values of what is drawn.
        side_table: where points are stored.
        noise_source: where noise comes from.

    Returns:
        New points, and thresholds for points that are stored and have none; all of it is stored before anything is
        shown.

    """
    points: list[Point] = []
    thresholds: list[Threshold] = []
    for serving in offer.servings:
        statistic, name = serving.level.statistic, serving.pin.statistic_hash
        if statistic.kind in LEFT_OUT_KINDS or not serving.steps:
            continue
        of_keys = frame_hash(offer.query.frame), offer.histogram
        frame, counts = (name, None) if statistic.kind in COVERAGE_KINDS else of_keys
        source = PointSource(statistic, name, frame, offer.histogram.measure, counts, exact, side_table, noise_source)
        for step in serving.steps:
            if isinstance(step, KeySelection):
                thresholds.append(Threshold(name, step.rho_nano, step.tau, delta_units_up(step.delta)))
            else:
                source.new.append(new_point(source, step, serving.release_nano))
        points += source.new
    return points, thresholds


def new_point(source: PointSource, step: Draw | Lowering, release_nano: int = 0) -> Point:
    """Draw a point from exact values, or derive it from its neighbours; stores nothing.

    Args:
        source: what it is made of.
        step: its level, and how it is made.
        release_nano: level of the release that a derived point stems from, if releases are independent; else 0.

    """
    statistic, stems_from = source.statistic, None
    counts = source.histogram if statistic == PRESENCE else None
    if isinstance(step, Draw):
        noisy, release_nano = _drawn(source, step), 0
    else:
        high, *low = (source.placed(one.rho_nano, one.release_rho_nano) for one in step.neighbours)
        grid = Grid(statistic.noise_exponent, statistic.lattice_exponent, counts.shape if counts else None)
        lower = low[0] if low else None
        noisy = source.measure.lowered(grid, high, lower, step.level.rho_nano, step.level.sigma, source.noise_source)
        stems_from = release_nano or high.rho_nano
    return Point(
        statistic_hash=source.statistic_hash,
        rho_nano=step.level.rho_nano,
        frame_hash=source.frame_hash,
        values=noisy.values,
        lattice_exponent=statistic.noise_exponent,
        sigma=step.level.sigma,
        tau=step.tau,
        threshold_delta_units=delta_units_up(step.delta),
        correlation=counts.shape.correlation if counts else 0.0,
        floor=noisy.floor,
        floor_correlation=counts.shape.floor_correlation if counts else None,
        source_rho_nano=stems_from,
        release_rho_nano=release_nano,
        cells=statistic.cells,
    )


def _drawn(source: PointSource, draw: Draw) -> NoisyHistogram:
    """Draw a fresh release, averaged with the top of the cascade if there is one."""
    statistic, histogram, level = source.statistic, source.histogram, draw.fresh
    exact, noise_source = source.exact.values[statistic], source.noise_source
    if histogram is None:
        noisy = NoisyHistogram(noisy_places(exact, level.sigma, source.measure, noise_source), 0)
    elif statistic == PRESENCE:
        noisy = histogram.draw(exact, source.exact.floor, level.sigma, noise_source)
    else:
        noisy = NoisyHistogram(noisy_values(exact, statistic, level.sigma, histogram, noise_source), 0)
    if top_nano := draw.level.rho_nano - level.rho_nano:
        noisy = source.measure.risen(source.placed(top_nano), Placed(level.rho_nano, level.sigma, noisy))
    return noisy


def noisy_values(
    exact: npt.NDArray[np.int64], statistic: Statistic, sigma: float, histogram: Histogram, source: NoiseSource
) -> npt.NDArray[np.int64]:
    """Exact lattice values, in steps of the noise, plus noise of standard deviation ``sigma`` rounded to them.

    *Guarantee*: with the sigma of a level the vector costs the level for adding or removing all rows of one unit, up to
    the draws' precision: the histogram says what is noised, and how much noise one unit needs.
    *Source*: `GaussianHistogram.sum_sigma`; rounding is post-processing (docs/proofs/rounded-gaussian.md).
    *Assumes*: entries are below 2**62 in size (`bound` clamps them) and ``sigma`` is that of a `Level`, hence can be
    drawn. A draw is below 2**49 steps in size, so the result fits 64 bits, and nothing here fails on what the data are.
    *Shapes*: one entry a key; of a histogram one a key and cell, a key's cells side by side.
    *Randomness*: one draw per entry.
    """
    exponent, lattice_exponent = statistic.noise_exponent, statistic.lattice_exponent
    noise = histogram.measure.draw(Grid(exponent, lattice_exponent), sigma, len(exact), source).values
    if statistic.cells == 1:
        return histogram.spread(exact, lattice_exponent - exponent) + noise
    cells, shift = exact.reshape(-1, statistic.cells), lattice_exponent - exponent
    return FractionalSum(statistic.cells).transform(cells, shift).ravel() + noise


def noisy_places(
    exact: npt.NDArray[np.int64], sigma: float, measure: Measure, source: NoiseSource
) -> npt.NDArray[np.int64]:
    """Units in each place of coverage or of a histogram of AUTO, in steps of the noise, with noise.

    *Guarantee*: of Gaussian noise, with sigma = sqrt(n / (2 rho)) rho-zCDP for adding or removing all rows of one unit,
    which is in at most n places; up to the draws' precision. *Source*: Bun and Steinke 2016, Proposition 1.6;
    docs/proofs/coverage.md, Theorem 1, and docs/proofs/auto.md.
    *Randomness*: one draw per entry.
    """
    noise = measure.draw(Grid(NOISE_GRID_EXPONENT, 0), sigma, len(exact), source)
    return (exact << -NOISE_GRID_EXPONENT) + noise.values


def shown_keys(counts: npt.NDArray[np.float64], tau: float | None, min_units: int) -> npt.NDArray[np.intp]:
    """Ids of the keys that may be shown.

    Args:
        counts: noisy presence counts, less the floor; with it where the rule of the reader is applied.
        tau: threshold that was charged; None if the keys are public.
        min_units: the reader's own rule, on counts with their floor; above 1 it is post-processing of what may be
            shown anyway.

    """
    if tau is None and min_units <= 1:
        return np.arange(len(counts))
    return np.flatnonzero(counts > max(1, min_units) + (tau or 0.0))


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


@dataclass(frozen=True)
class ShownFrame:
    """What the columns of an answer are computed from.

    Attributes:
        values: of every statistic: of public keys all, of private ones those that are shown.
        whole: of estimates that are rounded together with others, by their number.
        shown: ids of the groups that are shown.
        among: which of the values belong to them.

    """

    values: NoisyFrame
    whole: Mapping[int, npt.NDArray[np.float64]]
    shown: npt.NDArray[np.intp]
    among: slice | npt.NDArray[np.intp]


def shown_frame(
    offer: Offer,
    side_table: SideTable,
    agreed: Agreed | None = None,
    selected: npt.NDArray[np.intp] | None = None,
) -> ShownFrame:
    """Return noisy values and shown groups of an answer.

    Args:
        offer: how the query of one frame is served; all of it is stored.
        side_table: where points are stored.
        agreed: values of all keys, in place of those that are read from the points; public keys only.
        selected: ids of the keys that another release has selected, in the order in which they are shown; None where
            the points of this one say which are.

    """
    query, histogram = offer.query, offer.histogram
    numbers = [serving for serving in offer.servings if serving.level.statistic.kind not in BESIDE_KINDS]
    points = {serving.level.statistic: served_point(serving, side_table) for serving in numbers}
    shown = shown_ids(offer, side_table, selected)
    added, lost = _floors(query.frame, points[PRESENCE])
    # what is read from under the noise, or added up, needs all keys; hidden ones are left out first
    first, then = (shown, slice(None)) if query.frame.has_private_keys else (slice(None), shown)
    if not agreed:
        read = {}
        for statistic, point in points.items():
            noisy = point.noisy_values.reshape(-1, statistic.cells)[first].ravel()
            noisy = noisy + added if statistic == PRESENCE else noisy
            read[statistic] = read_values(statistic, noisy, noise_sigma(statistic, point.sigma, histogram), histogram)
        agreed = Agreed(read, {}, 1)
    values = NoisyFrame(agreed.values, histogram, query.groups, agreed.roundings, lost)
    return ShownFrame(values, agreed.whole, shown, then)


def shown_ids(
    offer: Offer, side_table: SideTable, selected: npt.NDArray[np.intp] | None = None
) -> npt.NDArray[np.intp]:
    """Return the ids of the groups that an answer shows; arguments as those of `shown_frame`."""
    point = served_point(offer.presence, side_table)
    if selected is None:
        return _shown(offer, point, side_table)
    return selected[shown_keys(point.noisy_values[selected], None, offer.query.request.min_units)]


def shown_key_table(offer: Offer, side_table: SideTable) -> pa.Table:
    """Keys of the groups that are shown, in the order in which the frame holds them."""
    return stored_keys(offer.query.frame, side_table).take(to_arrow(shown_ids(offer, side_table)))


def served_point(serving: Serving, side_table: SideTable, keys: KeySelection | None = None) -> Point:
    """The point that a statistic of a frame is served by, or one that shows its keys."""
    pin = serving.pin
    place = (keys.rho_nano, 0) if keys else (pin.rho_nano, pin.release_rho_nano)
    point = side_table.point(pin.statistic_hash, *place)
    if not point:
        raise AssertionError("what is served is stored")
    return point


def stored_keys(frame: Frame, side_table: SideTable) -> pa.Table:
    """All keys of a frame that was released, in the order of their ids."""
    keys = side_table.frame_keys(frame_hash(frame))
    if keys is None:
        raise AssertionError("what is served has keys")
    return keys


def _shown(offer: Offer, served: Point, side_table: SideTable) -> npt.NDArray[np.intp]:
    """Groups that may be shown: those that charged points have shown, and that pass the reader's own rule."""
    query = offer.query
    if not query.frame.has_private_keys:
        counts = added_up(UNITS, query.groups, offer.histogram.values(served.noisy_values))
        return shown_keys(counts, None, query.request.min_units)
    passed = np.zeros(len(served.values), dtype=np.bool_)
    for keys in offer.presence.keys_from:
        passed[shown_keys(served_point(offer.presence, side_table, keys).noisy_values, keys.tau, 1)] = True
    if query.request.min_units > 1:
        floor, _ = _floors(query.frame, served)
        own = np.zeros(len(passed), dtype=np.bool_)
        own[shown_keys(served.noisy_values + floor, offer.presence.tau or 0.0, query.request.min_units)] = True
        passed &= own
    return np.flatnonzero(passed)


def _floors(frame: Frame, presence: Point) -> tuple[float, float]:
    """What is added to every count again, and how much more may be missing from it.

    What a sketch subtracted is no part of a count for sure: of any one key it is something from nothing to all of it.
    """
    floor = presence.floor * 2.0**presence.lattice_exponent
    if not frame.bounding.sparsity or frame.bounding.sparsity.kind == "top_k":
        return floor, 0.0
    minimum = float(frame.bounding.minimum_units - 1)
    return minimum, max(0.0, floor - minimum)
