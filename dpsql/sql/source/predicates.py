"""Subqueries in WHERE: ``[NOT] EXISTS`` and ``[NOT] IN`` as joins that keep or drop rows.

Whether a row is kept may depend on public rows, or on rows of its own unit: so a subquery over protected rows has to
compare what tells whose they are with the row it decides about. ``x NOT IN`` of protected rows is read as ``x IS NOT
NULL AND NOT EXISTS``: a NULL of anybody in the list, which in SQL drops every row, drops none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dpsql.errors import SchemaError
from dpsql.model.environment import Column, Environment, TableSchema
from dpsql.model.refusals import Refusals
from dpsql.operations.comparisons import bytewise, comparable, compared_type, comparison
from dpsql.operations.dialect import quote, span_of, written
from dpsql.sql.column_names import named_columns
from dpsql.sql.source.join_rows import MOST_MATCHES, most_matches
from dpsql.sql.source.relation import Relation, are_one_unit
from dpsql.sql.source.row_bounds import with_levels_of
from dpsql.sql.source.row_cut import cut
from dpsql.sql.source.seen_columns import own_columns

_SIGNS: dict[type[exp.Expr], str] = {exp.EQ: "=", exp.NEQ: "<>", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
_TURNED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
_ENDS = {">": ("least",), ">=": ("least",), "<": ("most",), "<=": ("most",)}
"""Of the values that a row is compared with, those that decide; of any other comparison both may."""

_SEVERAL = 2
"""Further comparisons of so many columns are not decided by extremes."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition over a subquery: what it is compared with (nothing for EXISTS), and whether NOT stands before it.

    Attributes:
        computed: by the ids of what is compared, the columns that stand for expressions.

    """

    node: exp.Expr
    query: exp.Query
    compared: tuple[exp.Expr, ...]
    negated: bool
    computed: Mapping[int, Column] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column of the row that is decided about, one of the subquery, and how they compare."""

    outer: Column
    inner: Column
    sign: str

    @property
    def types(self) -> tuple[str, str]:
        """Return the types of both columns."""
        return self.outer.type, self.inner.type


def take_predicates(where: Sequence[exp.Expr]) -> tuple[list[Predicate], list[exp.Expr]]:
    """The conditions of WHERE that are a subquery's, and what is left of it."""
    found = [(condition, _predicate(condition)) for condition in where]
    left = [condition for condition, predicate in found if not predicate]
    return [predicate for _, predicate in found if predicate], left


def _predicate(condition: exp.Expr) -> Predicate | None:
    negated = isinstance(condition, exp.Not)
    node = condition.this.unnest() if negated else condition
    inner = node.this if isinstance(node, exp.Exists) else node.args.get("query") if isinstance(node, exp.In) else None
    query = inner.unnest() if inner else None
    if not isinstance(query, exp.Query):
        return None
    left = node.this.unnest() if isinstance(node, exp.In) else exp.Tuple()
    compared = tuple(left.expressions) if isinstance(left, exp.Tuple) else (left,)
    return Predicate(condition, query, compared, negated)


def split_conditions(
    where: Sequence[exp.Expr],
    inner: TableSchema,
    outer: TableSchema,
    compute: Callable[[exp.Expr, bool], Column | None],
    refusals: Refusals,
) -> tuple[tuple[exp.Expr, ...], tuple[Comparison, ...]]:
    """What of a subquery's WHERE is about its own rows, and what compares them with the row outside.

    Args:
        where: conditions that hold all together.
        inner: columns of the subquery's rows.
        outer: columns of the row outside.
        compute: returns the column that stands for an expression, of the subquery's rows or of the row outside.
        refusals: collects.

    Raises:
        UnsupportedQueryError: a condition uses the row outside in another way.

    """
    before = len(refusals.found)
    own, compared = [], []
    for condition in where:
        outside = [node for node in own_columns(condition) if not named_columns(inner, node)]
        # a name that is nowhere is said where names are resolved
        if not outside or not all(named_columns(outer, node) for node in outside):
            own.append(condition)
        elif found := _comparison(condition, inner, outer, compute):
            compared.append(found)
        else:
            refusals.add(
                "row_syntax",
                condition,
                f"{written(condition)} has no private form, as it uses the row outside.",
                "Compare what is computed of it with what is computed of the subquery's row, both of one type.",
            )
    refusals.raise_if_any(before)
    return tuple(own), tuple(compared)


def _comparison(
    condition: exp.Expr,
    inner: TableSchema,
    outer: TableSchema,
    compute: Callable[[exp.Expr, bool], Column | None],
) -> Comparison | None:
    sign = _SIGNS.get(type(condition))
    if not isinstance(condition, exp.Binary) or not sign:
        return None
    left, right = condition.left.unnest(), condition.right.unnest()
    inside = [{bool(named_columns(inner, node)) for node in own_columns(side)} for side in (left, right)]
    if inside == [{True}, {False}]:
        left, right, sign = right, left, _TURNED.get(sign, sign)
    elif inside != [{False}, {True}]:
        return None
    one = _one(outer, left) if isinstance(left, exp.Column) else compute(left, False)
    other = _one(inner, right) if isinstance(right, exp.Column) else compute(right, True)
    return Comparison(one, other, sign) if one and other and compared_type(one.type, other.type) else None


