"""Who may ask how much at a time, when answers are shown, and what stops a query."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

import dpsql
from dpsql.access.limits import Limits
from dpsql.access.queries import Queries, Query, Question
from dpsql.engine.connection import _STOP
from dpsql.errors import AccessError, EngineError, RemoteError
from dpsql.session import FreeText, Result
from dpsql.session.free_texts import postpone_free_text

FIRST = 0.08
LIMITS = Limits(first_answer_seconds=FIRST, workers=4, timeout_seconds=20.0, grace_seconds=0.05)
SLACK = 15.0
"""How late a busy machine may be; that nothing is shown too early is what matters, and nothing waits for its limit."""


class Desk:
    """In place of a session: a statement is the seconds that it takes, which a stop ends."""

    def __init__(self) -> None:
        self.working = 0
        self.most = 0
        self.postponed = 0
        self.asked: list[str] = []
        self.stops: list[threading.Event] = []
        self.ignored = threading.Event()
        self._lock = threading.Lock()

    def sql(self, text: str) -> Result:
        assert text == "FROM dp_policy()"
        rows = [{"kind": "analyst", "name": name, "setting": "rho_limit", "value": "1"} for name in ("Ana", "bob")]
        return Result(pa.Table.from_pylist(rows))

    def as_analyst(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(sql=lambda text, _, **__: self.answer(text))

    def answer(self, text: str) -> Result:
        stop = _STOP.get()
        assert stop is not None
        if text.startswith("free"):
            try:
                postpone_free_text()
            except FreeText:
                self.postponed += 1
                raise
            text = text.removeprefix("free")
        with self._lock:
            self.working += 1
            self.most = max(self.most, self.working)
            self.asked.append(text)
        stopped = stop.wait(float(text))
        while self.ignored.is_set():
            time.sleep(0.001)
        with self._lock:
            self.working -= 1
        if stopped:
            raise EngineError("the query ran out of time")
        return Result(pa.table({"seconds": [float(text)]}))


class Nobody:
    """In place of metrics: nobody counts."""

    def worked(self, _: str, __: float) -> None:
        pass

    def ended(self, _: Query) -> None:
        pass


def question(seconds: float, timeout_seconds: float = 20.0) -> Question:
    return Question(str(seconds), None, {}, timeout_seconds)


def run(work: Callable[[Queries, Desk], Awaitable[None]], **changes: Any) -> Desk:
    desk = Desk()

    async def whole() -> None:
        queries = Queries(cast("dpsql.Session", desk), dataclasses.replace(LIMITS, **changes), Nobody())
        try:
            await work(queries, desk)
        finally:
            await queries.close()

    asyncio.run(whole())
    return desk


async def begun(desk: Desk) -> None:
    """Wait until a worker has begun, which on a busy machine takes its time."""
    while not desk.most:
        await asyncio.sleep(0.001)


async def shown(query: Query) -> float:
    """Seconds from the question to its outcome."""
    await asyncio.wait_for(query.shown.wait(), 30)
    assert query.shown_at is not None
    return query.shown_at - query.asked_at


@pytest.mark.parametrize(("takes", "steps"), [(0.0, 1), (0.02, 1), (0.1, 2), (0.2, 4)])
def test_an_answer_is_shown_at_the_next_of_its_times(takes: float, steps: int) -> None:
    async def work(queries: Queries, _: Desk) -> None:
        seconds = await shown(queries.ask("ana", question(takes)))
        assert FIRST * steps <= seconds < FIRST * steps + SLACK

    run(work)


def test_no_answer_is_shown_early_where_the_loop_wakes_early() -> None:
    """A loop that anything wakes ends all waits that end within the resolution of its clock."""

    async def work(queries: Queries, _: Desk) -> None:
        asyncio.get_running_loop()._clock_resolution = 0.03  # type: ignore[attr-defined]
        assert await shown(queries.ask("ana", question(FIRST - 0.02))) >= FIRST

    run(work)


def test_without_times_the_search_above_would_fail() -> None:
    """The planted fault: what the times are there to hide."""

    async def work(queries: Queries, _: Desk) -> None:
        taken = [await shown(queries.ask("ana", question(0))) for _ in range(50)]
        assert min(taken) < FIRST

    run(work, first_answer_seconds=0.0)


def test_a_question_begins_when_the_answer_before_it_is_shown() -> None:
    async def work(queries: Queries, _: Desk) -> None:
        first, second = queries.ask("ana", question(0.01)), queries.ask("ana", question(0.01))
        other = queries.ask("bob", question(0.01))
        assert await shown(other) < await shown(second) + SLACK
        assert first.shown_at is not None
        assert second.shown_at is not None
        assert second.shown_at - first.shown_at >= FIRST
        assert second.work.began_at is not None
        assert second.work.began_at >= first.shown_at

    run(work)


def test_workers_and_turns_bound_what_is_worked_on() -> None:
    async def work(queries: Queries, _: Desk) -> None:
        asked = [queries.ask(name, question(0.03)) for name in ("ana", "bob") for _ in range(6)]
        for query in asked:
            await shown(query)
            assert query.state == "done"

    def assert_most(bound: int, **changes: int) -> None:
        """Never more than so many at a time; that there are so many is up to a busy machine, which is asked again."""
        most = 0
        for _ in range(20):
            most = max(most, run(work, first_answer_seconds=0.001, **changes).most)
            if most >= bound:
                break
        assert most == bound

    assert_most(2)
    assert_most(4, at_once=6)
    assert_most(1, at_once=6, workers=1)


def test_a_time_limit_ends_a_query_at_one_of_the_times() -> None:
    async def work(queries: Queries, desk: Desk) -> None:
        query = queries.ask("ana", question(60, timeout_seconds=1.2 * FIRST))
        assert 2 * FIRST <= await shown(query) < 2 * FIRST + SLACK
        assert isinstance(query.outcome, EngineError)
        assert str(query.outcome) == str(EngineError.unanswered())
        assert query.work.error == "out of time"
        # its thread is free again
        assert await shown(queries.ask("ana", question(0))) < 3 * FIRST + SLACK
        assert desk.working == 0

    run(work)


def test_cancelling_is_shown_at_once_and_stops_the_engine_at_one_of_the_times() -> None:
    async def work(queries: Queries, desk: Desk) -> None:
        query = queries.ask("ana", question(60))
        await asyncio.sleep(1.2 * FIRST)
        await begun(desk)
        assert queries.cancel(query)
        assert query.state == "cancelled"
        assert isinstance(query.outcome, RemoteError)
        assert not queries.cancel(query)
        assert desk.working == 1
        next_one = queries.ask("ana", question(0))
        await shown(next_one)
        assert desk.working == 0
        assert next_one.work.began_at is not None
        assert next_one.work.began_at - query.asked_at >= 2 * FIRST

    run(work)


def test_a_question_that_is_cancelled_while_it_waits_is_never_begun() -> None:
    async def work(queries: Queries, _: Desk) -> None:
        first, second = queries.ask("ana", question(0.02)), queries.ask("ana", question(0.03))
        assert queries.cancel(second)
        await shown(first)
        await shown(queries.ask("ana", question(0)))
        assert second.work.began_at is None

    assert "0.03" not in run(work).asked


def test_an_answer_that_is_shown_cannot_be_cancelled() -> None:
    async def work(queries: Queries, _: Desk) -> None:
        query = queries.ask("ana", question(0))
        await shown(query)
        assert not queries.cancel(query)
        assert query.state == "done"

    run(work)


def test_too_many_questions_of_one_are_refused_and_tell_nobody_else() -> None:
    async def work(queries: Queries, _: Desk) -> None:
        asked = [queries.ask("ana", question(0)) for _ in range(2)]
        with pytest.raises(RemoteError):
            queries.ask("ana", question(0))
        assert not queries.is_stopping
        asked += [queries.ask("bob", question(0)) for _ in range(2)]
        for query in asked:
            await shown(query)
        await asyncio.sleep(0)
        await shown(queries.ask("ana", question(0)))

    run(work, waiting=2)


def test_what_stopped_late_holds_no_turn_and_one_place() -> None:
    """The next question has its moments from the deadline on, and no second worker while the first is busy."""

    async def work(queries: Queries, desk: Desk) -> None:
        stuck, after = (queries.ask("ana", question(seconds, FIRST)) for seconds in (60, 0))
        desk.ignored.set()
        await begun(desk)
        assert FIRST <= await shown(stuck) < FIRST + SLACK
        assert 2 * FIRST <= await shown(after) < 2 * FIRST + SLACK
        assert isinstance(after.outcome, EngineError)
        assert (desk.most, after.work.began_at) == (1, None)
        desk.ignored.clear()

    run(work)


def test_a_token_without_a_clearance_is_not_answered() -> None:
    async def work(queries: Queries, _: Desk) -> None:
        query = queries.ask("eve", question(0))
        await shown(query)
        assert isinstance(query.outcome, AccessError)
        assert "clearance" in str(query.outcome)

    assert run(work).asked == []


def test_questions_are_found_by_those_who_asked_and_forgotten_in_time() -> None:
    async def work(queries: Queries, _: Desk) -> None:
        query = queries.ask("ana", question(0))
        assert queries.find("ana", query.query_id) is query
        assert queries.find("bob", query.query_id) is None
        assert queries.find("ana", "other") is None
        await shown(query)
        await asyncio.sleep(0.25)
        assert queries.find("ana", query.query_id) is None
        assert queries.all() == ()

    run(work, keep_seconds=0.2)


@pytest.mark.parametrize("limit", [{"kept": 2}, {"kept_bytes": 16}])
def test_an_analyst_holds_so_many_answers_and_always_the_last(limit: dict[str, int]) -> None:
    async def work(queries: Queries, _: Desk) -> None:
        asked = [queries.ask("ana", question(0)) for _ in range(4)]
        other = queries.ask("bob", question(0))
        for query in (*asked, other):
            await shown(query)
        await asyncio.sleep(0.01)
        held = [queries.find("ana", query.query_id) is not None for query in asked]
        assert held == [False, False, True, True]
        assert queries.find("bob", other.query_id) is other

    run(work, first_answer_seconds=0.001, **limit)


def test_the_same_question_is_found_again_unless_it_failed() -> None:
    async def work(queries: Queries, _: Desk) -> None:
        query = queries.ask("ana", question(0.01))
        assert queries.recent("ana", question(0.01), 60) is query
        assert queries.recent("bob", question(0.01), 60) is None
        assert queries.recent("ana", question(0.02), 60) is None
        await shown(query)
        assert queries.recent("ana", question(0.01), 60) is query
        assert queries.recent("ana", question(0.01), 0) is None
        cancelled = queries.ask("ana", question(0.02))
        queries.cancel(cancelled)
        assert queries.recent("ana", question(0.02), 60) is None

    run(work)


def test_a_stop_gives_time_then_ends_everything_and_takes_no_more() -> None:
    """On a machine that is busy for longer than the time that is given, the first is ended too: then once more."""
    for _ in range(20):
        seen: list[Query] = []

        async def work(queries: Queries, _: Desk, seen: list[Query] = seen) -> None:
            asked = (("ana", 0.05), ("bob", 600), ("bob", 601))
            seen.extend(queries.ask(name, question(takes)) for name, takes in asked)
            await asyncio.sleep(0.01)
            began = time.monotonic()
            await queries.close()
            assert time.monotonic() - began < 300
            with pytest.raises(RemoteError):
                queries.ask("ana", question(0))
            assert queries.is_stopping

        desk = run(work, grace_seconds=0.3)
        assert [query.state for query in seen[1:]] == ["failed", "failed"]
        assert desk.working == 0
        assert "601" not in desk.asked
        if seen[0].state == "done":
            break
    assert seen[0].state == "done"


def test_free_texts_wait_for_a_worker_of_their_own() -> None:
    """Two analysts ask at length what costs nothing; the worker stays with the questions that somebody pays for."""

    async def work(queries: Queries, desk: Desk) -> None:
        free = [queries.ask(name, Question("free 15", None, {}, 20.0)) for name in ("Ana", "bob")]
        while desk.postponed < 2:
            await asyncio.sleep(0.001)
        paid = queries.ask("ana", question(0.0))
        await shown(paid)
        while len(desk.asked) < 2:
            await asyncio.sleep(0.001)
        assert isinstance(paid.outcome, Result)
        assert [one.outcome for one in free] == [None, None]
        assert sorted(desk.asked) == [" 15", "0.0"]
        for one in free:
            queries.cancel(one)

    run(work, workers=1)


def test_a_free_text_has_its_answer_at_a_moment() -> None:
    async def work(queries: Queries, desk: Desk) -> None:
        free = queries.ask("ana", Question("free 0.01", None, {}, 20.0))
        assert await shown(free) >= FIRST
        assert isinstance(free.outcome, Result)
        assert desk.postponed == 1

    run(work)
