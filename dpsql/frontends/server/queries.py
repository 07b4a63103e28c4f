"""Asks the session in threads: who may ask how much at a time, when answers are shown, and what stops a query.

All bookkeeping is the event loop's; a worker thread sees one question and gives back one outcome.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dpsql.engine import stopped_by
from dpsql.errors import AccessError, DpsqlError
from dpsql.frontends.server.metrics import Metrics
from dpsql.frontends.server.problems import Problem, busy
from dpsql.frontends.server.query import Outcome, Query, cancelled, out_of_time, stopping
from dpsql.frontends.server.requests import Question
from dpsql.frontends.server.settings import Settings
from dpsql.frontends.server.times import AnswerTimes
from dpsql.query.environment import folded
from dpsql.session import Session

T = TypeVar("T")


class Queries:
    """The questions that are waiting, worked on, or answered a while ago."""

    def __init__(self, session: Session, settings: Settings, metrics: Metrics) -> None:
        self.is_stopping = False
        self._session = session
        self._settings = settings
        self._metrics = metrics
        self._times = AnswerTimes(settings.first_answer_seconds)
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="dpsql-worker")
        self._workers = asyncio.Semaphore(settings.workers)
        self._turns: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(settings.at_once))
        self._waiting: Counter[str] = Counter()
        self._held: dict[str, Query] = {}
        self._answered: dict[str, deque[Query]] = defaultdict(deque)
        self._tasks: set[asyncio.Task[Any]] = set()

    def ask(self, analyst: str, question: Question) -> Query:
        """Take a question.

        Raises:
            Problem: the server is stopping (503), or the analyst or all together ask too much at a time (429).

        """
        if self.is_stopping:
            raise Problem(503, stopping())
        if self._waiting.total() >= self._settings.waiting_in_all:
            raise busy("the server has as many questions as it takes; ask again in a moment")
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
        """Work on a question; it keeps its analyst's turn until its answer is shown, or would be."""
        began = self.now()
        limit = self._times.at(query.question.timeout_seconds)
        work = self._spawn(self._work(query))
        given_up = self._spawn(query.given_up.wait())
        await asyncio.wait({work, given_up}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        given_up.cancel()
        if not work.done():
            elapsed = self.now() - began
            if elapsed < limit:
                await self._until(began + min(limit, self._times.at(elapsed)))
            query.show(out_of_time(), self.now())
            query.stop.set()
        outcome = await work
        await self._until(began + self._times.at(self.now() - began))
        query.show(outcome, self.now())

    async def _work(self, query: Query) -> Outcome:
        async with self._workers:
            if query.stop.is_set():
                return out_of_time()
            query.began_at = self.now()
            try:
                return await asyncio.get_running_loop().run_in_executor(self._pool, self._answer, query)
            finally:
                query.ended_at = self.now()

    def _answer(self, query: Query) -> Outcome:
        """Ask, in a worker thread; what goes wrong is an outcome, without the frames that led to it."""
        question = query.question
        try:
            with stopped_by(query.stop):
                self._require_declared(query.analyst)
                return self._session.as_analyst(query.analyst).sql(question.sql, question.params, **question.options)
        except DpsqlError as error:
            return error.with_traceback(None)

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
