"""Asks the session in threads: who may ask how much at a time, when answers are shown, and what stops a query.

All bookkeeping is the event loop's; a worker thread sees one question and gives back one outcome. What an analyst is
told, and when, hangs on their own requests alone, but for one thing: at which of a question's moments its answer is
there. So their turns follow the moments and not the workers, and no limit counts the questions of others.

What may come of a question has two classes. Answers, and refusals that follow from policy, text and the books, are told
when they are there. All else (no time left, an engine, a state file or a machine that failed, a bug) may hang on rows
or on other people's questions: it is told at the question's deadline alone, in one sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import secrets
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from dpsql.access.limits import Limits
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
from dpsql.session import FreeText, Result, Session, folded, free_texts_postponed, stopped_by

Outcome = Result | DpsqlError
T = TypeVar("T")

_TOLD = (Result, QueryError, PolicyError, CalibrationError, AccessError, BudgetError, ReleaseError)

logger = logging.getLogger("dpsql.server")


@dataclass(frozen=True, slots=True, repr=False)
class Question:
    """One statement as ``Analyst.sql`` takes it; without a text of its own, since it may hold literals."""

    sql: str
    params: Any
    options: Mapping[str, Any]
    timeout_seconds: float

    @property
    def identity(self) -> str:
        """The same for the same question."""
        content = json.dumps([self.sql, repr(self.params), sorted((name, repr(v)) for name, v in self.options.items())])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(slots=True, eq=False)
class Work:
    """The work on a question, from when its analyst's turn comes to it; all but that is for the curator alone.

    Attributes:
        turn_at: when its analyst's turn came to it, from which its moments count.
        began_at, ended_at: when a worker took it and gave it back, whatever is shown then.
        stop: set when the engine is to be interrupted.
        error: type of the error that came of it, or why there is none.

    """

    turn_at: float | None = None
    began_at: float | None = None
    ended_at: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    error: str | None = None


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
        outcome: what the analyst sees; None until then.
        shown_at: when that was.
        work: what is done for it.
        encoded: the answer's bytes by media type, made when they are first asked for.

    """

    analyst: str
    question: Question
    asked_at: float
    query_id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    shown: asyncio.Event = field(default_factory=asyncio.Event)
    given_up: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: Outcome | None = None
    shown_at: float | None = None
    work: Work = field(default_factory=Work)
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
        table = int(self.outcome.arrow().nbytes) if isinstance(self.outcome, Result) else 0
        return table + sum(map(len, self.encoded.values()))


def is_told(outcome: Outcome) -> bool:
    """Whether an outcome is told when it is there; the others are `EngineError.unanswered`, at the deadline."""
    return isinstance(outcome, _TOLD)


def stopping() -> RemoteError:
    """What everybody is told while the server stops."""
    return RemoteError("the server is stopping; asking the same again, once it is back, pays nothing twice")


class Observer(Protocol):
    """An observer of questions, for the curator."""

    def worked(self, analyst: str, seconds: float) -> None:
        """A worker gave a question back, whatever is shown of it, and when."""

    def ended(self, query: Query) -> None:
        """A question has its outcome, and its turn is over."""


class _Workers:
    """Threads that answer questions, and their places."""

    def __init__(self, count: int, name: str) -> None:
        self.pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self.places = asyncio.Semaphore(count)


