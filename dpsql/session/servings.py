"""Which point serves each statistic of a query, and what has to be drawn for it: by policy, text and past releases.

A statistic is asked for at a level. Where its cascade reaches that level it is served from what is stored: by the
point that this reader was shown for the same question, else by the highest paid point between its own level and the
query's, else by a point on a fixed grid of levels, made of its neighbours for nothing. Where the cascade ends below,
its top rises, and the rise alone is paid. A frame with a ceiling has its top there from the start. Keys are those that
charged thresholds have shown, at all levels that the reader may see.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

from dpsql.errors import AccessError, CalibrationError
from dpsql.mechanisms.correlated_gaussian import MOST_RISES, TAU_LOSS, rounding_loss
from dpsql.query.frame import NANO, PRESENCE
from dpsql.query.identity import statistic_hash
from dpsql.query.private_query import PrivateQuery
from dpsql.release.calibrate import Calibration, Cut, Level, cut_at, level_of
from dpsql.release.free_levels import free_level, is_free_level
from dpsql.session.reader import Reader
from dpsql.session.serving import Serving
from dpsql.state import Level as StoredLevel
from dpsql.state import Pin, State


def servings_of(
    query: PrivateQuery, calibration: Calibration, state: State, reader: Reader, asked_nano: int
) -> tuple[Serving, ...]:
    """How each statistic of a query is served, presence first.

    Args:
        query: on one frame.
        calibration: its levels as they are asked for.
        state: the books.
        reader: who asks.
        asked_nano: level of all that is asked for at once, which higher points may serve up to.

    Raises:
        AccessError: the reader may not be shown this level, or no keys of this frame.
        CalibrationError: a rise is too small for its noise to be drawn, a cascade has too many points to rise, or the
            level is above the frame's ceiling.

    """
    reader.require(asked_nano)
    return tuple(
        _Cascade(query, calibration, level, state, reader, asked_nano).serving() for level in calibration.levels
    )


class _Cascade:
    """What is stored of one statistic, and what a reader asks of it."""

    def __init__(
        self, query: PrivateQuery, calibration: Calibration, level: Level, state: State, reader: Reader, asked_nano: int
    ) -> None:
        self._query = query
        self._asked_nano = asked_nano
        self._calibration = calibration
        self._histogram = calibration.histogram
        self._level = level
        self._reader = reader
        self._side_table = state.side_table
        self._hash = statistic_hash(level.statistic, query.frame)
        self._stored = state.side_table.levels(self._hash)
        self._hides = level.statistic == PRESENCE and self._histogram.hides
        self._window = query.frame.window if self._hides else None
        self._alone = self._hides and self._histogram.correlation > 0 and self._window is None

    def serving(self) -> Serving:
        """How the statistic is served."""
        ceiling = self._query.frame.ceiling
        if ceiling is None:
            return self._served()
        if self._level.rho_nano > ceiling:
            raise CalibrationError(
                f"rho = {self._level.rho_nano / NANO:.9g} for one statistic is above the ceiling, "
                f"{ceiling / NANO:.9g}, at which its numbers are drawn once and for all"
            )
        if self._stored:
            return self._served()
        top = level_of(self._level.statistic, ceiling, self._histogram)
        cut = self._cut_for(top, paid=False) if self._hides else None
        self._stored = (self._charged(top, cut),)
        return replace(self._served(), ceiling=top, ceiling_cut=cut)

    def _served(self) -> Serving:
        if self._alone:
            return self._served_alone()
        self._require_a_law_for_lower_levels()
        return self._served_in_cascade()

    def _require_a_law_for_lower_levels(self) -> None:
        """What is made of discrete noise tells more than its level says: it keeps the lattice of what it is made of."""
        if self._is_discrete and self._stored and not self._reader.may_see(self._lattice_of.rho_nano):
            raise AccessError(
                f"these counts have discrete noise and are stored at rho = {self._lattice_of.rho_nano / NANO:.9g}; "
                f"what is made of them is not for {self._reader.name!r}. Leave mechanism out"
            )

    @cached_property
    def _lattice_of(self) -> StoredLevel:
        """The level whose lattice may show through: the top, or of what the reader was shown the top of that time."""
        top = self._stored[0]
        if self._pinned(self._stored) is None:
            return top
        told_nano = self._side_table.releases_held(self._hash, self._reader.name).get(0, top.rho_nano)
        return next((point for point in reversed(self._stored) if point.rho_nano >= told_nano), top)

    @property
    def _is_discrete(self) -> bool:
        return self._level.statistic == PRESENCE and not self._histogram.is_gaussian

    @cached_property
    def _pins(self) -> tuple[Pin, ...]:
        return self._side_table.pins(self._hash, self._reader.name)

    @property
    def _own_release(self) -> bool:
        return self._alone and self._query.own_threshold

    @cached_property
    def _pin(self) -> Pin | None:
        """What the reader was shown when they asked the same; None where they did not, or may not see it any more."""
        asked = (self._level.rho_nano, self._asked_nano, self._own_release)
        for pin in self._pins:
            if (pin.asked_rho_nano, pin.query_rho_nano, pin.own_release) == asked:
                return pin
        return None

    def _pinned(self, stored: Iterable[StoredLevel]) -> StoredLevel | None:
        """The point that the reader was shown, of those that they may see."""
        pin = self._pin
        if pin is None:
            return None
        place = (pin.rho_nano, pin.release_rho_nano)
        return next((point for point in stored if (point.rho_nano, point.release_rho_nano) == place), None)

    def _with(self, level: Level, *, place_nano: int = 0, has_threshold: bool = False) -> Serving:
        """A serving, and that this reader is served it from now on."""
        pin = Pin(
            self._reader.name, self._hash, self._level.rho_nano, self._asked_nano, self._own_release,
            level.rho_nano, place_nano, has_threshold,
        )  # fmt: skip
        return Serving(level, self._stored, pin)

    def _served_in_cascade(self) -> Serving:
        top = self._stored[0].rho_nano if self._stored else 0
        found = self._pinned(self._stored)
        if found is None:
            if self._level.rho_nano > top:
                return self._risen(top)
            found = self._paid_between() or self._just_below()
        level = self._as_stored(found) if found else self._at(free_level(self._level.rho_nano, self._window))
        serving = replace(self._with(level), found=found)
        if self._is_discrete and level.rho_nano < self._lattice_of.rho_nano:
            serving = replace(serving, tells_of=self._lattice_of)
        if not self._hides:
            return serving
        # a threshold that others were charged for later is no part of what this reader was shown
        known = found is not None and self._pin is not None and not self._pin.has_threshold
        if found is not None and found.tau is not None and (self._query.own_threshold or not known):
            return self._cut(serving, Cut(found.tau, 0.0))
        if self._window is not None:
            return self._cut(serving, self._cut_for(level, paid=True))
        shown = self._shown()
        if shown and not self._query.own_threshold:
            return replace(serving, keys_from=shown)
        self._require_few_roundings()
        return self._cut(serving, self._cut_for(level, paid=False))

    def _risen(self, top: int) -> Serving:
        """The top of the cascade at the level asked for, which is above it."""
        self._require_room()
        rise = self._level
        if top:
            rise = level_of(self._level.statistic, self._level.rho_nano - top, self._histogram)
        serving = replace(self._with(self._level), rise=rise)
        if not self._hides:
            return serving
        return self._cut(serving, self._cut_for(self._level, paid=self._window is not None and bool(self._stored)))

    def _paid_between(self) -> StoredLevel | None:
        """The highest point between the statistic's level and the query's that others' free requests did not make."""
        asked = self._level.rho_nano
        return next(
            (
                point
                for point in self._stored
                if asked <= point.rho_nano <= self._asked_nano and (point.rho_nano == asked or self._lasts(point))
            ),
            None,
        )

    def _just_below(self) -> StoredLevel | None:
        """The highest point below the statistic's level that is no lower than the grid; one on the grid included."""
        floor = free_level(self._level.rho_nano, self._window)
        below = (point for point in self._stored if floor <= point.rho_nano < self._level.rho_nano)
        return next((point for point in below if point.rho_nano == floor or self._lasts(point)), None)

    def _lasts(self, point: StoredLevel) -> bool:
        """Whether a point was paid for, or made before free ones had a grid: no free request adds one of these."""
        return point.is_paid or not is_free_level(point.rho_nano, self._window)

    def _shown(self) -> tuple[StoredLevel, ...]:
        """Levels whose thresholds were charged, and that the reader may see."""
        return tuple(point for point in self._stored if point.tau is not None and self._reader.may_see(point.rho_nano))

    def _cut(self, serving: Serving, cut: Cut) -> Serving:
        """The serving with a threshold of its own, beside those that charged points have."""
        own = self._charged(serving.level, cut)
        others = (point for point in self._shown() if point.rho_nano != own.rho_nano)
        keys_from = tuple(sorted((own, *others), key=lambda point: -point.rho_nano))
        return replace(serving, cut=cut, keys_from=keys_from, pin=replace(serving.pin, has_threshold=True))

    def _cut_for(self, level: Level, *, paid: bool) -> Cut:
        """The threshold of a level, as it was calibrated where it is the one asked for."""
        if level != self._level:
            cut = cut_at(self._query, self._histogram, level)
        elif self._calibration.tau is not None:
            cut = Cut(self._calibration.tau, self._calibration.threshold_delta)
        else:
            raise AssertionError("a threshold is for keys that hide")
        return replace(cut, delta=0.0) if paid else cut

    def _charged(self, level: Level, cut: Cut | None) -> StoredLevel:
        """A level as it is stored, or will be."""
        known = next((point for point in self._stored if point.rho_nano == level.rho_nano), None)
        if known is not None and known.tau is not None:
            return known
        tau = None if cut is None else cut.tau
        return StoredLevel(level.rho_nano, level.sigma, tau, 0, 0.0, None, 0)

    def _as_stored(self, point: StoredLevel) -> Level:
        return Level(self._level.statistic, point.rho_nano, point.sigma, 0.0)

    def _at(self, rho_nano: int) -> Level:
        if rho_nano == self._level.rho_nano:
            return self._level
        return level_of(self._level.statistic, rho_nano, self._histogram)

    def _require_room(self) -> None:
        if sum(self._lasts(point) for point in self._stored) >= MOST_RISES:
            raise CalibrationError(
                "this statistic was released at too many levels to rise again; declare a new version of the table"
            )

    def _require_few_roundings(self) -> None:
        """A threshold allows for so many roundings; files of earlier formats may hold more points than the grid."""
        drawn = sum(point.source_rho_nano is None for point in self._stored)
        lowered = [point for point in self._stored if point.source_rho_nano is not None]
        off_grid = sum(self._lasts(point) and not point.is_paid for point in lowered)
        shared = self._histogram.correlation > 0
        if rounding_loss(drawn, len(lowered) - off_grid + 1, off_grid, shared=shared) > TAU_LOSS:
            raise CalibrationError(
                "this statistic was released at too many levels for another threshold; declare a new version of the "
                "table"
            )

    def _may_hold(self, release_nano: int) -> bool:
        """Whether the reader may be shown all of an independent release, which adds to what they hold of others."""
        if self._reader.rho_limit is None:
            return True
        known = self._held.get(release_nano, 0)
        return release_nano <= known or self._reader.may_see(sum(self._held.values()) - known + release_nano)

    @cached_property
    def _held(self) -> dict[int, int]:
        """What a reader was shown of each independent release; of one without a limit, as far as it is pinned."""
        if self._reader.rho_limit is not None:
            return self._side_table.releases_held(self._hash, self._reader.name)
        shown = {(pin.rho_nano, pin.release_rho_nano) for pin in self._pins}
        return {
            point.release: point.release for point in self._stored if (point.rho_nano, point.release_rho_nano) in shown
        }

    def _served_alone(self) -> Serving:
        """Each charged point is a release of its own; an answer shows the keys of all that the reader holds."""
        visible = tuple(point for point in self._stored if self._may_hold(point.release))
        found = self._pinned(visible)
        if found is not None:
            return self._of_release(found.release, found)
        # what the reader holds already adds nothing to it
        for points in (tuple(point for point in visible if point.release in self._held), visible):
            found = self._release_between(points)
            if found is not None:
                return self._of_release(found.release, found)
            above = [point for point in points if point.tau is not None and point.rho_nano > self._level.rho_nano]
            if above and not self._query.own_threshold:
                return self._of_release(above[-1].rho_nano, None)
        return self._another_release()

    def _release_between(self, points: tuple[StoredLevel, ...]) -> StoredLevel | None:
        """The highest release between the statistic's level and the query's.

        Or what was stored a little below because the level was taken, as files of earlier formats have it.
        """
        asked = self._level.rho_nano
        least = asked - min(MOST_RISES, asked // 5)
        found = [point for point in points if point.release_rho_nano == 0 and least <= point.rho_nano]
        if self._query.own_threshold:
            found = [point for point in found if point.tau is not None]
        between = [point for point in found if asked <= point.rho_nano <= self._asked_nano and point.tau is not None]
        below = [point for point in found if point.rho_nano <= asked]
        return next(iter(between or below), None)

    def _of_release(self, release_nano: int, found: StoredLevel | None) -> Serving:
        """A stored release, or what was made of one, or is to be."""
        if found is None:
            rho_nano = free_level(self._level.rho_nano)
            place = (rho_nano, release_nano)
            found = next((one for one in self._stored if (one.rho_nano, one.release_rho_nano) == place), None)
        level = self._at(rho_nano) if found is None else self._as_stored(found)
        place_nano = release_nano if found is None else found.release_rho_nano
        cut = None if found is None or found.tau is None else Cut(found.tau, 0.0)
        source = next(point for point in self._stored if point.rho_nano == release_nano and point.tau is not None)
        serving = self._with(level, place_nano=place_nano, has_threshold=cut is not None)
        return replace(serving, found=found, cut=cut, release_nano=release_nano, keys_from=self._with_held(source))

    def _another_release(self) -> Serving:
        """A release of its own, drawn and paid in full."""
        level = self._at(self._untaken_nano())
        if self._query.frame.ceiling is not None:
            raise AccessError(
                "these keys were shown once, at the ceiling, with noise that hidden ones share; for a threshold at a "
                "lower level ask for a rho_window, which pays for all of them"
            )
        if not self._may_hold(level.rho_nano):
            raise AccessError(
                f"releases of these counts add up, and one more at rho = {level.rho_nano / NANO:.9g} is above the "
                f"limit of {self._reader.name!r}; ask in a rho_window, where they do not"
            )
        self._require_room()
        cut = self._cut_for(level, paid=False)
        keys_from = self._with_held(self._charged(level, cut))
        serving = self._with(level, has_threshold=True)
        return replace(serving, rise=level, cut=cut, release_nano=level.rho_nano, keys_from=keys_from)

    def _untaken_nano(self) -> int:
        """The level, or a little less where files of earlier formats have what is made of a release."""
        taken = {point.rho_nano for point in self._stored if point.release_rho_nano == 0}
        rho_nano = self._level.rho_nano
        while rho_nano in taken:
            rho_nano -= 1
        if not rho_nano:
            raise CalibrationError(f"rho = {self._level.rho_nano / NANO:.3g} is too small; ask for more")
        return rho_nano

    def _with_held(self, release: StoredLevel) -> tuple[StoredLevel, ...]:
        """A release and those that the reader holds beside it, as long as they add up to no more than the limit."""
        chosen, total = [release], release.rho_nano
        for point in self._stored:
            held = point.tau is not None and point.release in self._held and point.rho_nano != release.rho_nano
            if held and self._reader.may_see(total + point.rho_nano):
                chosen.append(point)
                total += point.rho_nano
        return tuple(sorted(chosen, key=lambda point: -point.rho_nano))
