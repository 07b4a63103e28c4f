"""Child of `benchmarks.same_answers`: ask the sessions of a plan, and write what each question led to.

    python -P benchmarks/same_session.py TREE PLAN OUTCOMES

It runs with the dpsql of either tree, so it may use nothing of dpsql that one of them lacks.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import logging
import os
import random
import re
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Philox

import dpsql
from dpsql.engine import DuckDBEngine

Outcome = dict[str, str]
"""Text of each thing that a question led to."""
_MASKS = (
    (re.compile(r"20(2[5-9]|[3-9]\d)-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d(:?\d\d)?|Z)?"), "(time)"),
    (re.compile(r"\b0x[0-9a-f]+"), "(address)"),
)
_SALT_BYTES = 16


class PlantedRandomness:
    """The system's generators in a form that repeats, and fails where a crash is planted; so does a reading of rows.

    Salts, noise and the module `secrets`, which DuckDB uses for names, have a stream each: one that is read more often
    does not move another.
    """

    def __init__(self) -> None:
        self.begin(0, "")

    def begin(self, seed: int, crash: str) -> None:
        """Begin a question: words depend on its seed alone."""
        self._words: dict[tuple[str, bool], Philox] = {}
        self._seed, self.crash = seed, crash

    def _crash(self, place: str, error: Exception) -> None:
        if self.crash == place:
            self.crash = f"{place} failed"
            raise error

    def _bytes(self, door: str, size: int) -> bytes:
        name = door, size == _SALT_BYTES
        words = self._words.setdefault(name, Philox([self._seed, *door.encode(), size == _SALT_BYTES]))
        return bytes(np.asarray(words.random_raw(-(-size // 8)), dtype=np.uint64).tobytes()[:size])

    def urandom(self, size: int) -> bytes:
        """Return the next bytes; a planted crash spares salts."""
        if size != _SALT_BYTES:
            self._crash("noise", OSError("planted"))
        return self._bytes("system", size)

    def secrets(self, size: int) -> bytes:
        """Return the next bytes of the module `secrets`."""
        return self._bytes("secrets", size)

    def failing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of the engine that fails first where a crash is planted."""

        def read(*arguments: Any, **named: Any) -> Any:
            self._crash("reading", dpsql.EngineError("planted"))
            return method(*arguments, **named)

        return read


def plain(value: object) -> object:
    """Return a value as JSON: records by the names of their fields, but for a receipt's "amount" if it is rho."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        # older trees have receipts without the field; records leave the default out, too
        return {name: plain(one) for name, one in named.items() if (name, one) != ("amount", "rho")}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(one) for one in value), key=str)
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return f"{len(value)} bytes {hashlib.sha256(value).hexdigest()[:16]}"
    if isinstance(value, float):
        # the last digit of a sum may follow from the order of its parts
        return f"{value:.15g}"
    return value if isinstance(value, str | bool | None) else repr(value)


def lines(value: object, indent: int | None = 1) -> str:
    """Return a value as JSON, on lines of its own if they are indented."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=False)


def of_result(result: dpsql.Result) -> Outcome:
    """Return the answer: its columns, rows, receipt, and the printed texts."""
    table = result.arrow()
    told = {"columns": str(table.schema), "rows": "\n".join(lines(row, None) for row in table.to_pylist())}
    if not any("timestamp" in str(field.type) for field in table.schema):
        told["printed"] = str(result)
    if result.receipt is not None:
        told |= {"receipt": lines(result.receipt), "printed receipt": str(result.receipt), "html": result._repr_html_()}
    return told


def outcome(session: dpsql.Session, text: str, reader: str) -> Outcome:
    """Ask one question and return what it led to."""
    try:
        if reader == "database":
            session.connection.execute(text)
            return {}
        return of_result((session if reader == "curator" else session.as_analyst(reader)).sql(text))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "facts": lines(vars(error))}


def of_state(path: Path) -> Outcome:
    """Return each table of a state file, without the file's own random name."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as file:
        names = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        told = {}
        for name in names:
            cursor = file.execute(f'SELECT rowid, * FROM "{name}" ORDER BY rowid')
            fields = [column[0] for column in cursor.description]
            rows = [
                {field: one for field, one in zip(fields, row, strict=True) if field != "state_id"} for row in cursor
            ]
            told[f"state: {name}"] = "\n".join(lines(row, None) for row in rows)
    return told


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect what dpsql logs."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(f"{record.name}: {record.getMessage()}")  # type: ignore[method-assign]
    for name in ("dpsql", "dpsql.curator"):
        logging.getLogger(name).propagate = False
        logging.getLogger(name).handlers = [handler]
    yield said


def asked(trial: Mapping[str, Any], number: int, planted: PlantedRandomness, folder: Path) -> list[Outcome]:
    """Return the outcomes of a session, and last its state file."""
    path = folder / f"trial_{number}.duckdb"
    planted.begin(number, "")
    found: list[Outcome] = []
    with dpsql.connect(path, threads=1, allow_unsigned_extensions=True) as session, logged() as said:
        for text in trial["rows"]:
            session.connection.execute(text)
        for text in trial["policy"]:
            session.sql(text)
        for place, one in enumerate(trial["questions"]):
            said.clear()
            planted.begin(1_000_003 * (number + 1) + place, one["crash"])
            told = outcome(session, one["text"], one["reader"])
            found.append(told | {"log": "\n".join(said), "crash": planted.crash})
    planted.begin(0, "")
    return [*found, of_state(Path(f"{path}.dpsql"))]


def masked(told: Outcome, folder: Path) -> Outcome:
    """Return an outcome without moments, addresses and the folder."""
    found = {}
    for name, text in told.items():
        shown = text.replace(str(folder), "(folder)")
        for pattern, mask in _MASKS:
            shown = pattern.sub(mask, shown)
        found[name] = shown
    return found


def main(tree: str, plan: str, written: str) -> None:
    """Ask all sessions of a plan, and write the outcomes."""
    assert Path(dpsql.__file__).is_relative_to(tree), f"{dpsql.__file__} is not in {tree}"
    planted = PlantedRandomness()
    os.urandom = planted.urandom
    random._urandom = planted.secrets  # type: ignore[attr-defined]
    for name in ("exact", "stream", "transaction"):
        setattr(DuckDBEngine, name, planted.failing(getattr(DuckDBEngine, name)))
    trials = json.loads(Path(plan).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        found = [[masked(one, folder) for one in asked(trial, trial["number"], planted, folder)] for trial in trials]
    Path(written).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
