"""Servings of statistics to a reader with a limit, if others asked questions whose charges follow from numbers.

Which points such a question stored reveals released numbers that the reader may not see. So what decides the level that
serves, its keys and its price are the points that the reader may know of: their own, and the highest level that a text
of anybody asked for. What is needed is another matter: the point of this level is drawn, derived from stored points, or
stored already. Its law is that of the level in each case, and what is taken is never more than the shown price.

Counts of private keys without a window are served as they are stored: a threshold belongs to a stored point.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from dpsql.cascade.left_out import each_served
from dpsql.cascade.reader import Reader
from dpsql.cascade.serving import Draw, KeySelection, Lowering, Serving, Step
from dpsql.cascade.servings import _Cascade, servings_of
from dpsql.errors import AccessError, CalibrationError
from dpsql.mechanism.calibrate import Calibration, level_of
from dpsql.mechanism.measure import Level
from dpsql.mechanism.window import is_free_level
from dpsql.model.frame import PRESENCE
from dpsql.model.identity import rows_hash
from dpsql.model.private_query import FrameQuery
from dpsql.noise.correlated_gaussian import MOST_RISES
from dpsql.state import Level as StoredLevel
from dpsql.state import SeenLevels, State


def seen_servings(
    query: FrameQuery, calibration: Calibration, state: State, reader: Reader, asked_nano: int
) -> tuple[Serving, ...]:
    """Return how each statistic of a query is served to a reader with a limit, presence first.

    Raises:
        AccessError, CalibrationError: as `servings_of`.

    """
    frame = query.frame
    if not state.history.has_claim(rows_hash(frame), reader.name):
        return servings_of(query, calibration, state, reader, asked_nano)
    reader.require(asked_nano)

    def from_cascade(level: Level) -> Serving:
        return _SeenCascade(query, calibration, level, state, reader, asked_nano).served()

    return each_served(query, calibration, state, reader, asked_nano, from_cascade)


def seen_top(name: str, state: State, reader: Reader) -> int:
    """Return the highest level of a statistic that a reader with a limit may know of, in nano-rho; 0 if there is none.

    Args:
        name: hash of the statistic.
        state: the state file.
        reader: who asks.

    """
    return max(state.history.seen_levels(name, reader.name).known, default=0)


class _SeenCascade(_Cascade):
    """A cascade of the points that a reader may know of, and what is needed to serve them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._true = self._state.side_table.levels(self._hash)
        if self._is_as_stored:
            return
        seen = self._state.history.seen_levels(self._hash, self._reader.name)
        self._most_nano = seen.most_nano
        self._stored = self._known(seen)
        if self._query.frame.ceiling is not None:
            self._begin_at(self._query.frame.ceiling)
        self._top_nano = self._stored[0].rho_nano if self._stored else 0

    @property
    def _is_as_stored(self) -> bool:
        """Return whether the points that are stored serve every reader alike.

        A threshold belongs to its point. So who is shown keys by it pays what is due for this one, and no other.
        """
        return not self._true or (self._hides and self._window is None)

    def served(self) -> Serving:
        """Return how the statistic is served, with the steps that are needed and those that the reader is shown."""
        if self._is_as_stored:
            return self.serving()
        if any(not self._reader.may_see(point.rho_nano) for point in self._lattice_of):
            raise AccessError(
                "these counts have discrete noise and may be stored at a level above the limit of "
                f"{self._reader.name!r}; what is derived from them keeps their lattice. Leave mechanism out"
            )
        shown = self.serving()
        steps = tuple(step for one in shown.steps for step in self._needed(one))
        if not steps and not self._is_stored(shown.level.rho_nano):
            steps = (Lowering.among(self._true, shown.level, shown.tau),)
        return replace(shown, steps=steps, shown_steps=shown.steps, is_single_draw=False)

    def _known(self, seen: SeenLevels) -> tuple[StoredLevel, ...]:
        """Return the points that the reader may know of, highest level first."""
        cuts = {one.rho_nano: one for one in self._true if one.tau is not None}
        found = []
        for rho_nano in sorted(seen.known, reverse=True):
            own = cuts.get(rho_nano) if rho_nano in seen.with_threshold else None
            level = level_of(self._level.statistic, rho_nano, self._histogram)
            is_derived = is_free_level(rho_nano, self._window) and rho_nano < max(seen.known)
            found.append(
                StoredLevel(
                    rho_nano,
                    level.sigma,
                    own.tau if own else None,
                    own.threshold_delta_units if own else 0,
                    self._true[0].correlation,
                    self._true[0].floor_correlation,
                    self._true[0].value_count,
                    max(seen.known) if is_derived else None,
                )
            )
        return tuple(found)

    def _needed(self, step: Step) -> tuple[Step, ...]:
        """Return what has to be done in place of a step that the reader is shown."""
        if isinstance(step, KeySelection):
            level = level_of(self._level.statistic, step.rho_nano, self._histogram)
            return self._derived(level, step.tau)
        top_nano = self._true[0].rho_nano
        if isinstance(step, Draw) and step.level.rho_nano > top_nano:
            self._require_rise()
            try:
                fresh = level_of(step.level.statistic, step.level.rho_nano - top_nano, self._histogram)
            except CalibrationError:
                fresh = None
            if fresh is None:
                # raised outside the handler: the other error names the level of others
                raise CalibrationError("this statistic cannot be drawn at this level any more; ask for another one")
            return (replace(step, delta=0.0, fresh=fresh),)
        return self._derived(step.level, step.tau)

    def _derived(self, level: Level, tau: float | None) -> tuple[Step, ...]:
        """Return the step to a level that is not above the top: none, a threshold, or a point of its neighbours.

        Only a window has thresholds here. It is paid with the first point of its frame.
        """
        found = next((one for one in self._true if one.rho_nano == level.rho_nano), None)
        if found is None:
            return (Lowering.among(self._true, level, tau),)
        if tau is None or found.tau is not None:
            return ()
        return (KeySelection(level.rho_nano, found.sigma, tau, 0.0),)

    @cached_property
    def _lattice_of(self) -> tuple[StoredLevel, ...]:
        """The highest level that any text may have led to, for the discrete noise of a presence count."""
        if self._level.statistic != PRESENCE or not self._histogram.measure.shows_origin:
            return ()
        level = level_of(PRESENCE, max(self._most_nano, self._true[0].rho_nano), self._histogram)
        return (replace(self._true[0], rho_nano=level.rho_nano, sigma=level.sigma),)

    def _require_rise(self) -> None:
        """Refuse a rise above the stored points if there are too many of them."""
        if sum(self._lasts(point) for point in self._true) >= MOST_RISES:
            raise CalibrationError(
                "this statistic was released at too many levels to rise again; declare a new version of the table"
            )

    def _is_stored(self, rho_nano: int) -> bool:
        return any(one.rho_nano == rho_nano for one in self._true)
