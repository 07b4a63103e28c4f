"""Statements around private answers: they run in an empty DuckDB over released numbers and public rows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import pyarrow as pa

from dpsql.engine import Sandbox
from dpsql.errors import EngineError, ReleaseError

_SECONDS = 20.0
"""A statement may take this long."""


def computed(sql: str, tables: Mapping[str, pa.Table], sandbox: Sandbox, paid: str) -> pa.Table:
    """Return what is computed of answers; whether that fails is a fact of numbers that the reader is shown anyway.

    Args:
        sql: the statement.
        tables: what it reads.
        sandbox: runs it.
        paid: begins the words on what is paid for: ``the answer is``, or ``the answers are``.

    Raises:
        ReleaseError: it fails on a number, or takes too long.

    """
    with contextlib.suppress(EngineError):
        return sandbox.run(sql, dict(tables), seconds=_SECONDS)
    # outside the handler, so that no earlier error travels along
    raise ReleaseError(
        "the text around the private query failed on a number of its answer (a cast, an overflow, an argument), or "
        f"took more than {_SECONDS:g} s; {paid} paid for and stored, and costs nothing asked for alone. "
        "Write TRY_CAST for a cast"
    )
