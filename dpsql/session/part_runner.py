"""The runner as texts of several parts see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from dpsql.cascade.reader import Reader
from dpsql.engine import Engine, Sandbox
from dpsql.model.private_query import FoundBounds, OutputColumn, PrivateQuery
from dpsql.receipts.result import Result
from dpsql.release.runtime import Runtime
from dpsql.session.declare import StateAccess
from dpsql.sql.statements import SelectStatement
from dpsql.state import Charged, State

Options = Mapping[str, object]


class Runner(Protocol):
    """Plans and answers the parts of a text: `session.runner.StatementRunner`."""

    access: StateAccess
    engine: Engine
    sandbox: Sandbox

    def plan(
        self, statement: SelectStatement, options: Options, reader: str, *, engine: Engine | None = None
    ) -> tuple[PrivateQuery, State, Reader]:
        """Plan a SELECT as it would be answered for a reader now."""

    def planner(
        self, statement: SelectStatement, options: Options, state: State, cleared: Reader
    ) -> Callable[[FoundBounds], PrivateQuery]:
        """Return the function that plans a SELECT by bounds that AUTO finds."""

    def runtime(self, state: State) -> Runtime:
        """Return what the steps of an answer run on."""

    def answer(
        self, statement: SelectStatement, options: Options, reader: str, timeout_seconds: float | None
    ) -> Result:
        """Answer a SELECT."""

    def answer_once(
        self,
        statement: SelectStatement,
        options: Options,
        reader: str,
        timeout_seconds: float | None,
        paid: Charged | None = None,
    ) -> Result:
        """Answer a SELECT that is a private query; ``paid`` was charged for it before, together with others."""

    def explained(self, statement: SelectStatement, options: Options, reader: str) -> Result:
        """Return the plan of a SELECT."""

    def described(self, statement: SelectStatement, options: Options, reader: str) -> tuple[OutputColumn, ...]:
        """Return the columns of an answer."""
