"""Rows that a query can read, and whose they are: a table, tables joined, or what a subquery makes of them.

The invariant that every rule keeps, and that a proof of privacy needs: for every unit, the rows of a relation that
carry it are a function of that unit's rows in the protected tables, and of public tables. Rows that carry no unit may
depend on anything; they are dropped before anything is counted (docs/proofs/relations.md). Tables by name are the first
relations: a protected table with what leads to its unit, or a public one; a view is the query that it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dpsql.errors import DpsqlError, SchemaError, Span
from dpsql.model.environment import Column, Environment, KeyPath, TableSchema, folded
from dpsql.model.refusals import Refusals
from dpsql.model.similar_names import as_written, did_you_mean
from dpsql.model.table_rules import TableRules
from dpsql.operations.dialect import parse_statement, quote, span_of, text_literal
from dpsql.sql.statements import FOR_ANALYSTS, OF_TEXTS, TABLE_FUNCTIONS

HIDDEN_UNIT = "privacy unit"
"""Name of the unit's column where a query names none; in the rows only, never in reach of a query."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose rows a private relation holds.

    Attributes:
        rules: of its protected tables together.
        unit: the column that names the unit.
        always: columns that hold the unit in every row that has one, ``unit`` among them.
        sometimes: columns that hold it where they are not NULL.
        paths: what else leads to the unit: keys of tables that lie between a row and its unit.
        bounds_from: the tables whose bounds the rules have.
        bounds_rule: the rule that made one bound of those of several tables, in words; empty if it is that of one.

    """

    rules: TableRules
    unit: str
    always: frozenset[str]
    sometimes: frozenset[str]
    paths: tuple[KeyPath, ...]
    bounds_from: tuple[str, ...] = ()
    bounds_rule: str = ""

    @property
    def names_unit(self) -> frozenset[str]:
        """Columns whose value, where there is one, is the row's unit."""
        return self.always | self.sometimes

    def has_single_units(self, keys: Iterable[str]) -> bool:
        """Whether groups by these keys, as SQL, hold rows of one unit each."""
        named = set(keys)
        return any(quote(name) in named for name in self.always) or any(
            path.always and all(quote(name) in named for name in path.columns) for path in self.paths
        )


@dataclass(frozen=True, slots=True)
class Relation:
    """Rows as SQL, as an identity, and with their owner.

    Attributes:
        schema: how they are read, and their columns; the text is empty where a table, or a version of it, is gone.
        owner: None where all of them are public.
        identity: what they are made of, with versions in place of what changes; part of hashes.
        reads: every table in it, with its version.
        matches: most rows that public tables make of one protected row.
        is_table: whether it is one table by itself.
        unique: sets of columns; no two rows have the same values, none of them NULL, in all columns of one.
        cuts: sentences about rows of one unit that joins leave out.
        single: tables of which a join takes one row of each unit.

    """

    schema: TableSchema
    owner: Owner | None
    identity: str
    reads: tuple[tuple[str, str], ...]
    matches: int = 1
    is_table: bool = False
    unique: frozenset[frozenset[str]] = frozenset()
    cuts: tuple[str, ...] = ()
    single: tuple[str, ...] = ()

    @property
    def shown(self) -> list[Column]:
        """The columns that a query can name, each as often as it has a name."""
        by_name = {column.name: column for column in self.schema.columns}
        return [by_name[one.output] for one in self.schema.visible]

    @property
    def is_listed(self) -> bool:
        """Return whether the rows are those of a list of values, and of no table."""
        return self.owner is None and not self.reads

    @property
    def unit_type(self) -> str:
        """The type of the column that names the unit; empty for public rows."""
        column = self.schema.column(self.owner.unit) if self.owner else None
        return column.type if column else ""

    @property
    def unit_sql(self) -> str:
        """The column that names the unit, as SQL; empty for public rows."""
        return quote(self.owner.unit) if self.owner else ""


def renamed(owner: Owner, outputs: Mapping[str, Collection[str]], unit: str) -> Owner:
    """The owner of rows that show some of its columns under other names, each under any number of them.

    Args:
        owner: of the rows before.
        outputs: their columns, and what each is called now.
        unit: what the unit is called now.

    """

    def shown(names: Collection[str]) -> frozenset[str]:
        return frozenset(output for name in names for output in outputs.get(name, ()))

    paths = [
        replace(path, columns=tuple(min(outputs[name]) for name in path.columns))
        for path in owner.paths
        if all(outputs.get(name) for name in path.columns)
    ]
    always = shown(owner.always) | {unit}
    return replace(owner, unit=unit, always=always, sometimes=shown(owner.sometimes), paths=tuple(paths))


