"""Tables that may be asked of: columns, types, privacy units, declared bounds and public lists of keys.

The answers are functions of the policy and the catalog. No row is read, and no member of an ENUM, default value or
CHECK is shown. A table that nobody declared is not listed. DESCRIBE refuses it in the words for a name without table.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from dpsql.engine import Engine, ListedTable, identity, without_members
from dpsql.errors import PolicyError, SchemaError
from dpsql.model.environment import Column, Environment, TableSchema
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import quote
from dpsql.plan.environment.links import linked, unit_column
from dpsql.receipts.result import Result
from dpsql.session.declare import split_name
from dpsql.sql.show import DescribeTable, ShowStatement, ShowTables
from dpsql.sql.source.scope import PrivateInside
from dpsql.sql.source.sources import read_select
from dpsql.state import Domain, Policy

MOST_KEYS = 20
"""Length up to which a list of public keys is shown; of a longer one the number of keys is shown."""

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COLUMNS = ("column_name", "column_type", "unit", "role", "bounds", "public_keys")

Row = tuple[str | None, ...]
"""A row of DESCRIBE."""


class AskableTables:
    """The declared tables that a query can name."""

    def __init__(self, policy: Policy, engine: Engine) -> None:
        self._policy = policy
        self._engine = engine

    def shown(self, statement: ShowStatement, outside: Callable[[], Environment]) -> Result:
        """Build the answer of SHOW TABLES or DESCRIBE.

        Args:
            statement: the statement.
            outside: reads policy and schemas of the reader.

        """
        return self.names() if isinstance(statement, ShowTables) else self.described(statement, outside())

    def names(self) -> Result:
        """Build the answer of SHOW TABLES: a row for each table."""
        return _texts(("name",), [(name,) for name, _ in self._named()])

    def columns(self) -> Result:
        """Build the answer of ``FROM dp_tables()``: a row for each column of each table."""
        rows = [(name, *row) for name, canonical in self._named() for row in self._rows(canonical)]
        return _texts(("table_name", *_COLUMNS), rows)

    def described(self, statement: DescribeTable, outside: Environment) -> Result:
        """Build the answer of ``DESCRIBE t``: a row for each column.

        Args:
            statement: the statement.
            outside: policy and schemas of the reader.

        Raises:
            SchemaError: there is no such table, or nobody declared it, or it is a view of such tables.
            UnsupportedQueryError: it is a view that reads its tables in a way that has no private form.

        """
        canonical = outside.schemas.identify(statement.parts)
        if canonical and (canonical in self._listed or self._policy.protected_table(canonical)):
            return _texts(_COLUMNS, list(self._rows(canonical)))
        return _texts(_COLUMNS, list(self._rows_of_view(statement, outside)))

    def _named(self) -> list[tuple[str, str]]:
        """Return the name in SQL and the identity of each declared table that a query can name, by name."""
        named = ((self._name(canonical), canonical) for canonical in self._declared)
        return sorted((name, canonical) for name, canonical in named if name)

    @functools.cached_property
    def _declared(self) -> tuple[str, ...]:
        """The identities of the declared tables."""
        return (*(one.table for one in self._policy.tables), *(one.table for one in self._policy.public))

    @functools.cached_property
    def _listed(self) -> Mapping[str, ListedTable]:
        """The declared tables that are there, by identity; without public ones that are views now."""
        listed = self._engine.listed(self._declared)
        return {
            canonical: one
            for canonical, one in listed.items()
            if not (one.is_view and self._policy.public_table(canonical))
        }

    def _name(self, canonical: str) -> str | None:
        """Return the shortest name of a declared table in SQL, or None if no query can name it."""
        if listed := self._listed.get(canonical):
            return _written(listed.name)
        if any(one.table == canonical for one in self._policy.remembered):
            own = _own_parts(canonical)
            return _written(own[own[0] == "main" :]) if own else None
        return None

    def _rows(self, canonical: str) -> Iterator[Row]:
        """Return a row for each column of a declared table; for a table without rows, those of remembered columns."""
        listed, table = self._listed.get(canonical), self._policy.protected_table(canonical)
        unit = unit_name = None
        if table:
            unit = table.unit
            unit_name = self._unit_column(canonical) or table.privacy_unit_column
        for column in self._columns(listed.schema if listed else None, canonical):
            yield self._row(column, (canonical, column.name), unit, is_unit=column.name == unit_name)
        for column in listed.left_out if listed else ():
            yield column.name, without_members(column.type), unit, "cannot be read by a query", None, None

    def _columns(self, schema: TableSchema | None, canonical: str) -> tuple[Column, ...]:
        """Return the columns as a plan reads them; those that the policy remembers if rows have lost their unit."""
        if schema:
            try:
                return linked(schema, self._policy, self._engine).columns
            except SchemaError:
                # a parent is gone, and stored answers can still be asked for
                pass
        remembered = (one.columns for one in self._policy.remembered if one.table == canonical)
        return tuple(Column(*column) for column in next(remembered, ()))

    def _unit_column(self, canonical: str) -> str | None:
        """Return the column that names the unit, or None if the link to it is broken."""
        try:
            return unit_column(self._policy, canonical)
        except SchemaError:
            return None

    def _rows_of_view(self, statement: DescribeTable, outside: Environment) -> Iterator[Row]:
        """Return a row for each column of a view of declared tables, as a query of it reads them."""
        refusals = Refusals(statement.text)
        select = read_select(statement.query, {}, outside, refusals)
        if isinstance(select, PrivateInside):
            refusals.refuse(
                "source",
                statement.table,
                "this view is a private query by itself, which has no name in a query.",
                "Ask the curator for its text, and ask that.",
            )
        schema, owner = select.relation.schema, select.owner
        columns = {column.name: column for column in schema.columns}
        for one in schema.visible:
            column = columns[one.output]
            shown = Column(one.declared, column.type, column.nullable, bounds=column.bounds)
            yield self._row(shown, schema.origin(one.output), owner.rules.unit, is_unit=one.output in owner.names_unit)

    def _row(self, column: Column, origin: tuple[str, str], unit: str | None, *, is_unit: bool) -> Row:
        """Return the row of a column.

        Args:
            column: its name, its type, and its bounds if they follow from those of other columns.
            origin: the table and the column that its values are of.
            unit: the privacy unit whose rows it is in; None in a public table.
            is_unit: whether it names the unit.

        """
        domain = self._policy.domain(*origin)
        bounds = column.bounds or (domain.bounds if domain else None)
        keys = self._keys(domain) if domain else None
        roles = ["privacy unit column"] if is_unit else []
        roles += ["key with public list"] if keys else []
        roles += [f"link to {parent}" for parent in self._parents(*origin)]
        public = self._policy.public_table(origin[0])
        roles = roles or ["public" if public else "private"]
        # a view that has a unit shows no rows of its tables
        roles += ["readable"] if public and public.readable and unit is None else []
        return (
            column.name,
            without_members(column.type),
            unit,
            ", ".join(roles),
            f"[{bounds[0]:.12g}, {bounds[1]:.12g}]" if bounds else None,
            keys,
        )

    def _parents(self, canonical: str, column: str) -> Iterator[str]:
        """Return the parent's column that a column of a linked table leads to."""
        link = self._policy.link(canonical)
        if not link:
            return
        for own, key in zip(link.columns, link.parent_columns, strict=True):
            if own == column:
                yield f"{self._name(link.parent) or 'a table that is gone'}.{_written([key])}"

    def _keys(self, domain: Domain) -> str | None:
        """Return the public keys of a column in words, or None if it has none."""
        if domain.keys:
            return ", ".join(domain.keys) if len(domain.keys) <= MOST_KEYS else f"{len(domain.keys):,} keys"
        name = self._name(domain.keys_from[0]) if domain.keys_from else None
        return f"from {name}.{_written(domain.keys_from[1:])}" if name and domain.keys_from else None


def _own_parts(canonical: str) -> list[str] | None:
    """Return schema and table of an identity in the curator's own database, or None for another database."""
    try:
        parts = split_name(canonical)
    except PolicyError:
        return None
    return parts if len(parts) == 2 and identity(parts) == canonical else None


def _written(parts: Sequence[str]) -> str:
    """Return a name as SQL, with quotes where it needs them."""
    return ".".join(part if _PLAIN_NAME.fullmatch(part) else quote(part) for part in parts)


def _texts(names: Sequence[str], rows: Sequence[Row]) -> Result:
    """Return rows of texts, some of them NULL, under their names."""
    columns = [pa.array([row[place] for row in rows], pa.string()) for place in range(len(names))]
    return Result(pa.table(columns, list(names)))
