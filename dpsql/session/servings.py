"""Which point serves each statistic of a query, and what has to be drawn for it: by policy, text and past releases.

A statistic is asked for at a level. Where its cascade reaches that level it is served from what is stored: by the
highest point between its own level and the query's, or by a new point at its own level, made of its neighbours. Where
the cascade ends below, its top rises, and the rise alone is paid. A frame with a ceiling has its top there from the
start. Keys are those that charged thresholds have shown, at levels that the reader may see.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from dpsql.errors import AccessError, CalibrationError
from dpsql.mechanisms.correlated_gaussian import MOST_RISES
from dpsql.query.frame import NANO, PRESENCE, Statistic
from dpsql.query.private_query import PrivateQuery
from dpsql.release.calibrate import Calibration, Cut, Level, cut_at, level_of
from dpsql.release.window import snapped
from dpsql.session.reader import Reader
from dpsql.state import Level as StoredLevel
from dpsql.state import State

MOST_POINTS = 32
"""Points of a statistic beyond which none is made between them: the next lower one is served."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How one statistic is served.

    Attributes:
        level: what is served: its level and the noise it has there.
        stored: levels of the statistic's cascade, highest first, with the one at the ceiling if it is drawn now.
        rise: what has to be drawn and paid for the served point; None where nothing is.
        ceiling: what has to be drawn and paid first, for the served point to be made of; None where nothing is.
        cut: threshold of the served point, and what is paid for it now; None where it has none of its own.
        ceiling_cut: the same of the point at the ceiling.
        stands_alone: whether charged points are independent releases, each drawn and paid in full. Where hidden keys
            share noise with shown ones, what was shown tells of it; a next level chosen by that, outside a window,
            would not be covered by the sum of what the levels' thresholds cost one by one.
        keys_from: charged levels that show the keys which the reader sees, highest first; empty with public keys.
        tells_of: the level that numbers below it tell of, where its noise is discrete; None where they do not.

    """

    level: Level
    stored: tuple[StoredLevel, ...]
    rise: Level | None = None
    ceiling: Level | None = None
    cut: Cut | None = None
    ceiling_cut: Cut | None = None
    stands_alone: bool = False
    keys_from: tuple[StoredLevel, ...] = ()
    tells_of: StoredLevel | None = None

    @property
    def statistic(self) -> Statistic:
        """What is served."""
        return self.level.statistic

    @property
    def tau(self) -> float | None:
        """Threshold of the served point."""
        return None if self.cut is None else self.cut.tau

    @property
    def draws(self) -> tuple[tuple[Level, Cut | None], ...]:
        """What is drawn from exact values, and paid: levels as differences to what is stored, thresholds as due."""
        ceiling = () if self.ceiling is None else ((self.ceiling, self.ceiling_cut),)
        return ceiling if self.rise is None else (*ceiling, (self.rise, self.cut))

    @property
    def is_stored(self) -> bool:
        """Whether the point is there as it is, or is the one at the ceiling."""
        return any(stored.rho_nano == self.level.rho_nano for stored in self.stored)

    @property
    def stored_tau(self) -> float | None:
        """Threshold that the served point is stored with; None where it has none, or is not stored."""
        return next((stored.tau for stored in self.stored if stored.rho_nano == self.level.rho_nano), None)

    @property
    def is_paid(self) -> bool:
        """Whether nothing is to be paid."""
        return not self.draws and (self.cut is None or not self.cut.delta)

    @property
    def is_single_draw(self) -> bool:
        """Whether the served point is one draw: what that guarantees, an average of several need not."""
        return self.stands_alone or len(self.stored) <= self.is_stored

    @property
    def told_nano(self) -> int:
        """The highest level that numbers and keys tell of."""
        beyond = self.keys_from if self.tells_of is None else (*self.keys_from, self.tells_of)
        return max([self.level.rho_nano, *(level.rho_nano for level in beyond)])

    @property
    def release_nano(self) -> int:
        """Level of the release that numbers and keys stem from where releases are independent, 0 where none is."""
        return self.keys_from[0].rho_nano if self.stands_alone else 0

    @property
    def source_nano(self) -> int | None:
        """Level of the point that the served one is made of; None where it is drawn."""
        if self.rise is not None or self.release_nano == self.level.rho_nano:
            return None
        return self.release_nano or self.neighbours()[0].rho_nano

    def neighbours(self) -> tuple[StoredLevel, StoredLevel | None]:
        """The stored levels next above and next below the one that is served; of a release, what was made of it."""
        above = [stored for stored in self.stored if stored.rho_nano > self.level.rho_nano]
        if self.stands_alone:
            return [stored for stored in above if _release_of(stored) == self.release_nano][-1], None
        below = [stored for stored in self.stored if stored.rho_nano < self.level.rho_nano]
        return above[-1], (below[0] if below else None)


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
        self._window = query.frame.window
        self._calibration = calibration
        self._histogram = calibration.histogram
        self._asked = self._level = level
        self._reader = reader
        self._side_table = state.side_table
        self._hash = level.statistic.hash_in(query.frame)
        self._stored = state.side_table.levels(self._hash)
        self._hides = level.statistic == PRESENCE and self._histogram.hides
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
        if self._is_discrete and self._stored and not self._reader.may_see(self._stored[0].rho_nano):
            raise AccessError(
                f"these counts have discrete noise and are stored at rho = {self._stored[0].rho_nano / NANO:.9g}; what "
                f"is made of them is not for {self._reader.name!r}. Leave mechanism out"
            )

    @property
    def _is_discrete(self) -> bool:
        return self._level.statistic == PRESENCE and not self._histogram.is_gaussian

    def _may_hold(self, release_nano: int) -> bool:
        """Whether the reader may be shown all of an independent release, which adds to what they hold of others."""
        if self._reader.rho_limit is None:
            return True
        held = self._held
        known = held.get(release_nano, 0)
        return release_nano <= known or self._reader.may_see(sum(held.values()) - known + release_nano)

    @cached_property
    def _held(self) -> dict[int, int]:
        """What a reader with a limit was shown of each independent release."""
        if self._reader.rho_limit is None:
            return {}
        return self._side_table.releases_held(self._hash, self._reader.name)

    def _served_in_cascade(self) -> Serving:
        top = self._stored[0].rho_nano if self._stored else 0
        if self._level.rho_nano > top:
            self._require_room()
            rise = self._level
            if top:
                rise = level_of(self._level.statistic, self._level.rho_nano - top, self._histogram)
            serving = Serving(self._level, self._stored, rise)
            paid = self._window is not None and bool(self._stored)
            return self._cut(serving, self._cut_for(self._level, paid=paid)) if self._hides else serving
        self._level = self._rounded_down(self._stored)
        found = self._fitting(self._stored)
        level = self._level if found is None else Level(self._level.statistic, found.rho_nano, found.sigma, 0.0)
        serving = Serving(level, self._stored)
        if self._is_discrete and level.rho_nano < top:
            serving = replace(serving, tells_of=self._stored[0])
        if not self._hides:
            return serving
        if found is not None and found.tau is not None:
            return self._cut(serving, Cut(found.tau, 0.0))
        if self._window is not None:
            return self._cut(serving, self._cut_for(level, paid=True))
        shown = tuple(point for point in self._stored if point.tau is not None and self._reader.may_see(point.rho_nano))
        if shown and not self._query.own_threshold:
            return replace(serving, keys_from=shown)
        return self._cut(serving, self._cut_for(level, paid=False))

    def _served_alone(self) -> Serving:
        """Each charged point is a release of its own; what was made of one shows the keys of that one."""
        visible = tuple(point for point in self._stored if self._may_hold(_release_of(point)))
        self._level = self._rounded_down(visible)
        # what the reader holds already adds nothing to it
        for points in (tuple(point for point in visible if _release_of(point) in self._held), visible):
            serving = self._of_releases(points)
            if serving is not None:
                return serving
        level = self._free_level()
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
        serving = Serving(level, self._stored, rise=level, stands_alone=True)
        return replace(serving, cut=cut, keys_from=(self._charged(level, cut),))

    def _of_releases(self, points: tuple[StoredLevel, ...]) -> Serving | None:
        """What is stored of independent releases, or can be made of one of them; None where nothing is."""
        own_threshold = self._query.own_threshold
        wanted = tuple(point for point in points if point.tau is not None or not own_threshold)
        found = self._fitting(wanted) or self._just_below(wanted)
        if found is not None:
            level = Level(self._level.statistic, found.rho_nano, found.sigma, 0.0)
            cut = None if found.tau is None else Cut(found.tau, 0.0)
            source = next(point for point in self._stored if point.rho_nano == _release_of(found))
            return Serving(level, self._stored, cut=cut, stands_alone=True, keys_from=(source,))
        level = self._free_level()
        sources = [point for point in points if point.tau is not None and point.rho_nano > level.rho_nano]
        if not sources or own_threshold:
            return None
        return Serving(level, self._stored, stands_alone=True, keys_from=(sources[-1],))

    def _cut(self, serving: Serving, cut: Cut) -> Serving:
        """The serving with a threshold: it shows what it and charged points below it have shown."""
        below = (point for point in self._stored if point.tau is not None and point.rho_nano < serving.level.rho_nano)
        return replace(serving, cut=cut, keys_from=(self._charged(serving.level, cut), *below))

    def _cut_for(self, level: Level, *, paid: bool) -> Cut:
        """The threshold of a level, as it was calibrated where it is the one asked for."""
        if level != self._asked:
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

    def _free_nano(self) -> int:
        """The level, or a little less where others are stored: what is made of releases that a reader may not see."""
        taken = {point.rho_nano for point in self._stored}
        rho_nano = self._level.rho_nano
        while rho_nano in taken:
            rho_nano -= 1
        if not rho_nano:
            raise CalibrationError(f"rho = {self._level.rho_nano / NANO:.3g} is too small; ask for more")
        return rho_nano

    def _just_below(self, wanted: tuple[StoredLevel, ...]) -> StoredLevel | None:
        """What was stored a little lower because the level was taken: the answer to the same question, asked again."""
        free = self._free_nano()
        return next((point for point in wanted if free < point.rho_nano < self._level.rho_nano), None)

    def _free_level(self) -> Level:
        rho_nano = self._free_nano()
        if rho_nano == self._level.rho_nano:
            return self._level
        return level_of(self._level.statistic, rho_nano, self._histogram)

    def _fitting(self, stored: tuple[StoredLevel, ...]) -> StoredLevel | None:
        """The highest point between the statistic's level and the query's; beyond so many points, the next lower."""
        asked = self._level.rho_nano
        fitting = [point for point in stored if asked <= point.rho_nano <= self._asked_nano]
        if fitting or len(stored) < MOST_POINTS:
            return fitting[0] if fitting else None
        return next((point for point in stored if point.rho_nano < asked), None)

    def _rounded_down(self, stored: tuple[StoredLevel, ...]) -> Level:
        """Beyond so many points, a level below all of them is a half, a quarter, … of the lowest: few more are made."""
        asked = self._asked.rho_nano
        if len(stored) < MOST_POINTS or asked >= stored[-1].rho_nano:
            return self._asked
        rho_nano = stored[-1].rho_nano
        while rho_nano > asked:
            rho_nano //= 2
        if not rho_nano:
            raise CalibrationError(f"rho = {asked / NANO:.3g} is too small; ask for more")
        if self._window is not None and self._hides:
            rho_nano = snapped(self._window, rho_nano)
        return level_of(self._asked.statistic, rho_nano, self._histogram)

    def _require_room(self) -> None:
        if len(self._stored) >= MOST_RISES:
            raise CalibrationError(
                "this statistic was released at too many levels to rise again; declare a new version of the table"
            )


def _release_of(point: StoredLevel) -> int:
    """Level of the release that a point which stands alone is, or was made of."""
    return point.rho_nano if point.source_rho_nano is None else point.source_rho_nano
