"""A session whose rows are those of a data frame: policy, ledger and stored answers are a state's, as for any table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb

from dpsql.engine import DuckDBEngine, Mark
from dpsql.errors import ParseError
from dpsql.query.environment import TableSchema
from dpsql.query.statements import SelectStatement, read_statement
from dpsql.session.books import explain_table
from dpsql.session.declare import Books
from dpsql.session.desk import Desk
from dpsql.session.reader import CURATOR
from dpsql.session.result import Result
from dpsql.state import Domain, Policy, ProtectedTable, State


@dataclass(frozen=True, slots=True)
class FrameTerms:
    """What one question about a frame says beside the policy; nothing of it is declared.

    Attributes:
        table: canonical name of the source.
        version: which version of it the frame holds; None for the current one.
        public_keys: columns, each with SQL literals of the values that are public.
        max_rows_per_group: most rows one unit adds to a group; None for what the policy says.

    """

    table: str
    version: str | None = None
    public_keys: tuple[tuple[str, tuple[str, ...]], ...] = ()
    max_rows_per_group: int | None = None

    def on(self, policy: Policy) -> Policy:
        """The policy with these terms in place of its own."""
        tables = tuple(self._on_table(one) if one.table == self.table else one for one in policy.tables)
        listed = {column for column, _ in self.public_keys}
        kept = tuple(one for one in policy.domains if one.table != self.table or one.column not in listed)
        domains = []
        for column, literals in self.public_keys:
            before = policy.domain(self.table, column)
            domains.append(Domain(self.table, column, before.bounds if before else None, literals))
        return dataclasses.replace(policy, tables=tables, domains=(*kept, *domains))

    def _on_table(self, table: ProtectedTable) -> ProtectedTable:
        return dataclasses.replace(
            table,
            version=table.version if self.version is None else self.version,
            max_rows_per_group=table.max_rows_per_group if self.max_rows_per_group is None else self.max_rows_per_group,
        )


class _FrameEngine(DuckDBEngine):
    """A database whose one source is a view over a frame; of a view, DuckDB knows no NOT NULL."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, table: str, never_null: frozenset[str], rows: int
    ) -> None:
        super().__init__(connection)
        self._table = table
        self._never_null = never_null
        self._rows = rows

    def marks(self, tables: Sequence[str]) -> dict[str, Mark]:
        """The number of rows of the frame; its columns are as many as a question reads."""
        return {self._table: {"number of rows of the frame": str(self._rows)}} if self._table in tables else {}

    def resolve(self, parts: Sequence[str]) -> TableSchema | None:
        """As of a table with the constraints that the view keeps by leaving rows out."""
        found = super().resolve(parts)
        if found is None or found.canonical != self._table:
            return found
        columns = tuple(
            dataclasses.replace(column, nullable=column.name not in self._never_null) for column in found.columns
        )
        return dataclasses.replace(found, columns=columns)


@dataclass(frozen=True, slots=True)
class _BooksUnderTerms:
    books: Books
    terms: FrameTerms

    def read(self) -> State:
        return self.books.read().with_terms(self.terms.on)

    def write(self) -> State:
        return self.books.write()


class FrameSession:
    """Asks the curator's questions about the one source of a connection.

    Args:
        connection: an in-memory database in which a view stands for the source.
        books: the state.
        terms: what this question says beside the policy.
        never_null: columns of the view that hold no NULL, because it leaves such rows out.
        rows: how many the frame has.

    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, books: Books, terms: FrameTerms, never_null: frozenset[str],
        rows: int = 0,
    ) -> None:  # fmt: skip
        engine = _FrameEngine(connection, terms.table, never_null, rows)
        self._desk = Desk(_BooksUnderTerms(books, terms), engine)

    def sql(self, text: str, options: Mapping[str, object]) -> Result:
        """Run one statement, as ``Session.sql`` does."""
        return self._desk.run(text, None, options, reader=CURATOR, timeout_seconds=None)

    def explain(self, text: str, options: Mapping[str, object]) -> Result:
        """The plan of a query, as ``FROM dp_explain(…)``; spends nothing."""
        statement = read_statement(text)
        if not isinstance(statement, SelectStatement):
            raise ParseError("only a SELECT has a plan")
        return explain_table(*self._desk.answerable(statement, options, CURATOR))

    def close(self) -> None:
        """Close the sandbox; connection and state are the caller's."""
        self._desk.sandbox.close()
