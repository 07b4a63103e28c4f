"""Which point serves each statistic of a query, and what has to be drawn for it: by policy, text and past releases.

A statistic is asked for at a level. Where its cascade reaches that level it is served from what is stored: by the
point that this reader was shown for the same question, else by the highest paid point between its own level and the
query's, else by a point on a fixed grid of levels, made of its neighbours for nothing. Where the cascade ends below,
its top rises, and the rise alone is paid. A frame with a ceiling has its top there from the start. Keys are those that
charged thresholds have shown, at all levels that the reader may see.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from dpsql.cascade.left_out import each_served
from dpsql.cascade.reader import Reader
from dpsql.cascade.serving import Draw, KeySelection, Lowering, Serving, Step
from dpsql.errors import AccessError, CalibrationError
from dpsql.mechanism.calibrate import NO_CUT, Calibration, Cut, cut_at, level_of
from dpsql.mechanism.ceiling import require_below_ceiling
from dpsql.mechanism.measure import Level
from dpsql.mechanism.window import free_level, free_level_above, is_free_level
from dpsql.model.frame import NANO, PRESENCE
from dpsql.model.identity import statistic_hash
from dpsql.model.private_query import FrameQuery
from dpsql.model.statistic_kinds import LEFT_OUT_KINDS
from dpsql.noise.correlated_gaussian import MOST_RISES, TAU_LOSS, rounding_loss
from dpsql.state import DELTA_UNITS_PER_ONE, Pin, State, delta_units_up
from dpsql.state import Level as StoredLevel


def servings_of(
    query: FrameQuery, calibration: Calibration, state: State, reader: Reader, asked_nano: int
) -> tuple[Serving, ...]:
    """How each statistic of a query is served, presence first.

    Args:
        query: on one frame.
        calibration: its levels as they are asked for.
        state: the state file.
        reader: who asks.
        asked_nano: level of all that is asked for at once, which higher points may serve up to.

    Raises:
        AccessError: the reader may not be shown this level, or no keys of this frame.
        CalibrationError: a rise is too small for its noise to be drawn, a cascade has too many points to rise, or the
            level is above the frame's ceiling.

    """
    reader.require(asked_nano)

    def from_cascade(level: Level) -> Serving:
        return _Cascade(query, calibration, level, state, reader, asked_nano).serving()

    if not any(level.statistic.kind in LEFT_OUT_KINDS for level in calibration.levels):
        return tuple(map(from_cascade, calibration.levels))
    return each_served(query, calibration, state, reader, asked_nano, from_cascade)


@dataclass(eq=False, repr=False)
class _Cascade:
    """What is stored of one statistic, and what a reader asks of it."""

    _query: FrameQuery
    _calibration: Calibration
    _level: Level
    _state: State
    _reader: Reader
    _asked_nano: int
    _first_draws: tuple[Draw, ...] = ()

    def __post_init__(self) -> None:
        frame, self._histogram = self._query.frame, self._calibration.histogram
        self._hash = statistic_hash(self._level.statistic, frame)
        self._hides = self._level.statistic == PRESENCE and self._histogram.hides
        self._window = frame.window if self._hides else None
        self._alone = self._hides and self._histogram.shape.correlation > 0 and self._window is None
        self._own_threshold = self._query.request.own_threshold
        self._by_width = self._query.request.target is not None
        self._stored = self._state.side_table.levels(self._hash)
        if frame.ceiling is not None:
            self._begin_at(frame.ceiling)
        self._top_nano = self._stored[0].rho_nano if self._stored else 0
        # as it is pinned
        self._asked = (self._level.rho_nano, self._asked_nano, self._alone and self._own_threshold)

    def _begin_at(self, ceiling: int) -> None:
        """The cascade has its top at the ceiling from the start, whatever is asked for first."""
        require_below_ceiling(self._level.rho_nano, ceiling)
        if not self._stored:
            top = level_of(self._level.statistic, ceiling, self._histogram)
            cut: Cut | KeySelection = self._due(top, paid=False) if self._hides else NO_CUT
            self._stored = (StoredLevel(top.rho_nano, top.sigma, cut.tau, delta_units_up(cut.delta), 0.0, None, 0),)
            self._first_draws = (Draw(top, cut.tau, cut.delta, top),)

    def serving(self) -> Serving:
        """How the statistic is served."""
        if self._alone:
            return self._served_alone()
        if not self._stored:
            return self._first()
        if any(not self._reader.may_see(point.rho_nano) for point in self._lattice_of):
            raise AccessError(
                f"these counts have discrete noise and are stored at rho = {self._lattice_of[0].rho_nano / NANO:.9g}; "
                f"what is made of them is not for {self._reader.name!r}. Leave mechanism out"
            )
        rho_nano = self._served_nano()
        if rho_nano > self._top_nano:
            return self._risen()
        found = next((point for point in self._stored if point.rho_nano == rho_nano), None)
        level = self._as_stored(found) if found else self._at(rho_nano)
        cut, keys_from = self._thresholds(level) if self._hides else (NO_CUT, ())
        steps: tuple[Step, ...] = ()
        if not found:
            steps = (Lowering.among(self._stored, level, cut.tau, cut.delta),)
        elif found not in self._selections:
            steps = tuple(keys for keys in keys_from if keys.rho_nano == rho_nano)
        return self._serving(level, steps, cut.tau, keys_from)

    @cached_property
    def _selections(self) -> dict[StoredLevel, KeySelection]:
        """The charged thresholds of stored points."""
        return {
            point: KeySelection(
                point.rho_nano, point.sigma, point.tau, point.threshold_delta_units / DELTA_UNITS_PER_ONE
            )
            for point in self._stored
            if point.tau is not None
        }

    @cached_property
    def _shown(self) -> tuple[KeySelection, ...]:
        """Those of them at levels that the reader may see."""
        return tuple(keys for keys in self._selections.values() if self._reader.may_see(keys.rho_nano))

    @cached_property
    def _pins(self) -> tuple[Pin, ...]:
        """What the reader was shown of the statistic, whatever they asked."""
        return self._state.history.pins(self._hash, self._reader.name)

    @cached_property
    def _asked_before(self) -> tuple[Pin, ...]:
        """Return what the reader was shown for this question, by rho or by half width; else the other, if it fits."""
        alike = [pin for pin in self._pins if (pin.asked_rho_nano, pin.query_rho_nano, pin.own_release) == self._asked]
        same = [pin for pin in alike if pin.by_half_width == self._by_width]
        least = self._level.rho_nano if self._by_width else 0
        return tuple(same or (pin for pin in alike if pin.rho_nano >= least))

    @cached_property
    def _lattice_of(self) -> tuple[StoredLevel, ...]:
        """The level whose lattice may show through: the top, or of what the reader was shown the top of that time.

        What is made of discrete noise tells more than its level says: it keeps the lattice of what it is made of. None
        where nothing is stored, or noise is not discrete.
        """
        if self._level.statistic != PRESENCE or not self._histogram.measure.shows_origin:
            return ()
        top = self._stored[:1]
        if not self._pinned(self._stored):
            return top
        disclosed_nano = self._state.history.releases_held(self._hash, self._reader.name).get(0, self._top_nano)
        return tuple(point for point in self._stored if point.rho_nano >= disclosed_nano)[-1:] or top

    def _pinned(self, stored: Iterable[StoredLevel]) -> StoredLevel | None:
        """The point that the reader was shown, of those that they may see."""
        places = {(pin.rho_nano, pin.release_rho_nano) for pin in self._asked_before}
        return next((point for point in stored if (point.rho_nano, point.release_rho_nano) in places), None)

    def _serving(
        self,
        level: Level,
        steps: tuple[Step, ...],
        tau: float | None,
        keys_from: tuple[KeySelection, ...],
        release_nano: int = 0,
        place_nano: int = 0,
    ) -> Serving:
        """A serving, and that this reader is served it from now on."""
        asked = (*self._asked, self._by_width)
        pin = Pin(self._reader.name, self._hash, *asked, level.rho_nano, place_nano, tau is not None)
        single = release_nano > 0 or all(point.rho_nano == level.rho_nano for point in self._stored)
        beyond = (Level(level.statistic, one.rho_nano, one.sigma, 0.0) for one in keys_from[:1] or self._lattice_of)
        disclosed = max((level, *beyond), key=lambda one: one.rho_nano)
        return Serving(level, disclosed, tau, (*self._first_draws, *steps), keys_from, release_nano, single, pin)

    def _served_nano(self) -> int:
        """Level of the point that serves: stored, to be made of what is stored, or above all of it.

        A point between the statistic's level and the query's serves, and below that one that is no lower than the grid;
        either only where no free request of others made it, or at the level that is asked for, or of the grid.
        """
        asked = self._level.rho_nano
        if pinned := self._pinned(self._stored):
            return pinned.rho_nano
        if asked > self._top_nano:
            return asked
        floor = self._free_nano()
        between = (point for point in self._stored if asked <= point.rho_nano <= self._asked_nano)
        below = (point for point in self._stored if floor <= point.rho_nano < asked)
        lasting = (
            point.rho_nano
            for least, points in ((asked, between), (floor, below))
            for point in points
            if point.rho_nano == least or self._lasts(point)
        )
        return next(lasting, floor)

    def _free_nano(self) -> int:
        """Return the level of the grid for what is made of stored points: the highest one below the level asked for.

        A question by half width gets the lowest one above, or a paid point, so that no half width is wider. If the
        reader may see none of these, it gets the level below as well.
        """
        asked = self._level.rho_nano
        if self._by_width:
            paid = (point.rho_nano for point in self._stored if point.rho_nano >= asked and self._lasts(point))
            levels = (free_level_above(asked, self._window), *paid)
            above = [level for level in levels if asked <= level <= self._top_nano and self._reader.may_see(level)]
            if above:
                return min(above)
        return free_level(asked, self._window)

    def _first(self) -> Serving:
        """The first point, at the level asked for: of a statistic that has none nobody was shown anything."""
        level = self._level
        if not self._hides:
            return self._serving(level, (Draw(level, None, 0.0, level),), None, ())
        due = self._due(level, paid=False)
        return self._serving(level, (Draw(level, due.tau, due.delta, level),), due.tau, (due,))

    def _risen(self) -> Serving:
        """The top of the cascade at the level asked for, which is above it."""
        self._require_room()
        level = self._level
        fresh = level_of(level.statistic, level.rho_nano - self._top_nano, self._histogram)
        if not self._hides:
            return self._serving(level, (Draw(level, None, 0.0, fresh),), None, ())
        due = self._due(level, paid=bool(self._window))
        return self._serving(level, (Draw(level, due.tau, due.delta, fresh),), due.tau, self._keys_with(due))

    def _thresholds(self, level: Level) -> tuple[Cut | KeySelection, tuple[KeySelection, ...]]:
        """The threshold of a point that is stored or to be made, and those by which keys are shown beside it."""
        own = [keys for keys in self._selections.values() if keys.rho_nano == level.rho_nano]
        # a threshold that others were charged for later is no part of what this reader was shown
        is_later = any(not pin.has_threshold for pin in self._asked_before)
        if own and (self._own_threshold or not is_later):
            due = replace(own[0], delta=0.0)
        elif self._window:
            due = self._due(level, paid=True)
        elif self._shown and not self._own_threshold:
            return NO_CUT, self._shown
        else:
            self._require_few_roundings()
            due = self._due(level, paid=False)
        return due, self._keys_with(own[0] if own else due)

    def _keys_with(self, own: KeySelection) -> tuple[KeySelection, ...]:
        """The thresholds by which keys are shown beside a point's own, highest level first."""
        others = (keys for keys in self._shown if keys.rho_nano != own.rho_nano)
        return tuple(sorted((own, *others), key=lambda keys: -keys.rho_nano))

    def _due(self, level: Level, *, paid: bool) -> KeySelection:
        """The threshold of a level that has none stored, as it was calibrated where the level is the one asked for."""
        cut = self._calibration.cut if level == self._level else cut_at(self._query, self._histogram, level)
        if cut.tau is None:
            raise AssertionError("a threshold is for keys that hide")
        return KeySelection(level.rho_nano, level.sigma, cut.tau, 0.0 if paid else cut.delta)

    def _as_stored(self, point: StoredLevel) -> Level:
        return Level(self._level.statistic, point.rho_nano, point.sigma, 0.0)

    def _at(self, rho_nano: int) -> Level:
        if rho_nano == self._level.rho_nano:
            return self._level
        return level_of(self._level.statistic, rho_nano, self._histogram)

    def _lasts(self, point: StoredLevel) -> bool:
        """Whether a point was paid for, or made before free ones had a grid: no free request adds one of these."""
        return point.is_paid or not is_free_level(point.rho_nano, self._window)

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
        shared = self._histogram.shape.correlation > 0
        if rounding_loss(drawn, len(lowered) - off_grid + 1, off_grid, shared=shared) > TAU_LOSS:
            raise CalibrationError(
                "this statistic was released at too many levels for another threshold; declare a new version of the "
                "table"
            )

    def _may_hold(self, release_nano: int) -> bool:
        """Whether the reader may be shown all of an independent release, which adds to what they hold of others."""
        known = self._held.get(release_nano, 0)
        return release_nano <= known or self._reader.may_see(sum(self._held.values()) - known + release_nano)

    @cached_property
    def _held(self) -> dict[int, int]:
        """What a reader was shown of each independent release; of one without a limit, as far as it is pinned."""
        if self._reader.has_limit:
            return self._state.history.releases_held(self._hash, self._reader.name)
        shown = {(pin.rho_nano, pin.release_rho_nano) for pin in self._pins}
        return {
            point.release: point.release for point in self._stored if (point.rho_nano, point.release_rho_nano) in shown
        }

    def _served_alone(self) -> Serving:
        """Each charged point is a release of its own; an answer shows the keys of all that the reader holds."""
        visible = tuple(point for point in self._stored if self._may_hold(point.release))
        if pinned := self._pinned(visible):
            return self._of_release(pinned)
        # what the reader holds already adds nothing to it
        for points in (tuple(point for point in visible if point.release in self._held), visible):
            if found := self._release_between(points):
                return self._of_release(found)
            above = [point for point in points if point in self._selections and point.rho_nano > self._level.rho_nano]
            if above and not self._own_threshold:
                return self._below_release(above[-1].rho_nano)
        return self._another_release()

    def _release_between(self, points: tuple[StoredLevel, ...]) -> StoredLevel | None:
        """The highest release between the statistic's level and the query's.

        Or what was stored a little below because the level was taken, as files of earlier formats have it.
        """
        asked = self._level.rho_nano
        least = asked if self._by_width else asked - min(MOST_RISES, asked // 5)
        found = [point for point in points if point.release_rho_nano == 0 and least <= point.rho_nano]
        releases = [point for point in found if point in self._selections]
        between = [point for point in releases if asked <= point.rho_nano <= self._asked_nano]
        below = [point for point in (releases if self._own_threshold else found) if point.rho_nano <= asked]
        return next(iter(between or below), None)

    def _of_release(self, found: StoredLevel) -> Serving:
        """A stored release, or what is stored that was made of one."""
        keys_from = self._keys_of(found.release)
        return self._serving(self._as_stored(found), (), found.tau, keys_from, found.release, found.release_rho_nano)

    def _below_release(self, release_nano: int) -> Serving:
        """Return what is made of a stored release at a level of the grid, or for a half width the release itself."""
        asked = self._level.rho_nano
        rho_nano = min(free_level_above(asked), release_nano) if self._by_width else free_level(asked)
        for point in self._stored:
            if (point.rho_nano, point.release) == (rho_nano, release_nano):
                return self._of_release(point)
        level = self._at(rho_nano)
        above = [point for point in self._stored if point.rho_nano > rho_nano and point.release == release_nano]
        steps = (Lowering(level, None, 0.0, (above[-1],)),)
        return self._serving(level, steps, None, self._keys_of(release_nano), release_nano, release_nano)

    def _keys_of(self, release_nano: int) -> tuple[KeySelection, ...]:
        """The threshold of a stored release, and those of the releases that the reader holds beside it."""
        return self._with_held(next(keys for keys in self._selections.values() if keys.rho_nano == release_nano))

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
        due = self._due(level, paid=False)
        draw = Draw(level, due.tau, due.delta, level)
        return self._serving(level, (draw,), due.tau, self._with_held(due), level.rho_nano)

    def _untaken_nano(self) -> int:
        """The level, or a little less where files of earlier formats have what is made of a release."""
        taken = {point.rho_nano for point in self._stored if point.release_rho_nano == 0}
        rho_nano = self._level.rho_nano
        while rho_nano in taken:
            rho_nano -= 1
        if not rho_nano:
            raise CalibrationError(f"rho = {self._level.rho_nano / NANO:.3g} is too small; ask for more")
        return rho_nano

    def _with_held(self, release: KeySelection) -> tuple[KeySelection, ...]:
        """A release and those that the reader holds beside it, as long as they add up to no more than the limit."""
        chosen, total = [release], release.rho_nano
        for point, keys in self._selections.items():
            held = point.release in self._held and keys.rho_nano != release.rho_nano
            if held and self._reader.may_see(total + keys.rho_nano):
                chosen.append(keys)
                total += keys.rho_nano
        return tuple(chosen)
