"""Session: the one door. The curator's own, and handles for analysts that lead to private answers alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import duckdb

from dpsql.assets import native_library
from dpsql.engine import DuckDBEngine
from dpsql.errors import DpsqlError, EngineError, PolicyError
from dpsql.query.environment import folded
from dpsql.session.desk import Desk, Parameters, StateDrawer, state_beside
from dpsql.session.marks import warnings_now
from dpsql.session.reader import CURATOR
from dpsql.session.rehearsal import Rehearsal, rehearse
from dpsql.session.result import Result


class Analyst:
    """A handle for one analyst: private SELECT, dp_query, dp_explain, dp_budget and their own dp_releases.

    It has no connection to the database; everything it returns is a private answer or a fact about the books.
    """

    def __init__(self, desk: Desk, name: str) -> None:
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
        """Run one statement; as ``Session.sql``, without the curator's statements.

        A time-out, a failure of the engine and an error that nobody foresaw are one EngineError with one text.
        """
        try:
            return self.__desk.run(text, params, options, reader=self.name, timeout_seconds=timeout_seconds)
        except EngineError:
            error: DpsqlError = EngineError.unanswered()
        except DpsqlError as raised:
            error = raised
        except Exception:
            error = EngineError.unanswered()
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

    ``logs_changes=False`` is for a session whose log others read: it is not told where rows changed within a version.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, state_path: Path | None, *, logs_changes: bool = True
    ) -> None:
        self.connection = connection
        self._books = StateDrawer(state_path)
        self._desk = Desk(self._books, DuckDBEngine(connection, native_library()), logs_changes=logs_changes)

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
                AUTO found no bounds, or chose for the same reader in another session at this moment, or what stands
                around a private query fails on its answer.

        """
        return self._desk.run(text, params, options, reader=CURATOR, timeout_seconds=timeout_seconds)

    def rehearse(self, declarations: Sequence[str], text: str, **options: object) -> Rehearsal:
        """Plan a query as it would be after some declarations; nothing is declared, charged or drawn.

        Args:
            declarations: statements ``CALL dp_…(…)``, carried out on a copy of the books that is then forgotten.
            text: a SELECT.
            options: as for ``sql``.

        Raises:
            DpsqlError: as the statements themselves would.

        """
        return rehearse(self._books, self._desk.engine, declarations, text, options)

    def progress(self) -> float | None:
        """How much of the rows of the query that began last has been read, 0 to 1; asked from another thread.

        None where nothing is read at the moment, or DuckDB cannot say. It follows the rows, so it is for the curator:
        an analyst's handle has nothing like it.
        """
        return self._desk.engine.progress()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to declare: a sentence for each table that changed since its version was first read.

        It follows the rows, so it is for the curator: an analyst's handle has nothing like it.
        """
        return warnings_now(self._books.read(), self._desk.engine)

    def as_analyst(self, name: str) -> Analyst:
        """A handle without the connection, on which only private answers can be had.

        Once analysts are declared (``CALL dp_analyst``), a handle of another name is refused when it asks.
        """
        if folded(name.strip()) in ("", CURATOR):
            raise PolicyError("an analyst needs a name of their own")
        return Analyst(self._desk, name.strip())

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
        state: the state file (policy, ledger, side table); by default ``<path>.dpsql`` beside the database, where
            links lead to it, and in memory for ``:memory:``.
        duckdb_config: passed to DuckDB (``threads=4``, ``read_only=True``, …). ``allow_unsigned_extensions=True`` lets
            it use the native aggregate that ``make native`` builds, for the same results in less time.

    The state file holds true keys and hidden values: give it the same access rights and backups as the data.

    """
    state_path = state_beside(path) if state is None else Path(state)
    read_only = bool(duckdb_config.pop("read_only", False))
    connection = duckdb.connect(
        str(path),
        read_only=read_only,
        config={name: str(value) for name, value in duckdb_config.items()},
    )
    return Session(connection, state_path)
