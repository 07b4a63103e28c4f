"""Which point serves each statistic of a query, and what has to be drawn for it: by policy, text and past releases.

A statistic is asked for at a level. Where its cascade reaches that level it is served from what is stored: by the
highest point between its own level and the query's, or by a new point at its own level, made of its neighbours. Where
the cascade ends below, its top rises, and the rise alone is paid.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpsql.errors import CalibrationError
from dpsql.mechanisms.correlated_gaussian import MOST_RISES
from dpsql.query.private_query import NANO, PRESENCE, Frame, PrivateQuery, Statistic
from dpsql.release.calibrate import Calibration, Level, level_of
from dpsql.state import Level as StoredLevel
from dpsql.state import State

MOST_POINTS = 32
"""Points of a statistic beyond which none is made between or below them: the next lower one is served."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How one statistic is served.

    Attributes:
        level: what is served: its level and the noise it has there.
        stored: levels of the statistic's cascade, highest first.
        rise: what has to be drawn and paid, at the difference to the top; None where nothing is.
        stands_alone: whether points are independent releases, each drawn and paid in full. Where hidden keys share
            noise with shown ones, what was shown tells of it; a next level chosen by that, outside a window, would not
            be covered by the sum of what the levels' thresholds cost one by one.
        tau: threshold of the presence count that is served; None where keys are public or already shown ones.

    """

    level: Level
    stored: tuple[StoredLevel, ...]
    rise: Level | None
    tau: float | None
    stands_alone: bool

    @property
    def statistic(self) -> Statistic:
        """What is served."""
        return self.level.statistic

    def threshold_is_due(self, frame: Frame) -> bool:
        """Whether the threshold is yet to be paid: that of a window is paid with its first release."""
        return self.rise is not None and self.tau is not None and not (frame.window is not None and self.stored)

    @property
    def is_stored(self) -> bool:
        """Whether the point is there as it is."""
        return any(stored.rho_nano == self.level.rho_nano for stored in self.stored)

    @property
    def source(self) -> StoredLevel | None:
        """The charged release that a point that stands alone is, or was made of; None where it is yet to be drawn.

        Charged levels only ever join above all that are stored, so this stays the same release.
        """
        return next((point for point in reversed(self.stored) if self._may_stem_from(point)), None)

    def _may_stem_from(self, point: StoredLevel) -> bool:
        return point.tau is not None and point.rho_nano >= self.level.rho_nano

    def neighbours(self) -> tuple[StoredLevel, StoredLevel | None]:
        """The stored levels next above and next below the one that is served."""
        above = [stored for stored in self.stored if stored.rho_nano > self.level.rho_nano]
        below = [stored for stored in self.stored if stored.rho_nano < self.level.rho_nano and not self.stands_alone]
        return above[-1], (below[0] if below else None)


def servings_of(query: PrivateQuery, calibration: Calibration, state: State) -> tuple[Serving, ...]:
    """How each statistic of a query is served, presence first.

    Raises:
        CalibrationError: a rise is too small for its noise to be drawn, or a cascade has too many points to rise.

    """
    return tuple(
        _serving(query, level, calibration, state.side_table.levels(level.statistic.hash_in(query.frame)))
        for level in calibration.levels
    )


def _serving(query: PrivateQuery, level: Level, calibration: Calibration, stored: tuple[StoredLevel, ...]) -> Serving:
    tau = calibration.tau if level.statistic == PRESENCE else None
    histogram = calibration.histogram
    alone = level.statistic == PRESENCE and histogram.hides and histogram.correlation > 0 and query.frame.window is None
    top = stored[0].rho_nano if stored else 0
    if level.rho_nano > top:
        if len(stored) >= MOST_RISES:
            raise CalibrationError(
                "this statistic was released at too many levels to rise again; declare a new version of the table"
            )
        rise = level if alone or not top else level_of(level.statistic, level.rho_nano - top, histogram)
        return Serving(level, stored, rise, tau, alone)
    fitting = [point for point in stored if level.rho_nano <= point.rho_nano <= calibration.rho_nano]
    lower = [point for point in stored if point.rho_nano < level.rho_nano]
    if not fitting and len(stored) >= MOST_POINTS:
        fitting = lower
        if not lower:
            raise CalibrationError(
                f"this statistic is stored at {len(stored)} levels, all above rho = {level.rho_nano / NANO:.3g}; ask "
                f"for at least {stored[-1].rho_nano / NANO:.9g}"
            )
    if fitting:
        found = fitting[0]
        return Serving(Level(level.statistic, found.rho_nano, found.sigma, 0.0), stored, None, found.tau, alone)
    # inside a window every level's threshold was paid with the first
    return Serving(level, stored, None, tau if query.frame.window is not None else None, alone)
