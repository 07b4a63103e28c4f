"""Session: the one door. The curator's own, and handles for analysts that lead to private answers alone.

A session begins with where its state file lies, and opens that as late as it can.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import duckdb

from dpsql.assets import native_library
from dpsql.cascade.reader import CURATOR
from dpsql.engine.age_table import AgeTable
from dpsql.engine.connection import Connection, LocalConnection
from dpsql.engine.parts.manifest import HEAD, is_parts_folder
from dpsql.engine.spark.place import SparkPlace
from dpsql.errors import DpsqlError, EngineError, ParseError, PolicyError, StateError
from dpsql.model.environment import folded
from dpsql.receipts.result import Result
from dpsql.release.changed_tables import warnings_now
from dpsql.session.analyst import Analyst
from dpsql.session.declare import declare, split_name
from dpsql.session.engines import (
    FolderOfParts,
    TablesOfSpark,
    database_engine,
    parts_folder,
    require_no_head,
    session_engine,
)
from dpsql.session.new_files import create_for_shell
from dpsql.session.runner import Parameters, StatementRunner
from dpsql.session.spilling import open_database
from dpsql.sql.statements import DECLARATIONS, FunctionCall, SelectStatement, read_statement
from dpsql.state import SecondPlace, State

logger = logging.getLogger("dpsql")


@functools.cache
def _say_that_the_budget_ends() -> None:
    logger.warning("the budget of a database in memory ends with this process; name a state file to keep it")


def state_beside(database: str | Path) -> Path | None:
    """The state file of a database, unless another is named; None for one in memory.

    It lies beside the file itself, whatever links lead there: two ways to one file would have two budgets for its rows.

    Raises:
        StateError: the file has several names (hard links) and no state file lies beside this one; it may lie beside
            another, which the file does not tell.

    """
    name = str(database)
    if not name or name.startswith(":memory:"):
        return None
    path = Path(name).expanduser().resolve()
    if is_parts_folder(path):
        path /= HEAD
    state = Path(f"{path}.dpsql")
    if not state.exists() and path.is_file() and path.stat().st_nlink > 1:
        raise StateError(
            f"{path} has {path.stat().st_nlink} names (hard links), and its state file may lie beside another of them: "
            "name the state file, as in state='clinic.dpsql'"
        )
    return state


class LazyState:
    """The state behind a session: opened when it exists, created by the first declaration.

    A missing state file means that nothing is protected, so nothing can be queried.
    """

    def __init__(self, path: Path | None = None, beside: SecondPlace | None = None) -> None:
        self._path = path
        self._beside = beside
        self._lock = threading.Lock()
        self._state: State | None = None
        self._nothing: State | None = None

    def read(self) -> State:
        """The state for reading; an empty one in memory where no file exists yet."""
        with self._lock:
            if not self._state and not (self._path and self._path.exists()):
                self._nothing = self._nothing or State.open(None, create=True)
                return self._nothing
            return self._open()

    def write(self) -> State:
        """The state for declarations; creates the file."""
        with self._lock:
            return self._open()

    def _open(self) -> State:
        if self._state is None:
            self._state = State.open(self._path, create=True, beside=self._beside)
            if self._path is None:
                self._say_that_it_ends()
        return self._state

    def _say_that_it_ends(self) -> None:
        _say_that_the_budget_ends()

    def copied(self) -> LazyState:
        """A state in memory that says what this one says now."""
        copy = LazyState()
        copy._state = self.read().copied()
        return copy

    def close(self) -> None:
        """Close what was opened."""
        with self._lock:
            for state in filter(None, (self._state, self._nothing)):
                state.close()
            self._state = self._nothing = None


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a query would be.

    Attributes:
        plan: as ``FROM dp_explain(…)`` shows it.
        columns: name and DuckDB type of each column of the answer.

    """

    plan: Result
    columns: tuple[tuple[str, str], ...]


def is_select(text: str) -> bool:
    """Whether a text is a SELECT, which alone has a plan.

    Raises:
        ParseError: it is no statement.

    """
    return isinstance(read_statement(text), SelectStatement)


