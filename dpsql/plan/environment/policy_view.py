"""Policy and schemas as the planner reads them: no rows of protected tables, no state of the ledger."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from dpsql.cascade.reader import CURATOR, Reader
from dpsql.engine import BYTEWISE, Engine, Sandbox, identity
from dpsql.errors import PolicyError, SchemaError
from dpsql.mechanism import registry
from dpsql.model.environment import SOURCE_ROWS, Column, DeclaredVersion, Environment, TableSchema, folded
from dpsql.model.frame import Places
from dpsql.model.table_rules import LevelRules, TableRules
from dpsql.operations.dialect import quote
from dpsql.operations.row_sql import as_condition, guarded
from dpsql.plan.environment.links import key_paths, link_steps, linked, unit_column
from dpsql.release.public_lists import PublicLists
from dpsql.state import Policy, ReleaseHistory, rho_from_nano


@dataclass(frozen=True)
class PolicyView:
    """The policy behind the planner's ``Rules``, for one reader: a default is never above what they may be shown."""

    policy: Policy
    reader: Reader

    def rules(self, canonical: str) -> TableRules | None:
        """Rules of a protected table; None where the table is not protected."""
        table = self.policy.protected_table(canonical)
        if not table:
            return None
        is_linked, unit = bool(self.policy.links), self.policy.declared_unit(table.unit)
        return TableRules(
            unit=table.unit,
            privacy_unit_column=unit_column(self.policy, canonical) if is_linked else table.privacy_unit_column,
            max_groups=table.max_groups,
            max_rows_per_group=table.max_rows_per_group,
            max_rows_norm=table.max_rows_norm,
            max_rows_per_unit=table.max_rows_per_unit,
            min_units=table.min_units or 1,
            version=table.version,
            levels=LevelRules(
                default_rho=table.default_rho and rho_from_nano(int(min(table.default_rho, self.reader.most_nano))),
                default_epsilon=table.default_epsilon,
                default_delta=table.default_delta or unit.default_delta,
                window=table.rho_window and (rho_from_nano(table.rho_window[0]), rho_from_nano(table.rho_window[1])),
                ceiling=table.rho_ceiling and rho_from_nano(table.rho_ceiling),
                limit=self.reader.rho_limit and rho_from_nano(self.reader.rho_limit),
                coverage=table.coverage,
            ),
            has_thresholds=unit.thresholds,
            composition=unit.composition,
            links=link_steps(self.policy, canonical) if is_linked else (),
            time_zone=table.time_zone,
        )

    def current_version(self, canonical: str) -> str:
        """The declared version of a protected or public table."""
        found = self.policy.protected_table(canonical) or self.policy.public_table(canonical)
        if not found:
            raise SchemaError(f"the table {canonical!r} is neither protected nor public.")
        return found.version

    def versions(self, canonical: str) -> tuple[DeclaredVersion, ...]:
        """All versions of a protected or public table, oldest first."""
        return tuple(DeclaredVersion(one.version, one.at) for one in self.policy.versions_of(canonical))

    def is_public(self, canonical: str) -> bool:
        """Whether the curator declared the table public."""
        return bool(self.policy.public_table(canonical))

    def is_readable(self, canonical: str) -> bool:
        """Return whether the reader may see the rows of a public table; False for a table that is not public.

        The curator sees those of each public table, an analyst those of a table that is declared readable.
        """
        public = self.policy.public_table(canonical)
        return public is not None and (public.readable or self.reader.name == CURATOR)

    def declared(self) -> tuple[str, ...]:
        """Return the canonical names of all protected and public tables."""
        return (*(one.table for one in self.policy.tables), *(one.table for one in self.policy.public))

    def bounds(self, canonical: str, column: str) -> tuple[float, float] | None:
        """Declared bounds of a column."""
        domain = self.policy.domain(canonical, column)
        return domain.bounds if domain else None

    def has_public_keys(self, canonical: str, column: str) -> bool:
        """Whether the column has a public list of keys."""
        domain = self.policy.domain(canonical, column)
        return bool(domain and (domain.keys or domain.keys_from))

    def listed_keys(self, canonical: str, column: str) -> tuple[str, ...]:
        """Return the keys that are declared for a column as literals, in their order; none if a table lists them."""
        domain = self.policy.domain(canonical, column)
        return domain.keys or () if domain else ()

    def order(self, canonical: str, column: str) -> tuple[str, ...]:
        """Return the members of a column's ENUM type in their declared order, or nothing if none is declared."""
        domain = self.policy.domain(canonical, column)
        return domain.ordered or () if domain else ()


