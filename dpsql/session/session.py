"""Session: the one door. The curator's own, and handles for analysts that lead to private answers alone."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import duckdb

from dpsql.assets import native_library
from dpsql.engine import DuckDBEngine, Sandbox
from dpsql.errors import AccessError, DpsqlError, EngineError, ParseError, PolicyError
from dpsql.mechanisms.entropy import Entropy, SystemEntropy
from dpsql.query.plan import plan_query
from dpsql.query.private_query import PrivateQuery
from dpsql.query.statements import DECLARATIONS, FunctionCall, Scalar, SelectStatement, read_statement
from dpsql.session.answer import answer
from dpsql.session.auto import draw, is_open, settled, told_bounds
from dpsql.session.books import (
    budget_table,
    cascade_table,
    explain_table,
    policy_table,
    releases_table,
)
from dpsql.session.declare import declare, options_of
from dpsql.session.exact import Rooms
from dpsql.session.policy_view import environment
from dpsql.session.reader import CURATOR, Reader
from dpsql.session.result import Result
from dpsql.state import State

logger = logging.getLogger("dpsql")

Parameters = Sequence[Scalar] | Mapping[str, Scalar] | None
_FOR_ANALYSTS = ("dp_query", "dp_explain", "dp_budget", "dp_releases")
_ARGUMENTS = {"dp_cascade": "one query hash"}


@functools.cache
def _say_that_the_budget_ends() -> None:
    logger.warning("the budget of a database in memory ends with this process; name a state= file to keep it")


class _Books:
    """The state behind a session: opened when it exists, created by the first declaration.

    A missing state file means that nothing is protected, so nothing can be queried.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._state: State | None = None
        self._nothing: State | None = None

    def read(self) -> State:
        """The state for reading; an empty one in memory where no file exists yet."""
        with self._lock:
            if self._state is None and (self._path is None or not self._path.exists()):
                self._nothing = self._nothing or State.open(None, create=True)
                return self._nothing
            return self._open()

    def write(self) -> State:
        """The state for declarations; creates the file."""
        with self._lock:
            return self._open()

    def _open(self) -> State:
        if self._state is None:
            self._state = State.open(self._path, create=True)
            if self._path is None:
                _say_that_the_budget_ends()
        return self._state

    def close(self) -> None:
        with self._lock:
            for state in (self._state, self._nothing):
                if state is not None:
                    state.close()
            self._state = self._nothing = None


class _Desk:
    """What curator and analysts share: reading statements, planning, answering."""

    def __init__(self, books: _Books, engine: DuckDBEngine, entropy: Entropy) -> None:
        self.books = books
        self.engine = engine
        self.sandbox = Sandbox()
        self.entropy = entropy

    def plan(
        self, statement: SelectStatement, options: Mapping[str, object], reader: str
    ) -> tuple[PrivateQuery, State, Reader]:
        state = self.books.read()
        policy = state.policy()
        cleared = Reader.of(reader, policy)
        outside = environment(policy, self.engine, self.sandbox, cleared)
        query = plan_query(statement, outside, options)
        if query.auto_bounds:
            query = plan_query(statement, outside, options, told_bounds(query, state, cleared))
        return settled(query, state, cleared), state, cleared

    def answer(
        self,
        statement: SelectStatement,
        options: Mapping[str, object],
        reader: str,
        timeout_seconds: float | None,
    ) -> Result:
        query, state, cleared = self.plan(statement, options, reader)
        logger.info("private query %s for %s", query.query_hash[:12], reader)
        rooms = Rooms(state, self.engine, self.sandbox, self.entropy)
        told = draw(query, rooms, cleared, timeout_seconds)
        if is_open(query):
            query, _, _ = self.plan(statement, options, reader)
        return answer(query, rooms, reader=cleared, timeout_seconds=timeout_seconds, told=told)

    def run(
        self,
        text: str,
        parameters: Parameters,
        options: Mapping[str, object],
        *,
        reader: str,
        timeout_seconds: float | None,
    ) -> Result:
        """Run one statement for a reader; what only a curator may do is refused for anyone else."""
        if timeout_seconds is not None and not (isinstance(timeout_seconds, int | float) and timeout_seconds > 0):
            raise PolicyError("timeout_seconds takes a positive number")
        statement = read_statement(text, parameters)
        if isinstance(statement, SelectStatement):
            return self.answer(statement, options, reader, timeout_seconds)
        if options:
            raise ParseError(f"options go inside {statement.name}(…)", statement.span)
        if reader != CURATOR and statement.name not in _FOR_ANALYSTS:
            raise AccessError(f"{statement.name} is for the curator; analysts have SELECT, {', '.join(_FOR_ANALYSTS)}")
        return self._call(statement, reader, timeout_seconds)

    def _call(self, call: FunctionCall, reader: str, timeout_seconds: float | None) -> Result:
        if call.name in DECLARATIONS:
            sentence = declare(call, self.books, self.engine)
            return Result.of_sentence(sentence)
        if call.name in ("dp_query", "dp_explain"):
            text, options = options_of(call)
            inner = read_statement(text)
            if not isinstance(inner, SelectStatement):
                raise ParseError(f"{call.name} takes a SELECT", call.span)
            if call.name == "dp_query":
                return self.answer(inner, options, reader, timeout_seconds)
            return explain_table(*self.plan(inner, options, reader))
        names = [name for name in call.positional if isinstance(name, str)]
        wanted = _ARGUMENTS.get(call.name)
        if call.name == "dp_budget":
            return self._budget(call, names, reader)
        if call.named or len(names) != len(call.positional) or len(names) > (wanted is not None):
            raise PolicyError(f"{call.name} takes {f'at most {wanted}' if wanted else 'no argument'}")
        state = self.books.read()
        if call.name == "dp_cascade":
            return cascade_table(state, names[0] if names else None)
        if call.name == "dp_policy":
            return policy_table(state)
        return releases_table(state, None if reader == CURATOR else reader)

    def _budget(self, call: FunctionCall, names: list[str], reader: str) -> Result:
        analysts = call.named.get("analysts")
        listed = tuple(name for name in analysts if isinstance(name, str)) if isinstance(analysts, tuple) else None
        wrong = analysts is not None and (listed is None or listed != analysts)
        if wrong or set(call.named) - {"analysts"} or len(names) != len(call.positional) or len(names) > 1:
            raise PolicyError("dp_budget takes at most the name of one unit, and analysts := ['ana', 'bob']")
        if reader != CURATOR and listed not in (None, (reader,)):
            raise AccessError("what others hold is for the curator; leave analysts out")
        coalition = listed if reader == CURATOR else (reader,)
        return budget_table(self.books.read(), names[0] if names else None, coalition)


