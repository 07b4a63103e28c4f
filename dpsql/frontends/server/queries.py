"""Asks the session in threads: who may ask how much at a time, when answers are shown, and what stops a query.

All bookkeeping is the event loop's; a worker thread sees one question and gives back one outcome. What an analyst is
told, and when, hangs on their own requests alone, but for one thing: at which of a question's moments its answer is
there. So their turns follow the moments and not the workers, and no limit counts the questions of others.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, defaultdict, deque
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dpsql.engine import stopped_by
from dpsql.errors import AccessError, DpsqlError, EngineError
from dpsql.frontends.server.metrics import Metrics
from dpsql.frontends.server.problems import Problem, busy
from dpsql.frontends.server.query import Outcome, Query, cancelled, is_told, stopping, unanswered
from dpsql.frontends.server.requests import Question
from dpsql.frontends.server.settings import Settings
from dpsql.frontends.server.times import AnswerTimes
from dpsql.query.environment import folded
from dpsql.session import Session

T = TypeVar("T")

logger = logging.getLogger("dpsql.server")


class Queries:
    """The questions that are waiting, worked on, or answered a while ago."""

    def __init__(self, session: Session, settings: Settings, metrics: Metrics) -> None:
        self.is_stopping = False
        self._session = session
        self._settings = settings
        self._metrics = metrics
        self._times = AnswerTimes(settings.first_answer_seconds)
        # as long as the latest deadline of a question whose turn comes at once, and a little
        self.longest_wait = self._times.at(settings.timeout_seconds) + 1.0
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="dpsql-worker")
        self._workers = asyncio.Semaphore(settings.workers)
        self._turns: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(settings.at_once))
        # a turn ends at a moment that is known, also where the engine goes on; the next work waits for the engine
        self._places: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(settings.at_once))
        self._waiting: Counter[str] = Counter()
        self._held: dict[str, Query] = {}
        self._answered: dict[str, deque[Query]] = defaultdict(deque)
        self._tasks: set[asyncio.Task[Any]] = set()

    def ask(self, analyst: str, question: Question) -> Query:
        """Take a question.

        Raises:
            Problem: the server is stopping (503), or the analyst asks too much at a time (429).

        """
        if self.is_stopping:
            raise Problem(503, stopping())
        if self._waiting[analyst] >= self._settings.waiting:
            raise busy(f"{self._settings.waiting} questions of yours are waiting; ask again when one is answered")
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
        query.show(cancelled(), self.now())
        return True

    def seconds_to_next(self, query: Query) -> int:
        """Whole seconds until it is looked again whether there is an answer; 1 where that is not known."""
        if query.turn_at is None:
            return 1
        elapsed = self.now() - query.turn_at
        return max(1, math.ceil(self._times.at(elapsed) - elapsed))

    def all(self) -> tuple[Query, ...]:
        """Everything that is held, for the curator."""
        return tuple(self._held.values())

    async def close(self) -> None:
        """Take no more questions, give those that are being answered their time, and stop the rest."""
        self.is_stopping = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.grace_seconds)
        for query in self._held.values():
            query.stop.set()
            query.error = query.error or ("stopping" if query.outcome is None else None)
            query.show(stopping(), self.now())
        left = tuple(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.to_thread(self._pool.shutdown)

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
            self._metrics.ended(query)
            asyncio.get_running_loop().call_later(self._settings.keep_seconds, self._forget_old, query.analyst)

    async def _in_turn(self, query: Query) -> None:
        """Look at each moment whether there is an answer; then the turn ends, whatever the engine still does."""
        query.turn_at = began = self.now()
        limit = query.question.timeout_seconds
        work = self._spawn(self._work(query))
        try:
            if not self._settings.first_answer_seconds:
                given_up = self._spawn(query.given_up.wait())
                await asyncio.wait({work, given_up}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                given_up.cancel()
            for moment in self._times.until(limit):
                await self._until(began + moment)
                if query.given_up.is_set():
                    return
                if work.done() and is_told(work.result()):
                    query.show(work.result(), self.now())
                    return
            query.error = query.error or "out of time"
            query.show(unanswered(), self.now())
        finally:
            query.stop.set()

    async def _work(self, query: Query) -> Outcome:
        async with self._places[query.analyst], self._workers:
            if query.stop.is_set():
                return unanswered()
            query.began_at = self.now()
            try:
                outcome = await asyncio.get_running_loop().run_in_executor(self._pool, self._answer, query)
            finally:
                query.ended_at = self.now()
                self._metrics.worked(query.analyst, query.ended_at - query.began_at)
            if isinstance(outcome, DpsqlError):
                query.error = query.error or type(outcome).__name__
            return outcome

    def _answer(self, query: Query) -> Outcome:
        """Ask, in a worker thread; what goes wrong is an outcome, without the frames that led to it."""
        question = query.question
        try:
            with stopped_by(query.stop):
                self._require_declared(query.analyst)
                return self._session.as_analyst(query.analyst).sql(question.sql, question.params, **question.options)
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
            raise AccessError(
                f"{analyst!r} has a token and no clearance yet; the curator declares one: CALL dp_analyst({analyst!r})"
            )

    def _forget_old(self, analyst: str) -> None:
        """Forget answers that were shown long ago, and the oldest where there are too many; the last one is kept."""
        answered = self._answered[analyst]
        after, size = self.now() - self._settings.keep_seconds, sum(query.nbytes for query in answered)
        while answered and (
            (answered[0].shown_at or answered[0].asked_at) <= after
            or len(answered) > self._settings.kept
            or (len(answered) > 1 and size > self._settings.kept_bytes)
        ):
            oldest = answered.popleft()
            size -= oldest.nbytes
            del self._held[oldest.query_id]

    async def _until(self, moment: float) -> None:
        await asyncio.sleep(max(0.0, moment - self.now()))

    @staticmethod
    def now() -> float:
        """The clock of `Query`, in seconds."""
        return asyncio.get_running_loop().time()
