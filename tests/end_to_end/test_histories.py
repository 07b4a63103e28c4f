"""Random histories of readers, levels, questions, crashes and versions: answers stay, prices are those of the design.

What is checked is written from the design (docs/cascade.md, docs/sql-levels.md), not from the code:

- a question asked again by the same reader at the same level, whoever asked what in between, shows all rows that it
  showed before, with the same numbers;
- the ledger holds what a model of the design says, to the last draw and threshold;
- nobody is served more than one step of the grid below what they asked for;
- what a reader asks for nothing changes no level, row or price for anyone else.

LIMIT, HAVING, other_group and totals that are made to agree follow the keys that are shown, and may change.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import dpsql
from dpsql.cascade import servings as servings_module
from dpsql.cascade.serving import KeySelection
from dpsql.engine import DuckDBEngine
from dpsql.errors import AccessError, CalibrationError, EngineError
from dpsql.state import Ledger, Pin, ReleaseHistory, SideTable
from tests.noise_sources import seeded_noise

NANO = 10**9
DELTA = 1e-6
# of a power of ten, in hundredths
GRID = (100, 120, 150, 180, 200, 250, 300, 350, 400, 500, 600, 700, 800, 900)
NEAR = 0.799
WINDOW = (0.002, 1.0)
CEILING = 0.4
READERS: dict[str, int | None] = {"low": 2 * 10**7, "mid": 3 * 10**8, "eve": None}
LEVELS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 0.4, 0.5, 1.0)

WITH = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS"
BY_SHOP = "shop, count(DISTINCT visitor) AS n FROM visits GROUP BY shop"
BY_DAY = "day, count(DISTINCT visitor) AS n FROM visits GROUP BY day"
SUM_BY_DAY = "day, count(*) AS n, sum(cost) AS s FROM visits GROUP BY day"


@dataclass(frozen=True)
class Kind:
    """A question, and what the design says about its count of units."""

    text: str
    hides: bool = True
    alone: bool = False
    window: bool = False
    ceiling: bool = False
    modelled: bool = True
    by_target: bool = False


KINDS = {
    "count": Kind(f"SELECT {BY_SHOP}"),
    "least": Kind(f"{WITH} (min_privacy_units_per_group = 12) {BY_SHOP}"),
    "sum": Kind("SELECT shop, count(DISTINCT visitor) AS n, sum(cost) AS s FROM visits GROUP BY shop"),
    "average": Kind("SELECT shop, count(*) AS n, sum(cost) AS s, avg(cost) AS a FROM visits GROUP BY shop"),
    "top-k": Kind(f"{WITH} (top_k = 30) {BY_SHOP}", alone=True),
    "top-k sum": Kind(f"{WITH} (top_k = 30) shop, count(*) AS n, sum(cost) AS s FROM visits GROUP BY shop", alone=True),
    "window": Kind(f"{WITH} (rho_window = [0.002, 1]) {BY_SHOP}", window=True),
    "window top-k": Kind(f"{WITH} (rho_window = [0.002, 1], top_k = 30) {BY_SHOP}", window=True),
    "ceiling": Kind("SELECT shop, count(DISTINCT visitor) AS n FROM tills GROUP BY shop", ceiling=True),
    "public": Kind(f"SELECT {BY_DAY}", hides=False),
    "public sum": Kind(f"SELECT {SUM_BY_DAY}", hides=False),
    # of rows of their own, as what AUTO chooses is a frame like any other
    "auto": Kind(
        f"{WITH} (max_groups_contributed = AUTO) {BY_DAY.replace('GROUP', 'WHERE cost > 1 GROUP')}",
        hides=False, modelled=False,
    ),
    "auto bounds": Kind(
        "SELECT day, sum(cost, contribution_bounds_per_group => AUTO) AS s FROM visits WHERE cost > 2 GROUP BY day",
        hides=False, modelled=False,
    ),
    "target": Kind(
        f"{WITH} (target_relative_error = 0.05) {SUM_BY_DAY.replace('GROUP', 'WHERE cost > 3 GROUP')}",
        hides=False, modelled=False, by_target=True,
    ),
    "target shops": Kind(
        f"{WITH} (target_relative_error = 0.3, at_least = 0.8) {BY_SHOP.replace('GROUP', 'WHERE cost > 4 GROUP')}",
        modelled=False, by_target=True,
    ),
}  # fmt: skip
OF_HELD_NUMBERS = Kind(f"{WITH} (target_relative_error = 0.05) {SUM_BY_DAY}", by_target=True)
"""A target on the numbers of "public sum"."""


@contextlib.contextmanager
def open_session() -> Iterator[dpsql.Session]:
    """Shops from three visitors to 900; each visitor is in one of them, so that no bound chooses among rows."""
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE visits (visitor VARCHAR, shop INTEGER, day INTEGER, cost DOUBLE NOT NULL)"
        )
        sizes = [900] * 3 + [300] * 2 + [60] * 4 + [30] * 6 + [14] * 8 + [8] * 8 + [3] * 2
        rows = ", ".join(f"({i}, {size})" for i, size in enumerate(sizes))
        session.connection.execute(
            "INSERT INTO visits SELECT concat_ws(' ', shop, u), shop, u % 4, 5 "
            f"FROM (VALUES {rows}) c(shop, size), LATERAL (SELECT unnest(range(size)) AS u)"
        )
        session.sql("CALL dp_unit('visitor', rho_budget := 1e5, delta_threshold := 0.9, delta_conversion := 1e-6)")
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "unit := 'visitor', privacy_unit_column := 'visitor', max_rows_per_group := 1, "
            f"max_groups_contributed := 1, default_delta := {DELTA})"
        )
        session.connection.execute("CREATE TABLE tills AS FROM visits")
        session.sql(
            "CALL dp_protect('tills', coverage := FALSE, "
            "unit := 'visitor', privacy_unit_column := 'visitor', max_rows_per_group := 1, "
            f"max_groups_contributed := 1, default_delta := {DELTA}, rho_ceiling := {CEILING})"
        )
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 10])")
        session.sql("CALL dp_domain('visits', 'day', keys := [0, 1, 2, 3])")
        for name, limit in READERS.items():
            bound = "" if limit is None else f", rho_limit := {limit / NANO}"
            session.sql(f"CALL dp_analyst('{name}'{bound})")
        yield session


def spent(session: dpsql.Session) -> tuple[int, float]:
    """Nano-rho, and how many thresholds' delta."""
    total = session._access.read().ledger.spent("visitor")
    return total.rho_nano, total.delta_units / 2**100 / DELTA


