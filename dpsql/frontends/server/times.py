"""When answers are shown: not when they are there, but at times that are known before.

How long a raw query takes depends on the rows. So at s, 2s, 4s, 8s, … seconds and at no other time it is looked whether
there is an answer; the last of these times, the deadline, is the first that is not before the question's own limit. Of
a query's running time its reader learns which of these it was, log2(log2(T / s) + 2) bits at most where queries have T
seconds. That there is none is said at the deadline, whatever the reason. What an analyst sets (a time limit, a
cancellation) takes effect at the same times, and the next question of theirs begins at one, so that nothing finer can
be asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnswerTimes:
    """The times at which answers are shown, in seconds since work on them began; first = 0 for any time."""

    first: float

    def at(self, elapsed: float) -> float:
        """The first time that is not before this one."""
        if self.first <= 0:
            return elapsed
        shown = self.first
        while shown < elapsed:
            shown *= 2.0
        return shown

    def until(self, limit: float) -> Iterator[float]:
        """All times up to the deadline that a limit has; without times this moment, and the limit."""
        deadline = self.at(limit)
        moment = max(self.first, 0.0)
        while moment < deadline:
            yield moment
            moment = 2.0 * moment if moment else deadline
        yield deadline