@dataclass(frozen=True)
class SchemaView(PublicLists):
    """Engine and sandbox behind the planner's ``Schemas``."""

    def resolve(self, parts: Sequence[str]) -> TableSchema | None:
        """Return the table or view that a name means. Of a protected table that was dropped, return its last columns.

        Without rows if it was dropped, or if the curator archived it.
        """
        schema = self.engine.resolve(parts)
        if not schema:
            return self._remembered(parts)
        if self.policy.links:
            schema = linked(schema, self.policy, self.engine)
        return replace(schema, relation="") if self.policy.is_archived(schema.canonical) else schema

    def identify(self, parts: Sequence[str]) -> str | None:
        """Canonical name of what ``resolve`` finds; also where what leads to its unit is gone."""
        schema = self.engine.resolve(parts) or self._remembered(parts)
        return schema.canonical if schema else None

    def earlier(self, parts: Sequence[str], version: str) -> TableSchema | None:
        """The same as ``resolve`` where rows are not those of now: the columns of a version, and no rows."""
        try:
            schema = self.resolve(parts)
        except SchemaError:
            # a parent is gone, and is not needed
            schema = self._remembered(parts)
        if not schema:
            return None
        then = self.past.columns_of(schema.canonical, version) if self.past else ()
        known = {folded(name) for name, _, _ in then}
        # a column that came without a new version is as it is now
        columns = (*(Column(*one) for one in then), *(one for one in schema.columns if folded(one.name) not in known))
        schema = replace(schema, relation="", columns=columns)
        return replace(schema, paths=key_paths(schema, self.policy, self.engine)) if then else schema

    def _remembered(self, parts: Sequence[str]) -> TableSchema | None:
        *prefix, name = parts
        schema = prefix[0] if len(prefix) == 1 else "main"
        known = {remembered.table: remembered for remembered in self.policy.remembered}
        found = known.get(identity((schema, name))) if len(prefix) < 2 else None
        if not found:
            return None
        columns = tuple(Column(*column) for column in found.columns)
        remembered = TableSchema(found.table, "", columns, catalog_name=("", schema, name))
        return replace(remembered, paths=key_paths(remembered, self.policy, self.engine))

    def has_cast(self, before: str, after: str) -> bool:
        """Whether DuckDB has a cast from one type to another."""
        return self.sandbox.has_cast(before, after)

    def failed_conversions(self, columns: tuple[Column, ...], expressions: tuple[str, ...]) -> tuple[int, ...]:
        """Return the places of expressions in which a conversion fails on one row of NULLs."""
        return self.sandbox.failed_conversions(columns, expressions)

    def describe(self, columns: Sequence[Column], expressions: Sequence[str]) -> list[str]:
        """Types of expressions over an empty table."""
        return self.sandbox.describe(columns, expressions)

    def bind_after(self, name: str, columns: Sequence[Column], sql: str) -> list[tuple[str, str]]:
        """Names and types of a query over an empty answer with these columns."""
        return list(self.sandbox.bind(name, tuple(columns), sql))

    def public_rows(self, sql: str, tables: Sequence[TableSchema]) -> tuple[tuple[str | None, ...], ...]:
        """Return the rows of a query of texts over copies of public tables."""
        from dpsql.engine.limits import Failure, run_limited  # noqa: PLC0415 — few queries need it

        rows = {f"{SOURCE_ROWS}{place}": table for place, table in enumerate(self.engine.copied(tables))}
        found = run_limited(sql, rows)
        if isinstance(found, Failure):
            raise SchemaError(f"a query of public tables {found.reason}.", hint=found.hint)
        return tuple(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def is_base_table(self, schema: TableSchema) -> bool:
        """Whether a resolved name is a base table and not a view."""
        return self.engine.is_base_table(schema)

    def view_text(self, schema: TableSchema) -> str | None:
        """The statement that made a view of the curator's own schema; its names mean what they mean there."""
        return self.engine.view_text(schema)

    def keeps_order(self, origin: tuple[str, str], members: tuple[str, ...]) -> bool:
        """Return True if a column's ENUM type still has these members in this order, or if its table is gone."""
        table, column = origin
        schema = self.engine.find(table, views=True)
        return schema is None or self.engine.members(schema, column) == members

    def has_collation(self, origin: tuple[str, str]) -> bool:
        """Return whether a column may hold different texts equal; True if its table is gone."""
        table, column = origin
        schema = self.engine.find(table, views=True)
        return schema is None or self.engine.collation(schema, column) is not None

    def unique_columns(self, schema: TableSchema) -> tuple[tuple[str, ...], ...]:
        """Sets of columns that a constraint keeps unique; of a table that was dropped, the keys that links lead to."""
        if not schema.catalog_name[0]:
            return tuple(link.parent_columns for link in self.policy.links if link.parent == schema.canonical)
        return self.engine.unique_columns(schema)

    def unique_within(self, schema: TableSchema, columns: tuple[str, ...]) -> list[list[str]]:
        """Return sets of columns that a constraint keeps unique, those that have no other columns than these."""
        return sorted(sorted(names) for names in self.unique_columns(schema) if set(names) <= set(columns))

    def most_matches(self, schema: TableSchema, columns: Sequence[str], version: str | None) -> int:
        """Most rows of a public table that agree on some columns."""
        return self.engine.most_matches(schema, columns, version)

    def value_bounds(self, origin: tuple[str, str]) -> tuple[float, float] | None:
        """Return the least and the largest number of a column of a public table, or None if there is none."""
        table, column = origin
        schema = self.engine.find(table)
        return self.engine.value_bounds(schema, column) if schema and schema.column(column) else None

    def bucket_groups(
        self,
        origin: tuple[str, str],
        column: str,
        key_type: str,
        expressions: Sequence[str],
        conditions: Sequence[str],
    ) -> Places:
        """Groups of a column's public list by expressions of it, of values that pass all conditions."""
        (values,) = self.lists([origin], [key_type])
        place = "place"
        while folded(column).startswith(place):
            place += "_"
        # by position: a name could be the column's own
        coarse = [f"{guarded(sql)} AS {place}_{i}" for i, sql in enumerate(expressions)]
        positions = ", ".join(str(i + 1) for i in range(len(expressions)))
        passing = " AND ".join(guarded(as_condition(sql)) for sql in conditions)
        listed = (
            f"SELECT CAST(value AS {key_type}) AS {quote(column)}, "
            f"row_number() OVER (ORDER BY value NULLS LAST) - 1 AS {place} FROM listed"
        )
        where = f" WHERE {passing}" if passing else ""
        grouping = f" GROUP BY {positions} ORDER BY {positions}" if positions else ""
        columns = ", ".join([*coarse, f"list({place} ORDER BY {place}) AS {place}_s"])
        table = self.sandbox.run(
            f"SELECT {columns} FROM ({listed}){where}{grouping}", {"listed": pa.table({"value": values})}
        )
        return tuple(tuple(group or ()) for group in table.column(f"{place}_s").to_pylist())


def environment(
    policy: Policy, engine: Engine, sandbox: Sandbox, reader: Reader, past: ReleaseHistory | None = None
) -> Environment:
    """Everything outside the text that a plan depends on, at this moment.

    Raises:
        PolicyError: the instance now compares texts by something else than their bytes.

    """
    settings, now = engine.settings(), dt.datetime.now(dt.UTC)
    default = dict(settings)["default_collation"]
    if folded(default) not in BYTEWISE:
        raise PolicyError(
            f"the database's default_collation is {default!r}; the curator must SET GLOBAL default_collation = ''"
        )
    return Environment(
        policy=PolicyView(policy, reader),
        schemas=SchemaView(policy, engine, sandbox, past),
        settings=settings,
        clock=lambda: now,
        mechanisms=registry.MECHANISMS,
    )
