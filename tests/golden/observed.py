"""What is asked of dpsql while a test runs, with what came of it, as values that a file can hold.

It stands on what users and their files see: `Session.sql`, `Analyst.sql`, `Session.rehearse`, receipts, messages,
`dp_explain`, `dp_describe`, `dp_cascade`, and the tables of the state file. It reaches into nothing else.

Left out, because it follows noise, the clock or the data:

- of an answer with AUTO all but its plan and the first thing that it draws, and what is asked of the same session
  afterwards: the noise of a histogram chooses the frame, and the next answers share statistics with it or do not; where
  AUTO is not asked for, and chooses because nothing else bounds, the whole answer;
- of a text that asks for the clock, every hash: today's date is one of its constants;
- of an answer with other_group, and of keys alone, the hashes of points: the frame of that row, or of later rounds,
  holds a digest of the keys that are shown;
- everywhere salts, values, floors, moments, and numbers of private keys.
"""

from __future__ import annotations

import dataclasses
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary, WeakSet

import dpsql

Entry = dict[str, Any]
"""One statement: ``asked``, ``params``, ``options``, ``reader``; and ``refused``, ``explained`` or ``receipt``."""

_AUTO = re.compile(r"\bauto\b", re.IGNORECASE)
_CLOCK = re.compile(r"\b(current_date|current_timestamp|now\(\)|today\(\))", re.IGNORECASE)
_OTHER_GROUP = re.compile(r"\bother_group\b", re.IGNORECASE)
_EXPLAINS = re.compile(r"\bdp_(explain|describe)\s*\(", re.IGNORECASE)
_IS_OPEN = " | AUTO: "
_HASH = re.compile(r"\b[0-9a-f]{64}\b")
_AMOUNTS = ("rho", "sigma", "correlation", "tau", "threshold_delta")

_ask = dpsql.Session.sql
"""The method itself, which nothing watches."""


def asks_auto(text: str, options: Mapping[str, object]) -> bool:
    """Whether AUTO is asked for."""
    return _AUTO.search(f"{text} {list(options.values())}") is not None


def auto_chose(receipt: dpsql.Receipt) -> bool:
    """Whether AUTO chose something, asked for or because nothing else bounds it."""
    return any(note.startswith("AUTO ") for note in receipt.notes)


@contextmanager
def observed() -> Iterator[list[Entry]]:
    """Every private answer, plan and refusal of this process from here on, in the order of the questions."""
    seen: list[Entry] = []
    owners: WeakKeyDictionary[dpsql.Analyst, dpsql.Session] = WeakKeyDictionary()
    chosen: WeakSet[dpsql.Session] = WeakSet()
    analyst_sql, as_analyst = dpsql.Analyst.sql, dpsql.Session.as_analyst

    def asked_of_session(self: dpsql.Session, text: str, params: Any = None, **options: Any) -> dpsql.Result:
        watched = _Watched(self, "", text, params, options)
        return watched.asked(seen, chosen, lambda: _ask(self, text, params, **options))

    def asked_of_analyst(self: dpsql.Analyst, text: str, params: Any = None, **options: Any) -> dpsql.Result:
        watched = _Watched(owners.get(self), self.name, text, params, options)
        return watched.asked(seen, chosen, lambda: analyst_sql(self, text, params, **options))

    def handle(self: dpsql.Session, name: str) -> dpsql.Analyst:
        analyst = as_analyst(self, name)
        owners[analyst] = self
        return analyst

    with (
        mock.patch.object(dpsql.Session, "sql", asked_of_session),
        mock.patch.object(dpsql.Analyst, "sql", asked_of_analyst),
        mock.patch.object(dpsql.Session, "as_analyst", handle),
    ):
        yield seen


