"""Step 7: the points that a query needs and that are not stored yet, from exact values or from points that are.

A rise averages the top of a cascade with a fresh release at the difference of levels. Every other new point is made of
stored ones. The keys of a frame never change: public keys are all there from the start, private ones are frozen.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpsql.errors import StateError
from dpsql.mechanisms.entropy import Entropy
from dpsql.query.private_query import PRESENCE, Frame, Statistic
from dpsql.release.calibrate import Calibration
from dpsql.release.cascade import Placed, lowered, noise_of, risen
from dpsql.release.histogram import Histogram, NoisyHistogram
from dpsql.release.noise import noisy_values
from dpsql.session.exact import Exact
from dpsql.session.servings import Serving
from dpsql.state import Level, Point, SideTable, delta_units_up


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
        return self.serving.statistic.hash_in(self.frame)

    @property
    def exponent(self) -> int:
        """Noisy values are multiples of 2**exponent."""
        return self.serving.statistic.noise_exponent

    def placed(self, level: Level) -> Placed:
        """A stored point.

        Raises:
            StateError: it is of another grid.

        """
        point = self.side_table.point(self.statistic_hash, level.rho_nano)
        if point is None or point.lattice_exponent != self.exponent:
            raise StateError("a stored point is not what its frame needs; declare a new version of the table")
        return Placed(level.rho_nano, level.sigma, NoisyHistogram(point.values, point.floor))


def new_points(
    frame: Frame,
    calibration: Calibration,
    servings: tuple[Serving, ...],
    exact: Exact | None,
    side_table: SideTable,
    entropy: Entropy,
) -> dict[Statistic, Point]:
    """Draw and make what is not stored; it is to be stored before anything is shown.

    Args:
        frame: what is grouped.
        calibration: the presence count's mechanism and threshold.
        servings: how each statistic is served.
        exact: exact values of what rises; None where nothing does.
        side_table: where points are stored.
        entropy: where noise comes from.

    """
    points: dict[Statistic, Point] = {}
    for serving in servings:
        if not serving.is_stored:
            cascade = _Cascade(frame, serving, calibration.histogram, side_table, entropy)
            noisy = _made(cascade) if serving.rise is None else _risen(cascade, exact)
            points[serving.statistic] = _point(cascade, calibration, noisy)
    return points


def _made(cascade: _Cascade) -> NoisyHistogram:
    above, below = cascade.serving.neighbours()
    return lowered(
        cascade.placed(above),
        cascade.placed(below) if below is not None else None,
        cascade.serving.level.rho_nano,
        noise_of(cascade.serving.statistic, cascade.histogram, cascade.entropy),
    )


def _risen(cascade: _Cascade, exact: Exact | None) -> NoisyHistogram:
    rise, statistic = cascade.serving.rise, cascade.serving.statistic
    if rise is None or exact is None:
        raise AssertionError("what rises was charged and read")
    if statistic == PRESENCE:
        fresh = cascade.histogram.draw(exact.values[PRESENCE], exact.floor, rise.sigma, cascade.entropy)
    else:
        fresh = NoisyHistogram(noisy_values(exact.values[statistic], statistic, rise.sigma, cascade.entropy), 0)
    if not cascade.serving.stored or cascade.serving.stands_alone:
        return fresh
    top = cascade.placed(cascade.serving.stored[0])
    return risen(top, Placed(rise.rho_nano, rise.sigma, fresh))


def _point(cascade: _Cascade, calibration: Calibration, noisy: NoisyHistogram) -> Point:
    serving, histogram = cascade.serving, cascade.histogram
    counts = serving.statistic == PRESENCE
    return Point(
        statistic_hash=cascade.statistic_hash,
        rho_nano=serving.level.rho_nano,
        frame_hash=cascade.frame.frame_hash,
        values=noisy.values,
        lattice_exponent=cascade.exponent,
        sigma=serving.level.sigma,
        tau=serving.tau,
        threshold_delta_units=(
            delta_units_up(calibration.threshold_delta) if serving.threshold_is_due(cascade.frame) else 0
        ),
        correlation=histogram.correlation if counts else 0.0,
        floor=noisy.floor,
        floor_correlation=histogram.floor_correlation if counts else None,
    )
