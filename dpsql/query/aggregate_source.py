"""What reading an aggregate call depends on beside the call: source, rules, types and domains."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from sqlglot import exp

from dpsql.query.dialect import to_sql
from dpsql.query.environment import Environment, TableRules, TableSchema, bounds_of, types_of
from dpsql.query.frame import Statistic
from dpsql.query.intervals import Columns, interval_of
from dpsql.query.private_query import Estimate, Linear
from dpsql.query.refusals import Refusals
from dpsql.query.relation import Owner

Bounds = tuple[float, float]
_NUMERIC = re.compile(r"^(U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|FLOAT|DOUBLE|BOOLEAN|DECIMAL\(\d+,\d+\))$")
FLOATING = ("FLOAT", "DOUBLE")


def is_number(value_type: str) -> bool:
    """Whether values of a DuckDB type are added up, each within bounds; BOOLEAN ones count as 0 and 1."""
    return _NUMERIC.match(value_type) is not None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What one aggregate call needs: an estimate, its statistics, and the weight asked for them."""

    estimate: Estimate
    statistics: tuple[Statistic, ...]
    weight: float | None


@dataclass(frozen=True)
class AggregateSource:
    """The source that aggregates are of, with what policy and schema say of its columns."""

    schema: TableSchema
    owner: Owner
    environment: Environment
    refusals: Refusals

    @property
    def rules(self) -> TableRules:
        """What the policy says about the source."""
        return self.owner.rules

    def type_of(self, value: exp.Expr) -> str:
        """DuckDB type of an expression.

        Raises:
            SchemaError: it does not bind.

        """
        return types_of(self.environment, self.schema.columns, [(value, to_sql(value))], self.refusals.text)[0]

    def may_be_missing(self, value: exp.Expr, value_type: str) -> bool:
        """Whether a present unit may have no value: all but a NOT NULL column of a type without NaN."""
        column = self.schema.column(value.name) if isinstance(value, exp.Column) else None
        return column is None or column.nullable or value_type in FLOATING

    def number_type(self, node: exp.Expr, value: exp.Expr, function: str) -> str | None:
        """Type of a value that is a number; None after noting that it is none."""
        value_type = self.type_of(value)
        if is_number(value_type):
            return value_type
        self.refusals.add(
            "value_type", node, f"{function} takes numbers, not {type_name(value_type)}.",
            "Cast the value, or aggregate another column.",
        )  # fmt: skip
        return None

    def inferred(self, value: exp.Expr | None) -> tuple[float, float] | None:
        """Bounds of a row that follow from the declared domains of its columns; None where they leave an end open."""
        if value is None:
            return None
        found = interval_of(value, Columns(self._domain, self._is_never_null))
        low, high = found.floats()
        if not found.is_finite or low == high == 0.0:
            return None
        # a constant is clamped to what holds it and what a row without a value adds
        return (low, high) if low < high else (min(low, 0.0), max(high, 0.0))

    def undeclared(self, value: exp.Expr | None) -> tuple[tuple[str, str], ...]:
        """Table and column of each domain that is missing; none where domains of all of them would not do."""
        if value is None:
            return ()

        names = dict.fromkeys(column.name for column in value.find_all(exp.Column))
        absent = [name for name in names if self._domain(name) is None]

        def would_do(supposed: Collection[str]) -> bool:
            columns = Columns(lambda name: (1.0, 2.0) if name in supposed else self._domain(name), self._is_never_null)
            return interval_of(value, columns).is_finite

        needed = [name for name in absent if not would_do([other for other in absent if other != name])]
        origins = tuple(dict.fromkeys(self.schema.origin(name) for name in needed))
        # what a subquery computes has no table that a domain could be declared of
        return origins if would_do(needed) and all(table for table, _ in origins) else ()

    def _domain(self, name: str) -> tuple[float, float] | None:
        return bounds_of(self.schema, name, self.environment)

    def _is_never_null(self, name: str) -> bool:
        column = self.schema.column(name)
        return column is not None and not column.nullable


def estimate_of(name: str, statistic: Statistic, output: str) -> Estimate:
    """The estimate that a statistic is by itself, its centre added back."""
    return Estimate(name, Linear(statistic, statistic.centre), None, output)


def finite_sql(value_sql: str, value_type: str) -> str:
    """SQL that is NULL where a floating-point value is NaN or infinite, as it is where the value is NULL."""
    return f"case when isfinite({value_sql}) then {value_sql} end" if value_type in FLOATING else value_sql


def type_name(value_type: str) -> str:
    """A type for messages: an ENUM's text lists its members, which may be keys that nobody was shown."""
    return "ENUM" if "ENUM" in value_type else value_type