def _one(schema: TableSchema, node: exp.Column) -> Column | None:
    found = named_columns(schema, node)
    return schema.column(found[0].output) if len(found) == 1 else None


def compared_columns(
    predicate: Predicate, inner: Sequence[Column], outer: TableSchema, refusals: Refusals
) -> tuple[Comparison, ...]:
    """What IN compares: columns of the row outside with the subquery's.

    Raises:
        SchemaError: a column is not there, or there are more of them on one side.
        UnsupportedQueryError: an expression is compared, or two types are.

    """
    if len(predicate.compared) != len(inner):
        raise SchemaError(
            f"IN compares {len(predicate.compared)} columns with {len(inner)}.",
            span=span_of(predicate.node, refusals.text),
        )
    before = len(refusals.found)
    found = []
    for node, column in zip(predicate.compared, inner, strict=True):
        other = _one(outer, node) if isinstance(node, exp.Column) else predicate.computed.get(id(node))
        if other and compared_type(other.type, column.type):
            found.append(Comparison(other, column, "="))
            continue
        refusals.add(
            "row_syntax",
            node,
            f"{written(node)} is {other.type} and is compared with {column.type}."
            if other
            else f"IN compares a column here, or what is computed of columns, and {written(node)} is neither.",
            "Name a column, and cast it where the types differ.",
        )
    refusals.raise_if_any(before)
    return tuple(found)


def restricted(
    outer: Relation,
    inner: Relation,
    compared: Sequence[Comparison],
    predicate: Predicate,
    environment: Environment,
    refusals: Refusals,
) -> Relation:
    """The rows that a predicate keeps.

    Raises:
        UnsupportedQueryError: whether a row is kept would depend on rows of other units.

    """
    owner = outer.owner
    _check(outer, inner, compared, predicate, environment, refusals)
    if owner and inner.owner:
        owner = replace(owner, rules=with_levels_of(owner.rules, inner.owner.rules))
        inner = _of_few_rows(inner, compared)
    text, identity = _rows(outer, inner, compared, predicate)
    readable = bool(outer.schema.relation and inner.schema.relation)
    return replace(
        outer,
        schema=replace(outer.schema, relation=text if readable else ""),
        owner=owner,
        identity=identity,
        reads=tuple(dict.fromkeys((*outer.reads, *inner.reads))),
        is_table=False,
        cuts=tuple(dict.fromkeys((*outer.cuts, *inner.cuts))),
        single=tuple(dict.fromkeys((*outer.single, *inner.single))),
    )


def _check(
    outer: Relation,
    inner: Relation,
    compared: Sequence[Comparison],
    predicate: Predicate,
    environment: Environment,
    refusals: Refusals,
) -> None:
    """Refuse a predicate that depends on rows of other units, or takes time that tells."""
    before = len(refusals.found)
    equal = {(one.outer.name, one.inner.name) for one in compared if one.sign == "="}
    if not equal:
        refusals.add(
            "source",
            predicate.node,
            "a subquery in WHERE has to compare a column with =.",
            "Compare its column with one outside, as in EXISTS (SELECT 1 FROM t WHERE t.x = a.x).",
        )
    elif inner.owner is None:
        names = sorted(name for _, name in equal)
        matches = most_matches(inner, names, environment) if _unequal(compared) else 1
        if matches > MOST_MATCHES:
            # how long it takes to compare a row would tell of it
            refusals.add(
                "source",
                predicate.node,
                f"a row may have to be compared with {matches:,} public ones.",
                f"Compare columns with = that tell public rows apart: {MOST_MATCHES:,} may agree on them.",
            )
    elif outer.owner is None:
        refusals.add(
            "source",
            predicate.node,
            "the choice of public rows would reveal something about protected rows.",
            "Start from the protected table.",
        )
    elif not are_one_unit(outer.owner, inner.owner, equal):
        refusals.add(
            "source",
            predicate.node,
            "which rows are kept would depend on rows of other units.",
            "Compare the privacy unit, or the key by which the tables are linked, in the subquery too.",
        )
    refusals.raise_if_any(before)


