"""The source that aggregates are of: its rules, types and domains, and how a call of it is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from sqlglot import exp

from dpsql.model.environment import Environment, TableSchema, bounds_of, types_of
from dpsql.model.frame import Statistic
from dpsql.model.private_query import FoundBounds
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import to_sql
from dpsql.plan.aggregates.lattice import Bounds
from dpsql.sql.source.relation import Owner

_NUMERIC = re.compile(r"^(U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|FLOAT|DOUBLE|BOOLEAN|DECIMAL\(\d+,\d+\))$")
FLOATING = ("FLOAT", "DOUBLE")


def is_number(value_type: str) -> bool:
    """Whether values of a DuckDB type are added up, each within bounds; BOOLEAN ones count as 0 and 1."""
    return _NUMERIC.match(value_type) is not None


class RefusedCallError(Exception):
    """A call cannot be read, and why is noted; caught where calls are read one after the other."""


@dataclass(frozen=True)
class AggregateSource:
    """The source that aggregates are of, with what policy and schema say of its columns.

    Attributes:
        found_bounds: bounds that AUTO found.
        groups: bounds are read as those of what one unit adds to so many groups together: from one to all of them.
        by_norm: whether what one unit adds is bounded over all its groups together.
        finds_bounds: whether bounds of rows that nobody names are left to AUTO.
        recentred: whether half of a value's interval is counted by units. Not so where the rows of a value may be of
            another day than the count of units, of which a key that came later has none.
        asked: each extreme that AUTO is asked to find, with the text of its aggregate; grows while calls are read.

    """

    schema: TableSchema
    owner: Owner
    environment: Environment
    refusals: Refusals
    found_bounds: FoundBounds = field(default_factory=dict)
    groups: int = 1
    asked: dict[Statistic, str] = field(default_factory=dict)
    by_norm: bool = False
    finds_bounds: bool = False
    recentred: bool = True

    def type_of(self, value: exp.Expr) -> str:
        """DuckDB type of an expression.

        Raises:
            SchemaError: it does not bind.

        """
        return types_of(self.environment, self.schema.columns, [(value, to_sql(value))], self.refusals.text)[0]

    def may_be_missing(self, value: exp.Expr, value_type: str) -> bool:
        """Whether a present unit may have no value: all but a NOT NULL column of a type without NaN."""
        column = self.schema.column(value.name) if isinstance(value, exp.Column) else None
        return not column or column.nullable or value_type in FLOATING

    def bind_condition(self, condition: exp.Expr) -> None:
        """Find the type of a condition.

        Raises:
            SchemaError: it does not bind.

        """
        self.type_of(exp.cast(condition.copy(), "BOOLEAN"))

    def domain(self, name: str) -> Bounds | None:
        """What is declared, or follows, of the values of a column."""
        return bounds_of(self.schema, name, self.environment)

    def refuse(self, code: str, node: exp.Expr, message: str, hint: str) -> NoReturn:
        """Note why a call cannot be read, and leave it."""
        self.refusals.add(code, node, message, hint)
        raise RefusedCallError

    def note_bounds(self, node: exp.Expr, *, are_times: bool = False) -> None:
        """Note that bounds are not what bounds are: two numbers, or of times two of these."""
        if are_times:
            self.refusals.add(
                "bounds_invalid",
                node,
                "bounds of dates and timestamps are two of these, the lower first.",
                "Write (DATE '2020-01-01', DATE '2030-01-01').",
            )
            return
        self.refusals.add("bounds_invalid", node, "bounds are two finite numbers, the lower first.", "Write (0, 500).")


def finite_sql(value_sql: str, value_type: str) -> str:
    """SQL that is NULL where a floating-point value is NaN or infinite, as it is where the value is NULL."""
    return f"case when isfinite({value_sql}) then {value_sql} end" if value_type in FLOATING else value_sql


def type_name(value_type: str) -> str:
    """A type for messages: an ENUM's text lists its members, which may be keys that nobody was shown."""
    return "ENUM" if "ENUM" in value_type else value_type
