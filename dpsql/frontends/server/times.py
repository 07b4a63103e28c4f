"""When answers are shown: not when they are there, but at times that are known before.

How long a raw query takes depends on the rows. So an answer is held back until the first of s, 2s, 4s, 8s, … seconds
that it does not miss: of a query's running time its reader learns which of these it was, log2(log2(T / s) + 2) bits at
most where queries run out of time after T seconds. What an analyst sets (a time limit, a cancellation) takes effect at
the same times, and the next question of theirs begins at one, so that nothing finer can be asked for.
"""

from __future__ import annotations

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