def _rows(outer: Relation, inner: Relation, compared: Sequence[Comparison], predicate: Predicate) -> tuple[str, str]:
    """The rows that a predicate keeps, as SQL and as an identity."""
    text, deciding, negated = outer.schema.relation, inner.schema.relation, predicate.negated
    known = negated and bool(predicate.compared)
    if known and _is_as_written(inner, predicate, compared):
        return _not_in(text, deciding, compared[0]), _not_in(outer.identity, inner.identity, compared[0])
    # what the subquery's WHERE compares may be NULL, and then matches nothing
    columns = tuple(one.outer for one in compared[: len(predicate.compared)]) if known else ()
    conditions = sorted(
        {
            comparison(f"decided.{quote(one.outer.name)}", one.sign, f"deciding.{quote(one.inner.name)}", one.types)
            for one in compared
        }
    )
    identity = _kept(outer.identity, inner.identity, conditions, negated=negated, known=columns)
    if inner.owner is not None:
        if len(conditions) == 1:
            return _marked(text, deciding, compared[0], negated=negated, known=columns), identity
        deciding, conditions = _by_extremes(deciding, compared) or (deciding, conditions)
    return _kept(text, deciding, conditions, negated=negated, known=columns), identity


def _is_as_written(inner: Relation, predicate: Predicate, compared: Sequence[Comparison]) -> bool:
    """Whether NOT IN is what SQL says it is: of one column, and public."""
    return len(predicate.compared) == len(compared) == 1 and not inner.owner


def _not_in(outer: str, inner: str, one: Comparison) -> str:
    """As SQL has it, where a NULL in a public list leaves nothing."""
    left, right = comparable(f"decided.{quote(one.outer.name)}", quote(one.inner.name), one.types)
    return f"(SELECT decided.* FROM {outer} AS decided WHERE {left} NOT IN (SELECT {right} FROM {inner}))"


def _of_few_rows(inner: Relation, compared: Sequence[Comparison]) -> Relation:
    """So few rows of a unit that each of its rows is compared with few, where more than their extremes decide."""
    if len(_unequal(compared)) < _SEVERAL or inner.owner is None:
        return inner
    equal = {one.inner.name for one in compared if one.sign == "="}
    return cut(inner, _SEVERAL, sorted(equal - inner.owner.names_unit))


def _unequal(compared: Sequence[Comparison]) -> list[Comparison]:
    return [one for one in compared if one.sign != "="]


def _by_extremes(inner: str, compared: Sequence[Comparison]) -> tuple[str, list[str]] | None:
    """Rows and conditions that decide the same, one row for all that agree on what is equal; None where none do.

    Some value is less than x where the least one is, and is not x where the least or the greatest one is not. The rows
    of a unit would else be compared with each other, each with each.
    """
    others = _unequal(compared)
    if len(others) != 1:
        return None
    (other,) = others
    equal = sorted({(one.outer.name, one.inner.name, one.types) for one in compared if one.sign == "="})
    keys = [bytewise(quote(name), kind) for _, name, (_, kind) in equal]
    value = bytewise(quote(other.inner.name), other.inner.type)
    listed = [f"{key} AS key_{i}" for i, key in enumerate(keys)] + [f"min({value}) AS least", f"max({value}) AS most"]
    grouped = f"(SELECT {', '.join(listed)} FROM {inner} GROUP BY {', '.join(dict.fromkeys(keys))})"
    meets = [
        comparison(f"decided.{quote(other.outer.name)}", other.sign, f"deciding.{end}", other.types)
        for end in _ENDS.get(other.sign, ("least", "most"))
    ]
    agree = [
        comparison(f"decided.{quote(name)}", "=", f"deciding.key_{i}", types)
        for i, (name, _, types) in enumerate(equal)
    ]
    return grouped, [*agree, f"({' OR '.join(meets)})"]


def _marked(outer: str, inner: str, one: Comparison, *, negated: bool, known: Sequence[Column]) -> str:
    """Return the rows of two protected relations that `_kept` returns for one equality, by a mark on each outer row.

    DuckDB reads both sides then, also if no row of one of them is there. A semi join skips rows of the other side, and
    CASE keeps DuckDB from making one of the mark.
    """
    left, right = comparable(f"decided.{quote(one.outer.name)}", f"deciding.{quote(one.inner.name)}", one.types)
    kept, others = ("false", "true") if negated else ("true", "false")
    mark = f"CASE WHEN {left} IN (SELECT {right} FROM {inner} AS deciding) THEN {kept} ELSE {others} END"
    where = " AND ".join([*(f"decided.{quote(column.name)} IS NOT NULL" for column in known), mark])
    return f"(SELECT decided.* FROM {outer} AS decided WHERE {where})"


def _kept(outer: str, inner: str, compared: Sequence[str], *, negated: bool, known: Sequence[Column]) -> str:
    conditions = " AND ".join(compared)
    where = " AND ".join(f"decided.{quote(column.name)} IS NOT NULL" for column in known)
    return (
        f"(SELECT decided.* FROM {outer} AS decided {'ANTI' if negated else 'SEMI'} JOIN {inner} AS deciding "
        f"ON {conditions}{f' WHERE {where}' if where else ''})"
    )