class Session(contextlib.AbstractContextManager["Session"]):
    """The curator's session: a DuckDB connection of their own, and private questions beside it.

    Threads may share a session. It is a context manager.

    Attributes:
        connection: the curator's own DuckDB connection; nothing on it is private.

    ``state_path`` names the state file, as a text or a path; None is a state in memory.
    ``logs_changes=False`` is for a session whose log others read: it is not told where rows changed within a version.
    ``close_database`` is what closes the connection, if that is more than its own ``close``.
    ``rows`` says where the rows of units are, if the connection has none: it is their head then.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        state_path: str | os.PathLike[str] | None,
        *,
        logs_changes: bool = True,
        close_database: Callable[[], None] | None = None,
        rows: FolderOfParts | TablesOfSpark | None = None,
    ) -> None:
        self.connection = connection
        self._is_closed = False
        self._close_database = close_database or connection.close
        opened = LocalConnection(connection, native_library())
        beside = SparkPlace(rows.cluster.place) if isinstance(rows, TablesOfSpark) else AgeTable(opened)
        self._access = LazyState(None if state_path is None else named_path(state_path), beside)
        engine, self._close_engine = session_engine(opened, rows, lambda: self._access.read().policy())
        self._runner = StatementRunner(self._access, engine, logs_changes=logs_changes)

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
                rho_ceiling, own_threshold, coverage, as_of, refresh, buckets, other_group, target_half_width (a number,
                or a mapping from columns to numbers), target_relative_error, at_least, method, confidence,
                max_rho, max_epsilon.

        Raises:
            DpsqlError: see ``dpsql.errors``; nothing but EngineError leaves a charge behind, and ReleaseError where
                AUTO chose for the same reader in another session at this moment, or what stands around a private query
                fails on its answer.

        """
        if self._is_closed:
            raise EngineError("the session was closed", withheld=False, charged=False)
        return self._runner.run(text, params, options, reader=CURATOR, timeout_seconds=timeout_seconds)

    execute = sql

    def rehearse(self, declarations: Sequence[str], text: str, **options: object) -> Rehearsal:
        """Plan a query as it would be after some declarations; nothing is declared, charged or drawn.

        Args:
            declarations: statements ``CALL dp_…(…)``, carried out on a copy of the state file that is then forgotten.
            text: a SELECT.
            options: as for ``sql``.

        Raises:
            DpsqlError: as the statements themselves would.

        """
        statement = read_statement(text)
        if not isinstance(statement, SelectStatement):
            raise ParseError("only a SELECT has a plan")
        copied = self._access.copied()
        runner = StatementRunner(copied, self._runner.engine)
        try:
            for declaration in declarations:
                call = read_statement(declaration)
                if not isinstance(call, FunctionCall) or call.name not in DECLARATIONS:
                    raise ParseError(f"only declarations are rehearsed: {', '.join(DECLARATIONS)}")
                declare(call, copied, runner.engine)
            columns = tuple((one.name, one.type) for one in runner.described(statement, options, CURATOR))
            return Rehearsal(runner.explained(statement, options, CURATOR), columns)
        finally:
            copied.close()
            runner.sandbox.close()

    def progress(self) -> float | None:
        """How much of the rows of the query that began last has been read, 0 to 1; asked from another thread.

        None where nothing is read at the moment, or DuckDB cannot say. It follows the rows, so it is for the curator:
        an analyst's handle has nothing like it.
        """
        return self._runner.engine.progress()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to declare: a sentence for each table that changed since its version was first read.

        It follows the rows, so it is for the curator: an analyst's handle has nothing like it.
        """
        return warnings_now(self._access.read(), self._runner.engine)

    def check_state(self) -> None:
        """Refuse a restored or second state file, and one of another database, before a question does.

        Raises:
            StateError: the curator has to accept the file; the message says why.

        """
        age = self._access.read().age
        if age:
            age.look()

    def as_analyst(self, name: str) -> Analyst:
        """A handle without the connection, on which only private answers can be had.

        Once analysts are declared (``CALL dp_analyst``), a handle of another name is refused when it asks.
        """
        if folded(name.strip()) in ("", CURATOR):
            raise PolicyError("an analyst needs a name of their own")
        return Analyst(self._runner, name.strip())

    def close(self) -> None:
        """Close the state file, the sandbox and the database."""
        self._is_closed = True
        self._access.close()
        self._runner.sandbox.close()
        self._close_engine()
        self._close_database()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def table_identity(session: Session, name: str) -> str | None:
    """Identity by which policy and releases know a table or view, from its name in SQL; None where there is none.

    Raises:
        PolicyError: the text is not a name.

    """
    schema = database_engine(session.connection).resolve(split_name(name))
    return None if schema is None else schema.canonical


def sql_on(connection: Connection, state_path: Path | None) -> Callable[[str], Result]:
    """``Session.sql``, of the curator, on a database that is reached otherwise than in this process."""
    require_no_head(connection)
    runner = StatementRunner(LazyState(state_path, AgeTable(connection)), database_engine(connection))
    return lambda text: runner.run(text, None, {}, reader=CURATOR, timeout_seconds=None)


def named_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a state file.

    Raises:
        PolicyError: it is neither a text nor a path, or empty.

    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise PolicyError("a state file is named by its path, as in 'clinic.duckdb.dpsql'")
    return Path(path)


def connect(
    path: str | os.PathLike[str] = ":memory:",
    *,
    state: str | os.PathLike[str] | None = None,
    parts: str | os.PathLike[str] | None = None,
    processes: int | None = None,
    spark: object = None,
    **duckdb_config: object,
) -> Session:
    """Open a database, or a folder of parts, as its curator.

    Args:
        path: a DuckDB file, a folder of parts, or ``:memory:``. A new file has storage version v1.5.0, which the DuckDB
            shell reads. The setting ``storage_compatibility_version`` names another one.
        state: the state file (policy, ledger, side table); by default ``<path>.dpsql`` beside the database, where
            links lead to it, the one in a folder of parts, and in memory for ``:memory:``.
        parts: the folder that ``dpsql split`` wrote, in place of a path.
        processes: number of processes that read parts, by default of processors. They share ``memory_limit``.
        spark: a Spark session, in place of a path; its current database has the tables. ``memory_limit`` is that of
            DuckDB in each task, 1 GB by default.
        duckdb_config: passed to DuckDB (``threads=4``, ``read_only=True``, …). ``allow_unsigned_extensions=True`` lets
            it use the native aggregate that ``make native`` builds, for the same results in less time.

    The state file holds true keys and hidden values: give it the same access rights and backups as the data. Rows that
    memory does not hold are written to a folder beside it that only its owner may enter. The folder is removed with the
    session; what a killed process left is removed when the state file is opened next. ``temp_directory='…'`` names
    another folder, whose rights and contents are yours to look after.

    Raises:
        PolicyError: the path is something else, as an open connection.

    """
    if not isinstance(path, str | os.PathLike):
        raise PolicyError(
            f"connect opens a database by its path, and was given a {type(path).__name__}: close what has it open and "
            "write dpsql.connect('clinic.duckdb'); the session's own DuckDB connection is its attribute `connection`"
        )
    if spark is not None:
        from dpsql.session.spark_tables import open_spark  # noqa: PLC0415 — few sessions need it

        if os.fspath(path) != ":memory:" or parts is not None or processes is not None:
            raise PolicyError("name spark=session, or a database or folder with processes, and not both")
        state_path = None if state is None else named_path(state)
        connection, close, tables = open_spark(spark, state_path, duckdb_config)
        return Session(connection, state_path, close_database=close, rows=tables)
    folder = parts_folder(path, parts, processes)
    path = os.fspath(path if folder is None else folder / HEAD)
    state_path = state_beside(path) if state is None else named_path(state)
    read_only = bool(duckdb_config.pop("read_only", False))
    if not read_only:
        create_for_shell(path, duckdb_config)
    config = {name: str(value) for name, value in duckdb_config.items()}
    connection, close = open_database(path, state_path, read_only=read_only, config=config)
    try:
        return Session(
            connection, state_path, close_database=close, rows=FolderOfParts(folder, processes) if folder else None
        )
    except DpsqlError:
        close()
        raise
