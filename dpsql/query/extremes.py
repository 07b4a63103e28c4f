"""Sums whose bounds AUTO finds: what is asked of the data for them, and what came of it."""

from __future__ import annotations

from dpsql.query.aggregate_arguments import Arguments
from dpsql.query.aggregate_source import AggregateSource, finite_sql
from dpsql.query.dialect import to_sql
from dpsql.query.frame import Statistic
from dpsql.query.private_query import ToldBounds


class Extremes:
    """What the aggregates of a query ask of AUTO.

    Attributes:
        asked: each extreme that is looked for, with the aggregate's text.

    """

    def __init__(self, source: AggregateSource, told: ToldBounds) -> None:
        self._source = source
        self._told = told
        self.asked: dict[Statistic, str] = {}

    def bounds(self, arguments: Arguments, name: str) -> tuple[float, float]:
        """What AUTO found, or stands for it before it is told anything."""
        if arguments.value is None:
            raise AssertionError("sums have a value")
        in_group = "contribution_bounds_per_group" in arguments.auto
        asked = Statistic(
            kind="group_extremes" if in_group else "row_extremes",
            low_steps=1,
            high_steps=1,
            lattice_exponent=0,
            value_sql=finite_sql(to_sql(arguments.value), self._source.type_of(arguments.value)),
            filter_sql=to_sql(arguments.filter) if arguments.filter is not None else "",
        )
        self.asked.setdefault(asked, name)
        return self._told.get(asked, (-1.0, 1.0))