class Queries:
    """The questions that are waiting, worked on, or answered a while ago."""

    def __init__(self, session: Session, limits: Limits, observer: Observer) -> None:
        self.is_stopping = False
        self._session = session
        self._limits = limits
        self._observer = observer
        # as long as the latest deadline of a question whose turn comes at once, and a little
        self.longest_wait = limits.answer_time(limits.timeout_seconds) + 1.0
        self._workers = _Workers(limits.workers, "dpsql-worker")
        # nobody pays for what it does, so it takes no worker from a question that somebody pays for
        self._free_worker = _Workers(1, "dpsql-free-worker")
        self._turns: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(limits.at_once))
        # a turn ends at a moment that is known, also where the engine goes on; the next work waits for the engine
        self._places: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(limits.at_once))
        self._waiting: Counter[str] = Counter()
        self._held: dict[str, Query] = {}
        self._answered: dict[str, deque[Query]] = defaultdict(deque)
        self._tasks: set[asyncio.Task[Any]] = set()

    def ask(self, analyst: str, question: Question) -> Query:
        """Take a question.

        Raises:
            RemoteError: no more questions are taken (`is_stopping`), or the analyst asks too much at a time.

        """
        if self.is_stopping:
            raise stopping()
        if self._waiting[analyst] >= self._limits.waiting:
            raise RemoteError(f"{self._limits.waiting} questions of yours are waiting; ask again when one is answered")
        query = Query(analyst, question, self.now())
        self._held[query.query_id] = query
        self._waiting[analyst] += 1
        self._spawn(self._run(query))
        return query

    def find(self, analyst: str, query_id: str) -> Query | None:
        """A question of this analyst's own."""
        query = self._held.get(query_id)
        return query if query is not None and query.analyst == analyst else None

    def recent(self, analyst: str, question: Question, seconds: float) -> Query | None:
        """The same question of the same analyst, asked less than this long ago, unless nothing came of it."""
        after, identity = self.now() - seconds, question.identity
        return next(
            (
                query
                for query in reversed(self._held.values())
                if query.analyst == analyst
                and query.asked_at >= after
                and query.state in ("running", "done")
                and query.question.identity == identity
            ),
            None,
        )

    def cancel(self, query: Query) -> bool:
        """Show a question that has no outcome yet as cancelled; the engine is stopped when an answer could be shown."""
        if query.outcome is not None:
            return False
        query.given_up.set()
        query.show(
            RemoteError("the query was cancelled; a charge that was made stays and pays for asking the same again"),
            self.now(),
        )
        return True

    def seconds_to_next(self, query: Query) -> int:
        """Whole seconds until it is looked again whether there is an answer; 1 where that is not known."""
        if query.work.turn_at is None:
            return 1
        elapsed = self.now() - query.work.turn_at
        return max(1, math.ceil(self._limits.answer_time(elapsed) - elapsed))

    def all(self) -> tuple[Query, ...]:
        """Everything that is held, for the curator."""
        return tuple(self._held.values())

    async def close(self) -> None:
        """Take no more questions, give those that are being answered their time, and stop the rest."""
        self.is_stopping = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._limits.grace_seconds)
        for query in self._held.values():
            query.work.stop.set()
            query.work.error = query.work.error or ("stopping" if query.outcome is None else None)
            query.show(stopping(), self.now())
        left = tuple(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for workers in (self._workers, self._free_worker):
            await asyncio.to_thread(workers.pool.shutdown)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, query: Query) -> None:
        try:
            async with self._turns[query.analyst]:
                if not query.given_up.is_set():
                    await self._in_turn(query)
        finally:
            self._waiting[query.analyst] -= 1
            self._answered[query.analyst].append(query)
            self._forget_old(query.analyst)
            self._observer.ended(query)
            asyncio.get_running_loop().call_later(self._limits.keep_seconds, self._forget_old, query.analyst)

    async def _in_turn(self, query: Query) -> None:
        """Look at each moment whether there is an answer; then the turn ends, whatever the engine still does."""
        query.work.turn_at = began = self.now()
        limit = query.question.timeout_seconds
        work = self._spawn(self._work(query))
        try:
            if not self._limits.first_answer_seconds:
                given_up = self._spawn(query.given_up.wait())
                await asyncio.wait({work, given_up}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                given_up.cancel()
            for moment in self._limits.answer_times(limit):
                await self._until(began + moment)
                if query.given_up.is_set():
                    return
                if work.done() and is_told(work.result()):
                    query.show(work.result(), self.now())
                    return
            query.work.error = query.work.error or "out of time"
            query.show(EngineError.unanswered(), self.now())
        finally:
            query.work.stop.set()

    async def _until(self, moment: float) -> None:
        """Wait for a moment of the clock; a loop may wake early, by the resolution of its clock."""
        while (left := moment - self.now()) > 0.0:
            await asyncio.sleep(left)

    async def _work(self, query: Query) -> Outcome:
        async with self._places[query.analyst]:
            outcome = await self._worked(query, self._workers, free_texts_postponed())
            if outcome is None:
                outcome = await self._worked(query, self._free_worker, contextlib.nullcontext())
            assert outcome is not None  # noqa: S101 — nothing postpones it twice
            return outcome

    async def _worked(
        self, query: Query, workers: _Workers, around: contextlib.AbstractContextManager[None]
    ) -> Outcome | None:
        """Return the outcome of a question once one of some workers is free. Return None if it is postponed."""
        async with workers.places:
            if query.work.stop.is_set():
                return EngineError.unanswered()
            query.work.began_at = self.now()
            try:
                outcome = await asyncio.get_running_loop().run_in_executor(workers.pool, self._answer, query, around)
            finally:
                query.work.ended_at = self.now()
                self._observer.worked(query.analyst, query.work.ended_at - query.work.began_at)
            if isinstance(outcome, DpsqlError):
                query.work.error = query.work.error or type(outcome).__name__
            return outcome

    def _answer(self, query: Query, around: contextlib.AbstractContextManager[None]) -> Outcome | None:
        """Ask, in a worker thread; what goes wrong is an outcome, without the frames that led to it.

        Return None if ``around`` postpones the question.
        """
        question = query.question
        try:
            with stopped_by(query.work.stop), around:
                self._require_declared(query.analyst)
                return self._session.as_analyst(query.analyst).sql(question.sql, question.params, **question.options)
        except FreeText:
            return None
        except DpsqlError as error:
            return error.with_traceback(None)
        except Exception as error:
            # its text may quote what was asked or found
            logger.error("a question failed with %s", type(error).__name__)
            return EngineError.unanswered()

    def _require_declared(self, analyst: str) -> None:
        """A token alone is no clearance: what an analyst may be shown is for the policy to say.

        Names are compared as the policy compares them; one that it would not find there would have no limit.
        """
        declared = self._session.sql("FROM dp_policy()").fetchall()
        if not any(kind == "analyst" and folded(name) == folded(analyst) for kind, name, *_ in declared):
            raise AccessError(f"{analyst!r} has a token and no clearance yet. Ask the curator for a clearance.")

    def _forget_old(self, analyst: str) -> None:
        """Forget answers that were shown long ago, and the oldest where there are too many; the last one is kept."""
        answered = self._answered[analyst]
        after, size = self.now() - self._limits.keep_seconds, sum(query.nbytes for query in answered)
        while answered and (
            (answered[0].shown_at or answered[0].asked_at) <= after
            or len(answered) > self._limits.kept
            or (len(answered) > 1 and size > self._limits.kept_bytes)
        ):
            oldest = answered.popleft()
            size -= oldest.nbytes
            del self._held[oldest.query_id]

    @staticmethod
    def now() -> float:
        """The clock of `Query`, in seconds."""
        return asyncio.get_running_loop().time()
