"""The rows that are grouped: whose they are, which of them, and how they are read."""

from __future__ import annotations

import math
from dataclasses import dataclass

BINS = "bins of the text"
"""Mark of a key that is the place of a bin, with the number of bins; and the table of its public list."""
TYPES_IN_CONSTRAINTS = frozenset(
    {
        *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
        *("UHUGEINT", "VARCHAR", "BLOB", "UUID", "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"),
    }
)
"""Types whose values a constraint tells apart as GROUP BY does; a value of another type may have several spellings."""


@dataclass(frozen=True, slots=True)
class Key:
    """What rows are grouped by: normalised SQL over the source's columns, and its DuckDB type."""

    sql: str
    type: str


@dataclass(frozen=True, slots=True)
class LinkStep:
    """One step from a table towards its unit.

    Attributes:
        columns: columns of the table before, or of the queried one.
        parent: canonical name of the table whose key they hold.
        parent_columns: that key.
        version: the parent's declared version.

    """

    columns: tuple[str, ...]
    parent: str
    parent_columns: tuple[str, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that are grouped, and whose they are; part of the hash.

    Attributes:
        unit: name of the privacy unit.
        table: canonical name of the protected table.
        version: the table's declared version.
        unit_column: the column that names the privacy unit.
        filters: AND-ed conditions, normalised and sorted.
        settings: pinned session settings that an expression's value depends on.
        links: steps that lead to the unit.
        source: where rows do not come from one table alone, how tables and their versions make them; else empty.
        reads: every table of ``source`` with its version.
        outside: where rows are those outside some groups, which groups of which frame these are; else empty. Of the
            first round of key selection that there are none.

    """

    unit: str
    table: str
    version: str
    unit_column: Key
    filters: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    links: tuple[LinkStep, ...] = ()
    source: str = ""
    reads: tuple[tuple[str, str], ...] = ()
    outside: str = ""

    @property
    def table_versions(self) -> tuple[tuple[str, str], ...]:
        """Every table that is read, with its version, the protected one that names the frame first."""
        parents = ((link.parent, link.version) for link in self.links)
        return tuple(dict.fromkeys(((self.table, self.version), *parents, *self.reads)))


@dataclass(frozen=True, slots=True)
class RowsSql:
    """How DuckDB reads the rows of a frame; no part of the hash.

    Attributes:
        relation: quoted text that reads them (an alias may change). Empty where the rows are gone, because the table
            was dropped or had this version once, and only stored releases are left.
        types: columns of ``relation`` with their types, by which expressions are computed.
        cuts: sentences about rows of one unit that joins leave out.
        single: tables of which a join takes one row of each unit.
        bounds: the bounds of joined rows and the tables that they are of, as a sentence; empty for one table.
        called: columns, as quoted SQL, whose name in the rows of a join is not the one that the query gives them;
            each with the latter.
        zones: time zones whose clocks are read of timestamps with a zone, where the query names none.
        stored_unit: database, schema, table and column that hold the unit, if each row is a row of that table, read
            once, and a constraint can say that no unit has two; else empty.
        all_rows: the relation before rows of listed keys were left out of it; empty if none were.

    """

    relation: str
    types: tuple[tuple[str, str], ...] = ()
    cuts: tuple[str, ...] = ()
    single: tuple[str, ...] = ()
    bounds: str = ""
    called: tuple[tuple[str, str], ...] = ()
    zones: tuple[str, ...] = ()
    stored_unit: tuple[str, ...] = ()
    all_rows: str = ""

    def readable(self, sql: str) -> str:
        """Return SQL over these rows with the names that the query gives their columns."""
        for column, name in self.called:
            sql = sql.replace(column, name)
        return sql


@dataclass(frozen=True, slots=True)
class ListedRows:
    """Public rows in a text whose values are the keys.

    Attributes:
        relation: how they are read; empty where a table, or a version of it, is gone.
        identity: what they are made of, with versions in place of what changes.
        types: names and types of their columns.
        keys: expressions of their columns, one for each key.
        filters: conditions that they pass.

    """

    relation: str
    identity: str
    types: tuple[tuple[str, str], ...]
    keys: tuple[str, ...]
    filters: tuple[str, ...]

    @property
    def name(self) -> tuple[str, str]:
        """Return the name by which the state file knows the list of keys, in place of a table and its column."""
        where = f" WHERE {' AND '.join(self.filters)}" if self.filters else ""
        return self.identity, f"{', '.join(self.keys)}{where}"


@dataclass(frozen=True, slots=True)
class PublicKeys:
    """The columns (table, column) whose public lists make the keys, with lengths, a digest, and where NULL is listed.

    Each list has a digest of its own, by which the state file knows it.

    Keys are all combinations, in the order of their values, the last column's changing fastest. Keys of public rows in
    the text are one list, of the combinations that these rows have.
    """

    columns: tuple[tuple[str, str], ...]
    lengths: tuple[int, ...]
    digest: str
    with_null: tuple[bool, ...]
    list_digests: tuple[str, ...] = ()
    rows: ListedRows | None = None

    @property
    def count(self) -> int:
        """Return the number of keys."""
        return math.prod(self.lengths)