Share = tuple[str, float]


def shares_of(name: str) -> tuple[Share, ...]:
    """The statistics of a question, and what share of rho each gets: what a first release is charged."""
    return shares_of_all()[name]


@functools.cache
def shares_of_all() -> dict[str, tuple[Share, ...]]:
    """The same of every question, each asked of books that hold nothing yet."""
    found = {}
    with open_session() as session:
        for name, kind in KINDS.items():
            if kind.by_target:
                continue
            with contextlib.closing(session._access.copied()) as copied, pytest.MonkeyPatch.context() as patch:
                patch.setattr(session._runner, "access", copied)
                session.sql(kind.text, rho=CEILING)
                with copied.read()._database.read() as connection:
                    rows = connection.execute("SELECT statistic_hash, rho_nano FROM charge ORDER BY id").fetchall()
            whole = sum(rho_nano for _, rho_nano in rows)
            found[name] = tuple((statistic, rho_nano / whole) for statistic, rho_nano in rows)
    return found


# The model of the design.


def one_of_the_grid(rho_nano: int) -> int:
    """The highest level of the grid up to a level from 1e-6 to 100."""
    power: int = 10 ** (len(str(rho_nano)) - 1)
    return max(power * step // 100 for step in GRID if power * step // 100 <= rho_nano)


def one_of_the_window(rho_nano: int) -> int:
    """Four levels to a doubling, both ends among them."""
    low, high = (round(end * NANO) for end in WINDOW)
    steps = math.ceil(4 * math.log2(high / low))
    levels: list[int] = [math.floor(low * (high / low) ** (i / steps)) for i in range(steps + 1)]
    return max(level for level in levels if level <= rho_nano)


Due = tuple[int, int]
"""Nano-rho and thresholds."""


@dataclass
class Cascade:
    """What the design knows of one statistic.

    Attributes:
        paid: levels that were drawn; of the cascade, or each a release of its own.
        cuts: levels with a threshold.
        pins: what a reader is served for a question.
        held: releases of their own that a reader was shown.
        open: what was charged and never stored.

    """

    paid: set[int] = field(default_factory=set)
    cuts: set[int] = field(default_factory=set)
    pins: dict[tuple[str, int, int, bool], int] = field(default_factory=dict)
    held: dict[str, set[int]] = field(default_factory=dict)
    open: Due = (0, 0)


class Model:
    """Charges and levels by the design."""

    def __init__(self) -> None:
        self.spent: Due = (0, 0)
        self.cascades: dict[str, Cascade] = {}

    def new_version(self) -> None:
        self.cascades = {}

    def ask(self, reader: str, name: str, asked: int, *, own: bool, crashed: bool) -> None:
        """Charge for an answer; one that crashed is charged and shows nothing.

        Raises:
            AccessError, CalibrationError: it is refused, and nothing is charged.

        """
        kind, limit = KINDS[name], READERS.get(reader)
        if limit is not None and asked > limit:
            raise AccessError("above the limit")
        after = copy.deepcopy(self.cascades)
        for place, (statistic, share) in enumerate(shares_of(name)):
            # the last digit of a share of several may differ
            level = asked if share == 1.0 else round(share * asked)
            cascade = after.setdefault(statistic, Cascade())
            due = self._due(cascade, kind, reader, level, asked, counts=place == 0, own=own)
            missing = (max(0, due[0] - cascade.open[0]), max(0, due[1] - cascade.open[1]))
            self.spent = (self.spent[0] + missing[0], self.spent[1] + missing[1])
            if any(due):
                held = self.cascades.setdefault(statistic, Cascade())
                held.open = (held.open[0] + missing[0], held.open[1] + missing[1])
                cascade.open = (0, 0)
        if not crashed:
            self.cascades = after

    def _due(
        self, cascade: Cascade, kind: Kind, reader: str, level: int, asked: int, *, counts: bool, own: bool
    ) -> Due:
        hides = counts and kind.hides
        if kind.alone and counts:
            return self._due_alone(cascade, reader, level, asked, own=own)
        if kind.window and counts:
            level = one_of_the_window(level)
        ceiling = round(CEILING * NANO)
        rho_nano = cuts = 0
        if kind.ceiling and level > ceiling:
            raise CalibrationError("above the ceiling")
        if kind.ceiling and not cascade.paid:
            cascade.paid.add(ceiling)
            rho_nano = ceiling
            if hides:
                cascade.cuts.add(ceiling)
                cuts = 1
        question = (reader, level, asked, False)
        top = max(cascade.paid, default=0)
        served = cascade.pins.get(question)
        if served is None and level > top:
            first = not cascade.paid
            cascade.paid.add(level)
            cascade.pins[question] = level
            if hides:
                cascade.cuts.add(level)
            return level - top, int(hides and (first or not kind.window))
        if served is None:
            free = level if kind.window and counts else one_of_the_grid(level)
            lasting = cascade.paid | cascade.cuts
            served = max((one for one in lasting if level <= one <= asked), default=None)
            served = served or max([free, *(one for one in lasting if free <= one <= level)])
        cascade.pins[question] = served
        if not hides or kind.window:
            return rho_nano, cuts
        limit = READERS.get(reader)
        visible = {one for one in cascade.cuts if limit is None or one <= limit}
        if served not in cascade.cuts and (own or not visible):
            cascade.cuts.add(served)
            cuts += 1
        return rho_nano, cuts

    def _due_alone(self, cascade: Cascade, reader: str, level: int, asked: int, *, own: bool) -> Due:
        """Releases of their own, which add up to a reader's limit; below one of them is free."""
        limit, held = READERS.get(reader), cascade.held.setdefault(reader, set())

        def may_hold(one: int) -> bool:
            return limit is None or one in held or sum(held) + one <= limit

        question = (reader, level, asked, own)
        if question in cascade.pins:
            return 0, 0
        for releases in (held & cascade.paid, {one for one in cascade.paid if may_hold(one)}):
            between = [one for one in releases if level <= one <= asked]
            above = [one for one in releases if one > level and not own]
            if between or above:
                cascade.pins[question] = max(between) if between else min(above)
                held.add(cascade.pins[question])
                return 0, 0
        if not may_hold(level):
            raise AccessError("releases add up")
        cascade.paid.add(level)
        held.add(level)
        cascade.pins[question] = level
        return level, 1


# The histories.


class PlannedCrashError(Exception):
    """The process ends here."""


@contextlib.contextmanager
def crash_at(seam: str | None) -> Iterator[None]:
    """End the request where it is charged, read, about to store, or stored."""
    places: dict[str, tuple[type, str, bool]] = {
        "charged": (Ledger, "charge", True),
        "read": (DuckDBEngine, "aggregate", True),
        "drawn": (SideTable, "store", False),
        "stored": (SideTable, "store", True),
    }
    with pytest.MonkeyPatch.context() as patch:
        if seam is not None:
            holder, name, after = places[seam]
            whole = getattr(holder, name)

            def dying(*arguments: Any, **named: Any) -> None:
                if after:
                    whole(*arguments, **named)
                raise PlannedCrashError

            patch.setattr(holder, name, dying)
        yield


@dataclass(frozen=True)
class Request:
    """One question of one reader."""

    reader: str
    name: str
    rho_nano: int
    own: bool = False
    of_held_numbers: bool = False


Rows = dict[Any, tuple[Any, ...]]


class History:
    """A session, and what its readers were shown in the version that stands."""

    def __init__(self, session: dpsql.Session, seed: int) -> None:
        self.session = session
        self.shown: dict[Request, Rows] = {}
        self._seed = seed

    def ask(self, request: Request, number: int) -> dpsql.Receipt:
        """Ask, and hold the answer to what was shown before for the same question."""
        kind = OF_HELD_NUMBERS if request.of_held_numbers else KINDS[request.name]
        # noise of a request that does not hang on earlier ones
        self.session._runner.noise_source = seeded_noise(self._seed * 100_000 + number)
        options: dict[str, Any] = {"own_threshold": True} if request.own else {}
        options["max_rho" if kind.by_target else "rho"] = request.rho_nano / NANO
        answer = self.session.as_analyst(request.reader).sql(kind.text, **options)
        assert answer.receipt is not None
        rows = {row[0]: row[1:] for row in answer.fetchall()}
        before = self.shown.get(request, {})
        assert {key: rows.get(key) for key in before} == before, f"{request} was shown other rows before"
        self.shown[request] = rows
        return answer.receipt

    def new_version(self) -> None:
        for table in ("visits", "tills"):
            self.session.sql(f"CALL dp_new_version('{table}')")
        self.shown = {}


def some_request(source: random.Random, names: Sequence[str]) -> Request:
    """A question of anyone at a usual level, or at an odd one."""
    reader, name = source.choice([*READERS, "low"]), source.choice(names)
    limit = READERS[reader] or NANO
    rho_nano = round(source.choice(LEVELS) * NANO)
    if source.random() < 0.3:
        rho_nano = round(10 ** source.uniform(-2.6, 0) * NANO)
    if rho_nano > limit and source.random() < 0.9:
        rho_nano = limit if source.random() < 0.5 else limit // source.choice([2, 3, 10]) + 10**6
    if KINDS[name].window:
        rho_nano = max(rho_nano, round(WINDOW[0] * NANO))
    own = KINDS[name].hides and not KINDS[name].window and not KINDS[name].by_target and source.random() < 0.1
    return Request(reader, name, rho_nano, own)


def run_history(seed: int, steps: int, *, names: Sequence[str] = tuple(KINDS)) -> int:
    """Ask, crash, ask an earlier question again, declare a version; returns how many answers were asked for."""
    source, model, asked = random.Random(seed), Model(), 0
    with open_session() as session:
        history = History(session, seed)
        for number in range(steps):
            if source.random() < 0.01:
                history.new_version()
                model.new_version()
            request = some_request(source, names)
            seam = source.choice(["charged", "read", "drawn", "stored"]) if source.random() < 0.1 else None
            _ask(history, model, request, 2 * number, seam)
            asked += 1
            if history.shown:
                _ask(history, model, source.choice(list(history.shown)), 2 * number + 1, None)
                asked += 1
        for place, request in enumerate(list(history.shown)):
            _ask(history, model, request, 2 * steps + place, None)
            asked += 1
    return asked


def _ask(history: History, model: Model, request: Request, number: int, seam: str | None) -> None:
    """Ask for one thing; refusals and charges are those of the model."""
    session, modelled = history.session, KINDS[request.name].modelled
    before, expected = spent(session), model.spent
    outcome: str | dpsql.Receipt = "crashed"
    try:
        with crash_at(seam):
            outcome = history.ask(request, number)
    except (PlannedCrashError, EngineError):
        assert seam is not None
    except (AccessError, CalibrationError) as refusal:
        outcome = type(refusal).__name__
    if not modelled:
        return
    crashed = outcome == "crashed" and seam != "stored"
    refused = ""
    try:
        model.ask(request.reader, request.name, request.rho_nano, own=request.own, crashed=crashed)
    except (AccessError, CalibrationError) as refusal:
        refused = type(refusal).__name__
    assert (outcome if isinstance(outcome, str) and outcome != "crashed" else "") == refused, request
    after = spent(session)
    due = model.spent[0] - expected[0], model.spent[1] - expected[1]
    assert after[0] - before[0] == pytest.approx(due[0], abs=6), (
        f"{request} charges {after[0] - before[0]}, not {due[0]}"
    )
    assert 0.8 * due[1] - 1e-9 <= after[1] - before[1] <= 1.0001 * due[1] + 1e-9, (
        f"{request} pays for {after[1] - before[1]:.6g} thresholds, not {due[1]}"
    )
    if isinstance(outcome, dpsql.Receipt):
        assert outcome.rho * NANO >= NEAR * request.rho_nano, f"{request} is served far below what was asked for"
        assert outcome.rho * NANO <= request.rho_nano * len(shares_of(request.name)), request


def test_answers_stay_and_charges_are_those_of_the_design() -> None:
    assert run_history(1, 40) >= 100


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 8))
def test_answers_of_a_thousand_requests_stay(seed: int) -> None:
    assert run_history(seed, 510) >= 1000


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_a_question_that_is_asked_by_all_at_many_levels_has_answers_that_stay(name: str) -> None:
    assert run_history(20, 155, names=(name,)) >= 300


