"""The sources of a FROM clause, and the columns that conditions of its joins can name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.model.environment import Column, JoinedName, folded
from dpsql.operations.dialect import quote
from dpsql.sql.source.relation import Relation, fresh


@dataclass(frozen=True, slots=True)
class Part:
    """One source of a FROM clause: how it is called, what it is, and how it is joined to those before it."""

    node: exp.Expr
    qualifier: str
    relation: Relation
    join: exp.Join | None


@dataclass(frozen=True, slots=True)
class SeenColumn:
    """A column of a part, or one that FULL JOIN … USING makes of two (of no part's place).

    ``shown`` says whether a query can name it at all, ``hidden`` whether only with its table.
    """

    place: int
    qualifier: str
    declared: str
    name: str
    sql: str
    output: Column
    shown: bool
    hidden: bool


def columns_named(columns: Iterable[SeenColumn], name: str, qualifier: str = "") -> list[SeenColumn]:
    """The columns that a name with or without its table can mean."""
    alike = [seen for seen in columns if seen.shown and folded(seen.declared) == folded(name)]
    return [seen for seen in alike if (seen.qualifier == qualifier.lower() if qualifier else not seen.hidden)]


def own_columns(condition: exp.Expr) -> list[exp.Column]:
    """The columns of a condition, but for those of subqueries in it."""
    nodes = condition.walk(prune=lambda node: isinstance(node, exp.Query))
    return [node for node in nodes if isinstance(node, exp.Column)]


def columns_of(parts: Sequence[Part]) -> list[list[SeenColumn]]:
    """The columns of every part, each with a name of its own in the joined rows."""
    counted = Counter(folded(column.name) for part in parts for column in part.relation.schema.columns)
    taken = set(counted)
    lent = [_lent(part) for part in parts]
    found: list[list[SeenColumn]] = []
    for place, part in enumerate(parts):
        schema = part.relation.schema
        declared: dict[str, list[JoinedName | None]] = {}
        for shown in schema.visible:
            declared.setdefault(shown.output, []).append(shown)
        # what a link lends does not come in the way of the same name of another table
        others = [other for other in range(len(parts)) if other != place and (other < place or not lent[other])]
        named = {folded(other.declared) for i in others for other in parts[i].relation.schema.visible}
        found.append([])
        for column in schema.columns:
            output = column.name
            if counted[folded(output)] > 1:
                # by its place, so that neither an alias nor USING gives another name
                output = fresh(f"{output} {place}", taken)
                taken.add(folded(output))
            seen = replace(column, name=output, nullable=True, origin=schema.origin(column.name))
            sql = f"join_{place}.{quote(column.name)}"
            # of joins in parentheses a column may have two names, as RIGHT JOIN … USING gives it
            for one in declared.get(column.name, [None]):
                name = one.declared if one else column.name
                away = (lent[place] == column.name and folded(name) in named) or bool(one and one.hidden)
                called = part.qualifier or (one.qualifier if one else "")
                found[-1].append(SeenColumn(place, called, name, column.name, sql, seen, bool(one), away))
    return found


def _lent(part: Part) -> str:
    """The column that the links of a table lend it; empty where there are none."""
    owner = part.relation.owner
    return owner.unit if owner and part.relation.is_table and owner.rules.links else ""


def holders(column: exp.Expr, parts: Sequence[Part]) -> list[int]:
    """Return the places of the parts of which a name can be a column."""
    qualifier = str(column.args["table"].name).lower() if column.args.get("table") else ""
    return [
        place
        for place, part in enumerate(parts)
        if any(
            folded(one.declared) == folded(column.name) and qualifier in ("", part.qualifier or one.qualifier)
            for one in part.relation.schema.visible
        )
        and (qualifier or folded(_lent(part)) != folded(column.name))
    ]
