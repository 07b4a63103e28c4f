"""Rounds of key selection: which there are, how they are priced, released and explained.

The rounds of a query are a list that grows. Its first two share the level of whoever asks first. Who asks for more gets
one round more, on the rows of all keys that are not selected yet, at the difference; who asks for less gets the rounds
that add up to no more, and of the next one a point at what is left. So no round is drawn twice, and what a reader is
shown adds up to the level that they asked for, whatever others asked for before. Who asks for so much more that the
rounds before are a small part of it, or are many, leaves them behind: their levels are set aside, and a new series
begins, on all rows, so that nobody's small questions decide what large ones find. docs/proofs/key-rounds.md.

Which keys were selected, and so which frame comes next, is said by the highest point of a round and its own threshold,
which never change; that keys are shown which passed the threshold of a lower point too makes no other frame.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from dpsql.cascade.reader import Reader
from dpsql.engine import digest
from dpsql.errors import CalibrationError
from dpsql.features.first_round import AfterFirst, Step
from dpsql.mechanism.calibrate import whole_nano
from dpsql.mechanism.joint import shared_requests
from dpsql.mechanism.registry import histogram_of
from dpsql.model.frame import NANO, PRESENCE, Frame
from dpsql.model.identity import statistic_hash
from dpsql.model.private_query import FrameQuery
from dpsql.plan.features.key_rounds import next_round, next_series
from dpsql.receipts import words
from dpsql.receipts.phrases import listed
from dpsql.receipts.plan_rows import Row, frame_plan_rows
from dpsql.release.exact import no_keys
from dpsql.release.offer import Offer
from dpsql.release.round_keys import found_by, selected_keys
from dpsql.release.stages import Stage
from dpsql.state import State

_SHARES = (1.0, 9.0)
"""Of rho for the first two rounds. The first finds the keys that nobody could miss: a twentieth does nearly as well, a
fifth does not."""
_LEAST_PART = 20
"""A level that the stored rounds miss by less than one part in so many is served by these: a round at so little would
find nothing and cost a threshold."""
_LEFT_BEHIND = 20
"""A series of n rounds is left behind by who asks for _LEFT_BEHIND / max(1, n - 1) times its level, and for twice."""
THRESHOLD_PART = 3.0 / 8.0
"""Part of a query's delta for thresholds after the first round: one on its numbers, or all of later rounds, which get
half of it and halves of what is left."""
_MOST_ROUNDS = _LEFT_BEHIND // 2 + 1
"""Rounds of a series, from which on who asks for twice as much leaves it behind."""
_NOT_KNOWN = "not known before the keys are selected"


@dataclass(frozen=True, slots=True)
class Round:
    """One round as it is to be released.

    Attributes:
        query: on its frame, at its level.
        rho_nano: that level.
        left_nano: what is left of the level of all rounds after this one.
        number: how many rounds of its series come before.
        reader: who asks, with what earlier rounds leave of their clearance.
        selected: keys that are left out; none in the first round.

    """

    query: FrameQuery
    rho_nano: int
    left_nano: int
    number: int
    reader: Reader
    selected: pa.Table


@dataclass(frozen=True, slots=True)
class KeyRounds:
    """The rounds of a query for keys alone, for one reader.

    Attributes:
        first: the query of the first round, on its current generation, with the request of all rounds together.
        first_nano, total_nano: levels of the first round where it is not drawn yet, and of all rounds together.
        reader: who asks, with their clearance, which holds for all rounds together.
        after_first: the rule by which further rounds may be left out, where that is known; None elsewhere.
        assumed: the step after the first round that is taken for granted as long as it is not known.

    """

    first: FrameQuery
    first_nano: int
    total_nano: int
    reader: Reader
    after_first: AfterFirst | None = None
    assumed: Step | None = None

    @classmethod
    def of(cls, query: FrameQuery, reader: Reader) -> KeyRounds:
        """The rounds of a query with the request of all of them together.

        Args:
            query: that of the first round.
            reader: who asks.

        Raises:
            AccessError, CalibrationError: the reader, or the precision of the noise, does not allow the level.

        """
        histogram = histogram_of(query.frame)
        shares = shared_requests(query.request, [histogram] * len(_SHARES), _SHARES, query.statistics)
        first_nano, *others = (whole_nano(share.rho or 0.0) for share in shares)
        if not first_nano:
            raise CalibrationError("so little rho or epsilon cannot be shared among rounds; ask for more")
        reader.require(first_nano + sum(others))
        return cls(query, first_nano, first_nano + sum(others), reader)

    def rounds(self, state: State) -> Iterator[Round]:
        """Yield the rounds, of which each is known when those before it are released.

        After a round that is not stored when the next one is asked for, that one is as if no keys were selected before
        it, and the last; this changes no price.
        """
        left, first = self._series(state)
        for number, (frame, stored_nano, selected) in enumerate(_stored_rounds(first, state)):
            if stored_nano:
                level = min(left, stored_nano)
            elif number < _MOST_ROUNDS:
                level = left if number else self._first_nano(first, left)
            else:
                return
            one = self._round(number, frame, level, left, selected)
            yield one
            left -= level
            if not self._goes_on(one, state):
                return
        if number + 1 < _MOST_ROUNDS:
            frame = next_round(self.first.frame, number + 1, _NOT_KNOWN)
            yield self._round(number + 1, frame, left, left, no_keys(self.first.frame))

    def stages(self, state: State) -> Iterator[Stage]:
        """Yield the rounds as stages."""
        for one in self.rounds(state):
            yield Stage((one.query,), one.reader, one.selected, drawn_once=True)

    def has_first(self, state: State) -> bool:
        """Check whether the first round of the series that serves the level is stored."""
        first = next(self.rounds(state))
        return bool(state.side_table.levels(statistic_hash(PRESENCE, first.query.frame)))

    def key_count(self, state: State) -> int | None:
        """Return how many keys the first round selected, if it found nearly all. Return None if that is not known.

        A function of stored points, which do not change. It is not for a reader who may not see the first round's.
        """
        first = next(self.rounds(state)).query.frame
        stored = state.side_table.levels(statistic_hash(PRESENCE, first))
        if not self.after_first or not stored or not self.reader.may_see(stored[0].rho_nano):
            return None
        found = found_by(first, stored[0], state.side_table)
        return found.keys if self.after_first.finds_nearly_all(found) else None

    def following(self, state: State) -> tuple[Step, int]:
        """Return the step that follows the first round, and what it leaves of the level for other things than rounds.

        A function of stored points, which do not change: the histogram of AUTO and the first round of a series.
        """
        first = next(self.rounds(state))
        step = self._step_after(first.query.frame, first.rho_nano + first.left_nano, state)
        return step, 0 if step == Step.ROUNDS else first.left_nano

    def _series(self, state: State) -> tuple[int, Frame]:
        """What is left of the level for the series of rounds that serves it, and the frame of its first round.

        All of it follows from levels, stored and asked for, from which frames have points, and from stored points.
        """
        left, first = self.total_nano, self.first.frame
        for number in itertools.count(1):
            levels = [level for _, level, _ in _stored_rounds(first, state) if level]
            if levels and self._step_after(first, left, state) != Step.ROUNDS:
                # whoever was answered by this round alone is answered by it again, whatever others asked for since
                return left, first
            total, following = sum(levels), next_series(self.first.frame, number)
            is_left_behind = bool(state.side_table.levels(statistic_hash(PRESENCE, following)))
            if left < 2 * total or not total:
                # of what is left behind nothing grows, or who asked for it would hold more than they ask for
                return (min(left, total) if is_left_behind else left), first
            # where rounds follow nobody was answered by one alone, or at next to nothing
            if not is_left_behind and max(1, len(levels) - 1) * left < _LEFT_BEHIND * total:
                return left, first
            left, first = left - total, following
        raise AssertionError("every series has a number")

    def _first_nano(self, first: Frame, left: int) -> int:
        return self.first_nano if first == self.first.frame else max(1, left // 10)

    def _goes_on(self, one: Round, state: State) -> bool:
        """Whether there is a round after this one."""
        left = one.rho_nano + one.left_nano
        ends = not one.number and self._step_after(one.query.frame, left, state) != Step.ROUNDS
        return one.left_nano * _LEAST_PART >= self.total_nano and not ends

    def _step_after(self, first: Frame, left: int, state: State) -> Step:
        """Return the step that follows the first round of a series; rounds as long as it is not released.

        Rounds follow, too, where so much is left of the level that this round alone would be left behind: the series
        serves it only because others had more rounds drawn, and would not do so once they begin another one.
        """
        stored = state.side_table.levels(statistic_hash(PRESENCE, first))
        if stored and left >= _LEFT_BEHIND * stored[0].rho_nano:
            return Step.ROUNDS
        if not self.after_first or not stored:
            return self.assumed or Step.ROUNDS
        return self.after_first.step(found_by(first, stored[0], state.side_table))

    def _round(self, number: int, frame: Frame, rho_nano: int, left: int, selected: pa.Table) -> Round:
        request = self.first.request.at(rho_nano / NANO)
        request = replace(request, delta=request.delta * _delta_part(number))
        query = replace(self.first, frame=frame, request=request)
        limit = self.reader.rho_limit
        reader = replace(self.reader, rho_limit=limit and limit - (self.total_nano - left))
        return Round(query, rho_nano, left - rho_nano, number, reader, selected)


def _stored_rounds(first: Frame, state: State) -> Iterator[tuple[Frame, int, pa.Table]]:
    """The rounds of a series up to the first that is not stored: frame, level (0 for the last), and keys left out.

    A round may be stored when the next one is asked for.
    """
    frame, selected = first, no_keys(first)
    for number in itertools.count():
        presence = statistic_hash(PRESENCE, frame)
        stored = state.side_table.levels(presence)
        yield frame, stored[0].rho_nano if stored else 0, selected
        stored = stored or state.side_table.levels(presence)
        if not stored:
            return
        new = selected_keys(frame, stored[0], state.side_table)
        selected = pa.concat_tables([selected, new]) if number else new
        frame = next_round(first, number + 1, digest(selected))


def _delta_part(number: int) -> float:
    """Part of a query's delta that the threshold of a round may cost; of all rounds together half of it.

    The other half is what the conversion to epsilon takes, so that a query by (epsilon, delta) keeps its delta, however
    many rounds there are. Keys that nobody could miss pass any threshold, so that the first round gets less.
    """
    return THRESHOLD_PART / 2**number if number else 0.5 - THRESHOLD_PART


def rounds_note(offers: Sequence[Offer]) -> str:
    """Return the note on the rounds of a query."""
    levels = [f"{offer.rho_nano / NANO:.9g}" for offer in offers]
    if len(levels) == 1:
        return words.ONE_ROUND.format(level=levels[0])
    return words.ROUNDS.format(count=len(levels), levels=listed(levels))


def round_names(rounds: Sequence[object]) -> list[tuple[str, ...]]:
    """Return the names of rounds, by their numbers."""
    return [(f"round {number}",) for number, _ in enumerate(rounds, start=1)]


def round_rows(offers: Sequence[Offer]) -> Iterator[Row]:
    """Yield the rows of each round, for ``dp_explain``."""
    for i, part in enumerate(offers, start=1):
        yield ("round", "number", f"{i}")
        yield from frame_plan_rows(part, ())
