"""The first day of a new curator and analyst, as a transcript: what they write, and what they are told.

A line of ``first_day.txt`` begins with the person or the program, as in ``ana> SELECT max(cost) FROM visits``. Below it
stand the messages (``!``) of what was refused, without places. Each cure that is a whole text is pasted: ``+`` is a
text that is answered then, and ``-`` one that is refused once more. Nothing stands below what is answered.

``python -m tests.end_to_end.first_day`` writes what comes out now into the file; review it before you keep it.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dpsql
from dpsql.errors import DpsqlError, QueryError, Span, UnsupportedQueryError
from dpsql.frontends.cli import main
from tests.cures import Cure, NotACureError, Question, cures_of, mended
from tests.noise_sources import silence

FILE = Path(__file__).with_name("first_day.txt")
TABLES = """
CREATE TABLE patients AS
SELECT i AS patient_id, ['f', 'm'][1 + i % 2] AS sex, 'city' || i % 5 AS city, 1940 + i % 60 AS birth_year
FROM range(1000) t(i);
CREATE TABLE visits AS
SELECT i AS visit_id, i % 1000 AS patient_id, 'ward' || i % 7 AS ward, DATE '2026-01-01' + (i % 90)::INTEGER AS day,
       (i % 90)::DOUBLE AS cost, i % 30 AS minutes, i % 3 = 0 AS urgent
FROM range(6000) t(i);
CREATE TABLE meals AS SELECT i AS visit_id, 'soup' AS dish FROM range(6000) t(i);
"""
CONTROL = "SELECT ward, count(*) AS visits, sum(cost) AS cost, avg(minutes) AS minutes FROM visits GROUP BY ward"
"""A question of somebody else. No cure may change its answer."""
_MEANT = re.compile(r"Did you mean (\S+)(?: or \S+)?\?")
_PLACE = re.compile(r"^line \d+, column \d+: ")


@dataclass
class Day:
    """One day: the session, the data frame and what was written down.

    Attributes:
        session: of the curator, without noise.
        names: of the data frame and its unit.
        lines: of the transcript.
        mistakes: how many texts were refused.
        controls: answers of the control question, one after each cure that was pasted.
        marked: why each cure with a blank is refused if it is pasted as it stands.

    """

    session: dpsql.Session
    names: dict[str, Any]
    lines: list[str] = field(default_factory=list)
    mistakes: int = 0
    controls: list[list[tuple[Any, ...]]] = field(default_factory=list)
    marked: list[DpsqlError | str] = field(default_factory=list)

    def ask(self, who: str, text: str) -> None:
        """Write down what somebody writes, what they are told, and what comes of the cures."""
        self.lines.append(f"{who}> {text}")
        if error := self._error(who, text):
            self.mistakes += 1
            self.lines += (f"  ! {told}" for told in _messages(error))
            in_sql = who not in ("pandas", "$")
            for other, is_whole in dict(_pasted(text, error)).items() if in_sql else ():
                refused = self._error(who, other)
                if is_whole:
                    self.lines.append(f"  {'-' if refused else '+'} {other}")
                    self.ask_control()
                else:
                    self.marked.append(refused)

    def _error(self, who: str, text: str) -> DpsqlError | str:
        """Return why something is refused; an empty text if it is answered."""
        try:
            match who:
                case "pandas":
                    eval(text, dict(self.names))  # noqa: S307 — the transcript is ours
                case "$":
                    return _error_of_command(text)
                case "curator":
                    self.session.sql(text)
                case _:
                    self.session.as_analyst(who).sql(text)
        except DpsqlError as error:
            return error
        return ""

    def ask_control(self) -> None:
        """Note the answer of the control question."""
        # before the table is protected there is nothing to ask
        with contextlib.suppress(dpsql.SchemaError):
            self.controls.append(sorted(self.session.sql(CONTROL, rho=0.5).fetchall()))


def _error_of_command(text: str) -> str:
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(text.removeprefix("dpsql ").split(" ", 2))
        except SystemExit as left:
            code = int(left.code or 0)
    # the lines above are as long as the terminal is wide
    return told.getvalue().strip().splitlines()[-1] if code else ""


def _messages(error: DpsqlError | str) -> list[str]:
    if isinstance(error, UnsupportedQueryError):
        return [f"[{one.code}] {one.message} {one.hint}" for one in error.refusals]
    return [f"{type(error).__name__}: {_PLACE.sub('', str(error))}"] if isinstance(error, DpsqlError) else [error]


def _pasted(text: str, error: DpsqlError | str) -> Iterator[tuple[str, bool]]:
    """Yield the text with each of the cures of an error, and whether the cure has no blank."""
    found: list[tuple[str, Span | None]] = []
    if isinstance(error, UnsupportedQueryError):
        found = [(one.hint, one.span) for one in error.refusals]
    elif isinstance(error, QueryError):
        found = [(getattr(error, "hint", ""), getattr(error, "span", None))]
    for hint, span in found:
        if (meant := _MEANT.search(hint)) and span:
            yield text[: span.start] + re.sub(r"\w+", meant[1], text[span.start :], count=1), True
        for cure in _cures(hint):
            question = mended(Question(text), cure, span)
            yield question.declarations[0] if question.declarations else question.text, cure.is_whole


def _cures(hint: str) -> list[Cure]:
    try:
        return list(cures_of(hint))
    except NotACureError:
        # this hint says where to write something
        return []


@contextlib.contextmanager
def begun() -> Iterator[Day]:
    """Open the session of a day, with a data frame of the same rows."""
    with dpsql.connect(threads=1) as session:
        silence(session)
        session.connection.execute(TABLES)
        rows = np.arange(6000)
        frame = pd.DataFrame({"patient": rows % 1000, "ward": (rows % 7).astype(str), "cost": rows % 90.0})
        unit = dpsql.unit("patient of the first day", column="patient", epsilon_budget=100_000, delta_budget=0.01)
        yield Day(session, {"visits": frame, "unit": unit, "dpsql": dpsql})


def played(transcript: str) -> Day:
    """Return the day on which the texts of a transcript are asked, in order."""
    with begun() as day:
        for line in transcript.splitlines():
            if found := re.match(r"(\w+|\$)> (.*)", line):
                day.ask(found[1], found[2])
            elif not line.startswith("  "):
                day.lines.append(line)
        return day


if __name__ == "__main__":
    FILE.write_text("\n".join(played(FILE.read_text()).lines) + "\n")
