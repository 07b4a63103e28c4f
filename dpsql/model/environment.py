"""What a plan may depend on besides the query's text: policy, schemas, mechanisms and the clock; never rows."""

from __future__ import annotations

import datetime as dt
import re
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from sqlglot import exp

from dpsql.errors import SchemaError
from dpsql.model.frame import Places
from dpsql.model.rows import ListedRows, PublicKeys
from dpsql.model.table_rules import TableRules
from dpsql.operations.dialect import span_of


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the catalog knows it: its name as declared, DuckDB type, and whether NULL may occur.

    Attributes:
        origin: table and column that it is of, where it has another name in joined rows.
        bounds: of what a subquery computes, where they follow from the domains of its columns.
        uses: columns of tables in what computes it, through all subqueries, each as often as it is named there.
        zone: the time zones that the policy has for its tables, with blanks between; empty if it has none.

    """

    name: str
    type: str
    nullable: bool
    origin: tuple[str, str] | None = None
    bounds: tuple[float, float] | None = None
    uses: int = 1
    zone: str = ""


@dataclass(frozen=True, slots=True)
class JoinedName:
    """What a column of a subquery, or of one of several joined tables, is called in the rows.

    Attributes:
        qualifier: of its table in the query.
        declared: its own name.
        output: its name in the rows.
        hidden: whether USING lets another column stand for it where no table is named.

    """

    qualifier: str
    declared: str
    output: str
    hidden: bool


SOURCE_ROWS = "dpsql_rows_"
"""Begins the names under which an outer statement reads the rows of answers and public tables, before their places."""

_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def folded(name: str) -> str:
    """A name as DuckDB compares it: of all letters it folds those of ASCII alone.

    >>> folded("Ärzte"), folded("\u212a")
    ('Ärzte', '\u212a')
    """
    return name.translate(_ASCII_LOWER)


@dataclass(frozen=True, slots=True)
class KeyPath:
    """Columns that lead to one unit: rows of any tables that agree on them, without NULL, are of one unit.

    Attributes:
        space: what their values are keys of: the privacy unit itself, or a table whose key is unique.
        columns: in the order of that key.
        always: whether rows that have a unit have these values too; not so where an outer join leaves them out.

    """

    space: str
    columns: tuple[str, ...]
    always: bool = True


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table or view, or the rows of a subquery or a join.

    Attributes:
        canonical: its identity in policy and hashes.
        relation: quoted DuckDB text to read it from, ENUM columns as text, columns of unsafe types left out.
        columns: the columns of ``relation``.
        catalog_name: database, schema and table as the catalog spells them.
        names: of joined tables and subqueries, which of their columns is which; empty for one table.
        paths: of a protected table, what leads to its unit.

    """

    canonical: str
    relation: str
    columns: tuple[Column, ...]
    catalog_name: tuple[str, str, str]
    names: tuple[JoinedName, ...] = ()
    paths: tuple[KeyPath, ...] = ()

    @property
    def visible(self) -> tuple[JoinedName, ...]:
        """The columns that a query can name."""
        return self.names or tuple(JoinedName("", column.name, column.name, False) for column in self.columns)

    @property
    def types(self) -> tuple[tuple[str, str], ...]:
        """Each column with its type."""
        return tuple((column.name, column.type) for column in self.columns)

    @property
    def has_clocks(self) -> bool:
        """Check that a column is a timestamp with a zone, or of a table whose zone the policy names."""
        return any(column.zone or "ZONE" in column.type for column in self.columns)

    def origin(self, name: str) -> tuple[str, str]:
        """Table and column that a column of this name is of."""
        column = self.column(name)
        return (self.canonical, name) if column is None or column.origin is None else column.origin

    def called(self, name: str) -> str:
        """Return what a query calls a column of these rows, with its table where it has one."""
        one = next((one for one in self.names if one.output == name), None)
        return name if one is None else f"{one.qualifier}.{one.declared}".removeprefix(".")

    def column(self, name: str) -> Column | None:
        """The column of this name; DuckDB ignores the case of ASCII letters even where a name is quoted."""
        exact = (column for column in self.columns if column.name == name)
        alike = (column for column in self.columns if folded(column.name) == folded(name))
        return next(exact, None) or next(alike, None)


