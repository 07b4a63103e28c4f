"""Statements of one connection: the level that they are asked at, and the cap of what they are charged."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from dpsql.dbapi.errors import Error, InterfaceError, InternalError, error_of
from dpsql.dbapi.spending import BEFORE_A_CHARGE, Cap, Price, budgets_of, charge_of, price_by_unit, stated_price
from dpsql.errors import DpsqlError, require
from dpsql.remote import RemoteAnalyst
from dpsql.session import EXPLAIN, Analyst, Question, Result, read_question

Values = Sequence[Any] | Mapping[str, Any] | None
"""Values of parameters: a sequence for ``?``, a mapping for ``$name``."""

# a comment ends at its first */, so that there is one way to read a text, in a time that grows with its length
_SPACE = r"(?:\s|--[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*"
_EXPLAIN = re.compile(rf"\A{_SPACE}EXPLAIN\s+(?P<analyze>ANALYZE\s+)?(?P<query>.*)\Z", re.IGNORECASE | re.DOTALL)
_ABOUT_THE_SESSION = re.compile(
    rf"\A{_SPACE}SELECT\s+(?:pg_catalog\.)?(?P<name>version|current_schema)\s*\(\s*\)\s*;?\s*\Z",
    re.IGNORECASE | re.DOTALL,
)


class Asking:
    """An analyst's handle with a level and a cap, which all cursors of a connection share.

    Args:
        analyst: the handle.
        level: option for texts that name no level: epsilon or rho, or nothing.
        cap: limit of all charges; None for no limit.
        close: closes what was opened for the connection.

    """

    def __init__(
        self,
        analyst: Analyst | RemoteAnalyst,
        level: Mapping[str, float],
        cap: Cap | None,
        close: Callable[[], None] | None,
    ) -> None:
        self.analyst = analyst
        self.cap = cap
        self._level = level
        self._close = close
        self._is_closed = False

    def close(self) -> None:
        """Close what was opened for the connection."""
        if not self._is_closed:
            self._is_closed = True
            if self._close is not None:
                self._close()

    def require_open(self) -> None:
        """Refuse to go on after `close`.

        Raises:
            InterfaceError: the connection was closed.

        """
        if self._is_closed:
            raise InterfaceError("the connection was closed")

    def ask(self, text: str, params: Values) -> Result:
        """Run one statement, and return its result.

        Args:
            text: one statement.
            params: values for its places.

        Raises:
            Error: of PEP 249, without earlier errors and frames.

        """
        self.require_open()
        refused: Error
        try:
            return self._answered(text, _plain(params))
        except DpsqlError as error:
            refused = error_of(error)
        except Exception:
            refused = InternalError("the statement could not be run, for a reason that is not passed on")
        # outside the handler, so that no earlier error travels along
        raise refused

    def _answered(self, text: str, params: Any) -> Result:
        """Answer a statement at its own level, or at the level of the connection."""
        if found := _ABOUT_THE_SESSION.match(text):
            value = "main" if found["name"].lower() == "current_schema" else f"dpsql {version('dpsql')}"
            return self.analyst.sql(f"SELECT '{value}' AS \"{found['name'].lower()}()\"")
        if explained := _EXPLAIN.match(text):
            require((not explained["analyze"], "EXPLAIN ANALYZE would ask the query; write EXPLAIN, which is free"))
            question = read_question(explained["query"], params)
            require((question is not None and not question.is_call, "EXPLAIN takes a SELECT"))
            assert question is not None  # noqa: S101 — required above
            return self.analyst.sql(self._explained(question), question.params)
        question = read_question(text, params) if self._level or self.cap else None
        if question is None:
            return self.analyst.sql(text, params)
        if self.cap is None or not question.charges:
            return self._asked(question)
        return self._within(self.cap, question)

    def _level_of(self, question: Question) -> Mapping[str, float]:
        """Return the level that is added to a question; nothing if it names one."""
        return {} if question.names_level else self._level

    def _asked(self, question: Question) -> Result:
        """Ask a question with the level of the connection."""
        level = self._level_of(question)
        if question.is_call:
            return self.analyst.sql(question.call(question.function, level), question.params)
        options: dict[str, object] = {**level}
        return self.analyst.sql(question.text, question.params, timeout_seconds=None, **options)

    def _within(self, cap: Cap, question: Question) -> Result:
        """Ask a question if the cap covers its price."""
        stated = stated_price(self.analyst.sql(self._explained(question), question.params))
        # a question that is free by its plan is counted by its receipt
        budgets = budgets_of(self.analyst.sql("FROM dp_budget()")) if stated else {}
        price = price_by_unit(stated, budgets)
        cap.reserve(price, budgets)
        charged: Price = price
        try:
            result = self._asked(question)
            charged = charge_of(result.receipt, price)
        except DpsqlError as error:
            if isinstance(error, BEFORE_A_CHARGE):
                charged = {}
            raise
        finally:
            cap.settle(price, charged)
        return result

    def _explained(self, question: Question) -> str:
        """Return the text that shows the plan of a question at the level of the connection."""
        return question.call(EXPLAIN, self._level_of(question))


def _plain(params: Values) -> Any:
    """Return values of parameters with numbers of numpy as those of Python. Return None if there are no values."""
    if params is None or len(params) == 0:
        return None
    if isinstance(params, Mapping):
        return {name: _scalar(value) for name, value in params.items()}
    return [_scalar(value) for value in params]


def _scalar(value: Any) -> Any:
    """Return a scalar of numpy as Python has it, and any other value as it is."""
    if type(value).__name__ == "datetime64":
        # one of nanoseconds would become a whole number
        value = value.astype("datetime64[us]")
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "dtype") else value
