"""One question from when it is taken to when its answer is forgotten.

What may come of it has two classes. Answers, and refusals that follow from policy, text and the books, are told when
they are there. All else (no time left, an engine, a state file or a machine that failed, a bug) may hang on rows or on
other people's questions: it is told at the question's deadline alone, in one sentence.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from dataclasses import dataclass, field

from dpsql.errors import (
    AccessError,
    BudgetError,
    CalibrationError,
    DpsqlError,
    EngineError,
    PolicyError,
    QueryError,
    ReleaseError,
    RemoteError,
)
from dpsql.frontends.server.requests import Question
from dpsql.session import Result

Outcome = Result | DpsqlError

_TOLD = (Result, QueryError, PolicyError, CalibrationError, AccessError, BudgetError, ReleaseError)


@dataclass(slots=True, eq=False)
class Query:
    """A question and what has become of it.

    Attributes:
        analyst: who asked.
        question: what.
        asked_at: when it was taken, in seconds of the loop's clock.
        query_id: a secret by itself: 128 random bits.
        shown: set once there is an outcome that the analyst may see.
        given_up: set when the analyst cancels.
        stop: set when the engine is to be interrupted.
        outcome: what the analyst sees; None until then.
        shown_at: when that was.
        turn_at: when its analyst's turn came to it, from which its moments count.
        began_at, ended_at: when a worker took it and gave it back, whatever is shown then: for the curator alone.
        error: type of the error that came of it, or why there is none: for the curator alone.
        encoded: the answer's bytes by media type, made when they are first asked for.

    """

    analyst: str
    question: Question
    asked_at: float
    query_id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    shown: asyncio.Event = field(default_factory=asyncio.Event)
    given_up: asyncio.Event = field(default_factory=asyncio.Event)
    stop: threading.Event = field(default_factory=threading.Event)
    outcome: Outcome | None = None
    shown_at: float | None = None
    turn_at: float | None = None
    began_at: float | None = None
    ended_at: float | None = None
    error: str | None = None
    encoded: dict[str, bytes] = field(default_factory=dict)

    def show(self, outcome: Outcome, now: float) -> None:
        """Let the analyst see what came of it; the first outcome that is shown stays."""
        if self.outcome is None:
            self.outcome = outcome
            self.shown_at = now
            self.shown.set()

    @property
    def state(self) -> str:
        """What the analyst is told; whether it waits or is worked on would tell of the others."""
        if self.given_up.is_set():
            return "cancelled"
        if self.outcome is None:
            return "running"
        return "done" if isinstance(self.outcome, Result) else "failed"

    @property
    def nbytes(self) -> int:
        """Memory that its answer takes."""
        table = self.outcome.arrow().nbytes if isinstance(self.outcome, Result) else 0
        return int(table) + sum(map(len, self.encoded.values()))


def cancelled() -> RemoteError:
    """What came of a question that its analyst cancelled."""
    return RemoteError("the query was cancelled; a charge that was made stays and pays for asking the same again")


def is_told(outcome: Outcome) -> bool:
    """Whether an outcome is told when it is there; the others are `unanswered`, at the deadline."""
    return isinstance(outcome, _TOLD)


def unanswered() -> EngineError:
    """What an analyst is told at the deadline where there is no answer; the same as by a handle in one process."""
    return EngineError.unanswered()


def stopping() -> RemoteError:
    """What everybody is told while the server stops."""
    return RemoteError("the server is stopping; asking the same again, once it is back, pays nothing twice")