@dataclass(frozen=True, slots=True)
class DeclaredVersion:
    """A version that a table has or had, and since when (UTC)."""

    name: str
    since: dt.datetime


class Rules(Protocol):
    """The policy as the planner reads it."""

    def rules(self, canonical: str) -> TableRules | None:
        """Rules of a protected table; None where the table is not protected."""

    def current_version(self, canonical: str) -> str:
        """The declared version of a protected or public table."""

    def versions(self, canonical: str) -> tuple[DeclaredVersion, ...]:
        """All versions of a protected or public table, oldest first."""

    def is_public(self, canonical: str) -> bool:
        """Whether the curator declared the table public."""

    def is_readable(self, canonical: str) -> bool:
        """Return whether the reader may see the rows of a public table; False for a table that is not public."""

    def declared(self) -> tuple[str, ...]:
        """Return the canonical names of all protected and public tables."""

    def bounds(self, canonical: str, column: str) -> tuple[float, float] | None:
        """Declared bounds of a column."""

    def has_public_keys(self, canonical: str, column: str) -> bool:
        """Whether the column has a public list of keys."""

    def listed_keys(self, canonical: str, column: str) -> tuple[str, ...]:
        """Return the keys that are declared for a column as literals, in their order; none if a table lists them."""

    def order(self, canonical: str, column: str) -> tuple[str, ...]:
        """Return the members of a column's ENUM type in their declared order, or nothing if none is declared."""


class Schemas(Protocol):
    """Names and types; implemented by the engine, without reading rows of protected tables."""

    def resolve(self, parts: Sequence[str]) -> TableSchema | None:
        """Table or view that ``[catalog.][schema.]table`` names for the curator's connection."""

    def identify(self, parts: Sequence[str]) -> str | None:
        """Canonical name of what ``resolve`` finds; also where what leads to its unit is gone."""

    def earlier(self, parts: Sequence[str], version: str) -> TableSchema | None:
        """The same as ``resolve`` where rows are not those of now: the columns of a version, and no rows."""

    def has_cast(self, before: str, after: str) -> bool:
        """Whether DuckDB has a cast from one type to another."""

    def failed_conversions(self, columns: tuple[Column, ...], expressions: tuple[str, ...]) -> tuple[int, ...]:
        """Return the places of expressions in which a conversion fails on one row of NULLs of these columns."""

    def describe(self, columns: Sequence[Column], expressions: Sequence[str]) -> list[str]:
        """DuckDB types of expressions over an empty table with these columns.

        Raises:
            SchemaError: an expression does not bind.

        """

    def bind_after(self, name: str, columns: Sequence[Column], sql: str) -> list[tuple[str, str]]:
        """Names and types of a query over an answer that has these columns, under a name.

        Raises:
            SchemaError: it does not bind.

        """

    def public_rows(self, sql: str, tables: Sequence[TableSchema]) -> tuple[tuple[str | None, ...], ...]:
        """Return the rows of a query of texts over copies of public tables.

        Args:
            sql: reads the table at each place under `SOURCE_ROWS` and the place.
            tables: the tables.

        Raises:
            SchemaError: a table is too large to be copied, or the query fails on its rows.

        """

    def is_base_table(self, schema: TableSchema) -> bool:
        """Whether a resolved name is a base table and not a view."""

    def view_text(self, schema: TableSchema) -> str | None:
        """The statement that made a view; None for what is no view."""

    def keeps_order(self, origin: tuple[str, str], members: tuple[str, ...]) -> bool:
        """Return True if a column's ENUM type still has these members in this order, or if its table is gone."""

    def has_collation(self, origin: tuple[str, str]) -> bool:
        """Return whether a column of a table may hold different texts equal, which a constraint tells apart."""

    def unique_columns(self, schema: TableSchema) -> tuple[tuple[str, ...], ...]:
        """Sets of columns that a constraint keeps unique, each together, where none of them is NULL."""

    def unique_within(self, schema: TableSchema, columns: tuple[str, ...]) -> list[list[str]]:
        """Return sets of columns that a constraint keeps unique, those that have no other columns than these."""

    def most_matches(self, schema: TableSchema, columns: Sequence[str], version: str | None) -> int:
        """Most rows of a public table that agree on some columns, or of other public rows, which have no version."""

    def value_bounds(self, origin: tuple[str, str]) -> tuple[float, float] | None:
        """Return the least and the largest number of a column of a public table, or None if there is none."""

    def public_keys(self, columns: Sequence[tuple[str, str]], types: Sequence[str]) -> PublicKeys:
        """The product of the public lists of columns, each with its table, as it is now."""

    def keys_of_rows(self, rows: ListedRows, types: Sequence[str]) -> PublicKeys | None:
        """Return the keys that public rows have now, of these types.

        Return None if there are too many of them, or if the rows are those of an earlier version without a release.
        """

    def lists_at(self, moment: dt.datetime) -> Schemas:
        """The same, with the public lists of keys that releases were made by at a moment."""

    def bucket_groups(
        self,
        origin: tuple[str, str],
        column: str,
        key_type: str,
        expressions: Sequence[str],
        conditions: Sequence[str],
    ) -> Places:
        """Groups of a column's public list by expressions of it, of values that pass all conditions."""


