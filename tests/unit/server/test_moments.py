"""What an analyst is told, and when, is the same whatever becomes of a question that has no answer.

A script of requests runs against servers on which the same questions end in different ways: the engine fails at once or
late, time runs out, the state file is busy, there is a bug, the workers are taken by others. The clock is virtual, so
the transcripts (times, statuses, headers, bodies) are compared for equality.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from dpsql.access.queries import Queries, Query
from dpsql.errors import BudgetError, DpsqlError, EngineError, EntropyError, ReleaseError, StateError
from tests.unit.server.scripted_server import ANSWER, DEADLINE, OTHERS, Ending, Server
from tests.unit.server.virtual_time import run_virtually

WITHOUT_ANSWER: Mapping[str, Ending] = {
    "the engine fails at once": Ending(0.0, EngineError("the engine could not run the query")),
    "the engine fails late": Ending(3.0, EngineError("the engine could not run the query")),
    "time runs out": Ending(60.0, ANSWER),
    "the answer is there a moment too late": Ending(DEADLINE + 1e-6, ANSWER),
    "the state file is busy": Ending(1.0, StateError("busy")),
    "no randomness": Ending(0.01, EntropyError("nothing was drawn")),
    "a bug": Ending(0.05, ValueError("CANARY")),
    "others have the workers": Ending(0.0, ANSWER, workers_are_taken=True),
}


Script = Callable[[Server], Any]


async def looks_now_and_then(server: Server) -> None:
    """Asks, looks at odd times, and asks for something else meanwhile, which has to wait for its turn."""
    taken = await server.request("POST", "/v1/queries", body={"sql": "SELECT it"})
    address = taken["headers"]["location"]
    after = asyncio.create_task(server.request("POST", "/v1/queries?wait=20", body={"sql": "SELECT after"}))
    for pause in (0.03, 0.1, 0.5, 2.0, 3.0, 2.0):
        await asyncio.sleep(pause)
        await server.request("GET", address)
        await server.request("GET", f"{address}/result?wait=0")
    await server.request("GET", f"{address}/result.parquet")
    await server.request("DELETE", address)
    await after


async def waits(server: Server) -> None:
    """Asks and waits, as the client in Python does; then asks again."""
    for _ in range(2):
        taken = await server.request("POST", "/v1/queries", body={"sql": "SELECT it", "timeout_seconds": 0.7})
        await server.request("GET", f"{taken['headers']['location']}/result.arrow?wait=25")


async def reads_a_file(server: Server) -> None:
    """As stock DuckDB does: HEAD, then GET, with the statement in the address."""
    for method in ("HEAD", "GET", "HEAD", "GET"):
        await server.request(method, "/v1/result.parquet?sql=SELECT%20it")


async def asks_too_much(server: Server) -> None:
    """More at a time than are taken, until the next one is."""
    replies = [await server.request("POST", "/v1/queries", body={"sql": "SELECT it"}) for _ in range(5)]
    assert [reply["status"] for reply in replies] == [202] * 4 + [429]
    while replies[-1]["status"] == 429:
        await asyncio.sleep(1.0)
        replies.append(await server.request("POST", "/v1/queries", body={"sql": "SELECT it"}))
    for reply in (replies[0], replies[-1]):
        await server.request("GET", f"{reply['headers']['location']}/result?wait=7")


async def gives_up(server: Server) -> None:
    """Cancels between two moments and asks for something else, which begins at the next one."""
    taken = await server.request("POST", "/v1/queries", body={"sql": "SELECT it"})
    await asyncio.sleep(0.9)
    await server.request("DELETE", taken["headers"]["location"])
    await server.request("GET", f"{taken['headers']['location']}/result")
    await server.request("POST", "/v1/queries?wait=20", body={"sql": "SELECT after"})


SCRIPTS: Mapping[Script, float] = {
    looks_now_and_then: DEADLINE + 0.01,
    waits: 100.0,
    reads_a_file: 100.0,
    asks_too_much: 100.0,
    gives_up: 1.61,
}
"""With the time that others have the workers for: with what is asked of ana beside, longer than she waits."""

scripts = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)


def transcript(script: Script, ending: Ending) -> list[str]:
    server = Server(ending, SCRIPTS[script])

    async def whole() -> None:
        for name in OTHERS if ending.workers_are_taken else ():
            await server.request("POST", "/v1/queries", name, {"sql": "SELECT theirs"})
        await asyncio.sleep(0)
        await script(server)
        await server.close()

    run_virtually(whole(), server.lasts)
    return server.transcript()


def without_answer(script: Script) -> dict[str, list[str]]:
    """What ana sees, by what became of her question."""
    return {name: transcript(script, ending) for name, ending in WITHOUT_ANSWER.items()}


@scripts
def test_whatever_fails_is_told_in_one_sentence_at_one_moment(script: Script) -> None:
    seen = without_answer(script)
    first, *_ = seen.values()
    assert dict.fromkeys(seen, first) == seen
    statuses = {int(found[1]) for line in first if (found := re.match(r"\([\d.]+, '[^']*', (\d+)", line))}
    assert 410 in statuses
    assert statuses <= {200, 202, 405, 409, 410, 429}


def test_the_moment_is_the_deadline_and_the_sentence_says_what_asking_again_costs() -> None:
    server = Server(WITHOUT_ANSWER["a bug"], 0.0)
    run_virtually(waits(server), server.lasts)
    told = [(at, status) for at, what, status, *_ in server.seen if what.startswith("GET")]
    # the limit of 0.7 s rounds up to 0.8; the second question begins there
    assert told == [(0.8, 410), (1.6, 410)]
    problem = json.loads(server.seen[1][4])
    assert problem["detail"] == str(EngineError.unanswered())
    assert problem["detail"].endswith("Any charge stays and pays for asking the same query again.")


@scripts
@pytest.mark.parametrize(
    ("quick", "slow"), [(0.0, 0.1), (0.10001, 0.2), (1.61, 3.2), (3.21, 6.4)], ids=lambda value: f"{value:g}"
)
def test_answers_between_two_moments_are_told_alike(script: Script, quick: float, slow: float) -> None:
    assert transcript(script, Ending(quick, ANSWER)) == transcript(script, Ending(slow - 1e-6, ANSWER))


def test_answers_in_different_steps_are_told_apart() -> None:
    """The planted fault, and what is documented to remain: which of the moments it was."""
    assert transcript(waits, Ending(0.1, ANSWER)) != transcript(waits, Ending(0.3, ANSWER))


@pytest.mark.parametrize(
    "refusal",
    [
        ReleaseError("the rows are gone"),
        BudgetError("u", requested_rho=1.0, remaining_rho=0.0, requested_delta=0.0, remaining_delta=0.0),
    ],
)
def test_what_follows_from_the_books_is_told_at_the_first_moment(refusal: DpsqlError) -> None:
    server = Server(Ending(0.0, refusal), 0.0)
    run_virtually(waits(server), server.lasts)
    told = [(at, status) for at, what, status, *_ in server.seen if what.startswith("GET")]
    assert told == [(0.1, 409), (0.2, 409)]


@pytest.mark.parametrize("fault", ["failures are told when they are there", "a turn ends with the engine"])
def test_planted_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "a turn ends with the engine":
        whole = Queries._in_turn

        async def held(self: Queries, query: Query) -> None:
            await whole(self, query)
            async with self._places[query.analyst]:
                pass

        monkeypatch.setattr(Queries, "_in_turn", held)
    else:
        monkeypatch.setattr("dpsql.access.queries.is_told", lambda _: True)
    seen = without_answer(looks_now_and_then)
    assert len({tuple(lines) for lines in seen.values()}) > 1


def test_a_reply_says_when_to_look_again() -> None:
    server = Server(Ending(60.0, ANSWER), 0.0)
    run_virtually(looks_now_and_then(server), server.lasts)
    looked = [
        (at, told["retry-after"]) for at, what, status, told, _ in server.seen if "result" in what and status == 202
    ]
    # 0.03 -> 0.1, 0.13 -> 0.2, 0.63 -> 0.8, 2.63 -> 3.2, 5.63 -> 6.4, in whole seconds
    assert looked == [(0.03, "1"), (0.13, "1"), (0.63, "1"), (2.63, "1"), (5.63, "1")]
