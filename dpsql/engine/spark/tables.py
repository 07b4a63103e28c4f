"""Tables of Spark as DuckDB sees them: types, and what a question needs of each table."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dpsql.engine.parts.manifest import Step
from dpsql.engine.parts.unit_part import unit_kind
from dpsql.model.environment import folded

SCHEMA = "main"
"""Schema of the tables in the head."""

_TYPES = {
    "boolean": "BOOLEAN",
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ntz": "TIMESTAMP",
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_TEXT = re.compile(r"(var)?char\(\d+\)")
_WORD = re.compile(r'"((?:[^"]|"")+)"|(\w+)')
_NO_UNITS = frozenset({"FLOAT", "DOUBLE"})
"""Types of units of which Spark and DuckDB may see two equal values apart."""


@dataclass(frozen=True, slots=True)
class SparkTable:
    """A table of Spark.

    Attributes:
        name: its name in the database of the session, in lower case.
        columns: name and DuckDB type of each column that has one. DuckDB would read the others as other values.

    """

    name: str
    columns: tuple[tuple[str, str], ...]

    def column(self, name: str) -> tuple[str, str] | None:
        """Return name and DuckDB type of a column, or None if there is none."""
        return next((one for one in self.columns if folded(one[0]) == folded(name)), None)


@dataclass(frozen=True, slots=True)
class UnitTable:
    """A table of units as a question reads it.

    Attributes:
        table: the table.
        columns: names of the columns that its texts read.
        unit: the column of the unit; of a linked table that of its last parent.
        links: steps to the last parent.
        keys: columns that links of other tables lead to; no two rows may have equal ones.

    """

    table: SparkTable
    columns: tuple[str, ...]
    unit: str
    links: tuple[Step, ...] = ()
    keys: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class DeclaredUnit:
    """What is declared of the units of a table.

    Attributes:
        name: name of the privacy unit.
        column: the column of the unit; of a linked table that of its last parent.
        links: steps to the last parent.

    """

    name: str
    column: str
    links: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class DeclaredTables:
    """What is declared of tables, by their canonical names.

    Attributes:
        units: the tables of units.
        public: the version of each public table.
        keys: of each table, the columns that links of other tables lead to. These and no other columns count as unique,
            and each snapshot of the table looks whether they are.

    """

    units: Mapping[str, DeclaredUnit]
    public: Mapping[str, str]
    keys: Mapping[str, tuple[tuple[str, ...], ...]]


def duckdb_type(spark_type: str) -> str | None:
    """Return the DuckDB type with the same values as a type of Spark, or None if there is none.

    >>> duckdb_type("bigint"), duckdb_type("decimal(10,2)"), duckdb_type("string collate UTF8_LCASE")
    ('BIGINT', 'DECIMAL(10,2)', None)
    """
    if found := _DECIMAL.fullmatch(spark_type):
        return f"DECIMAL({found[1]},{found[2]})"
    return "VARCHAR" if _TEXT.fullmatch(spark_type) else _TYPES.get(spark_type)


def spark_unit_kind(kind: str) -> str | None:
    """Return the kind of a unit of a DuckDB type: equal units of one kind go to one part. Return None if none do."""
    return None if kind in _NO_UNITS else unit_kind(kind)


def own_name(table: str) -> str | None:
    """Return the name of a table of the head from its canonical name, or None if it is of another database or schema.

    >>> own_name('main.visits'), own_name('main."My visits"'), own_name('/tmp/a.duckdb:main.t')
    ('visits', 'My visits', None)
    """
    schema, dot, name = table.partition(".")
    if schema != SCHEMA or not dot:
        return None
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def mentioned(texts: Sequence[str]) -> frozenset[str]:
    """Return all that could be names in SQL texts, folded.

    >>> sorted(mentioned(['SELECT "City", n FROM t']))
    ['city', 'from', 'n', 'select', 't']
    """
    found = (word for text in texts for word in _WORD.findall(text))
    return frozenset(folded(quoted.replace('""', '"') or plain) for quoted, plain in found)


def read_columns(table: SparkTable, names: Collection[str]) -> tuple[str, ...]:
    """Return the columns of a table whose folded names are among some."""
    return tuple(name for name, _ in table.columns if folded(name) in names)