Told = tuple[float, float, float]
"""Level, and what was charged."""


def told(history: History, request: Request, number: int) -> tuple[Told | str, Rows]:
    """What a reader learns of the cascade, and the rows; or that they are refused."""
    try:
        receipt = history.ask(request, number)
    except AccessError as refusal:
        return str(refusal), {}
    return (receipt.rho, receipt.charged_rho, receipt.charged_delta), history.shown[request]


def answers_of_others(
    name: str, requests: int, *, free: bool, by_target: bool = False
) -> Iterator[tuple[Told | str, Rows]]:
    """A top is paid for; then the lowest reader asks odd levels for nothing, or does not, and others ask after that."""
    source = random.Random(7)
    with open_session() as session:
        history = History(session, 7)
        # so that the lowest reader has keys, and rises nothing
        history.ask(Request("low", name, 2 * 10**7), 0)
        history.ask(Request("eve", name, 4 * 10**8), 1)
        for number in range(2, requests):
            if source.random() < (0.1 if number < 0.6 * requests else 0.8):
                reader = source.choice(["mid", "eve"])
                request = Request(reader, name, round(10 ** source.uniform(-2.5, -0.6) * NANO))
                yield told(history, request, number)
                continue
            rho_nano = round(10 ** source.uniform(-2.69, -1.7) * NANO)
            request = Request("low", name, rho_nano, of_held_numbers=by_target)
            if free:
                before = spent(session)
                history.ask(request, number)
                assert spent(session) == before


