"""A session whose rows are those of a data frame: policy, ledger and stored answers are a state's, as for any table.

The frame holds the rows of a source: a table with an identity, of which something is declared or will be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

from dpsql.cascade.reader import CURATOR
from dpsql.engine import identity
from dpsql.plan.environment.links import link_steps, unit_column
from dpsql.receipts.result import Result
from dpsql.session.declarations.people import reason_of, same_key
from dpsql.session.declarations.unit_names import look_alike_unit
from dpsql.session.declare import StateAccess, declare, split_name
from dpsql.session.engines import FrameEngine, database_engine
from dpsql.session.runner import StatementRunner
from dpsql.session.session import LazyState, logger
from dpsql.sql.statements import FunctionCall, SelectStatement, read_statement
from dpsql.state import Domain, Policy, ProtectedTable, State, Unit, checked

RememberedColumn = tuple[str, str, bool]
"""Name and type of a column of a declared table, and whether it may hold NULL."""


class ProcessState(LazyState):
    """The state of units without a file: one for a process, and it ends with it."""

    def read(self) -> State:
        """The state, which begins when it is first asked for."""
        return self.write()

    def _say_that_it_ends(self) -> None:
        logger.warning("the budget of a privacy unit without state= is counted in this process and ends with it")


@dataclass(frozen=True, slots=True)
class SourcePolicy:
    """The policy, as far as it is about the table whose rows a frame holds.

    Attributes:
        name: of the table, as SQL writes it.
        policy: everything that is declared.

    """

    name: str
    policy: Policy

    @property
    def table(self) -> str:
        """Identity of the table."""
        return source_identity(self.name)

    @property
    def unit_column(self) -> str:
        """Whose values tell units apart."""
        return unit_column(self.policy, self.table)

    @property
    def is_linked(self) -> bool:
        """Whether a row finds its unit through another table only."""
        return bool(link_steps(self.policy, self.table))

    @property
    def columns(self) -> tuple[RememberedColumn, ...]:
        """The columns that the table had when it was declared; none where that is not known."""
        return next((known.columns for known in self.policy.remembered if known.table == self.table), ())

    def table_of_other_unit(self, unit: str, column: str) -> ProtectedTable | None:
        """Return a table of another unit that seems to hold the people of the source, or None if there is none.

        Args:
            unit: of the source.
            column: its unit column.

        """
        return same_key((column,), unit, self.policy)

    def reason(self, other: ProtectedTable) -> str:
        """Return why that table seems to hold the people of the source."""
        return reason_of(other, self.policy)


def source_place(source: str) -> tuple[str, str]:
    """Schema and table that the name of a source means."""
    *schema, table = split_name(source)
    return (schema[0] if schema else "main"), table


def source_identity(source: str) -> str:
    """Identity of a source in policy and hashes: that of a table of this name in the database of the state file."""
    return identity(source_place(source))


def protect_source(source: str, connection: duckdb.DuckDBPyConnection, access: StateAccess, **said: str | bool) -> None:
    """Declare a source, as ``CALL dp_protect`` does with these arguments; a view of its name is in the connection.

    Raises:
        PolicyError: as the declaration; nothing changed.

    """
    declare(FunctionCall("dp_protect", (source,), said), access, database_engine(connection))


def declare_frame_unit(unit: Unit, access: StateAccess) -> None:
    """Declare a new unit, and log a warning if its name looks like that of another unit."""
    warning = look_alike_unit(unit.name, access.read().policy())
    if warning:
        logger.warning("unit %s has its budget; %s", unit.name, warning)
    access.write().declare_unit(unit)


@dataclass(frozen=True, slots=True)
class FrameTerms:
    """What one question about a frame says beside the policy; nothing of it is declared.

    Attributes:
        table: canonical name of the source.
        version: which version of it the frame holds; None for the current one.
        public_keys: columns, each with SQL literals of the values that are public.
        max_rows_per_group: most rows one unit adds to a group; None for what the policy says.
        max_rows_norm: most l2 norm of its rows over all groups; None for what the policy says.

    """

    table: str
    version: str | None = None
    public_keys: tuple[tuple[str, tuple[str, ...]], ...] = ()
    max_rows_per_group: int | None = None
    max_rows_norm: float | None = None

    def on(self, policy: Policy) -> Policy:
        """The policy with these terms in place of its own."""
        said = {name: getattr(self, name) for name in ("version", "max_rows_per_group", "max_rows_norm")}
        rules: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        tables = tuple(
            checked(dataclasses.replace(one, **rules)) if one.table == self.table else one for one in policy.tables
        )
        listed = {column for column, _ in self.public_keys}
        kept = tuple(one for one in policy.domains if one.table != self.table or one.column not in listed)
        bounds = {one.column: one.bounds for one in policy.domains if one.table == self.table}
        own = (checked(Domain(self.table, column, bounds.get(column), keys)) for column, keys in self.public_keys)
        return dataclasses.replace(policy, tables=tables, domains=(*kept, *own))


@dataclass(frozen=True, slots=True)
class _StateUnderTerms:
    access: StateAccess
    terms: FrameTerms

    def read(self) -> State:
        return self.access.read().with_terms(self.terms.on)

    def write(self) -> State:
        return self.access.write()


class FrameSession:
    """Asks the curator's questions about the one source of a connection.

    Args:
        connection: an in-memory database in which a view stands for the source.
        access: the state.
        terms: what this question says beside the policy.
        never_null: columns of the view that hold no NULL, because it leaves such rows out.
        rows: how many the frame has.

    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        access: StateAccess,
        terms: FrameTerms,
        never_null: frozenset[str],
        rows: int = 0,
    ) -> None:
        self._runner = StatementRunner(
            _StateUnderTerms(access, terms), FrameEngine(connection, terms.table, never_null, rows)
        )

    def sql(self, text: str, options: Mapping[str, object]) -> Result:
        """Run one statement, as ``Session.sql`` does."""
        return self._runner.run(text, None, options, reader=CURATOR, timeout_seconds=None)

    def explain(self, text: str, options: Mapping[str, object]) -> Result:
        """The plan of a query, as ``FROM dp_explain(…)``; spends nothing."""
        statement = read_statement(text)
        assert isinstance(statement, SelectStatement)  # noqa: S101 — questions about frames are written as such
        return self._runner.explained(statement, options, CURATOR)

    def close(self) -> None:
        """Close the sandbox; connection and state are the caller's."""
        self._runner.sandbox.close()
