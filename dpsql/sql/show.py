"""SHOW TABLES and DESCRIBE: the statements that look up what may be asked of."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from dpsql.errors import ParseError, Span
from dpsql.operations.dialect import PrivateDuckDB, parse_statement, span_of

_FORMS = "write SHOW TABLES, DESCRIBE t or FROM dp_tables()"


@dataclass(frozen=True, slots=True)
class ShowTables:
    """The statement ``SHOW TABLES``."""


@dataclass(frozen=True, slots=True)
class DescribeTable:
    """A statement ``DESCRIBE t``.

    Attributes:
        table: the name as it stands in the text.
        text: the statement.

    """

    table: exp.Table
    text: str

    @property
    def parts(self) -> tuple[str, ...]:
        """The name as ``[catalog.][schema.]table``."""
        return tuple(part.name for part in self.table.parts)

    @property
    def span(self) -> Span | None:
        """The place of the name in the text."""
        return span_of(self.table, self.text)

    @property
    def query(self) -> exp.Select:
        """A query that reads the table, with the name at its place in the text."""
        return exp.Select(expressions=[exp.Count(this=exp.Star())], from_=exp.From(this=self.table.copy()))


ShowStatement = ShowTables | DescribeTable


def read_show(tree: exp.Expr, text: str) -> ShowStatement | None:
    """Read SHOW TABLES, DESCRIBE t, or one of the other spellings that DuckDB has of them.

    Args:
        tree: the statement.
        text: its text.

    Returns:
        The statement, or None if it is neither SHOW nor DESCRIBE.

    Raises:
        ParseError: it is SHOW or DESCRIBE of something else than the tables or one table.

    """
    if isinstance(tree, exp.Command) and str(tree.this).upper() == "SHOW":
        # sqlglot keeps SHOW t as opaque text, and reads DESC t, which has its length and its meaning
        start = PrivateDuckDB().tokenize(text)[0].start
        tree = parse_statement(f"{text[:start]}DESC{text[start + 4 :]}")
    match tree:
        case exp.Show(this="TABLES") if not tree.args.get("from_"):
            return ShowTables()
        case exp.Show():
            raise ParseError(f"SHOW lists the tables that may be asked of: {_FORMS}", span_of(tree, text))
        case exp.Describe(this=exp.Query()):
            raise ParseError(
                "the columns of an answer are described by FROM dp_describe($$ SELECT … $$)", span_of(tree.this, text)
            )
        case exp.Describe(this=exp.Table() as table) if _names_alone(tree, table):
            return DescribeTable(table, text)
        case exp.Describe():
            raise ParseError(f"DESCRIBE takes the name of one table: {_FORMS}", span_of(tree, text))
    return None


def _names_alone(tree: exp.Describe, table: exp.Table) -> bool:
    """Check that DESCRIBE has the name of a table, after the word TABLE or without it, and nothing else."""
    used = {name for name, value in tree.args.items() if value}
    kind = str(tree.args.get("kind") or "TABLE").upper()
    parts = {name for name, value in table.args.items() if value}
    return (
        used <= {"this", "kind"}
        and kind == "TABLE"
        and parts <= {"this", "db", "catalog"}
        and isinstance(table.this, exp.Identifier)
    )
