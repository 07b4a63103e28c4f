"""The exceptions of PEP 249. Each has the text of an error of dpsql, and the error itself as ``reason``."""

from __future__ import annotations

from dpsql.errors import DpsqlError, MissingPackageError, PolicyError, QueryError


class Warning(Exception):  # noqa: A001, N818 — PEP 249 has this name
    """A warning of PEP 249, which dpsql never raises."""


class Error(Exception):
    """Base of the errors of this module.

    Attributes:
        reason: the error of dpsql, with refusals, places and amounts; None for wrong use of this module.

    """

    def __init__(self, message: str = "", reason: DpsqlError | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class InterfaceError(Error):
    """A connection or cursor is closed, or the call of a method makes no sense."""


class DatabaseError(Error):
    """Base of the errors that have a reason in dpsql."""


class DataError(DatabaseError):
    """An error of PEP 249, which dpsql never raises: expressions of rows never fail."""


class OperationalError(DatabaseError):
    """The question has no answer here and now: budget, rights, time, state file or server."""


class IntegrityError(DatabaseError):
    """An error of PEP 249, which dpsql never raises: nothing is written."""


class InternalError(DatabaseError):
    """An error that nobody foresaw. It says nothing, because rows may decide about it."""


class ProgrammingError(DatabaseError):
    """The text has no private answer, or an argument has a wrong value; nothing was charged."""


class NotSupportedError(DatabaseError):
    """A part of PEP 249 that private answers do not have."""


_KINDS: tuple[tuple[type[DpsqlError], type[Error]], ...] = (
    (QueryError, ProgrammingError),
    (PolicyError, ProgrammingError),
    (MissingPackageError, InterfaceError),
)


def error_of(error: DpsqlError) -> Error:
    """Return the exception of PEP 249 for an error of dpsql.

    Its message is the error's own. Earlier errors and frames, which may hold values, are taken off.
    """
    error = error.for_analyst()
    error.__cause__ = error.__context__ = None
    found = next((ours for theirs, ours in _KINDS if isinstance(error, theirs)), OperationalError)
    return found(str(error), error.with_traceback(None))