def require_that_free_requests_change_nothing(name: str, requests: int = 100, *, by_target: bool = False) -> None:
    by_number = "least" in name
    for (with_free, more), (without, rows) in zip(
        answers_of_others(name, requests, free=True, by_target=by_target),
        answers_of_others(name, requests, free=False),
        strict=True,
    ):
        assert with_free == without
        # a reader's own rule is about numbers, which are other random ones; in a window more rows may join
        assert by_number or KINDS[name].window or set(more) == set(rows)


SHORT_AND_LONG = [
    pytest.param("sum", 40),
    *(pytest.param(name, 100, marks=pytest.mark.long) for name, kind in KINDS.items() if kind.modelled),
]


@pytest.mark.parametrize(("name", "requests"), SHORT_AND_LONG)
def test_what_the_lowest_reader_asks_for_nothing_changes_nothing_for_others(name: str, requests: int) -> None:
    """Levels, prices, rows, refusals; in a window, rows may join that its paid thresholds have shown to anyone."""
    require_that_free_requests_change_nothing(name, requests)


def test_what_the_lowest_reader_asks_by_target_changes_nothing_for_others() -> None:
    require_that_free_requests_change_nothing("public sum", 30, by_target=True)


def ignore_pins(patch: pytest.MonkeyPatch) -> None:
    """Every question is served anew."""
    patch.setattr(ReleaseHistory, "pins", lambda *_: ())


