"""Queries and tables as Python values, from which both SQL text and a plain evaluation follow.

An ``Expression`` is SQL text beside a Python function of the same meaning; None stands for NULL, and for a part
that fails on a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

Value = bool | int | float | Decimal | str | None
Row = Mapping[str, Value]
Bounds = tuple[float, float]
INT32, INT64 = 2**31, 2**63


@dataclass(frozen=True)
class Field:
    """A column of a table; ``required`` means NOT NULL."""

    name: str
    type: str
    required: bool = False

    @property
    def declaration(self) -> str:
        return f"{quoted(self.name)} {self.type}{' NOT NULL' if self.required else ''}"


@dataclass(frozen=True)
class Expression:
    """SQL text, its DuckDB type, and what it means for a row."""

    sql: str
    type: str
    evaluate: Callable[[Row], Value]

    def __repr__(self) -> str:
        return self.sql


@dataclass(frozen=True)
class Aggregate:
    """One aggregate call: ``units`` is count(DISTINCT unit), ``values`` count(DISTINCT value), ``rows`` other counts.

    ``value_sum`` is sum(DISTINCT value).

    Units with a row that decides bool_or or bool_and are ``units`` with ``counted_if``, which is ``decided_by`` there.
    ``inferred`` means that ``per_row`` follows from the declared domains and is not written.
    """

    kind: Literal["units", "values", "value_sum", "rows", "sum", "avg", "var_pop", "stddev"]
    value: Expression | None = None
    condition: Expression | None = None
    per_group: Bounds | None = None
    per_row: Bounds | None = None
    private_spelling: bool = False
    counted_if: Expression | None = None
    decided_by: bool = True
    inferred: bool = False
    norm: float | None = None

    def sql(self, unit: str) -> str:
        argument = self.value.sql if self.value else "*"
        per_row = None if self.inferred else self.per_row
        named = "".join(
            f", contribution_bounds_per_{name} => ({low!r}, {high!r})"
            for name, (low, high) in (("group", self.per_group or (0, 0)), ("row", per_row or (0, 0)))
            if (self.per_group if name == "group" else per_row) is not None
        )
        if self.norm is not None:
            named += f", contribution_norm => {self.norm!r}"
        if self.kind == "units" and self.counted_if is not None:
            call = f"{'bool_or' if self.decided_by else 'bool_and'}({self.counted_if.sql})"
        elif self.kind == "units":
            call = f"{'dp_' * self.private_spelling}count(DISTINCT {quoted(unit)})"
        elif self.kind == "values":
            call = f"{'dp_' * self.private_spelling}count(DISTINCT {argument}{named})"
        elif self.kind == "value_sum":
            call = f"sum(DISTINCT {argument}{named})"
        elif self.counted_if is not None:
            call = f"count_if({self.counted_if.sql}{named})"
        elif self.kind == "rows":
            call = f"{'dp_' * self.private_spelling}count({argument}{named})"
        elif self.private_spelling:
            low, high = self.per_row if self.kind == "avg" and self.per_row else self.per_group or (0, 1)
            call = f"dp_{self.kind}({argument}, {low!r}, {high!r})"
        else:
            call = f"{self.kind}({argument}{named})"
        return call + (f" FILTER (WHERE {self.condition.sql})" if self.condition else "")


@dataclass(frozen=True)
class Query:
    """A query of the supported surface on one table; the policy's caps stand beside it."""

    keys: tuple[Expression, ...]
    aggregates: tuple[Aggregate, ...]
    where: tuple[Expression, ...] = ()
    max_groups: int = 3
    row_cap: int | None = 4
    option_in_text: bool = False
    public_keys: tuple[tuple[Value, ...], ...] | None = None
    domains: tuple[tuple[str, Bounds], ...] = ()
    bounding: Literal["", "L2", "NORM"] = ""
    most_rows: int | None = None

    def sql(self, table: str, unit: str) -> str:
        options = (
            f"WITH DIFFERENTIAL_PRIVACY OPTIONS (max_groups_contributed = {self.max_groups}"
            f"{f', bounding = {self.bounding}' if self.bounding else ''}) "
            if self.option_in_text
            else ""
        )
        items = [key.sql for key in self.keys]
        items += [f"{aggregate.sql(unit)} AS a{i}" for i, aggregate in enumerate(self.aggregates)]
        where = f" WHERE {' AND '.join(f'({c.sql})' for c in self.where)}" if self.where else ""
        group = f" GROUP BY {', '.join(key.sql for key in self.keys)}" if self.keys else ""
        return f"SELECT {options}{', '.join(items)} FROM {table}{where}{group}"


@dataclass(frozen=True)
class Case:
    """A table, a query on it, and the unit that is deleted."""

    fields: tuple[Field, ...]
    rows: tuple[tuple[Value, ...], ...]
    query: Query
    removed: Value

    @property
    def unit(self) -> Field:
        return self.fields[0]

    def dictionaries(self) -> list[dict[str, Value]]:
        names = [field.name for field in self.fields]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(value: Value) -> str:
    """A value as a quoted literal that DuckDB casts to the column's type."""
    return "NULL" if value is None else "'" + str(value).replace("'", "''") + "'"


