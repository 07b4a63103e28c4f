"""Joins of one protected table with public ones: the joined rows as one source.

The rows that a join gives a unit are a function of that unit's rows and of public tables alone, whatever it multiplies:
each joined row comes from one protected row or from none, and a row from none has no unit and is dropped. So one unit
still adds what its own joined rows add, which is bounded as ever (docs/privacy.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.errors import SchemaError
from dpsql.query.clauses import Clauses, is_plain_table
from dpsql.query.dialect import quote, span_of, written
from dpsql.query.environment import Column, Environment, JoinedName, TableRules, TableSchema, folded
from dpsql.query.private_query import JoinStep
from dpsql.query.refusals import Refusals

_SIDES = {"": "JOIN", "LEFT": "LEFT JOIN"}
_MOST_TABLES = 8
_MOST_MATCHES = 1_000
"""Most joined rows that public tables may make of one protected row: what one row can cost is bounded."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One table of the FROM clause: how it is called, what it is, and how it is joined to those before it."""

    node: exp.Table
    schema: TableSchema
    join: exp.Join | None

    @property
    def qualifier(self) -> str:
        return str(self.node.alias_or_name).lower()


def read_source(
    clauses: Clauses, environment: Environment, text: str, refusals: Refusals
) -> tuple[Clauses, TableSchema, TableRules, tuple[JoinStep, ...]]:
    """What is read: the table, or the joined tables as one; the rules of the protected one; and how they were joined.

    The clauses come back without the conditions of WHERE that join tables which stand side by side.

    Raises:
        SchemaError: a table is not there for this reader, or none of them is protected.
        UnsupportedQueryError: a join has no private form; nothing more can be said then.

    """
    before = len(refusals.found)
    nodes = [(clauses.source, None), *((join.this, join) for join in clauses.joins)]
    parts = [_part(node, join, environment, text, refusals) for node, join in nodes]
    protected = [part for part in parts if environment.policy.rules(part.schema.canonical) is not None]
    if len(protected) > 1:
        refusals.add(
            "source", protected[1].node, "a join of two protected tables has no private form yet.",
            "Join public tables, or let the curator link the tables with dp_link.",
        )  # fmt: skip
    if len(parts) > _MOST_TABLES:
        refusals.add(
            "source", parts[_MOST_TABLES].node, f"a query joins at most {_MOST_TABLES} tables.",
            "Let the curator put public ones together.",
        )  # fmt: skip
    qualifiers = [part.qualifier for part in parts]
    for part in parts:
        if qualifiers.count(part.qualifier) > 1:
            refusals.add("source", part.node, "two tables have one name.", "Give each an alias of its own.")
    if len(refusals.found) > before:
        refusals.raise_if_any()
    if not protected:
        raise _not_protected(parts[0].node, environment, text)
    rules = environment.policy.rules(protected[0].schema.canonical)
    if rules is None:
        raise AssertionError("a table without rules is not protected")
    if len(parts) == 1:
        return clauses, parts[0].schema, rules, ()
    clauses, parts = _with_conditions(clauses, parts)
    schema, steps = _joined(parts, protected[0], environment, text, refusals)
    # the unit is found under the name that it has in the joined rows
    unit = next(
        (
            name.output
            for name in schema.names
            if name.qualifier == protected[0].qualifier and folded(name.declared) == folded(rules.privacy_unit_column)
        ),
        None,
    )
    if unit is None:
        raise lost_unit(rules)
    return clauses, schema, replace(rules, privacy_unit_column=unit), steps


def lost_unit(rules: TableRules) -> SchemaError:
    """The error of a protected table without its unit."""
    return SchemaError(
        f"the protected table has lost its privacy unit column {rules.privacy_unit_column!r}.",
        hint="The curator repeats CALL dp_protect(…) with the column's new name.",
    )


def _part(node: exp.Expr, join: exp.Join | None, environment: Environment, text: str, refusals: Refusals) -> _Part:
    if not is_plain_table(node) or not isinstance(node, exp.Table):
        refusals.add("source", node, "a join is with a table by name.", "Write JOIN table ON a.x = b.y.")
        refusals.raise_if_any()
        raise AssertionError("unreachable: a refusal was just added")
    schema = environment.schemas.resolve([part.name for part in node.parts])
    known = schema is not None and (
        environment.policy.rules(schema.canonical) is not None
        or ((join is not None or _has_joins(node)) and environment.policy.is_public(schema.canonical))
    )
    if schema is None or not known:
        raise _not_protected(node, environment, text)
    if environment.policy.is_public(schema.canonical) and not environment.schemas.is_base_table(schema):
        raise SchemaError(
            f"the public table {schema.canonical!r} is a view now.", hint="A view may reach a protected table.",
            span=span_of(node, text),
        )  # fmt: skip
    return _Part(node, schema, join)


def _has_joins(node: exp.Expr) -> bool:
    select = node.find_ancestor(exp.Select)
    return select is not None and bool(select.args.get("joins"))


