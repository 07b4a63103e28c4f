"""The source that aggregates are of: its rules, types and domains, and how a call of it is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from sqlglot import exp

from dpsql.model.environment import Environment, TableSchema, bounds_of, types_of
from dpsql.model.estimates import NotFound
from dpsql.model.frame import Statistic
from dpsql.model.private_query import NO_BOUNDS, FoundBounds
from dpsql.model.refusals import Refusals
from dpsql.operations import blanks
from dpsql.operations.dialect import to_sql, unquoted
from dpsql.operations.row_sql import finite
from dpsql.plan.aggregates.lattice import MOST_ROWS, SMALLEST_NORM, Bounds
from dpsql.sql.clauses import called_with, function_name
from dpsql.sql.row_types import check_truths
from dpsql.sql.source.relation import Owner

_NUMERIC = re.compile(r"^(U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|FLOAT|DOUBLE|BOOLEAN|DECIMAL\(\d+,\d+\))$")
_STAND_IN_ROWS = 2
"""Rows of a unit before AUTO is asked: with one row a plan would have fewer statistics than it may get."""
FLOATING = ("FLOAT", "DOUBLE")


def is_number(value_type: str) -> bool:
    """Whether values of a DuckDB type are added up, each within bounds; BOOLEAN ones count as 0 and 1."""
    return _NUMERIC.match(value_type) is not None


class RefusedCallError(Exception):
    """A call cannot be read, and why is noted; caught where calls are read one after the other."""


class BoundsNotFoundError(Exception):
    """A call whose bounds AUTO did not find, and whose values have no other bounds."""

    def __init__(self, not_found: NotFound) -> None:
        super().__init__(not_found.reason)
        self.not_found = not_found


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
        instead: bounds of a row that are used for an extreme that AUTO did not find; likewise.

    """

    schema: TableSchema
    owner: Owner
    environment: Environment
    refusals: Refusals
    found_bounds: FoundBounds = field(default_factory=dict)
    groups: int = 1
    asked: dict[Statistic, str] = field(default_factory=dict)
    instead: dict[Statistic, Bounds] = field(default_factory=dict)
    by_norm: bool = False
    finds_bounds: bool = False
    recentred: bool = True

    def found(self, asked: Statistic, name: str, instead: Bounds | None) -> Bounds:
        """Return what AUTO found, or what stands for it until it is asked; note that it is asked.

        Args:
            asked: the extreme, or the norm.
            name: the text of its aggregate.
            instead: bounds of a row, by which one row of a unit is bounded if AUTO found nothing.

        Raises:
            BoundsNotFoundError: AUTO found nothing, and there are no other bounds.

        """
        self.asked.setdefault(asked, name)
        found = self.found_bounds.get(asked, NO_BOUNDS)
        if not isinstance(found, NotFound):
            return found
        if not instead:
            raise BoundsNotFoundError(found)
        self.instead[asked] = instead
        if asked.kind != "sum_norm":
            return instead
        norm = max(SMALLEST_NORM, *map(abs, instead))
        return -norm, norm

    @property
    def row_cap_is_known(self) -> bool:
        """Return whether the policy says how many rows of a unit count in one group, or AUTO may find it."""
        return self.finds_bounds or self.owner.rules.max_rows_per_group is not None

    def row_cap(self, name: str) -> int | None:
        """Return how many rows of a unit count in one group.

        The policy says it. If missing bounds are left to AUTO, the norm of a unit's numbers of rows over all its groups
        says it, which policy or AUTO know: no number in one group exceeds it. Return None if nobody says it.

        Args:
            name: the text of the aggregate.

        Raises:
            BoundsNotFoundError: AUTO found so many rows that their noise cannot be drawn.

        """
        rules = self.owner.rules
        if rules.max_rows_per_group or not self.finds_bounds:
            return rules.max_rows_per_group
        most = rules.max_rows_norm
        if not most:
            asked = Statistic("rows_norm", 1, 1, 0)
            self.asked.setdefault(asked, name)
            found = self.found_bounds.get(asked)
            if isinstance(found, NotFound):
                raise BoundsNotFoundError(found)
            most = found[1] if found else _STAND_IN_ROWS
        return min(max(1, math.ceil(most)), rules.max_rows_per_unit or MOST_ROWS, MOST_ROWS)

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
        """Check that a condition is true or false.

        Raises:
            SchemaError: it does not bind.
            RefusedCallError: a part of it has no cast to BOOLEAN.

        """
        before = len(self.refusals.found)
        check_truths([condition], self.schema.columns, self.environment, self.refusals)
        if len(self.refusals.found) > before:
            raise RefusedCallError
        self.type_of(exp.cast(condition.copy(), "BOOLEAN"))
        self.type_of(exp.cast(condition.copy(), "BOOLEAN"))

    def domain(self, name: str) -> Bounds | None:
        """What is declared, or follows, of the values of a column."""
        return bounds_of(self.schema, name, self.environment)

    def refuse(self, code: str, node: exp.Expr, message: str, hint: str, analyst_hint: str | None = None) -> NoReturn:
        """Note why a call cannot be read, and leave it."""
        self.refusals.add(code, node, message, hint, analyst_hint)
        raise RefusedCallError

    def note_bounds(self, node: exp.Expr, *, are_times: bool = False, given: Bounds | None = None) -> None:
        """Note that bounds are no two numbers, or no two times, in order.

        Args:
            node: the call, or the argument with the bounds.
            are_times: whether the value is a date or timestamp.
            given: the numbers that are written. The cure puts them in order.

        """
        kind = "of dates and timestamps are two of these" if are_times else "are two finite numbers"
        call = node.this if isinstance(node, exp.Filter) else node
        named = (exp.Kwarg, exp.PropertyEQ)
        parts = [call] if isinstance(call, named) else [part for part in call.expressions if isinstance(part, named)]
        names = [part.this.name.lower() for part in parts]
        name = next((one for one in names if one.startswith("contribution_bounds")), None)
        is_sum = (name or "").endswith("per_group") or function_name(call) == "dp_sum"
        ends = blanks.DAYS if are_times else blanks.SUMS if is_sum else blanks.VALUES
        if given and given[0] > given[1]:
            ends = f"{given[1]:.15g}", f"{given[0]:.15g}"
        cure = f"{name} => ({', '.join(ends)})"
        if not name:
            # the form dp_sum(x, low, high)
            cure = called_with(node, function_name(call) or "", unquoted(call.expressions[0]), *ends)
        self.refusals.add("bounds_invalid", node, f"bounds {kind}, the lower first.", f"Write {cure}.")


