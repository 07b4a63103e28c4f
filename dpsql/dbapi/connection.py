"""Connections of PEP 249: an analyst's handle, a level for texts that name none, and a cap of spending."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import dpsql.remote
from dpsql.dbapi.asking import Asking, Values
from dpsql.dbapi.cursor import Cursor
from dpsql.dbapi.errors import OperationalError, error_of
from dpsql.dbapi.spending import Cap
from dpsql.errors import DpsqlError, require
from dpsql.remote import RemoteAnalyst
from dpsql.session import Analyst, Result
from dpsql.session import connect as open_session

_OF_A_SERVER = ("ca_file", "plain_http")


class Connection:
    """An analyst's connection.

    Args:
        analyst: the handle, in this process or of a server.
        default_epsilon, default_rho: level of texts that name none; at most one of them.
        spend_at_most: share of each unit's budget that the questions of this connection may be charged, as 0.1.
        close: closes what was opened for the connection.

    The level in a text comes first, then that of the connection, then that of the policy. A connection with a level
    needs ``spend_at_most``, because tools ask at every click. The share is of rho (epsilon in a pure unit) and of the
    delta for thresholds. Charges are counted in memory: the cap is of this connection, and a new one begins at 0. The
    limit of an analyst over all connections is ``CALL dp_analyst('ana', budget_part := 0.1)``, which the curator
    declares. The price is looked up before the query is asked; a declaration in between may raise it.

    Threads may share a connection, each with a cursor of its own.

    Raises:
        PolicyError: both levels are given, or a level without a cap, or a value is no such number.

    """

    def __init__(
        self,
        analyst: Analyst | RemoteAnalyst,
        *,
        default_epsilon: float | None = None,
        default_rho: float | None = None,
        spend_at_most: float | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        named = {"epsilon": default_epsilon, "rho": default_rho}
        given = {name: value for name, value in named.items() if value is not None}
        require(
            (len(given) < 2, "default_epsilon and default_rho are two ways to say the same: give one of them"),
            (all(map(_is_positive, given.values())), "a default level is a positive number"),
            (
                not given or spend_at_most is not None,
                "a connection with a default level needs spend_at_most, the share of the budget that its questions may "
                "take, as in spend_at_most=0.1: tools ask at every click",
            ),
            (
                spend_at_most is None or (_is_positive(spend_at_most) and spend_at_most <= 1),
                "spend_at_most is a share of the budget, above 0 and at most 1",
            ),
        )
        level = {name: float(value) for name, value in given.items()}
        self._asking = Asking(analyst, level, None if spend_at_most is None else Cap(spend_at_most), close)

    def cursor(self) -> Cursor:
        """Return a new cursor."""
        self._asking.require_open()
        return Cursor(self._asking)

    def execute(self, operation: str, parameters: Values = None) -> Cursor:
        """Run one statement on a new cursor, and return the cursor."""
        return self.cursor().execute(operation, parameters)

    def commit(self) -> None:
        """Do nothing: a charge is there before its answer, and nothing else is written."""
        self._asking.require_open()

    def rollback(self) -> None:
        """Do nothing: what was charged stays."""
        self._asking.require_open()

    def close(self) -> None:
        """Close the connection, and the database if it was opened for it."""
        self._asking.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Connection({self._asking.analyst!r})"

    def ask(self, text: str, params: Values = None) -> Result:
        """Run one statement, and return its result with the receipt.

        Args:
            text: one statement.
            params: values for ``?`` (a sequence) or ``$name`` (a mapping).

        Raises:
            ProgrammingError: the text has no private answer; nothing was charged.
            OperationalError: budget, cap, rights, time or server do not allow an answer.
            InterfaceError: the connection is closed.

        """
        return self._asking.ask(text, params)


def connect(
    database: str | os.PathLike[str],
    *,
    analyst: str | None = None,
    token: str | None = None,
    default_epsilon: float | None = None,
    default_rho: float | None = None,
    spend_at_most: float | None = None,
    **opening: Any,
) -> Connection:
    """Connect an analyst to a database file, or to a server of ``dpsql serve``.

    A file is opened for reading, and closed with the connection. Then the analyst has a handle and not a wall: who can
    open the file can read its rows. The server is the wall.

    Args:
        database: a DuckDB file or a folder of parts, or the address of a server, as ``https://stats.example:8642``.
        analyst: name of the analyst who asks; needed for a file, and not allowed for a server.
        token: the line that ``dpsql token`` printed; needed for a server.
        default_epsilon: level of texts that name none.
        default_rho: likewise, as zCDP; at most one of both.
        spend_at_most: share of each unit's budget that this connection may be charged; needed with a default level.
        opening: for a file ``state`` and what ``dpsql.connect`` takes, as ``read_only=False``; for a server ``ca_file``
            and ``plain_http``.

    Raises:
        ProgrammingError: an argument is missing or has a wrong value.
        OperationalError: the file or the server cannot be opened.

    """
    refused: Exception
    try:
        handle, close = _opened(database, analyst, token, opening)
        try:
            return Connection(
                handle,
                default_epsilon=default_epsilon,
                default_rho=default_rho,
                spend_at_most=spend_at_most,
                close=close,
            )
        except DpsqlError:
            close()
            raise
    except DpsqlError as error:
        refused = error_of(error)
    # outside the handler, so that no earlier error travels along
    raise refused


def _opened(
    database: str | os.PathLike[str], analyst: str | None, token: str | None, opening: Mapping[str, Any]
) -> tuple[Analyst | RemoteAnalyst, Callable[[], None]]:
    """Return the analyst's handle, and what closes it."""
    place = os.fspath(database)
    if place.lower().startswith(("http://", "https://")):
        require(
            (analyst is None, "the token says who asks: leave analyst out"),
            (token is not None, "a server needs token=…, the line that `dpsql token` printed"),
            (set(opening) <= set(_OF_A_SERVER), "a server takes token, ca_file and plain_http"),
        )
        remote = dpsql.remote.connect(place, token=token or "", **opening)
        return remote, remote.close
    require(
        (token is None, "a token is for a server, whose address begins with https://"),
        (isinstance(analyst, str) and bool(analyst), "a file needs analyst='…', the name of who asks"),
        (not set(opening) & set(_OF_A_SERVER), "ca_file and plain_http are for a server"),
        (Path(place).expanduser().exists(), "there is no database file with this path"),
    )
    with contextlib.ExitStack() as stack:
        try:
            session = stack.enter_context(open_session(place, **{"read_only": True, **opening}))
        except DpsqlError:
            raise
        except Exception:  # noqa: S110 — DuckDB's text is not passed on
            pass
        else:
            handle = session.as_analyst(analyst or "")
            return handle, stack.pop_all().close
    raise OperationalError(
        "the database cannot be opened: another process may write to it, a setting differs from that of another "
        "connection of this process, or the file is no database"
    )


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