def optional(owner: Owner) -> Owner:
    """The owner of rows that an outer join may leave out of the rows of another one."""
    paths = tuple(replace(path, always=False) for path in owner.paths)
    return replace(owner, always=frozenset(), sometimes=owner.names_unit, paths=paths)


def with_columns_of(owner: Owner, other: Owner) -> Owner:
    """The owner of rows joined with rows of the same unit, with what both say of it."""
    return replace(
        owner,
        always=owner.always | other.always,
        sometimes=(owner.sometimes | other.sometimes) - owner.always - other.always,
        paths=tuple(dict.fromkeys((*owner.paths, *other.paths))),
    )


def are_one_unit(left: Owner, right: Owner, equal: Collection[tuple[str, str]]) -> bool:
    """Whether rows that agree on pairs of columns, of the left and of the right, are of one unit.

    The unit's own columns lead to it, and so does a whole key that both sides hold of the same table.
    """
    if left.rules.unit != right.rules.unit:
        return False
    if any(one in left.names_unit and other in right.names_unit for one, other in equal):
        return True
    return any(
        one.space == other.space and all(pair in equal for pair in zip(one.columns, other.columns, strict=True))
        for one in left.paths
        for other in right.paths
    )


def fresh(name: str, taken: Collection[str]) -> str:
    """A column name that is not taken, as DuckDB compares names."""
    folded_names = {folded(other) for other in taken}
    while folded(name) in folded_names:
        name += "_"
    return name