@dataclasses.dataclass(frozen=True)
class _Watched:
    """One statement; ``session`` is None for the handle of an analyst that was there before anybody watched."""

    session: dpsql.Session | None
    reader: str
    text: str
    params: Any
    options: Mapping[str, Any]

    def asked(self, seen: list[Entry], chosen: WeakSet[dpsql.Session], ask: Callable[[], dpsql.Result]) -> dpsql.Result:
        """Ask, and note what comes of it; ``chosen`` are the sessions in which AUTO has chosen."""
        entry: Entry = {"asked": self.text}
        entry |= {"params": self.params} if self.params is not None else {}
        entry |= {"options": self.options} if self.options else {}
        entry |= {"reader": self.reader} if self.reader else {}
        named = len(entry)
        has_auto = asks_auto(self.text, self.options)
        if has_auto and self.session is not None and self.params is None:
            entry |= _plan(self.session, self.text, self.options)
        try:
            result = ask()
        except dpsql.DpsqlError as error:
            if not (has_auto and isinstance(error, dpsql.ReleaseError)):
                entry |= {"refused": type(error).__name__, "says": str(error).splitlines()}
            seen.append(without_clock(entry))
            raise
        if self.session is not None and result.receipt is not None and (has_auto or auto_chose(result.receipt)):
            chosen.add(self.session)
        if self.session not in chosen:
            entry |= self._outcome(result)
        if len(entry) > named:
            seen.append(without_clock(entry))
        return result

    def _outcome(self, result: dpsql.Result) -> Entry:
        if _EXPLAINS.search(self.text):
            return {"explained": _rows(result)}
        if result.receipt is None or self.session is None:
            return {}
        points = _points(self.session, result.receipt.query_hash)
        in_rounds = any(one.keys == ("round 1",) for one in result.receipt.sets)
        if in_rounds or _OTHER_GROUP.search(f"{self.text} {list(self.options)}"):
            points = _without_hashes(points)
        return _priced(result.receipt) | {"points": points}


def _plan(session: dpsql.Session, text: str, options: Mapping[str, Any]) -> Entry:
    try:
        rows = _rows(session.rehearse([], text, **options).plan)
    except dpsql.DpsqlError:
        # no SELECT, or refused as the question itself will be
        return {}
    # where it is chosen already, noise has chosen
    return {"explained": rows} if any(_IS_OPEN in row for row in rows) else {}


def _rows(result: dpsql.Result) -> list[str]:
    return [" | ".join(map(str, row)) for row in result]


def _priced(receipt: dpsql.Receipt) -> Entry:
    """The receipt field by field, and as it is printed."""
    fields = _plain(dataclasses.asdict(receipt))
    columns, sets = fields.pop("columns"), fields.pop("sets")
    # as printed, the notes stand below the numbers
    fields.pop("notes")
    for one in sets:
        one["receipt"].pop("notes")
    # what bounds leave is a noisy number; that it is said of which numbers is not
    for told in (fields, *(one["receipt"] for one in sets)):
        coverage = [one["of"] for one in told.pop("coverage")]
        if coverage:
            told["coverage"] = coverage
    entry: Entry = {"receipt": fields, "columns": columns}
    entry |= {"sets": sets} if sets else {}
    return entry | {"printed": [line for line in str(receipt).splitlines() if not line.startswith("kept ")]}


def _points(session: dpsql.Session, query_hash: str) -> list[str]:
    """The stored points of a query's statistics, without the number of their keys."""
    table = _ask(session, f"FROM dp_cascade('{query_hash}')").arrow().to_pylist()
    lines = []
    for row in table:
        amounts = [f"{name}={row[name]:.12g}" for name in _AMOUNTS if row[name]]
        lines.append(" ".join([row["statistic"], *amounts]))
    return sorted(lines)


def stored(path: Path) -> Entry:
    """Frames and charges of a state file, in the order in which they were written; amounts as the file counts them."""
    with closing(sqlite3.connect(path)) as connection:
        frames = connection.execute(
            "SELECT frame_hash, unit, tables, base_hash, generation FROM frame ORDER BY rowid"
        ).fetchall()
        charges = connection.execute(
            "SELECT statistic_hash, unit, rho_nano, delta_units FROM charge ORDER BY id"
        ).fetchall()
    return {
        "frames": [
            f"{name} {unit} {tables}" + (f" generation {generation} of {base}" if generation else "")
            for name, unit, tables, base, generation in frames
        ],
        "charges": [f"{name} {unit} rho={rho} delta={int(delta) / 2**100:.12g}" for name, unit, rho, delta in charges],
    }


def without_clock(entry: Entry) -> Entry:
    """The entry of a text that asks for the clock, without what today's date is part of."""
    if not _CLOCK.search(entry["asked"]):
        return entry
    return {name: _without_hashes(value) for name, value in entry.items()}


def _without_hashes(value: Any) -> Any:
    if isinstance(value, str):
        return _HASH.sub("(left out)", value)
    if isinstance(value, list):
        left = [_without_hashes(one) for one in value]
        # what was sorted by a hash is sorted by what is left
        return left if left == value else sorted(left, key=str)
    if isinstance(value, dict):
        return {name: _without_hashes(one) for name, one in value.items()}
    return value


def _plain(value: Any) -> Any:
    """Numbers to twelve digits: the last ones are the machine's."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value