def is_missing(value: Value) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def column(field: Field) -> Expression:
    return Expression(quoted(field.name), field.type, lambda row: row[field.name])


def squared_distance(value: Expression, bounds: Bounds) -> Expression:
    """Of a number that is clamped to bounds, to their middle."""
    low, high = bounds

    def evaluate(row: Row) -> Value:
        found = value.evaluate(row)
        if found is None or is_missing(number := float(found)):
            return None
        return float((max(low, min(number, high)) - (low + high) / 2) ** 2)

    return Expression("", "DOUBLE", evaluate)


def less(value: Expression, constant: float) -> Expression:
    """A number less a constant; only evaluated, as what stands inside an average."""

    def evaluate(row: Row) -> Value:
        found = value.evaluate(row)
        return None if found is None or is_missing(number := float(found)) else number - constant

    return Expression("", "DOUBLE", evaluate)


def clamped(value: Expression, bounds: Bounds) -> Expression:
    """A number within bounds; only evaluated."""

    def evaluate(row: Row) -> Value:
        found = value.evaluate(row)
        if found is None or is_missing(number := float(found)):
            return None
        return max(float(bounds[0]), min(number, float(bounds[1])))

    return Expression("", "DOUBLE", evaluate)


def or_else(value: Expression, constant: int) -> Expression:
    def evaluate(row: Row) -> Value:
        found = value.evaluate(row)
        return constant if found is None else found

    return Expression(f"coalesce({value.sql}, {constant})", value.type, evaluate)


def size(field: Field) -> Expression:
    """Fails on the least number of its type."""
    limit = INT32 if field.type == "INTEGER" else INT64

    def evaluate(row: Row) -> Value:
        value = row[field.name]
        return None if value is None or abs(int(value)) >= limit else abs(int(value))

    return Expression(f"abs({quoted(field.name)})", field.type, evaluate)


def remainder(field: Field, divisor: int) -> Expression:
    def evaluate(row: Row) -> Value:
        value = row[field.name]
        return None if value is None else int(math.copysign(abs(int(value)) % divisor, int(value)))

    return Expression(f"{quoted(field.name)} % {divisor}", field.type, evaluate)


def lowered(field: Field) -> Expression:
    def evaluate(row: Row) -> Value:
        value = row[field.name]
        return None if value is None else str(value).lower()

    return Expression(f"lower({quoted(field.name)})", "VARCHAR", evaluate)


def as_integer(field: Field) -> Expression:
    """A cast that fails on most texts."""

    def evaluate(row: Row) -> Value:
        text = row[field.name]
        if text is None:
            return None
        digits = str(text)
        if not digits.removeprefix("-").isdigit() or not -INT32 <= int(digits) < INT32:
            return None
        return int(digits)

    return Expression(f"cast({quoted(field.name)} as integer)", "INTEGER", evaluate)


def square(field: Field) -> Expression:
    """A product that overflows."""
    limit = INT32 if field.type == "INTEGER" else INT64

    def evaluate(row: Row) -> Value:
        value = row[field.name]
        if value is None:
            return None
        if int(value) ** 2 >= limit:
            return None
        return int(value) ** 2

    return Expression(f"{quoted(field.name)} * {quoted(field.name)}", field.type, evaluate)


def ratio(top: Field, bottom: Field) -> Expression:
    """A division, also by zero."""

    def evaluate(row: Row) -> Value:
        above, below = row[top.name], row[bottom.name]
        if above is None or below is None:
            return None
        return float(above) / float(below) if below else math.inf

    return Expression(f"{quoted(top.name)} / {quoted(bottom.name)}", "DOUBLE", evaluate)


def only_where(condition: Expression, value: Expression) -> Expression:
    return Expression(
        f"case when {condition.sql} then {value.sql} end",
        value.type,
        lambda row: value.evaluate(row) if condition.evaluate(row) is True else None,
    )


def above(value: Expression, constant: int) -> Expression:
    def evaluate(row: Row) -> Value:
        left = value.evaluate(row)
        if left is None or isinstance(left, str):
            return None
        return True if isinstance(left, float) and math.isnan(left) else left > constant

    return Expression(f"{value.sql} > {constant}", "BOOLEAN", evaluate)


def is_null(value: Expression) -> Expression:
    return Expression(f"{value.sql} is null", "BOOLEAN", lambda row: value.evaluate(row) is None)


def is_text(field: Field, text: str) -> Expression:
    def evaluate(row: Row) -> Value:
        return None if row[field.name] is None else row[field.name] == text

    return Expression(f"{quoted(field.name)} = {literal(text)}", "BOOLEAN", evaluate)


def either(left: Expression, right: Expression) -> Expression:
    def evaluate(row: Row) -> Value:
        sides = (left.evaluate(row), right.evaluate(row))
        return True if True in sides else None if None in sides else False

    return Expression(f"({left.sql} or {right.sql})", "BOOLEAN", evaluate)


def truth(field: Field) -> Expression:
    """A number used as a condition, which DuckDB casts to BOOLEAN."""

    def evaluate(row: Row) -> Value:
        return None if row[field.name] is None else bool(row[field.name])

    return Expression(quoted(field.name), field.type, evaluate)
