"""Screens of a reader with a limit are equal byte for byte if other numbers decided the charges of others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.session import budget_table
from dpsql.state import ClearedAnalyst, ReleaseHistory, Spent
from dpsql.state.charges import read_spent
from dpsql.state.shown_amounts import spent_as_shown
from tests.end_to_end.hidden_outcomes import BOUNDS, DECLARED, PLAIN, TABLES, select, two_worlds
from tests.end_to_end.prepared import with_declarations, with_own_state
from tests.noise_sources import seeded_noise
from tests.serving import Seen, ask, door, in_background, token_of


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with with_declarations(TABLES, [one.format(budget=20) for one in DECLARED]) as session:
        yield session


@pytest.fixture(scope="module")
def poor() -> Iterator[dpsql.Session]:
    """Yield a session whose budget is used up soon."""
    with with_declarations(TABLES, [one.format(budget=0.7) for one in DECLARED]) as session:
        yield session


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 150))])
def test_screens_of_a_reader_with_a_limit_are_equal_in_both_worlds(
    prepared: dpsql.Session, poor: dpsql.Session, seed: int
) -> None:
    for session in (prepared, poor):
        for one, other in two_worlds(session, seed):
            for (name, screen), (_, beside) in zip(one.screens, other.screens, strict=True):
                assert screen == beside, name
            for world in (one, other):
                shown, charged = amounts(world.session)
                assert shown.rho_nano >= charged.rho_nano
                assert shown.delta_units >= charged.delta_units


@pytest.mark.parametrize("hidden", ["servings", "prices"])
def test_a_history_finds_what_is_not_hidden(
    prepared: dpsql.Session, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    """The planted faults: others' points serve a reader with a limit, or others' charges count as they are."""
    if hidden == "servings":
        monkeypatch.setattr(ReleaseHistory, "has_claim", lambda *_: False)
    else:
        monkeypatch.setattr(budget_table, "_declared", lambda *_: ClearedAnalyst("", None))
    differ = (one.screens != other.screens for seed in (0, 2) for one, other in two_worlds(prepared, seed))
    assert any(differ)


def amounts(session: dpsql.Session) -> tuple[Spent, Spent]:
    """Return what is spent as ana is refused by it, and as it was charged."""
    with session._access.read()._database.read() as connection:
        return spent_as_shown(connection, "patient", "ana"), read_spent(connection, "patient")


def test_replies_of_a_server_are_equal_in_both_worlds(prepared: dpsql.Session) -> None:
    """Status, headers and body of each reply, but moments and names of queries, and the rows of answers."""
    seen = [_replies(prepared, seed) for seed in (1, 2)]
    assert seen[0] == seen[1]
    refused = [reply for reply in seen[0] if "409" in reply]
    assert len(refused) == 1
    assert '"remaining_rho": null' in refused[0].replace('":null', '": null')


def _replies(prepared: dpsql.Session, seed: int) -> list[str]:
    """Return what ana sees at a server, and by a session with it, after questions of carl with one outcome."""
    with with_own_state(prepared) as session:
        session._runner.noise_source = seeded_noise(seed)
        carl = session.as_analyst("carl")
        for question in (PLAIN[0], PLAIN[1], PLAIN[3]):
            carl.sql(select(f"target_relative_error = 0.2, max_rho = 10, {BOUNDS}", question.format(where="")))
        ward = select(f"rho = 0.02, {BOUNDS}", PLAIN[1].format(where=""))
        with in_background(session, door("ana")) as urls:
            told = [
                ask(urls.analysts, "ana", text)
                for text in (
                    f"FROM dp_explain($$ {ward} $$)",
                    "FROM dp_budget()",
                    select("rho = 0.02", "half, count(*) AS n FROM visits GROUP BY half"),
                )
            ]
            remote = dpsql.remote.connect(urls.analysts, token=token_of("ana"))
            screens = [str(remote.sql(text)) for text in ("FROM dp_budget()", f"FROM dp_explain($$ {ward} $$)")]
            session.sql(
                "CALL dp_unit('patient', rho_budget := 40, delta_threshold := 1e-4, delta_conversion := 1e-6, "
                "replace := true)"
            )
            receipt = remote.sql(ward).receipt
        return [*(_without_moments(reply) for reply in told), *screens, str(receipt)]


def _without_moments(reply: Seen) -> str:
    headers = {name: value for name, value in reply.headers.items() if name not in ("date", "etag", "location", "link")}
    return f"{reply.status} {headers} {reply.body.decode()}"
