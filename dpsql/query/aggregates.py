"""From an aggregate call to the bounded statistics that answer it.

Three spellings, one meaning: ``sum(x, contribution_bounds_per_group => (0, 500))``, ``dp_sum(x, 0, 500)`` and, under a
policy that declares domains of the columns in x, ``sum(x)``.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from dpsql.query.aggregate_arguments import ArgumentReader
from dpsql.query.aggregate_calls import QUANTILES, SPREADS
from dpsql.query.aggregate_source import Aggregate, AggregateSource
from dpsql.query.counts import CountReader
from dpsql.query.dialect import unquoted
from dpsql.query.environment import Environment, TableSchema
from dpsql.query.extremes import Extremes
from dpsql.query.frame import Statistic
from dpsql.query.private_query import ToldBounds
from dpsql.query.quantiles import QuantileReader
from dpsql.query.refusals import Refusals
from dpsql.query.relation import Owner
from dpsql.query.spreads import SpreadReader
from dpsql.query.sums import SumReader


class AggregateReader:
    """Reads aggregate calls over one source; of what a unit adds to several groups together where that is asked."""

    def __init__(
        self,
        schema: TableSchema,
        owner: Owner,
        environment: Environment,
        refusals: Refusals,
        told: ToldBounds | None = None,
        groups: int = 1,
    ) -> None:
        self._source = AggregateSource(schema, owner, environment, refusals)
        self._extremes = Extremes(self._source, told or {})
        self._arguments = ArgumentReader(refusals, groups)
        self._counts = CountReader(self._source, self._arguments)
        self._sums = SumReader(self._source, self._arguments, self._counts, self._extremes)
        self._spreads = SpreadReader(self._source, self._sums)
        self._quantiles = QuantileReader(self._source, self._sums)

    @property
    def asked_extremes(self) -> Mapping[Statistic, str]:
        """What AUTO is asked to find bounds of, each with the aggregate's text."""
        return self._extremes.asked

    def read(self, node: exp.Expr) -> Aggregate | None:
        """The aggregate that a call asks for; None after noting why there is none."""
        arguments = self._arguments.read(node)
        if arguments is None:
            return None
        if arguments.filter is not None:
            # what does not bind is refused before anything is charged
            self._source.type_of(exp.cast(arguments.filter.copy(), "BOOLEAN"))
        if arguments.function == "count":
            return self._counts.read(node, arguments, unquoted(node))
        if arguments.function in QUANTILES:
            return self._quantiles.read(node, arguments, unquoted(node))
        if arguments.function in SPREADS:
            return self._spreads.read(node, arguments, unquoted(node))
        return self._sums.read(node, arguments, unquoted(node))
