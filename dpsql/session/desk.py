"""The desk behind every door: it reads statements, plans, and answers, for the curator and for analysts."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dpsql.engine import Engine, Sandbox
from dpsql.errors import AccessError, ParseError, PolicyError, StateError
from dpsql.mechanisms.entropy import Entropy, SystemEntropy
from dpsql.query.environment import folded
from dpsql.query.identity import query_hash
from dpsql.query.plan import plan_query
from dpsql.query.private_query import PrivateQuery
from dpsql.query.statements import DECLARATIONS, FunctionCall, Scalar, SelectStatement, read_statement
from dpsql.session.answer import answer, require_runs
from dpsql.session.auto import auto_levels, draw, is_open, settled, told_bounds
from dpsql.session.books import (
    budget_table,
    cascade_table,
    describe_table,
    explain_table,
    policy_table,
    releases_table,
)
from dpsql.session.declare import Books, declare, options_of
from dpsql.session.exact import Rooms
from dpsql.session.policy_view import environment
from dpsql.session.reader import CURATOR, Reader
from dpsql.session.result import Result
from dpsql.state import Charged, State

logger = logging.getLogger("dpsql")

Parameters = Sequence[Scalar] | Mapping[str, Scalar] | None
_FOR_ANALYSTS = ("dp_query", "dp_explain", "dp_describe", "dp_budget", "dp_releases")
_ARGUMENTS = {"dp_cascade": "one query hash"}
_BY_NAME = {"dp_budget": "unit", "dp_cascade": "query_hash"}
"""Functions of one argument that may be left out; the shell's take it by name alone."""


_MOST_PLANS = 8
"""A query with AUTO is planned once more for each histogram; others may store the same ones at the same moment."""


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
    state = Path(f"{path}.dpsql")
    if not state.exists() and path.is_file() and path.stat().st_nlink > 1:
        raise StateError(
            f"{path} has {path.stat().st_nlink} names (hard links), and its state file may lie beside another of them: "
            "name the state file, as in state='clinic.dpsql'"
        )
    return state


class StateDrawer:
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

    def copied(self) -> StateDrawer:
        """A state in memory that says what this one says now."""
        copy = StateDrawer(None)
        copy._state = self.read().copied()
        return copy

    def close(self) -> None:
        """Close what was opened."""
        with self._lock:
            for state in (self._state, self._nothing):
                if state is not None:
                    state.close()
            self._state = self._nothing = None


class Desk:
    """What curator and analysts share: reading statements, planning, answering."""

    def __init__(self, books: Books, engine: Engine, *, logs_changes: bool = True) -> None:
        self.books = books
        self.engine = engine
        self.sandbox = Sandbox()
        self.entropy: Entropy = SystemEntropy()
        self._logs_changes = logs_changes

    def plan(
        self, statement: SelectStatement, options: Mapping[str, object], reader: str
    ) -> tuple[PrivateQuery, State, Reader]:
        """A SELECT as it would be answered for this reader now, what it would be written to, and their clearance."""
        state = self.books.read()
        policy = state.policy()
        cleared = Reader.of(reader, policy)
        outside = environment(policy, self.engine, self.sandbox, cleared, state)
        query = plan_query(statement, outside, options)
        levels = auto_levels(query, state, cleared)
        if query.auto_bounds:
            query = plan_query(statement, outside, options, told_bounds(query, levels, state))
        return settled(query, levels, state), state, cleared

    def answerable(
        self, statement: SelectStatement, options: Mapping[str, object], reader: str
    ) -> tuple[PrivateQuery, State, Reader]:
        """The same of a SELECT that the database can run; one that it cannot is refused as it would be if it ran."""
        query, state, cleared = self.plan(statement, options, reader)
        require_runs(query, Rooms(state, self.engine, self.sandbox, self.entropy), cleared)
        return query, state, cleared

    def answer(
        self,
        statement: SelectStatement,
        options: Mapping[str, object],
        reader: str,
        timeout_seconds: float | None,
    ) -> Result:
        """Answer a SELECT."""
        query, state, cleared = self.plan(statement, options, reader)
        logger.info("private query %s for %s", query_hash(query)[:12], reader)
        rooms = Rooms(state, self.engine, self.sandbox, self.entropy, logs_changes=self._logs_changes)
        told = Charged.nothing()
        for _ in range(_MOST_PLANS):
            if not is_open(query):
                break
            told = told.beside(draw(query, rooms, cleared, timeout_seconds))
            query, _, cleared = self.plan(statement, options, reader)
        else:
            raise StateError("others change what AUTO chooses by at this moment; ask again")
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
        if reader != CURATOR:
            # whoever asks is known by one name, however it was written
            reader = Reader.of(reader, self.books.read().policy()).name
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
        if call.name == "dp_query":
            return self.answer(*_asked(call), reader, timeout_seconds)
        if call.name == "dp_explain":
            return explain_table(*self.answerable(*_asked(call), reader))
        if call.name == "dp_describe":
            query, _, _ = self.answerable(*_asked(call), reader)
            return describe_table(query)
        call = _by_place(call)
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
        listed = None if listed is None else tuple(name.strip() for name in listed)
        if wrong or set(call.named) - {"analysts"} or len(names) != len(call.positional) or len(names) > 1:
            raise PolicyError("dp_budget takes at most the name of one unit, and analysts := ['ana', 'bob']")
        if reader != CURATOR and listed is not None and {folded(name) for name in listed} != {folded(reader)}:
            raise AccessError("what others hold is for the curator; leave analysts out")
        coalition = listed if reader == CURATOR else (reader,)
        return budget_table(self.books.read(), names[0] if names else None, coalition)


def _asked(call: FunctionCall) -> tuple[SelectStatement, Mapping[str, object]]:
    """The SELECT inside dp_query, dp_explain or dp_describe, and its options."""
    text, options = options_of(call)
    inner = read_statement(text)
    if not isinstance(inner, SelectStatement):
        raise ParseError(f"{call.name} takes a SELECT", call.span)
    return inner, options


def _by_place(call: FunctionCall) -> FunctionCall:
    """The call with an argument that may stand first or by its name, in its place."""
    name = _BY_NAME.get(call.name)
    if name is None or name not in call.named or call.positional:
        return call
    named = {key: value for key, value in call.named.items() if key != name}
    return replace(call, positional=(call.named[name],), named=named)
