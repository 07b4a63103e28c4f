"""Servings of statistics whose noise has no rises: each level that is paid for is a release of its own.

A question gets what its reader was shown for it before, else a release between its level and that of the whole
question, else a lower level of a higher release, for nothing. Otherwise it pays for a new release in full. Releases of
one statistic add up, for a reader with a limit, too.
"""

from __future__ import annotations

from dpsql.cascade.reader import Reader
from dpsql.cascade.serving import Draw, KeySelection, Serving
from dpsql.cascade.servings import _Cascade
from dpsql.errors import AccessError
from dpsql.mechanism.calibrate import Calibration
from dpsql.model.frame import NANO
from dpsql.model.private_query import FrameQuery
from dpsql.state import State


def apart_servings(
    query: FrameQuery, calibration: Calibration, state: State, reader: Reader, asked_nano: int
) -> tuple[Serving, ...]:
    """Return how each statistic of a query is served, presence first.

    Args:
        query: on one frame.
        calibration: its levels as they are asked for.
        state: the state file.
        reader: who asks.
        asked_nano: level of all that is asked for at once, which stored releases may serve up to.

    Raises:
        AccessError: the reader may not be shown this level, or not one more release.
        CalibrationError: a statistic has too many releases, or the level is above the frame's ceiling.

    """
    reader.require(asked_nano)
    levels = calibration.levels
    return tuple(_Apart(query, calibration, one, state, reader, asked_nano).serving() for one in levels)


class _Apart(_Cascade):
    """Releases of one statistic, each drawn and paid in full, and the lower levels that were made of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._asked = (*self._asked[:2], self._hides and self._own_threshold)

    def serving(self) -> Serving:
        """Return how the statistic is served."""
        if self._hides:
            return self._served_alone()
        if self._query.frame.ceiling is not None:
            # the only release of the frame is at its ceiling, and all points are one chain below it
            return super().serving()
        visible = tuple(point for point in self._stored if self._may_hold(point.release))
        if pinned := self._pinned(visible):
            return self._of_release(pinned)
        asked = self._level.rho_nano
        # a release that the reader holds already adds nothing to it
        for points in (tuple(point for point in visible if point.release in self._held), visible):
            drawn = [point for point in points if point.source_rho_nano is None and point.rho_nano >= asked]
            if between := [point for point in drawn if point.rho_nano <= self._asked_nano]:
                return self._of_release(between[0])
            if drawn:
                return self._below_release(drawn[-1].rho_nano)
        return self._another()

    def _another(self) -> Serving:
        """Return a release of its own, drawn and paid in full."""
        level = self._at(self._untaken_nano())
        if not self._may_hold(level.rho_nano):
            raise AccessError(
                f"releases of these numbers add up, and one more at {self._histogram.measure.amount} = "
                f"{level.rho_nano / NANO:.9g} is above the limit of {self._reader.name!r}"
            )
        self._require_room()
        return self._serving(level, (Draw(level, None, 0.0, level),), None, (), level.rho_nano)

    def _keys_of(self, release_nano: int) -> tuple[KeySelection, ...]:
        return super()._keys_of(release_nano) if self._hides else ()
