"""Names of tables and columns in declarations, and what DuckDB's catalog says of them."""

from __future__ import annotations

import re

from dpsql.engine import Engine
from dpsql.errors import PolicyError
from dpsql.query.environment import TableSchema
from dpsql.session.declarations.arguments import Books
from dpsql.state import RememberedTable, State

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')
_NAME = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*")


def split_name(text: str) -> list[str]:
    """Parts of a name: dots separate them, double quotes hold one together, case and spaces stay.

    >>> split_name("main.my visits")
    ['main', 'my visits']
    >>> split_name('clinic."Odd.Schema"."my ""own"" table"')
    ['clinic', 'Odd.Schema', 'my "own" table']

    Raises:
        PolicyError: a part is empty or a quote is not closed.

    """
    if not _NAME.fullmatch(text):
        raise PolicyError(f"{text!r} is not a name: write visits, main.visits or 'main.\"odd.name\"'")
    return [quoted.replace('""', '"') or bare for quoted, bare in _PART.findall(text)]


def table_of(parts: list[str], engine: Engine) -> TableSchema:
    """The table or view of this name.

    Raises:
        PolicyError: there is none.

    """
    schema = engine.resolve(parts)
    if schema is None:
        raise PolicyError(f"there is no table or view {'.'.join(parts)!r} in this database")
    return schema


def column_of(schema: TableSchema, name: str) -> str:
    """A column's name as the table has it.

    Raises:
        PolicyError: the table has no such column.

    """
    column = schema.column(name)
    if column is None:
        names = ", ".join(c.name for c in schema.columns)
        raise PolicyError(f"table {schema.canonical!r} has no column {name!r}; it has {names}")
    return column.name


def require_bytewise(schema: TableSchema, column: str, engine: Engine) -> None:
    """Units are told apart by their bytes: where SQL holds two spellings equal, one person would count twice."""
    collation = engine.collation(schema, column)
    if collation is not None:
        raise PolicyError(
            f"privacy unit column {column!r} is compared under collation {collation!r}, so that one unit may have "
            "several spellings; use a column without a collation (and no default_collation), as in "
            f'CREATE VIEW … AS SELECT *, lower({column}) COLLATE "binary" AS one_spelling FROM …'
        )


def require_declared(schema: TableSchema, books: Books) -> None:
    """Refuse a table that is neither protected nor public."""
    policy = books.read().policy()
    if policy.protected_table(schema.canonical) is None and policy.public_table(schema.canonical) is None:
        raise PolicyError(f"table {schema.canonical!r} is neither protected nor public")


def remember(schema: TableSchema, state: State) -> None:
    """Keep the columns of a protected table, for plans once it is dropped."""
    columns = tuple((column.name, column.type, column.nullable) for column in schema.columns)
    state.remember(RememberedTable(schema.canonical, columns))
