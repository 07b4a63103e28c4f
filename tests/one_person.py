"""Pairs of databases, with and without one person of many rows, and what a text comes to on both: outcome and time.

The person's rows are nasty in one of several ways, and lie among all others, so that each part of a table that the
engine works on at a time has some.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb

import dpsql
from dpsql.bound.statement import Bounded
from dpsql.engine import DuckDBEngine
from dpsql.errors import DpsqlError, ReleaseError
from dpsql.model.private_query import PrivateQuery
from dpsql.noise.entropy import NoiseSource, SystemEntropy
from dpsql.release import exact
from dpsql.release.exact import Reading, public_key_table
from dpsql.release.runtime import Runtime
from dpsql.session.analyst import Analyst
from dpsql.session.runner import StatementRunner
from dpsql.session.session import LazyState
from dpsql.sql.statements import SelectStatement, read_statement
from tests.hostile_texts import PERSON, Text

_ID = 90_000_000
_SALT = bytes(range(16))

_LONG = "repeat('Ms Canary zz a', 100)"
PERSONS: Mapping[str, Mapping[str, str]] = {
    "equal": {},
    "distinct": {
        "name": "'name ' || i", "note": "'note ' || i", "code": "'code ' || i", "ward": "i + 1000", "n": "i * 13",
        "small": "i % 127", "big": "i * 12345678901234567890123", "cost": "i * 1.7 + 0.1", "fee": "i * 3.01",
        "day": "DATE '2031-01-01' + i::INTEGER", "days": "i * 17", "amount": "i * 19", "label": "'label ' || i",
    },
    "long": {
        "name": f"{_LONG} || i", "note": f"{_LONG} || i", "code": f"{_LONG} || (i % 3)", "label": f"{_LONG} || i",
    },
    "extreme": {
        "name": "chr(1114111) || 'é'", "note": "'99999999999999999999'", "code": "'1e999'", "label": "'x''\\%_'",
        "ward": "CASE WHEN i % 2 = 0 THEN -2147483648 ELSE 2147483647 END",
        "n": "CASE WHEN i % 2 = 0 THEN 0 ELSE -2147483648 END", "small": "-128",
        "big": "CASE WHEN i % 2 = 0 THEN -170141183460469231731687303715884105727 ELSE "
        "170141183460469231731687303715884105727 END",
        "cost": "CASE i % 4 WHEN 0 THEN 'nan'::DOUBLE WHEN 1 THEN '-inf'::DOUBLE WHEN 2 THEN 1e308 ELSE -0.0 END",
        "fee": "CASE WHEN i % 2 = 0 THEN -9999999999999999.99 ELSE 9999999999999999.99 END",
        "day": "CASE WHEN i % 2 = 0 THEN '5881580-07-10'::DATE ELSE '5877642-06-25 (BC)'::DATE END",
        "seen": "CASE WHEN i % 2 = 0 THEN '294247-01-10 04:00:54'::TIMESTAMP ELSE '290309-12-22 (BC)'::TIMESTAMP END",
        "days": "-2147483648", "amount": "2147483647",
    },
    "missing": dict.fromkeys(
        ("name", "note", "code", "ward", "n", "small", "big", "cost", "fee", "day", "seen", "days", "amount", "label"),
        "NULL",
    ),
}  # fmt: skip
"""What the columns of the one person's rows are where they are not all equal; i counts the rows."""

