"""Step 7: the points that a query needs and that are not stored yet, from exact values or from points that are.

A rise averages the top of a cascade with a fresh release at the difference of levels. Every other new point is made of
stored ones. The keys of a frame never change: public keys are all there from the start, private ones are frozen.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpsql.errors import StateError
from dpsql.mechanisms.entropy import Entropy
from dpsql.query.frame import PRESENCE, Frame
from dpsql.query.identity import frame_hash, statistic_hash
from dpsql.release.calibrate import Cut, Level
from dpsql.release.cascade import Placed, lowered, noise_of, risen
from dpsql.release.histogram import Histogram, NoisyHistogram
from dpsql.release.noise import noisy_values
from dpsql.session.exact import Exact
from dpsql.session.serving import Serving
from dpsql.state import Level as StoredLevel
from dpsql.state import Point, SideTable, Threshold, delta_units_up


@dataclass(frozen=True)
class _Cascade:
    """One statistic of a frame with what is stored of it."""

    frame: Frame
    serving: Serving
    histogram: Histogram
    side_table: SideTable
    entropy: Entropy

    @property
    def statistic_hash(self) -> str:
        """What its points are found by."""
        return statistic_hash(self.serving.statistic, self.frame)

    @property
    def exponent(self) -> int:
        """Noisy values are multiples of 2**exponent."""
        return self.serving.statistic.noise_exponent

    def placed(self, level: StoredLevel) -> Placed:
        """A stored point.

        Raises:
            StateError: it is of another grid.

        """
        point = self.side_table.point(self.statistic_hash, level.rho_nano, level.release_rho_nano)
        if point is None or point.lattice_exponent != self.exponent:
            raise StateError("a stored point is not what its frame needs; declare a new version of the table")
        return Placed(level.rho_nano, level.sigma, NoisyHistogram(point.values, point.floor))


@dataclass(frozen=True)
class Made:
    """What is to be stored before anything is shown.

    Attributes:
        points: new points.
        thresholds: for points that are stored, and have none.

    """

    points: tuple[Point, ...]
    thresholds: tuple[Threshold, ...]


def new_points(
    frame: Frame,
    histogram: Histogram,
    servings: tuple[Serving, ...],
    exact: Exact | None,
    side_table: SideTable,
    entropy: Entropy,
) -> Made:
    """Draw and make what is not stored.

    Args:
        frame: what is grouped.
        histogram: how the presence count is noised.
        servings: how each statistic is served.
        exact: exact values of what rises; None where nothing does.
        side_table: where points are stored.
        entropy: where noise comes from.

    """
    points: list[Point] = []
    thresholds: list[Threshold] = []
    for serving in servings:
        cascade = _Cascade(frame, serving, histogram, side_table, entropy)
        ceiling: Placed | None = None
        level, cut = serving.level, serving.cut
        if serving.ceiling is not None:
            drawn = _drawn(cascade, exact, serving.ceiling)
            ceiling = Placed(serving.ceiling.rho_nano, serving.ceiling.sigma, drawn)
            points.append(_point(cascade, drawn, serving.ceiling, serving.ceiling_cut, None))
        if serving.rise is not None:
            points.append(_point(cascade, _risen(cascade, exact, serving.rise), level, cut, None))
        elif not serving.is_stored:
            points.append(_point(cascade, _made(cascade, ceiling), level, cut, serving.source_nano))
        elif serving.cut is not None and serving.stored_tau is None:
            paid = delta_units_up(serving.cut.delta)
            thresholds.append(Threshold(cascade.statistic_hash, serving.level.rho_nano, serving.cut.tau, paid))
    return Made(tuple(points), tuple(thresholds))


def _made(cascade: _Cascade, ceiling: Placed | None) -> NoisyHistogram:
    noise = noise_of(cascade.serving.statistic, cascade.histogram, cascade.entropy)
    rho_nano = cascade.serving.level.rho_nano
    if ceiling is not None:
        return lowered(ceiling, None, rho_nano, noise)
    above, below = cascade.serving.neighbours()
    return lowered(cascade.placed(above), None if below is None else cascade.placed(below), rho_nano, noise)


def _drawn(cascade: _Cascade, exact: Exact | None, level: Level) -> NoisyHistogram:
    statistic = cascade.serving.statistic
    if exact is None:
        raise AssertionError("what is drawn was charged and read")
    if statistic == PRESENCE:
        return cascade.histogram.draw(exact.values[PRESENCE], exact.floor, level.sigma, cascade.entropy)
    noisy = noisy_values(exact.values[statistic], statistic, level.sigma, cascade.histogram, cascade.entropy)
    return NoisyHistogram(noisy, 0)


def _risen(cascade: _Cascade, exact: Exact | None, rise: Level) -> NoisyHistogram:
    fresh = _drawn(cascade, exact, rise)
    if rise.rho_nano == cascade.serving.level.rho_nano:
        return fresh
    top = cascade.placed(cascade.serving.stored[0])
    return risen(top, Placed(rise.rho_nano, rise.sigma, fresh))


def _point(cascade: _Cascade, noisy: NoisyHistogram, level: Level, cut: Cut | None, source_nano: int | None) -> Point:
    serving, histogram = cascade.serving, cascade.histogram
    counts = serving.statistic == PRESENCE
    return Point(
        statistic_hash=cascade.statistic_hash,
        rho_nano=level.rho_nano,
        frame_hash=frame_hash(cascade.frame),
        values=noisy.values,
        lattice_exponent=cascade.exponent,
        sigma=level.sigma,
        tau=None if cut is None else cut.tau,
        threshold_delta_units=0 if cut is None else delta_units_up(cut.delta),
        correlation=histogram.correlation if counts else 0.0,
        floor=noisy.floor,
        floor_correlation=histogram.floor_correlation if counts else None,
        source_rho_nano=source_nano,
        release_rho_nano=0 if source_nano is None else serving.release_nano,
        cells=serving.statistic.cells,
    )