def show_own_threshold_alone(patch: pytest.MonkeyPatch) -> None:
    """A point that gets a threshold shows what this one has shown, and no others."""
    whole, pins = servings_module._Cascade._keys_with, ReleaseHistory.pins

    def own_keys(cascade: servings_module._Cascade, own: KeySelection) -> tuple[KeySelection, ...]:
        return tuple(keys for keys in whole(cascade, own) if keys.rho_nano == own.rho_nano)

    def cut_pins(*arguments: Any) -> tuple[Pin, ...]:
        return tuple(dataclasses.replace(pin, has_threshold=True) for pin in pins(*arguments))

    patch.setattr(servings_module._Cascade, "_keys_with", own_keys)
    patch.setattr(ReleaseHistory, "pins", cut_pins)


def serve_free_points(patch: pytest.MonkeyPatch) -> None:
    """What nobody paid for counts as what was drawn."""
    patch.setattr(servings_module._Cascade, "_lasts", lambda *_: True)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (ignore_pins, lambda: run_history(0, 40, names=("sum",))),
        (show_own_threshold_alone, lambda: run_history(0, 40, names=("count",))),
        (serve_free_points, lambda: require_that_free_requests_change_nothing("sum", 40)),
    ],
)
def test_a_planted_fault_is_found(
    fault: Callable[[pytest.MonkeyPatch], None], check: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check()
