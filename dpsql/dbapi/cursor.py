"""Cursors of PEP 249: one statement at a time, and the rows of its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NoReturn, Self

from dpsql.dbapi.asking import Asking, Values
from dpsql.dbapi.errors import InterfaceError, NotSupportedError
from dpsql.session import Result

Row = tuple[Any, ...]


class Cursor:
    """A cursor: ``execute`` runs a statement, and the fetch methods take its rows one after the other.

    Attributes:
        arraysize: number of rows that ``fetchmany`` takes.
        result: the last result, with ``df``, ``arrow`` and the receipt of a private answer; None before ``execute``.

    """

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self.arraysize = 1
        self.result: Result | None = None
        self._rows: Iterator[Row] = iter(())
        self._is_closed = False

    @property
    def description(self) -> list[tuple[str, str, None, None, None, None, None]] | None:
        """Columns of the last result: name, DuckDB type, and five values that are None; None before ``execute``."""
        return None if self.result is None else self.result.description

    @property
    def rowcount(self) -> int:
        """Number of rows of the last result; -1 before ``execute``."""
        return -1 if self.result is None else len(self.result)

    def execute(self, operation: str, parameters: Values = None) -> Cursor:
        """Run one statement, and return the cursor.

        Args:
            operation: SELECT, EXPLAIN, SHOW TABLES, DESCRIBE, or ``FROM dp_…(…)``.
            parameters: values for ``?`` (a sequence) or ``$name`` (a mapping).

        Raises:
            Error: as ``Connection.ask``. The cursor has no result then.

        """
        self._require_open()
        self.result, self._rows = None, iter(())
        self.result = self._asking.ask(operation, parameters)
        self._rows = iter(self.result)
        return self

    def executemany(self, operation: str, seq_of_parameters: Sequence[object]) -> NoReturn:  # noqa: ARG002
        """Refuse to ask a question for each of many sets of values.

        Args:
            operation: not read.
            seq_of_parameters: not read.

        Raises:
            NotSupportedError: always.

        """
        raise NotSupportedError(
            "executemany would ask and charge a question for each set of values; call execute for each, or ask one "
            "question with GROUP BY"
        )

    def fetchone(self) -> Row | None:
        """Return the next row, or None after the last one."""
        return next(self._fetched(), None)

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """Return the next rows, at most ``size`` or ``arraysize`` of them."""
        return list(islice(self._fetched(), self.arraysize if size is None else size))

    def fetchall(self) -> list[Row]:
        """Return all rows that were not fetched yet."""
        return list(self._fetched())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Row:
        return next(self._fetched())

    def setinputsizes(self, sizes: Sequence[object]) -> None:
        """Do nothing: values have no sizes."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing: results are here whole."""

    def close(self) -> None:
        """Close the cursor, and forget its result."""
        self._is_closed, self.result, self._rows = True, None, iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fetched(self) -> Iterator[Row]:
        """Return the rows that are left.

        Raises:
            InterfaceError: the cursor is closed, or nothing was executed.

        """
        self._require_open()
        if self.result is None:
            raise InterfaceError("there is no result to fetch from: call execute first")
        return self._rows

    def _require_open(self) -> None:
        if self._is_closed:
            raise InterfaceError("the cursor was closed")
        self._asking.require_open()
