"""``as_of``: of every table that a query reads, the version that it had at one moment.

A date or a time is that moment. A name is the last moment at which the protected tables that the query names were all
at their versions of this name; parents and public tables are as they were then. What ``dp_releases`` shows under
``versions`` names the version of each table by itself. So every combination of versions that was ever released has an
``as_of`` that leads to it: combinations follow each other in time, and each has a text in the books.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dpsql.errors import DpsqlError
from dpsql.query.dialect import parse_statement
from dpsql.query.environment import DeclaredVersion, Environment, folded

MOST_DEPTH = 8
"""Subqueries and views are nested at most so deep."""

_INSTANT = dt.timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class AsOf:
    """Which versions are asked for.

    Attributes:
        text: as it was written.
        listed: versions of tables, where the text names them one by one.
        moment: the time that is meant, of lists the last at which all of it held; None where nothing is meant.

    """

    text: str
    listed: Mapping[str, str]
    moment: dt.datetime | None

    def version(self, table: str, versions: Sequence[DeclaredVersion], *, is_named: bool) -> str | None:
        """The version of one table; None where it had none of this name, or none yet.

        Args:
            table: its canonical name.
            versions: all versions of it, oldest first.
            is_named: whether the query names it, and it is protected; a parent or a public table follows the others.

        """
        if is_named and self.text in {one.name for one in versions}:
            return self.text
        if self.listed or self.moment is None:
            return self.listed.get(table)
        found = next((one.name for one in reversed(versions) if one.since <= self.moment), None)
        # what was not declared yet was read by nothing
        return versions[0].name if found is None and not is_named else found


def read_as_of(text: str, query: exp.Expr, environment: Environment) -> AsOf:
    """What a text means for one query.

    Args:
        text: the option.
        query: the SELECT.
        environment: policy and schemas.

    """
    tables = declared_tables(query, environment)
    versions = {table: environment.policy.versions(table) for table in tables}
    called = {
        table: text for table, is_named in tables.items() if is_named and text in {one.name for one in versions[table]}
    }
    if called:
        return AsOf(text, {}, _last_moment(called, versions))
    listed = {
        table: max(names, key=len)
        for table in tables
        if (names := [one.name for one in versions[table] if f", {table} @ {one.name}, " in f", {text}, "])
    }
    if listed:
        return AsOf(text, listed, _last_moment(listed, versions))
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return AsOf(text, {}, None)
    return AsOf(text, {}, moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment)


def _last_moment(held: Mapping[str, str], versions: Mapping[str, Sequence[DeclaredVersion]]) -> dt.datetime:
    """The last moment at which tables were at these versions: before the first of them ended."""
    ends = []
    for table, version in held.items():
        names = [one.name for one in versions[table]]
        ends += [one.since for one in versions[table][names.index(version) + 1 :][:1]]
    return min(ends) - _INSTANT if ends else dt.datetime.max.replace(tzinfo=dt.UTC)


def declared_tables(query: exp.Expr, environment: Environment, depth: int = 0) -> dict[str, bool]:
    """Protected and public tables that a query reads, in subqueries and through views and links too.

    Each with whether the query names it, and it is protected.
    """
    found: dict[str, bool] = {}
    for node in query.find_all(exp.Table):
        parts = [part.name for part in node.parts]
        if not all(parts) or (len(parts) == 1 and _is_of_with(node)):
            continue
        table = environment.schemas.identify(parts)
        rules = None if table is None else environment.policy.rules(table)
        inner: dict[str, bool] = {}
        if table is not None and rules is not None:
            inner = {step.parent: False for step in rules.links} | {table: True}
        elif table is not None and environment.policy.is_public(table):
            inner = {table: False}
        elif table is not None and depth < MOST_DEPTH:
            inner = _of_view(parts, environment, depth)
        found |= {one: is_named or found.get(one, False) for one, is_named in inner.items()}
    return found


def _of_view(parts: list[str], environment: Environment, depth: int) -> dict[str, bool]:
    schema = environment.schemas.resolve(parts)
    text = None if schema is None else environment.schemas.view_text(schema)
    try:
        create = None if text is None else parse_statement(text)
    except DpsqlError:
        # refused where it is read
        return {}
    query = None if create is None else create.args.get("expression")
    return declared_tables(query, environment, depth + 1) if isinstance(query, exp.Query) else {}


def _is_of_with(node: exp.Table) -> bool:
    """Whether WITH gave this name to a query, before the place where it stands."""
    inner: exp.Expr = node
    outer = node.parent
    while outer is not None:
        with_ = outer.args.get("with_")
        if with_ is not None and inner is not with_ and _names(with_.expressions, node):
            return True
        if isinstance(outer, exp.With):
            before = outer.expressions[: [cte is inner for cte in outer.expressions].index(True)]
            if _names(before, node):
                return True
        inner, outer = outer, outer.parent
    return False


def _names(ctes: Sequence[exp.Expr], node: exp.Table) -> bool:
    return folded(node.name) in {folded(cte.alias) for cte in ctes}
