"""The handle of an analyst: private answers and nothing else."""

from __future__ import annotations

from dpsql.errors import DpsqlError, EngineError
from dpsql.receipts.result import Result
from dpsql.session.runner import Parameters, StatementRunner


class Analyst:
    """A handle for one analyst: private SELECT, SHOW TABLES, plans, budgets and their own releases.

    It has no connection to the database; everything it returns is a private answer or a fact about the state file.
    """

    def __init__(self, runner: StatementRunner, name: str) -> None:
        self.__desk = runner
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
            error = raised.for_analyst()
        except Exception:
            error = EngineError.unanswered()
        # What led to an error stays here: frames of the traceback and earlier errors hold exact tables and row values.
        error.__cause__ = error.__context__ = None
        raise error.with_traceback(None)

    execute = sql

    def __repr__(self) -> str:
        return f"Analyst({self.name!r})"