class Analyst:
    """A handle for one analyst: private SELECT, dp_query, dp_explain, dp_budget and their own dp_releases.

    It has no connection to the database; everything it returns is a private answer or a fact about the books.
    """

    def __init__(self, desk: _Desk, name: str) -> None:
        self.__desk = desk
        self.name = name

    def sql(
        self,
        text: str,
        params: Parameters = None,
        *,
        timeout_seconds: float | None = None,
        **options: object,
    ) -> Result:
        """Run one statement; as ``Session.sql``, without the curator's statements."""
        try:
            return self.__desk.run(text, params, options, reader=self.name, timeout_seconds=timeout_seconds)
        except DpsqlError as raised:
            error: DpsqlError = raised
        except Exception:
            error = EngineError("a step of the answer failed")
        # What led to an error stays here: frames of the traceback and earlier errors hold exact tables and row values.
        error.__cause__ = error.__context__ = None
        raise error.with_traceback(None)

    def __repr__(self) -> str:
        return f"Analyst({self.name!r})"


class Session:
    """The curator's session: their own DuckDB connection beside the private door.

    Threads may share a session. It is a context manager.

    Attributes:
        connection: the curator's own DuckDB connection; nothing on it is private.

    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, state_path: Path | None) -> None:
        self.connection = connection
        self._books = _Books(state_path)
        self._desk = _Desk(self._books, DuckDBEngine(connection, native_library()), SystemEntropy())

    def sql(
        self,
        text: str,
        params: Parameters = None,
        *,
        timeout_seconds: float | None = None,
        **options: object,
    ) -> Result:
        """Run one statement: a private SELECT, ``CALL dp_…(…)`` or ``FROM dp_…(…)``.

        Args:
            text: one SQL statement.
            params: values for ``?`` (a list) or ``$name`` (a mapping).
            timeout_seconds: limit on reading raw data; a charge stays when it runs out.
            options: as in ``OPTIONS (…)``: rho, epsilon, delta, max_groups_contributed, group_selection_strategy,
                bounding, min_privacy_units_per_group, privacy_unit_column, mechanism, top_k, sketch_size, rho_window,
                rho_ceiling, own_threshold, as_of, refresh, buckets, other_group.

        Raises:
            DpsqlError: see ``dpsql.errors``; nothing but EngineError leaves a charge behind, and ReleaseError where
                AUTO was told what no bounds come of, or what stands around a private query fails on its answer.

        """
        return self._desk.run(text, params, options, reader=CURATOR, timeout_seconds=timeout_seconds)

    def as_analyst(self, name: str) -> Analyst:
        """A handle without the connection, on which only private answers can be had."""
        if not name or name == CURATOR:
            raise PolicyError("an analyst needs a name of their own")
        return Analyst(self._desk, name)

    def close(self) -> None:
        """Close the state file, the sandbox and the database."""
        self._books.close()
        self._desk.sandbox.close()
        self.connection.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def connect(path: str | Path = ":memory:", *, state: str | Path | None = None, **duckdb_config: object) -> Session:
    """Open a database as its curator.

    Args:
        path: a DuckDB file, or ``:memory:``.
        state: the state file (policy, ledger, side table); by default ``<path>.dpsql`` beside the database, and in
            memory for ``:memory:``.
        duckdb_config: passed to DuckDB (``threads=4``, ``read_only=True``, …). ``allow_unsigned_extensions=True`` lets
            it use the native aggregate that ``make native`` builds, for the same results in less time.

    The state file holds true keys and hidden values: give it the same access rights and backups as the data.

    """
    read_only = bool(duckdb_config.pop("read_only", False))
    connection = duckdb.connect(
        str(path),
        read_only=read_only,
        config={name: str(value) for name, value in duckdb_config.items()},
    )
    if state is not None:
        return Session(connection, Path(state))
    return Session(connection, None if str(path) == ":memory:" else Path(f"{path}.dpsql"))