@dataclass
class CurrentTables:
    """The tables that a statement reads, each in its current version.

    Attributes:
        environment: policy and schemas.
        unmet: refusals that are said in the end: what is refused inside a view is said of the view.

    """

    environment: Environment
    unmet: Refusals
    _constraints: dict[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)

    def schema(self, parts: Sequence[str]) -> TableSchema | None:
        """What a name means; without rows where these are gone."""
        return self.environment.schemas.resolve(parts)

    def version(self, table: str, *, is_named: bool) -> str:  # noqa: ARG002 — an earlier version depends on it
        """The version in which a protected or public table is read; ``is_named`` if the query names a protected one."""
        return self.environment.policy.current_version(table)

    def protected(self, schema: TableSchema, rules: TableRules, *, alone: bool) -> Relation:
        """The rows of a protected table; ``alone`` if they are joined with nothing.

        Raises:
            SchemaError: the column that names the unit is gone.

        """
        if rules.time_zone or schema.has_clocks:
            columns = tuple(replace(column, zone=rules.time_zone or "UTC") for column in schema.columns)
            schema = replace(schema, columns=columns)
        unit = schema.column(rules.privacy_unit_column)
        if not unit:
            raise SchemaError(
                f"the protected table has lost its privacy unit column {rules.privacy_unit_column!r}.",
                hint="The curator gives the column that name again (ALTER TABLE … RENAME …).",
                analyst_hint="Ask the curator to declare the table again.",
            )
        # of a table that is joined with nothing, nobody asks what is unique
        unique = frozenset[frozenset[str]]() if alone else self.unique(schema)
        version = self.version(schema.canonical, is_named=True)
        links = tuple(replace(step, version=self.version(step.parent, is_named=False)) for step in rules.links)
        steps = "".join(
            f" -> {_identity(step.parent, step.version)} ({', '.join(map(quote, step.columns))}) = "
            f"({', '.join(map(quote, step.parent_columns))})"
            for step in links
        )
        identity = _identity(schema.canonical, version)
        reads = ((schema.canonical, version), *((step.parent, step.version) for step in links))
        named = replace(rules, version=version, links=links)
        owner = Owner(named, unit.name, frozenset({unit.name}), frozenset(), schema.paths, (schema.canonical,))
        return Relation(
            schema, owner, f"({identity}{steps})" if steps else identity, reads, is_table=True, unique=unique
        )

    def public(self, schema: TableSchema, node: exp.Table) -> Relation:
        """The rows of a public table.

        Raises:
            SchemaError: it is a view now.

        """
        if schema.relation and not self.environment.schemas.is_base_table(schema):
            raise SchemaError(
                f"the public table {schema.canonical!r} is a view now.",
                hint="A view may reach a protected table.",
                span=span_of(node, self.unmet.text),
            )
        version = self.version(schema.canonical, is_named=False)
        identity, reads = _identity(schema.canonical, version), ((schema.canonical, version),)
        return Relation(schema, None, identity, reads, is_table=True, unique=self.unique(schema))

    def not_protected(self, node: exp.Expr, *, is_lookup: bool = False) -> SchemaError:
        """Return the refusal of a source of which nothing is protected.

        Args:
            node: the source.
            is_lookup: whether it is a base table beside other sources, so that it is public if it names no unit.

        """
        span = span_of(node, self.unmet.text)
        if not isinstance(node, exp.Table):
            return SchemaError(
                "nothing of what is read here is protected.", span=span, hint="Public tables need no dpsql."
            )
        parts = [part.name for part in node.parts]
        schema, name = self.environment.schemas.resolve(parts), ".".join(parts)
        if schema and self.environment.policy.is_public(schema.canonical):
            return SchemaError(f"table {name!r} is public, not protected.", span=span)
        if len(parts) == 1 and name.lower() in TABLE_FUNCTIONS:
            return self._of_function(name.lower(), span)
        # an analyst is answered as if a table that nobody declared did not exist
        similar = did_you_mean(name, map(self._name_in_sql, self.environment.policy.declared()))
        cure = "The curator protects tables with dp_protect."
        policy = self.environment.policy
        owners = filter(None, map(policy.rules, policy.declared()))
        if is_lookup and schema and not any(schema.column(rules.privacy_unit_column) for rules in owners):
            written = text_literal(".".join(map(as_written, parts)))
            cure = (
                f"Write CALL dp_public({written}) if it holds nothing about any person. If it holds rows of people, "
                "protect it with dp_protect."
            )
        if len(parts) == 1 and not similar and (function := did_you_mean(name, TABLE_FUNCTIONS, "{}()")):
            similar = function
        return SchemaError(
            f"table {name!r} is not protected, so it cannot be queried.",
            span=span,
            hint=f"{similar} {cure}".lstrip(),
            analyst_hint=f"{similar} SHOW TABLES lists the tables that can be asked.".lstrip(),
        )

    def _of_function(self, name: str, span: Span | None) -> SchemaError:
        """Return the error of a table function without its parentheses."""
        tables = sorted(map(self._name_in_sql, self.environment.policy.declared()))
        arguments = "$$ SELECT … $$" if name in OF_TEXTS else ""
        if name == "dp_check" and tables:
            arguments = text_literal(tables[0])
        return SchemaError(
            f"{name} is a function.",
            span=span,
            hint=f"Write FROM {name}({arguments}).",
            analyst_hint=None if name in FOR_ANALYSTS else "SHOW TABLES lists the tables that can be asked.",
        )

    def _name_in_sql(self, canonical: str) -> str:
        """Return the name of a declared table as its catalog spells it, in quotes where it needs them."""
        try:
            table = parse_statement(f"FROM {canonical}").find(exp.Table)
            parts = [part.name for part in table.parts] if table else []
            schema = self.environment.schemas.resolve(parts)
        except DpsqlError:
            return canonical.removeprefix("main.")
        if not schema or schema.canonical != canonical:
            return canonical.removeprefix("main.")
        spelled = schema.catalog_name[-len(parts) :] if all(schema.catalog_name) else parts
        return ".".join(map(as_written, spelled)).removeprefix("main.")

    def unique(self, schema: TableSchema) -> frozenset[frozenset[str]]:
        """Return the sets of columns that constraints keep unique."""
        if schema.canonical not in self._constraints:
            self._constraints[schema.canonical] = self.environment.schemas.unique_columns(schema)
        found = [[schema.column(name) for name in names] for names in self._constraints[schema.canonical]]
        return frozenset(frozenset(column.name for column in columns if column) for columns in found if all(columns))


def _identity(canonical: str, version: str) -> str:
    return f"{quote(canonical)}@{quote(version)}"


def query_of_view(schema: TableSchema, environment: Environment) -> tuple[exp.Query, Sequence[exp.Expr]] | None:
    """The query of a view, with the names that it gives its columns; None of what is no view, or cannot be read."""
    try:
        create = parse_statement(environment.schemas.view_text(schema) or "")
    except DpsqlError:
        return None
    query = create.args.get("expression")
    if not isinstance(create, exp.Create) or not isinstance(query, exp.Query):
        return None
    return query, create.this.expressions if isinstance(create.this, exp.Schema) else ()