def _not_protected(source: exp.Table, environment: Environment, text: str) -> SchemaError:
    parts = [part.name for part in source.parts]
    schema = environment.schemas.resolve(parts)
    public = schema is not None and environment.policy.is_public(schema.canonical)
    return SchemaError(
        f"table {'.'.join(parts)!r} is "
        + ("public, not protected." if public else "not protected, so it cannot be queried."),
        hint="" if public else f"The curator declares it with CALL dp_protect('{'.'.join(parts)}', …).",
        span=span_of(source, text),
    )


def _joined(
    parts: Sequence[_Part], protected: _Part, environment: Environment, text: str, refusals: Refusals
) -> tuple[TableSchema, tuple[JoinStep, ...]]:
    merged = _merged(parts)
    columns: list[Column] = []
    names: list[JoinedName] = []
    selected: list[str] = []
    counted = Counter(folded(column.name) for part in parts for column in part.schema.columns)
    taken = set(counted)
    for place, part in enumerate(parts):
        for column in part.schema.columns:
            output = column.name
            if counted[folded(column.name)] > 1:
                # by its place, so that neither an alias nor USING gives another name
                output = f"{column.name} {place}"
                while folded(output) in taken:
                    output += "_"
                taken.add(folded(output))
            origin = (part.schema.canonical, column.name)
            columns.append(Column(output, column.type, True, origin))
            hidden = (place, folded(column.name)) in merged
            names.append(JoinedName(part.qualifier, column.name, output, hidden=hidden))
            selected.append(f"join_{place}.{quote(column.name)} AS {quote(output)}")
    before = len(refusals.found)
    compared: list[list[tuple[int, Column]]] = [[] for _ in parts]
    steps = [_step(place, parts, environment, text, refusals, compared) for place in range(len(parts))]
    if len(refusals.found) == before:
        _check_matches(parts, compared, environment, refusals)
    if len(refusals.found) > before:
        refusals.raise_if_any()
    if len({folded(column.name) for column in columns}) != len(columns):
        raise AssertionError("columns of joined tables have names of their own")
    source = " ".join(
        f"{step.kind} {part.schema.relation} AS join_{place}{f' ON {step.condition}' if step.condition else ''}".strip()
        for place, (part, step) in enumerate(zip(parts, steps, strict=True))
    )
    readable = all(part.schema.relation for part in parts)
    relation = f"(SELECT {', '.join(selected)} FROM {source})" if readable else ""
    schema = TableSchema(
        protected.schema.canonical, relation, tuple(columns), protected.schema.catalog_name, tuple(names)
    )
    return schema, tuple(steps)


def _with_conditions(clauses: Clauses, parts: Sequence[_Part]) -> tuple[Clauses, list[_Part]]:
    """Tables that stand side by side, joined by the equalities of WHERE between one of them and one before it."""
    remaining = _conjuncts(clauses.where)
    joined = [parts[0]]
    for place, part in enumerate(parts[1:], start=1):
        join = part.join
        apart = join is not None and not any(join.args.get(name) for name in ("on", "using", "side", "method"))
        if join is None or not apart or str(join.args.get("kind") or "").upper() not in ("", "CROSS"):
            joined.append(part)
            continue
        found = [condition for condition in remaining if _joins(condition, place, parts)]
        remaining = [condition for condition in remaining if condition not in found]
        on = exp.and_(*found, copy=True) if found else None
        joined.append(replace(part, join=exp.Join(this=part.node, on=on) if found else join))
    where = exp.and_(*remaining, copy=True) if remaining else None
    return replace(clauses, where=where if len(remaining) < len(_conjuncts(clauses.where)) else clauses.where), joined


def _joins(condition: exp.Expr, place: int, parts: Sequence[_Part]) -> bool:
    """Whether a condition compares a column of this table with one of the same type of a table before it."""
    if not isinstance(condition, exp.EQ):
        return False
    ends = [_candidates(side, place, parts) for side in _sides(condition) if isinstance(side, exp.Column)]
    if len(ends) != 2 or any(len(found) != 1 for found in ends):
        return False
    (one, left), (other, right) = ends[0][0], ends[1][0]
    return one != other and place in (one, other) and left.type == right.type


def _merged(parts: Sequence[_Part]) -> set[tuple[int, str]]:
    """Columns that USING lets stand for a column of an earlier table."""
    return {
        (place, folded(name.name))
        for place, part in enumerate(parts)
        if part.join is not None
        for name in part.join.args.get("using") or []
    }


def _check_matches(
    parts: Sequence[_Part],
    compared: Sequence[Sequence[tuple[int, Column]]],
    environment: Environment,
    refusals: Refusals,
) -> None:
    """Note a refusal where public tables may make too many rows of one: how long it takes would tell of that row.

    A table is met through the columns that one step compares of it: no more of its rows meet one than agree on these.
    """
    product = 1
    for place, part in enumerate(parts):
        if not environment.policy.is_public(part.schema.canonical):
            continue
        by_step = [sorted({column.name for at, column in ends if at == place}) for ends in compared]
        product *= max(environment.schemas.most_matches(part.schema, names) for names in by_step if names)
    if product > _MOST_MATCHES:
        refusals.add(
            "source", parts[0].node, f"public tables may make {product:,} rows of one protected row, by these columns.",
            f"Join on columns that tell their rows apart: at most {_MOST_MATCHES:,} rows are joined to one.",
        )  # fmt: skip


