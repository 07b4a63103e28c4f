"""``as_of``: of every table that a query reads, the version that it had at one moment.

A date or a time is that moment. A name is the last moment at which the protected tables that the query names were all
at their versions of this name; parents and public tables are as they were then. What ``dp_releases`` shows under
``versions`` names the version of each table by itself. So every combination of versions that was ever released has an
``as_of`` that leads to it: combinations follow each other in time, and each has a text in the state file.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.model.environment import DeclaredVersion, Environment, TableSchema, folded
from dpsql.model.private_query import QueryOptions
from dpsql.model.refusals import Refusals, refuse_combinations
from dpsql.sql.source.relation import CurrentTables, query_of_view

MOST_DEPTH = 16
"""Subqueries and views are nested at most so deep."""

_INSTANT = dt.timedelta(microseconds=1)


class EarlierTables(CurrentTables):
    """The tables that a statement reads, each in the version of one moment, with the public lists of then."""

    def __init__(self, options: QueryOptions, statement: exp.Expr, environment: Environment, text: str) -> None:
        self._text = options.as_of or ""
        self._listed, self._moment = read_as_of(self._text, statement, environment)
        if self._moment and self._moment < environment.clock():
            environment = replace(environment, schemas=environment.schemas.lists_at(self._moment))
        super().__init__(environment, Refusals(text))
        self._hint = statement.args.get("hint")
        self._given = options.given

    def schema(self, parts: Sequence[str]) -> TableSchema | None:
        """What a name means; without rows where it, or a parent of it, is asked for in an earlier version."""
        schemas, policy = self.environment.schemas, self.environment.policy
        table = schemas.identify(parts)
        rules = policy.rules(table) if table else None
        if not table or not (rules or policy.is_public(table)):
            return schemas.resolve(parts)
        asked = [(table, bool(rules)), *((step.parent, False) for step in (rules.links if rules else ()))]
        if all(self.version(one, is_named=is_named) == policy.current_version(one) for one, is_named in asked):
            return schemas.resolve(parts)
        return schemas.earlier(parts, self.version(table, is_named=bool(rules)))

    def version(self, table: str, *, is_named: bool) -> str:
        """The version in which a table is read; the current one where none is meant, which is refused."""
        current = super().version(table, is_named=is_named)
        version = self._version(table, self.environment.policy.versions(table), is_named=is_named)
        if not version:
            self.unmet.add(
                "option",
                self._hint,
                f"as_of names no version of {table}, and no time at which it had one.",
                f"Leave as_of out for version {current}, or name a version that FROM dp_releases() shows.",
            )
        elif version != current:
            refuse_combinations({"refresh"}, self._given | {"as_of an earlier version"}, self._hint, self.unmet)
        return version or current

    def _version(self, table: str, versions: Sequence[DeclaredVersion], *, is_named: bool) -> str | None:
        """The version that is meant of a table; None where it had none of this name, or none yet.

        A table that the query does not name, or that is public, follows the others.
        """
        if is_named and self._text in {one.name for one in versions}:
            return self._text
        if self._listed or self._moment is None:
            return self._listed.get(table)
        found = next((one.name for one in reversed(versions) if one.since <= self._moment), None)
        # what was not declared yet was read by nothing
        return versions[0].name if found is None and not is_named else found


def read_as_of(text: str, query: exp.Expr, environment: Environment) -> tuple[Mapping[str, str], dt.datetime | None]:
    """What a text means for one query.

    Args:
        text: the option.
        query: the SELECT.
        environment: policy and schemas.

    Returns:
        Versions of tables, where the text names them one by one; and the time that is meant, of lists the last at which
        all of it held. Neither where nothing is meant.

    """
    tables = declared_tables(query, environment)
    versions = {table: environment.policy.versions(table) for table in tables}
    called = {
        table: text for table, is_named in tables.items() if is_named and text in {one.name for one in versions[table]}
    }
    if called:
        return {}, _last_moment(called, versions)
    listed = {
        table: max(names, key=len)
        for table in tables
        if (names := [one.name for one in versions[table] if f", {table} @ {one.name}, " in f", {text}, "])
    }
    if listed:
        return listed, _last_moment(listed, versions)
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return {}, None
    return {}, moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment


def _last_moment(held: Mapping[str, str], versions: Mapping[str, Sequence[DeclaredVersion]]) -> dt.datetime:
    """The last moment at which tables were at these versions: before the first of them ended."""
    ends = []
    for table, version in held.items():
        names = [one.name for one in versions[table]]
        ends += [one.since for one in versions[table][names.index(version) + 1 :][:1]]
    return min(ends) - _INSTANT if ends else dt.datetime.max.replace(tzinfo=dt.UTC)


def declared_tables(
    query: exp.Expr, environment: Environment, depth: int = 0, known: dict[str, dict[str, bool]] | None = None
) -> dict[str, bool]:
    """Return the protected and public tables that a query reads, in subqueries and through views and links too.

    Args:
        query: the query, or the query of a view.
        environment: policy and schemas.
        depth: number of views around the query.
        known: tables of views that were read before, by the name of the view; grows.

    Returns:
        Each table with whether the query names it and it is protected.

    """
    known = {} if known is None else known
    found: dict[str, bool] = {}
    for node in query.find_all(exp.Table):
        parts = [part.name for part in node.parts]
        if not all(parts) or (len(parts) == 1 and is_of_with(node)):
            continue
        table = environment.schemas.identify(parts)
        if not table:
            continue
        rules, inner = environment.policy.rules(table), {table: False}
        if rules:
            inner = {step.parent: False for step in rules.links} | {table: True}
        elif not environment.policy.is_public(table):
            if table not in known:
                schema = environment.schemas.resolve(parts)
                view = query_of_view(schema, environment) if schema and depth < MOST_DEPTH else None
                # what cannot be read is refused where it is read
                known[table] = declared_tables(view[0], environment, depth + 1, known) if view else {}
            inner = known[table]
        found |= {one: is_named or found.get(one, False) for one, is_named in inner.items()}
    return found


def is_of_with(node: exp.Table) -> bool:
    """Check that WITH gave this name to a query, before the place where it stands."""
    named: list[exp.Expr] = []
    inner: exp.Expr = node
    outer = node.parent
    while outer:
        with_ = outer.args.get("with_")
        if isinstance(outer, exp.With):
            named += outer.expressions[: [cte is inner for cte in outer.expressions].index(True)]
        elif with_ and inner is not with_:
            named += with_.expressions
        inner, outer = outer, outer.parent
    return folded(node.name) in {folded(cte.alias) for cte in named}
