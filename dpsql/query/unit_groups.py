"""Subqueries with groups of one unit each: what an analyst computes per patient, before anything is counted.

A private subquery groups by the privacy unit, or by a whole key that leads to it, so that no group holds rows of two
units. Its row is computed from the group's rows alone, by aggregates that depend neither on their order nor on anybody
else's, and that cannot fail: it is a function of one unit's rows, and carries that unit. Public rows group as they
like.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.query.aggregate_calls import is_aggregate_call
from dpsql.query.allowed import check_grouped, check_row_expression
from dpsql.query.dialect import quote, to_sql, written
from dpsql.query.environment import Column, Environment, types_of
from dpsql.query.frame import Frame
from dpsql.query.names import ResolvedSelect, SelectItem
from dpsql.query.projections import checked_conditions, selected, shown_columns
from dpsql.query.refusals import Refusals
from dpsql.query.relation import Owner, Relation, renamed
from dpsql.query.row_rules import check_private_parts, is_scalar, uses_of
from dpsql.query.shielded import as_condition, computed, computed_condition, one_spelling, without_statistics
from dpsql.query.total import total_condition_sql

_AGGREGATES: dict[type[exp.Expr], str] = {
    exp.Count: "count", exp.CountIf: "count_if", exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max",
    exp.LogicalAnd: "bool_and", exp.LogicalOr: "bool_or",
}  # fmt: skip
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
    _check(resolved, keys, refusals)
    columns = relation.schema.columns
    calls = _calls(resolved, relation, environment, refusals)
    refusals.raise_if_any(before)
    check_private_parts((*resolved.filters, *resolved.keys), resolved.outputs, columns, environment, refusals)
    conditions = checked_conditions(resolved.filters, columns, environment, refusals)
    kinds = types_of(environment, columns, [(node, text) for text, node in keys.items()], refusals.text)
    _check_types(zip(keys.values(), kinds, strict=True), refusals)
    refusals.raise_if_any(before)
    rows = _GroupedRows(relation, dict(zip(keys, kinds, strict=True)), calls, conditions)
    results = environment.schemas.describe(columns, [_described(call) for call in calls.values()])
    after = rows.schema_after(results)
    items = [SelectItem(item.name, rows.rewritten(item.expression)) for item in resolved.items]
    having = [] if resolved.having is None else [rows.rewritten(resolved.having)]
    check_private_parts(
        [*(item.expression for item in items), *having], (), after.schema.columns, environment, refusals
    )
    refusals.raise_if_any(before)
    kept = checked_conditions(having, after.schema.columns, environment, refusals)
    shown = shown_columns(items, after.schema, environment, refusals.text)
    return selected(after, shown, kept)


def distinct(relation: Relation, node: exp.Expr, refusals: Refusals) -> Relation:
    """The different rows of a relation.

    Raises:
        UnsupportedQueryError: rows of two units could be held to be one.

    """
    before = len(refusals.found)
    visible = {one.output for one in relation.schema.visible}
    owner = relation.owner
    if owner is not None and not owner.always & visible:
        refusals.add(
            "source", node, "DISTINCT would put rows of several units together.",
            f"Select {owner.rules.privacy_unit_column} too, or count(DISTINCT …) above.",
        )  # fmt: skip
    columns = [column for column in relation.schema.columns if column.name in visible]
    for column in columns:
        if not is_scalar(column.type):
            refusals.add(
                "key_type", node, f"{column.name} cannot be told apart by its value.", "Leave it out, or cast it."
            )
    refusals.raise_if_any(before)
    if owner is not None and owner.unit not in visible:
        owner = replace(owner, unit=min(owner.always & visible), always=owner.always & visible)
    listed = ", ".join(f"{one_spelling(quote(column.name), column.type)} AS {quote(column.name)}" for column in columns)
    where = "" if owner is None else f" WHERE {quote(owner.unit)} IS NOT NULL"
    text = f"(SELECT DISTINCT {listed} FROM {relation.schema.relation}{where})" if relation.schema.relation else ""
    return replace(
        relation,
        schema=replace(relation.schema, relation=text, columns=tuple(columns)),
        owner=owner,
        identity=f"(SELECT DISTINCT {', '.join(quote(column.name) for column in columns)} FROM {relation.identity})",
        is_table=False,
        unique=frozenset({*(names for names in relation.unique if names <= visible), frozenset(visible)}),
    )


def _check(resolved: ResolvedSelect, keys: dict[str, exp.Expr], refusals: Refusals) -> None:
    before = len(refusals.found)

    def answered(node: exp.Expr) -> bool:
        return is_aggregate_call(node) or to_sql(node) in keys

    for root in resolved.outputs:
        check_grouped(root, refusals, answered)
    for part in (*resolved.filters, *resolved.keys):
        check_row_expression(part, refusals)
    refusals.raise_if_any(before)


def are_of_one_unit(keys: Sequence[exp.Expr], owner: Owner | None) -> bool:
    """Whether groups by these keys hold rows of one unit each, or public ones."""
    return owner is None or _leads_to_unit({to_sql(key) for key in keys}, owner)


def check_single_units(
    by_set: Sequence[tuple[Frame, ...]], keys_of_sets: Sequence[Sequence[exp.Expr]], owner: Owner, refusals: Refusals
) -> None:
    """Note a refusal for private groups of one unit each: no threshold that keeps a unit secret lets them pass.

    Args:
        by_set: of each grouping set its frames; none where it was refused.
        keys_of_sets: the keys of each.
        owner: whose the rows are.
        refusals: collects.

    """
    for frames, keys in zip(by_set, keys_of_sets, strict=True):
        if frames and frames[0].has_private_keys and are_of_one_unit(keys, owner):
            refusals.add(
                "single_units", keys[0], "every group here holds one privacy unit, and a group is shown only where its "
                "units are more than its noise could make of one: hardly any could ever be, at any price.",
                "Group by something that units share; a subquery that groups by the unit may stand below, and groups "
                "by its columns above.",
            )  # fmt: skip


def _leads_to_unit(keys: Collection[str], owner: Owner) -> bool:
    if any(quote(name) in keys for name in owner.always):
        return True
    return any(path.always and all(quote(name) in keys for name in path.columns) for path in owner.paths)


def _check_types(typed: Iterable[tuple[exp.Expr, str]], refusals: Refusals) -> None:
    for node, kind in typed:
        if not is_scalar(kind):
            refusals.add("key_type", node, "a group key of a subquery is a scalar.", "Cast it, or leave it out.")


def _calls(
    resolved: ResolvedSelect, relation: Relation, environment: Environment, refusals: Refusals
) -> dict[str, _Call]:
    """The aggregates by their normalised text."""
    found: dict[str, _Call] = {}
    for root in resolved.outputs:
        for node in root.walk(prune=is_aggregate_call):
            if is_aggregate_call(node) and to_sql(node) not in found:
                call = _call(node, relation, environment, refusals)
                if call is not None:
                    found[to_sql(node)] = call
    return found


def _call(node: exp.Expr, relation: Relation, environment: Environment, refusals: Refusals) -> _Call | None:
    condition, call = (node.expression.this, node.this) if isinstance(node, exp.Filter) else (None, node)
    function = _AGGREGATES.get(type(call))
    value = call.this
    extra = [part for name, part in call.args.items() if part and name not in ("this", "big_int")]
    of_distinct = isinstance(value, exp.Distinct)
    if of_distinct and len(value.expressions) == 1:
        value = value.expressions[0]
    if function is None or extra or isinstance(value, exp.Distinct | exp.Order | exp.Tuple):
        refusals.add(
            "aggregate", node, f"{written(call)} has no form inside a subquery.",
            f"Use one value, and one of {', '.join(sorted(_AGGREGATES.values()))}, with FILTER if need be.",
        )  # fmt: skip
        return None
    if of_distinct and function != "count":
        refusals.add("aggregate", node, "DISTINCT goes with count in a subquery.", "Write count(DISTINCT x).")
        return None
    before = len(refusals.found)
    parts = [part for part in (value, condition) if part is not None and not isinstance(part, exp.Star)]
    for part in parts:
        if any(is_aggregate_call(inner) for inner in part.walk()):
            refusals.add("nested_aggregate", part, "an aggregate cannot stand inside an aggregate.", "Use a subquery.")
            return None
        check_row_expression(part, refusals)
    refusals.raise_if_any(before)
    columns = relation.schema.columns
    if condition is not None:
        types_of(environment, columns, [(condition, as_condition(to_sql(condition)))], refusals.text)
    filter_sql = "" if condition is None else to_sql(condition)
    if value is None or isinstance(value, exp.Star):
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
    refusals.add(
        "value_type", node, f"{call.function} in a subquery does not take this type.", "Cast the value.",
    )  # fmt: skip
    return None


def _described(call: _Call) -> str:
    return f"{call.function}({call.value or '*'})"


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
        owner = relation.owner
        named = [] if owner is None else [self._names[quote(name)] for name in owner.always if quote(name) in keys]
        # where a key is the unit, it is grouped by once
        self._unit = min(named, default="unit")

    def rewritten(self, root: exp.Expr) -> exp.Expr:
        """An expression over the groups' columns."""
        holder = exp.Paren(this=root.copy())
        self._replace(holder)
        return holder.this  # type: ignore[no-any-return]

    def _replace(self, parent: exp.Expr) -> None:
        for child in list(parent.iter_expressions()):
            name = self._names.get(to_sql(child))
            if name is None:
                self._replace(child)
                continue
            column = exp.column(exp.to_identifier(name, quoted=True))
            column.this.meta.update(next((part.meta for part in child.walk() if part.meta.get("end")), {}))
            child.replace(column)

    def schema_after(self, results: Sequence[str]) -> Relation:
        """The groups as a relation: their keys, what is computed of them, and their unit."""
        relation, owner = self._relation, self._relation.owner
        columns = []
        for text, kind in self._keys.items():
            found = next((column for column in relation.schema.columns if quote(column.name) == text), None)
            origin = ("", text) if found is None else relation.schema.origin(found.name)
            columns.append(Column(self._names[text], kind, True, origin, uses=self._uses(text)))
        columns += [
            Column(self._names[text], kind, True, ("", text), uses=self._uses(call.value))
            for (text, call), kind in zip(self._calls.items(), results, strict=True)
        ]
        if owner is not None:
            outputs = {
                column.name: [self._names[quote(column.name)]]
                for column in relation.schema.columns
                if quote(column.name) in self._keys
            }
            if self._unit == "unit":
                columns.append(Column("unit", self._unit_type(), True, relation.schema.origin(owner.unit)))
            owner = renamed(owner, outputs, self._unit)
        schema = replace(
            relation.schema,
            relation=f"({self._sql()})" if relation.schema.relation else "",
            columns=tuple(columns), names=(), paths=(),
        )  # fmt: skip
        keys = {self._names[text] for text in self._keys} | ({self._unit} if owner is not None else set())
        return replace(
            relation, schema=schema, owner=owner, identity=self._identity(), is_table=False,
            unique=frozenset({frozenset(keys)}),
        )  # fmt: skip

    def _uses(self, sql: str) -> int:
        return uses_of(sql, self._relation.schema.columns) if sql else 1

    def _unit_type(self) -> str:
        owner = self._relation.owner
        held = None if owner is None else self._relation.schema.column(owner.unit)
        return "" if held is None else held.type

    def _identity(self) -> str:
        keys = [f"{text} AS {name}" for text, name in self._names.items() if text in self._keys]
        calls = [f"{text} AS {name}" for text, name in self._names.items() if text in self._calls]
        where = f" WHERE {' AND '.join(self._conditions)}" if self._conditions else ""
        return f"(SELECT {', '.join([*keys, *calls])} FROM {self._relation.identity}{where} GROUP BY {', '.join(keys)})"

    def _sql(self) -> str:
        owner = self._relation.owner
        unit = None if owner is None else quote(owner.unit)
        types = self._relation.schema.types

        read = [f"{computed(text, unit, types)} AS {self._names[text]}" for text in self._keys]
        spelled = [
            f"{one_spelling(f'source.{self._names[text]}', kind)} AS {self._names[text]}"
            for text, kind in self._keys.items()
        ]
        aggregated = [self._names[text] for text in self._keys]
        for i, (text, call) in enumerate(self._calls.items()):
            if call.value:
                read.append(f"{computed(call.value, unit, types)} AS x_{i}")
                spelled.append(f"{one_spelling(f'source.x_{i}', call.kind)} AS x_{i}")
            if call.condition:
                read.append(f"{computed_condition(call.condition, unit, types)} AS f_{i}")
                spelled.append(f"coalesce(source.f_{i}, false) AS f_{i}")
            aggregated.append(f"{_aggregated(call, i)} AS {self._names[text]}")
        where = [] if unit is None else [f"{unit} IS NOT NULL"]
        where += [total_condition_sql(sql, types) for sql in self._conditions]
        keys = [self._names[text] for text in self._keys]
        if unit is not None and self._unit == "unit":
            read.append(f"{unit} AS unit")
            spelled.append(f"{one_spelling('source.unit', self._unit_type())} AS unit")
            aggregated.append("unit")
            keys.append("unit")
        expressions = [*self._keys, *self._conditions]
        expressions += [sql for call in self._calls.values() for sql in (call.value, call.condition) if sql]
        source = without_statistics(self._relation.schema.relation, expressions)
        rows = f"SELECT {', '.join(read) or '1'} FROM {source} WHERE {' AND '.join(where) or 'true'}"
        grouping = f" GROUP BY {', '.join(keys)}" if keys else ""
        spelled_rows = f"SELECT {', '.join(spelled) or '1'} FROM ({rows}) AS source"
        return f"SELECT {', '.join(aggregated)} FROM ({spelled_rows}){grouping}"


def _aggregated(call: _Call, place: int) -> str:
    condition = f" FILTER (WHERE f_{place})" if call.condition else ""
    if not call.value:
        return f"{call.function}({'*' if call.function == 'count' else ''}){condition}"
    value = f"DISTINCT x_{place}" if call.distinct else f"x_{place}"
    # sums of floating-point numbers depend on their order
    order = f" ORDER BY x_{place}" if call.kind in ("FLOAT", "DOUBLE") and call.function in ("sum", "avg") else ""
    return f"{call.function}({value}{order}){condition}"