_TABLES: Mapping[str, Mapping[str, tuple[str, str, str]]] = {
    "visits": {
        "pid": ("BIGINT", "i % {units}", f"{_ID}"),
        "id": ("BIGINT PRIMARY KEY", "i", f"{_ID} + i"),
        "name": ("VARCHAR", "'name ' || i % 700", f"'{PERSON}'"),
        "note": ("VARCHAR", "'some note ' || i % 9000", f"'{PERSON} was here'"),
        "code": ("VARCHAR", "'c' || i % 80", "'c7'"),
        "ward": ("INTEGER", "i % 60", "7"),
        "n": ("INTEGER", "i % 50", "77"),
        "small": ("TINYINT", "i % 9", "5"),
        "big": ("HUGEINT", "i % 40", "77"),
        "cost": ("DOUBLE", "i % 99 + 0.5", "77"),
        "fee": ("DECIMAL(18, 2)", "i % 40", "77"),
        "day": ("DATE", "DATE '2026-01-01' + (i % 300)::INTEGER", "DATE '2031-01-01'"),
        "seen": ("TIMESTAMP", "TIMESTAMP '2026-01-01' + INTERVAL (i % 5000) MINUTE", "TIMESTAMP '2031-01-01'"),
    },
    "stays": {
        "pid": ("BIGINT", "i * 7 % {units}", f"{_ID}"),
        "ward": ("INTEGER", "i % 60", "7"),
        "code": ("VARCHAR", "'c' || i % 80", "'c7'"),
        "days": ("INTEGER", "i % 30", "77"),
        "began": ("DATE", "DATE '2026-01-01' + (i % 300)::INTEGER", "DATE '2031-01-01'"),
        "note": ("VARCHAR", "'some note ' || i % 9000", f"'{PERSON}'"),
    },
    "items": {
        "visit": ("BIGINT", "i * 11 % {rows}", f"{_ID} + i // 500"),
        "code": ("VARCHAR", "'c' || i % 80", "'c7'"),
        "amount": ("INTEGER", "i % 20", "77"),
        "label": ("VARCHAR", "'label ' || i % 100", f"'{PERSON}'"),
    },
}
_ALIKE = {"began": "day", "seen": "seen"}

_PUBLIC = """
CREATE TABLE wards AS SELECT (i % 60)::INTEGER AS ward, 'ward ' || i AS title, 'region ' || i % 3 AS region
    FROM range(90) t(i);
CREATE TABLE codes AS SELECT 'c' || i % 80 AS code, 'kind ' || i % 9 AS kind, i % 30 AS weight
    FROM range(240) t(i) UNION ALL SELECT 'c7', 'kind', i FROM range(20) t(i);
CREATE TABLE regions AS SELECT 'region ' || i % 3 AS region, i AS place FROM range(6) t(i);
"""
_DECLARED = (
    "CALL dp_unit('person', rho_budget := 1000, delta_threshold := 0.5, delta_conversion := 1e-6)",
    "CALL dp_protect('visits', coverage := FALSE, "
    "unit := 'person', privacy_unit_column := 'pid', max_groups_contributed := 3, "
    "max_rows_per_group := 4)",
    "CALL dp_protect('stays', coverage := FALSE, "
    "unit := 'person', privacy_unit_column := 'pid', max_groups_contributed := 3, "
    "max_rows_per_group := 4)",
    "CALL dp_link('items', 'visit', coverage := FALSE, "
    "parent := 'visits.id', max_groups_contributed := 3, max_rows_per_group := 4)",
    "CALL dp_public('wards')",
    "CALL dp_public('codes')",
    "CALL dp_public('regions')",
    "CALL dp_analyst('ana')",
)


@dataclass(frozen=True)
class Size:
    """Rows of each table, units that they belong to, and rows of the one person."""

    rows: int
    units: int
    of_the_person: int


@dataclass(frozen=True)
class Measured:
    """What a text came to on one database.

    Attributes:
        outcome: ``answer``, or type and words of the error.
        seconds: processor time of the engine, which reads the rows.

    """

    outcome: str
    seconds: float

    @property
    def is_answer(self) -> bool:
        return self.outcome == "answer"