def finite_sql(value_sql: str, value_type: str) -> str:
    """SQL that is NULL where a floating-point value is NaN or infinite, as it is where the value is NULL."""
    return finite(value_sql) if value_type in FLOATING else value_sql


def type_name(value_type: str) -> str:
    """A type for messages: an ENUM's text lists its members, which may be keys that nobody was shown."""
    return "ENUM" if "ENUM" in value_type else value_type


def require_no_unit(node: exp.Expr, function: str, value: exp.Expr, source: AggregateSource) -> None:
    """Refuse an aggregate of numbers that are computed from names of units.

    Args:
        node: the call as it stands in the text.
        function: its name.
        value: the value that is aggregated.
        source: which rows.

    Raises:
        RefusedCallError: they are.

    """
    names = (column for column in _added_columns(value) if column.name in source.owner.names_unit)
    if unit := next(names, None):
        column = unquoted(unit)
        source.refuse(
            "value_type",
            node,
            f"{column} holds the names of privacy units, and their {function} means nothing.",
            f"Write count(DISTINCT {column}) to count units, or aggregate another column.",
        )


def _added_columns(value: exp.Expr) -> Iterator[exp.Column]:
    """Yield the columns that arithmetic and casts make a value from; not those of a condition."""
    if isinstance(value, exp.Column):
        yield value
    elif isinstance(value, exp.Paren | exp.Cast | exp.Neg | exp.Add | exp.Sub | exp.Mul | exp.Div):
        for part in value.iter_expressions():
            yield from _added_columns(part)
