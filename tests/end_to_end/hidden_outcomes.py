"""Random histories with two outcomes of questions whose charges follow from released numbers, as one reader sees them.

Both worlds have the same rows, policy and texts. Noise for others has another seed in each world, so their steps stop
elsewhere and AUTO finds other bounds. Of the answers of the reader with a limit everything is compared but their noisy
numbers, which have the same law in both worlds.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterator
from typing import Any

import dpsql
from dpsql.errors import DpsqlError
from tests.end_to_end.prepared import with_own_state
from tests.noise_sources import seeded_noise

TABLES = """
CREATE TABLE visits AS
SELECT i % 900 AS patient, i % 3 AS ward, i % 5 AS doctor, i * 7919 % 100 AS cost, i % 2 AS half
FROM range(2_700) t(i)
"""
DECLARED = (
    "CALL dp_unit('patient', rho_budget := {budget}, delta_threshold := 1e-4, delta_conversion := 1e-6)",
    "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', max_rows_per_group := 3, "
    "coverage := FALSE)",
    "CALL dp_domain('visits', 'ward', keys := [0, 1, 2])",
    "CALL dp_analyst('ana', rho_limit := 0.03)",
    "CALL dp_analyst('bea', rho_limit := 0.03, budget_part := 0.5)",
    "CALL dp_analyst('carl')",
)
BOUNDS = "max_groups_contributed = 2"
WHERE = ("", "", " WHERE half = 1")
PLAIN = (
    "count(*) AS n FROM visits{where}",
    "ward, count(*) AS n FROM visits{where} GROUP BY ward",
    "ward, dp_sum(cost, 0, 100) AS c FROM visits{where} GROUP BY ward",
    "doctor, count(*) AS n FROM visits{where} GROUP BY doctor",
)
AUTO = (
    "ward, sum(cost) AS c FROM visits{where} GROUP BY ward",
    "doctor, count(*) AS n FROM visits{where} GROUP BY doctor",
)


def select(options: str, question: str) -> str:
    """Return a private query."""
    return f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) {question}"


def question_of_others(draw: random.Random) -> str:
    """Return a question of the curator, or of an analyst without a limit."""
    where = draw.choice(WHERE)
    match draw.randrange(5):
        case 0 | 1:
            error, cap = draw.choice((0.05, 0.2, 0.5)), draw.choice((0.1, 0.5))
            return select(f"target_relative_error = {error}, max_rho = {cap}, {BOUNDS}", _text(draw, PLAIN, where))
        case 2:
            return select(f"target_half_width = {draw.choice((60, 400))}, max_rho = 0.2", _text(draw, AUTO, where))
        case 3:
            return select(f"rho = {draw.choice((0.003, 0.01, 0.02, 0.05, 0.1))}", _text(draw, AUTO, where))
        case _:
            return select(f"rho = {draw.choice((0.0004, 0.0015, 0.02, 0.1))}, {BOUNDS}", _text(draw, PLAIN, where))


def question_of_reader(draw: random.Random, earlier: str) -> str:
    """Return a question of a reader with a limit, often about what was asked before."""
    where, rho = draw.choice(WHERE), draw.choice((0.0005, 0.0013, 0.0016, 0.0023, 0.005, 0.02, 0.032, 0.04))
    text = earlier if earlier and draw.random() < 0.6 else _text(draw, PLAIN, where)
    return select(f"rho = {rho}, {BOUNDS}", text)


def plan_of_reader(draw: random.Random) -> str:
    """Return a question that a reader with a limit has explained: its answer would stop by numbers of the reader."""
    where, cap = draw.choice(WHERE), draw.choice((0.002, 0.03))
    if draw.random() < 0.3:
        return select(f"target_half_width = 60, {BOUNDS}", PLAIN[1].format(where=where))
    return select(f"target_relative_error = 0.2, max_rho = {cap}, {BOUNDS}", _text(draw, PLAIN, where))


def _text(draw: random.Random, texts: tuple[str, ...], where: str) -> str:
    return draw.choice(texts).format(where=where)


@dataclasses.dataclass
class World:
    """A session with the screens of one reader.

    Attributes:
        session: of the curator.
        seed: of the noise for others; it differs between the worlds.
        screens: what the reader saw.

    """

    session: dpsql.Session
    seed: int
    screens: list[Any] = dataclasses.field(default_factory=list)

    def others(self, asker: str, text: str, place: int) -> bool:
        """Ask for somebody without a limit; return whether the question was refused for lack of budget."""
        self.session._runner.noise_source = seeded_noise(1_000 * self.seed + place)
        handle = self.session if asker == "curator" else self.session.as_analyst(asker)
        try:
            handle.sql(text)
        except dpsql.BudgetError:
            return True
        return False

    def look(self, reader: str, text: str | None, planned: str, place: int) -> None:
        """Record the screens of a reader: a plan and an answer if there is a text, a plan and their books."""
        self.session._runner.noise_source = seeded_noise(place)
        handle = self.session.as_analyst(reader)
        if text is not None:
            self.screens.append(("plan", seen(handle, f"FROM dp_explain($$ {text} $$)")))
            self.screens.append((text, seen(handle, text)))
        self.screens.append((planned, seen(handle, f"FROM dp_explain($$ {planned} $$)")))
        for books in ("FROM dp_budget()", "FROM dp_releases()"):
            self.screens.append((books, seen(handle, books)))


def seen(handle: dpsql.Analyst, text: str) -> Any:
    """Return what a reader sees: rows of a lookup, a refusal, or all of a receipt."""
    try:
        answer = handle.sql(text)
    except DpsqlError as error:
        return type(error).__name__, str(error), {name: value for name, value in vars(error).items() if name[0] != "_"}
    if answer.receipt is None:
        return [{name: value for name, value in row.items() if name != "at"} for row in answer.arrow().to_pylist()]
    # numbers, and which private keys are shown, follow from noise of the level alone
    lines = [line for line in str(answer).split("\n\n")[-1].splitlines() if re.search("rho|epsilon|spent|stored", line)]
    receipt = dataclasses.asdict(answer.receipt)
    return {name: value for name, value in receipt.items() if name not in ("nothing_shown",)}, lines


def two_worlds(prepared: dpsql.Session, seed: int, length: int = 6) -> Iterator[tuple[World, World]]:
    """Yield both worlds after each step of a history, until somebody is refused for lack of budget in either."""
    draw, earlier = random.Random(seed), ""
    with with_own_state(prepared) as one, with_own_state(prepared) as other:
        worlds = World(one, 2 * seed + 1), World(other, 2 * seed + 2)
        for place in range(length):
            if place in (0, 2) or draw.random() < 0.3:
                asker, text = draw.choice(("curator", "carl")), question_of_others(draw)
                if BOUNDS in text:
                    earlier = text.partition(f"{BOUNDS}) ")[2]
                refused = [world.others(asker, text, place) for world in worlds]
                if any(refused):
                    return
                reader, asked = draw.choice(("ana", "bea")), None
            else:
                reader, asked = draw.choice(("ana", "bea")), question_of_reader(draw, earlier)
            planned = plan_of_reader(draw)
            for world in worlds:
                world.look(reader, asked, planned, place)
            yield worlds