class Side:
    """One database; each text is asked of a state that holds nothing yet."""

    def __init__(self, session: dpsql.Session, timeout_seconds: float) -> None:
        self.session = session
        self._timeout_seconds = timeout_seconds
        self._engine = _Clock(session.connection)
        self._runner = StatementRunner(session._access, self._engine)

    def ask(self, text: Text) -> Measured:
        """Ask as an analyst does: plan, charge, read, draw, store, show."""
        copied = self.session._access.copied()
        self._runner.access = copied
        try:
            return self._measured(
                lambda: Analyst(self._runner, "ana").sql(
                    text.sql, None, timeout_seconds=self._timeout_seconds, **text.options
                )
            )
        finally:
            self._runner.access = self.session._access
            copied.close()

    def plan(self, text: Text) -> PrivateQuery | str:
        """How a text is answered, which the tests of data independence hold to be the same for both; or the refusal."""
        statement = read_statement(text.sql)
        assert isinstance(statement, SelectStatement)
        try:
            return self._runner.plan(statement, text.options, "ana")[0]
        except DpsqlError as error:
            return f"{type(error).__name__}: {error}"

    def read(self, query: PrivateQuery) -> Measured:
        """The query of an answer that meets rows, for a plan that is there."""
        runtime = Runtime(self.session._access.read(), self._engine, self._runner.sandbox, NoiseSource(SystemEntropy()))

        def run() -> None:
            for part in query.parts:
                # as `prepare_reading` makes it for what nobody asked yet, without binding the text once more
                listed = public_key_table(part.frame, runtime)
                named = {"timeout_seconds": self._timeout_seconds}
                if part.frame.bounding.sparsity is not None and part.frame.bounding.sparsity.kind == "sketch":
                    bounded = Bounded(part.frame, part.statistics, kind="shards")
                    for _ in self._engine.stream(bounded, _SALT, **named):
                        pass
                else:
                    reading = Reading(Bounded(part.frame, part.statistics), part.statistics, listed, listed)
                    exact._aggregate(reading, _SALT, runtime, self._timeout_seconds)

        return self._measured(run)

    def _measured(self, work: Callable[[], object]) -> Measured:
        self._engine.restart()
        try:
            work()
            outcome = "answer"
        except ReleaseError as error:
            # of AUTO: the histogram that it was told is a release, and what it shows is an answer
            outcome = "answer" if str(error).startswith("AUTO found") else f"ReleaseError: {error}"
        except DpsqlError as error:
            outcome = f"{type(error).__name__}: {error}"
        return Measured(outcome, self._engine.seconds)

    def close(self) -> None:
        self._runner.sandbox.close()
        self.session.close()


class _Clock(DuckDBEngine):
    """An engine that adds up the processor time of what reads rows, its copies for single questions included."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        super().__init__(connection)
        self._times: list[float] = []

    @property
    def seconds(self) -> float:
        return sum(self._times)

    def restart(self) -> None:
        self._times.clear()

    def _run(self, *of: Any, **named: Any) -> Any:
        with self._timed():
            return super()._run(*of, **named)

    def pieces(self, sql: str, **named: Any) -> Any:
        with self._timed():
            pieces = list(super().pieces(sql, **named))
        yield from pieces

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.thread_time()
        try:
            yield
        finally:
            self._times.append(time.thread_time() - began)


def _create_tables(session: dpsql.Session) -> None:
    for table, columns in _TABLES.items():
        session.connection.execute(
            f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, (kind, _, _) in columns.items())})"
        )
    session.connection.execute(_PUBLIC)


@functools.cache
def _declared() -> LazyState:
    """Return a state in which all tables are declared."""
    session = dpsql.connect()
    _create_tables(session)
    for statement in _DECLARED:
        session.sql(statement)
    return session._access


def opened(size: Size, person: str | None, *, timeout_seconds: float) -> Side:
    """A database with the person of this kind, or without one."""
    # one thread, so that processor time is this thread's; and little memory, the same for all
    session = dpsql.connect(threads=1, memory_limit="1GB")
    _create_tables(session)
    for table, columns in _TABLES.items():
        plain = ", ".join(
            f"{sql.format(rows=size.rows, units=size.units)} AS {name}" for name, (_, sql, _) in columns.items()
        )
        # in no order, by a number that is a row's own
        parts = [f"SELECT hash(i) AS place, {plain} FROM range({size.rows}) t(i)"]
        if person is not None:
            nasty = PERSONS[person]
            own = ", ".join(
                f"CAST({nasty.get(_ALIKE.get(name, name), sql)} AS {kind.split(' PRIM')[0]}) AS {name}"
                for name, (kind, _, sql) in columns.items()
            )
            parts.append(f"SELECT hash(i + {_ID}) AS place, {own} FROM range({size.of_the_person}) t(i)")
        session.connection.execute(
            f"INSERT INTO {table} SELECT * EXCLUDE place FROM ({' UNION ALL '.join(parts)}) ORDER BY place"
        )
    session._access = session._runner.access = _declared().copied()
    return Side(session, timeout_seconds)