Unfit = Literal[
    "public keys",
    "private keys",
    "all private keys",
    "sketch",
    "no sketch",
    "GROUPING SETS",
    "bounding = L2",
    "AUTO",
    "composition = gaussian",
    "composition = zcdp",
    "composition = pure",
    "running totals or buckets",
    "neither running totals nor buckets",
    "quantiles",
]
"""What a query may have, or lack, that a mechanism does not go with. Of *all private keys* no number is enforced."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A way to noise presence counts.

    Attributes:
        name: what frames, and so their hashes, say.
        word: what ``OPTIONS (mechanism = …)`` says.
        sentence: what it does, in plans.
        without: what it does not go with.
        is_offered: whether it is a candidate where the text names none.
        least_keys: fewest public keys with which it is one.
        noises_totals: whether a power of running totals is noised, in place of the values.

    """

    name: str
    word: str
    sentence: str
    without: frozenset[Unfit]
    is_offered: bool = True
    least_keys: int = 1
    noises_totals: bool = False


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything outside the text that a plan depends on.

    Attributes:
        policy, schemas: what is declared, and what there is.
        settings: pinned session settings.
        clock: the moment of the question, the same at every call.
        mechanisms: by which counts may be noised.

    """

    policy: Rules
    schemas: Schemas
    settings: tuple[tuple[str, str], ...]
    clock: Callable[[], dt.datetime]
    mechanisms: tuple[Mechanism, ...]


def things_without(word: str | None, mechanisms: Iterable[Mechanism]) -> frozenset[str]:
    """What the named mechanism does not go with, as things of the table of combinations."""
    return frozenset(f"a mechanism without {thing}" for one in mechanisms if one.word == word for thing in one.without)


_NUMBER = re.compile(r"U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)")
"""Types of numbers."""


def bounds_of(schema: TableSchema, name: str, environment: Environment) -> tuple[float, float] | None:
    """Return the bounds of a column's values: declared ones, those that follow, or those of a public table's rows."""
    column = schema.column(name)
    if column is None or column.bounds is not None:
        return None if column is None else column.bounds
    if column.type == "BOOLEAN":
        return 0.0, 1.0
    origin = schema.origin(name)
    declared = environment.policy.bounds(*origin)
    if declared or not environment.policy.is_public(origin[0]) or not _NUMBER.fullmatch(column.type):
        return declared
    return environment.schemas.value_bounds(origin)


def types_of(
    environment: Environment, columns: Sequence[Column], parts: Sequence[tuple[exp.Expr, str]], text: str
) -> list[str]:
    """DuckDB types of expressions, each given as the node that was written and the SQL that it became.

    Raises:
        SchemaError: one does not bind; the error says where in ``text`` it stands.

    """
    try:
        return environment.schemas.describe(columns, [sql for _, sql in parts])
    except SchemaError:
        for node, sql in parts:
            try:
                environment.schemas.describe(columns, [sql])
            except SchemaError as error:
                raise SchemaError(str(error), span=span_of(node, text)) from None
        raise