def _step(
    place: int,
    parts: Sequence[_Part],
    environment: Environment,
    text: str,
    refusals: Refusals,
    compared: list[list[tuple[int, Column]]],
) -> JoinStep:
    """How a table is joined; ``compared`` takes the columns of both sides."""
    part = parts[place]
    # the protected table's version is the frame's own
    public = environment.policy.is_public(part.schema.canonical)
    version = environment.policy.current_version(part.schema.canonical) if public else ""
    if part.join is None:
        return JoinStep("", part.schema.canonical, version, "")
    join = part.join
    side, kind, method = (str(join.args.get(name) or "").upper() for name in ("side", "kind", "method"))
    using, on = join.args.get("using") or [], join.args.get("on")
    if side not in _SIDES or kind not in ("", "INNER", "OUTER", "CROSS") or method or not (using or on):
        refusals.add(
            "source", join, "this kind of join has no private form yet.",
            "Write JOIN or LEFT JOIN with ON a.x = b.y or USING (x), or WHERE a.x = b.y beside FROM a, b.",
        )  # fmt: skip
        return JoinStep("", part.schema.canonical, version, "")
    pairs = [_used(name, place, parts, text) for name in using]
    for condition in _conjuncts(on):
        if not (isinstance(condition, exp.EQ) and all(isinstance(side, exp.Column) for side in _sides(condition))):
            refusals.add(
                "source", condition, "a join compares columns with =.", "Put other conditions into WHERE.",
            )  # fmt: skip
            continue
        ends = [_find(column, place, parts, text) for column in _sides(condition)]
        if place not in (ends[0][0], ends[1][0]) or ends[0][0] == ends[1][0]:
            refusals.add(
                "source", condition, f"{written(condition)} does not join this table with an earlier one.",
                "Compare a column of this table with one of a table before it.",
            )  # fmt: skip
            continue
        pairs.append((ends[0], ends[1]))
    equal = []
    for pair in pairs:
        (one, left), (other, right) = sorted(pair, key=lambda end: end[0])
        compared[place] += pair
        if left.type != right.type:
            refusals.add(
                "source", join, f"{left.name} is {left.type} and {right.name} is {right.type}.",
                "Join columns of one type; the curator casts them in a table or view.",
            )  # fmt: skip
        # two collations cannot be compared, which would be found too late
        bytewise = ' COLLATE "binary"' if left.type == "VARCHAR" else ""
        equal.append(f"join_{one}.{quote(left.name)}{bytewise} = join_{other}.{quote(right.name)}{bytewise}")
    return JoinStep(_SIDES[side], part.schema.canonical, version, " AND ".join(sorted(set(equal))))


def _sides(node: exp.Expr) -> list[exp.Expr]:
    return [node.left.unnest(), node.right.unnest()] if isinstance(node, exp.Binary) else []


def _conjuncts(node: exp.Expr | None) -> list[exp.Expr]:
    if node is None:
        return []
    node = node.unnest()
    return [*_conjuncts(node.left), *_conjuncts(node.right)] if isinstance(node, exp.And) else [node]


def _used(
    name: exp.Expr, place: int, parts: Sequence[_Part], text: str
) -> tuple[tuple[int, Column], tuple[int, Column]]:
    own = parts[place].schema.column(name.name)
    found = ((i, part.schema.column(name.name)) for i, part in enumerate(parts[:place]))
    earlier = [(i, column) for i, column in found if column is not None]
    if own is None or len(earlier) != 1:
        raise SchemaError(
            f"USING ({name.name}) needs one column of this name on either side.", span=span_of(name, text)
        )
    return earlier[0], (place, own)


def _find(node: exp.Expr, place: int, parts: Sequence[_Part], text: str) -> tuple[int, Column]:
    """The column of a joined table that a name in ON means."""
    if not isinstance(node, exp.Column):
        raise AssertionError("only columns are compared")
    if node.args.get("db"):
        raise SchemaError("columns in ON are named by their table alone.", span=span_of(node, text))
    found = _candidates(node, place, parts)
    if len(found) != 1:
        what = "is in more than one table" if found else "is not there"
        raise SchemaError(f"column {node.sql(dialect='duckdb')} {what}.", span=span_of(node, text))
    return found[0]


def _candidates(node: exp.Column, place: int, parts: Sequence[_Part]) -> list[tuple[int, Column]]:
    """Columns of the tables up to a place that a name can mean."""
    qualifier = node.table.lower()
    named = (
        (i, part.schema.column(node.name))
        for i, part in enumerate(parts[: place + 1])
        if qualifier in ("", part.qualifier)
    )
    return [(i, column) for i, column in named if column is not None]
