"""Limits: how much of the machine a reader may use, when answers are shown, and for how long they are kept.

An answer is not shown when it is there, but at times that are known before: how long a raw query takes depends on the
rows. So at s, 2s, 4s, 8s, … seconds and at no other time it is looked whether there is an answer; the last of these
times, the deadline, is the first that is not before the question's own limit. Of a query's running time its reader
learns which of these it was, log2(log2(T / s) + 2) bits at most where queries have T seconds. That there is none is
said at the deadline, whatever the reason. What an analyst sets (a time limit, a cancellation) takes effect at the same
times, and the next question of theirs begins at one, so that nothing finer can be asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dpsql.errors import require


@dataclass(frozen=True, slots=True)
class Limits:
    """How questions of many analysts are answered.

    Attributes:
        workers: questions that are worked on at a time.
        at_once: of one analyst. With 1, no question of theirs is begun before the answer to the one before is shown, so
            that none of them can time another.
        waiting: questions of one analyst that are waiting or worked on; the next is not taken. There is no such number
            for all analysts together: it would tell each of them of the others.
        timeout_seconds: most time until an answer, from when its turn comes; rounded up to one of the times, which is
            its deadline.
        first_answer_seconds: answers are shown this long after their turn came, or twice, four times, eight times as
            long; 0 shows them when they are there.
        keep_seconds: how long an answer can be fetched.
        kept: how many answers of one analyst can be.
        kept_bytes: of answers of one analyst, the oldest are forgotten beyond this.
        statement_length: longest statement, in characters.
        grace_seconds: what is being worked on when the door closes has this long.

    """

    workers: int = 4
    at_once: int = 1
    waiting: int = 16
    timeout_seconds: float = 300.0
    first_answer_seconds: float = 0.1
    keep_seconds: float = 600.0
    kept: int = 256
    kept_bytes: int = 2**28
    statement_length: int = 32_768
    grace_seconds: float = 10.0

    def __post_init__(self) -> None:
        counts = {"workers": self.workers, "at-once": self.at_once, "waiting": self.waiting}
        require(
            *((count >= 1, f"{name} takes a number from 1 up") for name, count in counts.items()),
            (0 < self.timeout_seconds < 1e6, "timeout takes a positive number of seconds"),
            (0 <= self.first_answer_seconds < 1e6, "first-answer takes a number of seconds from 0 up"),
        )

    def answer_time(self, elapsed: float) -> float:
        """The first time at which answers are shown that is not before this one; any time where there are none."""
        shown = self.first_answer_seconds
        while 0.0 < shown < elapsed:
            shown *= 2.0
        return shown or elapsed

    def answer_times(self, limit: float) -> Iterator[float]:
        """All times up to the deadline that a limit has; this moment and the limit, where answers come at any time."""
        deadline, moment = self.answer_time(limit), self.first_answer_seconds
        while moment < deadline:
            yield moment
            moment = 2.0 * moment if moment else deadline
        yield deadline
