"""Subqueries with groups of one unit each: what an analyst computes per patient, before anything is counted.

A private subquery groups by the privacy unit, or by a whole key that leads to it, so that no group holds rows of two
units. Its row is computed from the group's rows alone, by aggregates that depend neither on their order nor on anybody
else's, and that cannot fail: it is a function of one unit's rows, and carries that unit. Public rows group as they
like.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.model.environment import Column, Environment, types_of
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import quote, to_sql, unquoted, written
from dpsql.operations.row_sql import (
    as_condition,
    computed_condition,
    one_spelling,
    shielded,
    total_condition_sql,
    without_statistics,
)
from dpsql.operations.trees import map_tree
from dpsql.sql.clauses import called_with, is_aggregate_call
from dpsql.sql.names import ResolvedSelect, SelectItem
from dpsql.sql.row_rules import check_row_expression
from dpsql.sql.row_types import check_private_parts, checked_conditions, is_scalar, uses_of
from dpsql.sql.source.projections import selected, shown_columns, zones_of
from dpsql.sql.source.relation import Relation, renamed
from dpsql.sql.source.row_bounds import one_row

_AGGREGATES: dict[type[exp.Expr], str] = {
    exp.Count: "count",
    exp.CountIf: "count_if",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.LogicalAnd: "bool_and",
    exp.LogicalOr: "bool_or",
}
_EXACT = re.compile(r"U?(TINYINT|SMALLINT|INTEGER|BIGINT)|BOOLEAN|DECIMAL\((\d+),\d+\)")
_FLOATING = re.compile(r"U?HUGEINT|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)")
_LARGEST_EXACT = 28
"""Digits of a DECIMAL whose sum over 2**33 rows keeps within 38; sums of longer ones are of DOUBLEs."""


@dataclass(frozen=True, slots=True)
class _Call:
    """An aggregate of a subquery: its function over columns of the rows that are grouped."""

    function: str
    value: str
    kind: str
    distinct: bool
    condition: str


def grouped(resolved: ResolvedSelect, relation: Relation, environment: Environment, refusals: Refusals) -> Relation:
    """The rows of a SELECT with groups.

    Raises:
        SchemaError: an expression does not bind.
        UnsupportedQueryError: a group would hold rows of several units, or an aggregate has no form inside.

    """
    before = len(refusals.found)
    keys = {to_sql(key): key for key in resolved.keys}

    def answered(node: exp.Expr) -> bool:
        return is_aggregate_call(node) or to_sql(node) in keys

    for root in resolved.outputs:
        check_row_expression(root, refusals, answered)
    for part in (*resolved.filters, *resolved.keys):
        check_row_expression(part, refusals)
    refusals.raise_if_any(before)
    columns = relation.schema.columns
    calls = _calls(resolved, relation, environment, refusals)
    refusals.raise_if_any(before)
    check_private_parts((*resolved.filters, *resolved.keys), resolved.calls, columns, environment, refusals)
    conditions = checked_conditions(resolved.filters, columns, environment, refusals)
    kinds = types_of(environment, columns, [(node, text) for text, node in keys.items()], refusals.text)
    for node, kind in zip(keys.values(), kinds, strict=True):
        if not is_scalar(kind):
            refusals.add("key_type", node, "a group key of a subquery is a scalar.", "Cast it, or leave it out.")
    refusals.raise_if_any(before)
    rows = _GroupedRows(relation, dict(zip(keys, kinds, strict=True)), calls, conditions)
    results = environment.schemas.describe(
        columns, [f"{call.function}({call.value or '*'})" for call in calls.values()]
    )
    after = rows.schema_after(results)
    items = [SelectItem(item.name, rows.rewritten(item.expression)) for item in resolved.items]
    having = [rows.rewritten(resolved.having)] if resolved.having else []
    parts = [*(item.expression for item in items), *having]
    check_private_parts(parts, (), after.schema.columns, environment, refusals)
    refusals.raise_if_any(before)
    kept = checked_conditions(having, after.schema.columns, environment, refusals)
    return selected(after, shown_columns(items, after.schema, environment, refusals.text), kept)


def distinct(relation: Relation, node: exp.Expr, refusals: Refusals) -> Relation:
    """The different rows of a relation.

    Raises:
        UnsupportedQueryError: rows of two units could be held to be one.

    """
    before = len(refusals.found)
    visible = {one.output for one in relation.schema.visible}
    owner = relation.owner
    if owner and not owner.always & visible:
        refusals.add(
            "source",
            node,
            "DISTINCT would put rows of several units together.",
            f"Select {owner.rules.privacy_unit_column} too, or count(DISTINCT …) above.",
        )
    columns = [column for column in relation.schema.columns if column.name in visible]
    for column in columns:
        if not is_scalar(column.type):
            refusals.add(
                "key_type", node, f"{column.name} has values that cannot be distinguished.", "Leave it out, or cast it."
            )
    refusals.raise_if_any(before)
    if owner and owner.unit not in visible:
        owner = replace(owner, unit=min(owner.always & visible), always=owner.always & visible)
    owner = one_row(owner) if owner and owner.always >= visible else owner
    listed = ", ".join(f"{one_spelling(quote(column.name), column.type)} AS {quote(column.name)}" for column in columns)
    where = f" WHERE {quote(owner.unit)} IS NOT NULL" if owner else ""
    text = f"(SELECT DISTINCT {listed} FROM {relation.schema.relation}{where})" if relation.schema.relation else ""
    return replace(
        relation,
        schema=replace(relation.schema, relation=text, columns=tuple(columns)),
        owner=owner,
        identity=f"(SELECT DISTINCT {', '.join(quote(column.name) for column in columns)} FROM {relation.identity})",
        is_table=False,
        unique=frozenset({*(names for names in relation.unique if names <= visible), frozenset(visible)}),
    )


def refuse_single_units(key: exp.Expr, refusals: Refusals, unique: Sequence[exp.Expr] = ()) -> None:
    """Note a refusal for private groups of one unit each: no threshold that keeps a unit secret lets them pass.

    Args:
        key: where the refusal points to.
        refusals: collects.
        unique: keys on which no two rows agree, if that is why groups have one unit.

    """
    why = f"no two rows agree on {' and '.join(map(unquoted, unique))}, so " if unique else ""
    refusals.add(
        "single_units",
        key,
        f"{why}every group here holds one privacy unit, and a group is shown only where its "
        "units are more than its noise could make of one: hardly any could ever be, at any price.",
        "Group by something that units share; a subquery that groups by the unit may stand below, and groups "
        "by its columns above.",
    )


def _calls(
    resolved: ResolvedSelect, relation: Relation, environment: Environment, refusals: Refusals
) -> dict[str, _Call]:
    """The aggregates by their normalised text."""
    found: dict[str, _Call] = {}
    for node in resolved.calls:
        if to_sql(node) not in found:
            call = _call(node, relation, environment, refusals)
            found |= {to_sql(node): call} if call else {}
    return found


def _call(node: exp.Expr, relation: Relation, environment: Environment, refusals: Refusals) -> _Call | None:
    condition, call = (node.expression.this, node.this) if isinstance(node, exp.Filter) else (None, node)
    function = _AGGREGATES.get(type(call))
    value = call.this
    extra = [part for name, part in call.args.items() if part and name not in ("this", "big_int")]
    of_distinct = isinstance(value, exp.Distinct)
    if of_distinct and len(value.expressions) == 1:
        value = value.expressions[0]
    if not function or extra or isinstance(value, exp.Distinct | exp.Order | exp.Tuple):
        refusals.add(
            "aggregate",
            node,
            f"{written(call)} has no form inside a subquery.",
            f"Use one value, and one of {', '.join(sorted(_AGGREGATES.values()))}, with FILTER if need be.",
        )
        return None
    if of_distinct and function != "count":
        instead = called_with(node, "count", f"DISTINCT {unquoted(value)}")
        refusals.add("aggregate", node, "DISTINCT goes with count in a subquery.", f"Write {instead}.")
        return None
    before = len(refusals.found)
    parts = [part for part in (value, condition) if part and not isinstance(part, exp.Star)]
    for part in parts:
        if any(is_aggregate_call(inner) for inner in part.walk()):
            refusals.add("nested_aggregate", part, "an aggregate cannot stand inside an aggregate.", "Use a subquery.")
            return None
        check_row_expression(part, refusals)
    refusals.raise_if_any(before)
    columns = relation.schema.columns
    if condition:
        types_of(environment, columns, [(condition, as_condition(to_sql(condition)))], refusals.text)
    filter_sql = to_sql(condition) if condition else ""
    if not value or isinstance(value, exp.Star):
        return _Call(function, "", "", False, filter_sql)
    (kind,) = types_of(environment, columns, [(value, to_sql(value))], refusals.text)
    return _typed(_Call(function, to_sql(value), kind, of_distinct, filter_sql), node, refusals)


def _typed(call: _Call, node: exp.Expr, refusals: Refusals) -> _Call | None:
    """The call with its value of a type that its function takes and cannot fail on."""
    if call.function in ("sum", "avg"):
        exact = _EXACT.fullmatch(call.kind)
        if exact and int(exact[2] or 0) <= _LARGEST_EXACT:
            return call
        if _FLOATING.fullmatch(call.kind):
            return replace(call, value=f"CAST({call.value} AS DOUBLE)", kind="DOUBLE")
    elif call.function in ("count_if", "bool_and", "bool_or"):
        return replace(call, value=as_condition(call.value), kind="BOOLEAN")
    elif is_scalar(call.kind) or (call.function == "count" and not call.distinct):
        return call
    refusals.add("value_type", node, f"{call.function} in a subquery does not take this type.", "Cast the value.")
    return None


class _GroupedRows:
    """Rows, their groups, and what is computed of each group, as SQL over one another."""

    def __init__(
        self, relation: Relation, keys: dict[str, str], calls: dict[str, _Call], conditions: Sequence[str]
    ) -> None:
        self._relation = relation
        self._conditions = conditions
        self._calls = calls
        self._keys = keys
        self._names = {text: f"key_{i}" for i, text in enumerate(keys)}
        self._names |= {text: f"value_{i}" for i, text in enumerate(calls)}
        always = relation.owner.always if relation.owner else ()
        # where a key is the unit, it is grouped by once
        self._unit = min((self._names[quote(name)] for name in always if quote(name) in keys), default="unit")

    def rewritten(self, root: exp.Expr) -> exp.Expr:
        """An expression over the groups' columns."""

        def visit(node: exp.Expr) -> exp.Expr:
            name = self._names.get(to_sql(node))
            if name is None:
                return node
            column = exp.column(exp.to_identifier(name, quoted=True))
            column.this.meta.update(next((part.meta for part in node.walk() if part.meta.get("end")), {}))
            return column

        return map_tree(root.copy(), visit)

    def schema_after(self, results: Sequence[str]) -> Relation:
        """The groups as a relation: their keys, what is computed of them, and their unit."""
        relation, owner = self._relation, self._relation.owner
        held = {quote(column.name): column.name for column in relation.schema.columns}
        columns = []
        for text, kind in self._keys.items():
            origin = relation.schema.origin(held[text]) if text in held else ("", text)
            zone = self._zones(text)
            columns.append(Column(self._names[text], kind, True, origin, uses=self._uses(text), zone=zone))
        for (text, call), kind in zip(self._calls.items(), results, strict=True):
            uses, zone = self._uses(call.value), self._zones(call.value)
            columns.append(Column(self._names[text], kind, True, ("", text), uses=uses, zone=zone))
        keys = {self._names[text] for text in self._keys}
        if owner:
            if self._unit == "unit":
                columns.append(Column("unit", relation.unit_type, True, relation.schema.origin(owner.unit)))
            outputs = {name: [self._names[text]] for text, name in held.items() if text in self._keys}
            owner, keys = renamed(owner, outputs, self._unit), {*keys, self._unit}
            owner = one_row(owner) if owner.always >= keys else owner
        schema = replace(
            relation.schema,
            relation=f"({self._sql()})" if relation.schema.relation else "",
            columns=tuple(columns),
            names=(),
            paths=(),
        )
        return replace(
            relation,
            schema=schema,
            owner=owner,
            identity=self._identity(),
            is_table=False,
            unique=frozenset({frozenset(keys)}),
        )

    def _uses(self, sql: str) -> int:
        return uses_of(sql, self._relation.schema.columns) if sql else 1

    def _zones(self, sql: str) -> str:
        """Return the time zones of the columns that an expression names."""
        return zones_of(one for one in self._relation.schema.columns if one.zone and quote(one.name) in sql)

    def _identity(self) -> str:
        keys = [f"{text} AS {self._names[text]}" for text in self._keys]
        shown = [f"{text} AS {name}" for text, name in self._names.items()]
        where = f" WHERE {' AND '.join(self._conditions)}" if self._conditions else ""
        return f"(SELECT {', '.join(shown)} FROM {self._relation.identity}{where} GROUP BY {', '.join(keys)})"

    def _sql(self) -> str:
        unit, types = self._relation.unit_sql, self._relation.schema.types
        # of each column its name, what computes it, and what spells it in one way
        columns = [
            (self._names[text], shielded(text, unit, types), one_spelling(f"source.{self._names[text]}", kind))
            for text, kind in self._keys.items()
        ]
        keys = [self._names[text] for text in self._keys]
        calls = enumerate(self._calls.items())
        aggregated = [*keys, *(f"{_aggregated(call, i)} AS {self._names[text]}" for i, (text, call) in calls)]
        for i, call in enumerate(self._calls.values()):
            if call.value:
                columns.append((f"x_{i}", shielded(call.value, unit, types), one_spelling(f"source.x_{i}", call.kind)))
            if call.condition:
                condition = computed_condition(call.condition, unit, types)
                columns.append((f"f_{i}", condition, f"coalesce(source.f_{i}, false)"))
        if unit and self._unit == "unit":
            columns.append(("unit", unit, one_spelling("source.unit", self._relation.unit_type)))
            aggregated.append("unit")
            keys.append("unit")
        where = [f"{unit} IS NOT NULL"] if unit else []
        where += [total_condition_sql(sql, types) for sql in self._conditions]
        expressions = [*self._keys, *self._conditions]
        expressions += [sql for call in self._calls.values() for sql in (call.value, call.condition) if sql]
        source = without_statistics(self._relation.schema.relation, expressions)
        read = ", ".join(f"{sql} AS {name}" for name, sql, _ in columns) or "1"
        spelled = ", ".join(f"{sql} AS {name}" for name, _, sql in columns) or "1"
        rows = f"SELECT {read} FROM {source} WHERE {' AND '.join(where) or 'true'}"
        grouping = f" GROUP BY {', '.join(keys)}" if keys else ""
        return f"SELECT {', '.join(aggregated)} FROM (SELECT {spelled} FROM ({rows}) AS source){grouping}"


def _aggregated(call: _Call, place: int) -> str:
    condition = f" FILTER (WHERE f_{place})" if call.condition else ""
    if not call.value:
        return f"{call.function}({'*' if call.function == 'count' else ''}){condition}"
    value = f"DISTINCT x_{place}" if call.distinct else f"x_{place}"
    # sums of floating-point numbers depend on their order
    order = f" ORDER BY x_{place}" if call.kind in ("FLOAT", "DOUBLE") and call.function in ("sum", "avg") else ""
    return f"{call.function}({value}{order}){condition}"
