"""Errors under declared bounds, under the best of a grid, and with no bound declared, from raw rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dpsql.errors import CalibrationError, DpsqlError, PolicyError
from dpsql.model.environment import TableSchema
from dpsql.model.estimates import LinearValue
from dpsql.model.frame import Statistic
from dpsql.operations.dialect import quote
from dpsql.receipts.bound_words import BoundReport, Curve, Errors, kept_by_best
from dpsql.release.bound_errors import PEOPLE, ROWS, Bounds, Grouping, Noise
from dpsql.release.bound_grid import NO_BOUNDS, Choice, Grid, best_choice, bounds_of, factor, grid_of, mean_of
from dpsql.release.raw_groups import (
    MOST_PAIRS,
    Totals,
    ValueSpread,
    raw_value,
    read_pairs,
    read_totals,
    read_values,
)
from dpsql.session.bound_declarations import declarations_of, declared_spreads, undone_bounds
from dpsql.session.bound_plans import BoundPlans, Terms, Trial
from dpsql.state import ProtectedTable

MOST_SUMS = 4
"""Most columns whose sums are compared."""
MOST_GROUPINGS = 4
"""Most columns by which errors are compared."""
_USUAL: Bounds = (0.0, 1000.0)
"""Bounds of values in plans; the noise under others is in proportion."""


@dataclass(frozen=True, slots=True)
class BoundCheck:
    """The check of one table.

    Attributes:
        plans: plans under bounds.
        schema: the table, with the column of its unit.
        table: what is declared of it.
        unit_column: the column of its unit.
        rows: number of the rows that have a unit.
        auto: whether AUTO answers, to be compared with.

    """

    plans: BoundPlans
    schema: TableSchema
    table: ProtectedTable
    unit_column: str
    rows: int
    auto: bool
    _noises: dict[tuple[object, ...], Noise | None] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Bounds]:
        """Return the declared bounds of the columns whose sums are compared."""
        domains = (one for one in self.plans.policy.domains if one.table == self.schema.canonical)
        found = {one.column: one.bounds for one in domains if one.bounds and self.schema.column(one.column)}
        return dict(list(found.items())[:MOST_SUMS])

    def report(self, columns: Sequence[tuple[str, ...]], *, skips: bool) -> BoundReport:
        """Return the effect of the bounds by each of some groupings.

        Args:
            columns: the columns of each grouping.
            skips: whether a grouping that no query can have is left out.

        Raises:
            PolicyError: there is nothing to group.

        """
        share = min(1.0, MOST_PAIRS / max(1, self.rows))
        with self.plans.trial() as trial:
            possible = [one for one in columns if self._is_possible(trial, one, skips=skips)]
            spreads = self._spreads(trial, possible[0]) if possible else {}
            found = [one for names in possible if (one := self._grouping(trial, names, spreads, share))]
            if not found:
                raise PolicyError(
                    f"no unit of {self.schema.canonical!r} has a row, or no query can group by its columns: name "
                    "one, as in by := 'city'"
                )
            every_grouping = [grouping for grouping, _ in found]
            found = sorted(found, key=lambda one: self._kept(one[0]))[: len(columns) if not skips else MOST_GROUPINGS]
            groupings = [grouping for grouping, _ in found]
            grid = grid_of([one.pairs for one in groupings], spreads)

            def error(place: int, groups: int, rows: int, number: str, bounds: Bounds) -> float:
                return self._error(trial, groupings[place], number, Choice(groups, rows, ((number, bounds),)))

            best = best_choice(grid, len(groupings), error)
            numbers = [PEOPLE, ROWS, *spreads]
            errors = {one.name: self._errors(trial, one, totals, best, numbers) for one, totals in found}
            curves = [curve for one in groupings for curve in self._curves(trial, one, grid, best, numbers)]
        table = self.table
        every = [one for of_grouping in errors.values() for one in of_grouping.values()]
        is_declared = bool(table.max_groups or table.max_rows_per_group or self.values)
        before = [one.declared if is_declared else one.nothing for one in every]
        return BoundReport(
            level=self.plans.level_words,
            is_declared=is_declared,
            better=factor(before, [one.better for one in every]),
            kept=self._kept_words(every_grouping, best),
            least=mean_of([one.better for one in every]),
            without=factor(before, [one.nothing for one in every]),
            calls=declarations_of(best, table, self.plans.policy, self.values),
            undo=undone_bounds(table, self.plans.policy, self.values),
            bounds=declared_spreads(table, every_grouping, spreads, self.values, self.rows),
            errors=errors,
            share=share,
            curves=curves,
        )

    def _kept(self, grouping: Grouping) -> float:
        """Return the share of the rows that the declared bounds keep; without any, that of one group of each unit."""
        table = self.table
        return grouping.kept_rows(table.max_groups or 1, table.max_rows_per_group)

    def _kept_words(self, groupings: Sequence[Grouping], best: Choice) -> str:
        """Return the share of the rows that the best bounds keep by the grouping with the least, in words."""
        shares = {one: one.kept_rows(best.max_groups, best.max_rows) for one in groupings}
        least, table = min(groupings, key=shares.__getitem__), self.table
        is_declared = bool(table.max_groups or table.max_rows_per_group)
        declared = least.kept_rows(table.max_groups, table.max_rows_per_group) if is_declared else None
        return kept_by_best(shares[least], declared, least.name)

    def _question(self, columns: Sequence[str], number: str) -> str:
        """Return the question for one number of each group."""
        aggregate = {PEOPLE: f"count(DISTINCT {quote(self.unit_column)})", ROWS: "count(*)"}
        keys = ", ".join(map(quote, columns))
        value = aggregate.get(number) or f"sum({quote(number)})"
        table = ".".join(map(quote, self.schema.catalog_name))
        return f"SELECT {keys}, {value} AS number_of_group FROM {table} GROUP BY {keys}"

    def _spreads(self, trial: Trial, columns: Sequence[str]) -> dict[str, ValueSpread]:
        """Return how the values of each column with declared bounds lie, without those that have one value."""
        found = {}
        for column, bounds in self.values.items():
            part, _ = trial.frame(self._question(columns, column), Terms(1, 1, ((column, bounds),)))
            value = raw_value(column, _summed(part.estimates[0].value), [bounds])
            spread = read_values(self.plans.engine, part.frame, value)
            if spread and spread.low < spread.high:
                found[column] = spread
        return found

    def _is_possible(self, trial: Trial, columns: Sequence[str], *, skips: bool) -> bool:
        """Return whether a query can have a grouping.

        Raises:
            DpsqlError: it cannot, and it is not to be left out.

        """
        try:
            trial.frame(self._question(columns, ROWS), Terms(1, 1))
        except DpsqlError:
            if not skips:
                raise
            return False
        return True

    def _grouping(
        self,
        trial: Trial,
        columns: Sequence[str],
        spreads: Mapping[str, ValueSpread],
        share: float,
    ) -> tuple[Grouping, Totals] | None:
        """Return the rows of a grouping, and the true numbers of its groups. Return None if it has none."""
        engine, values = self.plans.engine, []
        part, listed = trial.frame(self._question(columns, ROWS), Terms(1, 1))
        for column, spread in spreads.items():
            summed, _ = trial.frame(self._question(columns, column), Terms(1, 1, ((column, _USUAL),)))
            bounds = dict.fromkeys((*bounds_of(spread), *([self.values[column]] if column in self.values else ())))
            values.append(raw_value(column, _summed(summed.estimates[0].value), list(bounds)))
        pairs = read_pairs(engine, part.frame, values, listed, share)
        if not len(pairs.key):
            return None
        lows = {column: spread.low for column, spread in spreads.items()}
        grouping = Grouping(tuple(columns), pairs, lows, share, listed is not None)
        return grouping, read_totals(engine, part.frame, values, listed)

    def _error(self, trial: Trial, grouping: Grouping, number: str, choice: Choice) -> float:
        """Return the expected error of a number under bounds."""
        bounds = dict(choice.values).get(number, NO_BOUNDS)
        is_sum = number not in (PEOPLE, ROWS)
        # the noise of people does not depend on rows, and that of a sum is in proportion to rows and bounds
        rows, scale = (choice.max_rows, 1.0) if number == ROWS else (1, float(choice.max_rows) if is_sum else 1.0)
        planned = bounds
        if is_sum and bounds[0] == 0.0:
            planned, scale = _USUAL, scale * bounds[1] / _USUAL[1]
        # questions with private keys have one noise, whatever the keys are
        place = (grouping.columns if grouping.is_listed else (), number, choice.max_groups, rows, planned)
        if place not in self._noises:
            terms = Terms(choice.max_groups, rows, ((number, planned),) if is_sum else ())
            self._noises[place] = self._noise(trial, grouping, number, terms)
        if not (found := self._noises[place]):
            return math.inf
        noise = replace(found, sigma=found.sigma * scale)
        return grouping.error(number, choice.max_groups, choice.max_rows, bounds, noise)

    def _noise(self, trial: Trial, grouping: Grouping, number: str, terms: Terms) -> Noise | None:
        """Return the noise of a number under bounds. Return None if it is so wide that it cannot be drawn."""
        try:
            return trial.noise(self._question(grouping.columns, number), terms)
        except CalibrationError:
            return None

    def _errors(
        self, trial: Trial, grouping: Grouping, totals: Totals, best: Choice, numbers: Sequence[str]
    ) -> dict[str, Errors]:
        """Return the errors of each number of a grouping."""
        return {
            number: Errors(
                self._declared_error(trial, grouping, totals, number),
                self._answered_error(grouping, totals, number, Terms()),
                self._error(trial, grouping, number, best),
            )
            for number in numbers
        }

    def _declared_error(self, trial: Trial, grouping: Grouping, totals: Totals, number: str) -> float | None:
        """Return the error of a number under the declared bounds. Return None if none of them concerns it."""
        groups, rows, values = self.table.max_groups, self.table.max_rows_per_group, self.values
        rows = 1 if number == PEOPLE else rows
        if not (groups and rows and (number in (PEOPLE, ROWS) or number in values)):
            return self._answered_error(grouping, totals, number, None)
        return self._error(trial, grouping, number, Choice(groups, rows, tuple(values.items())))

    def _answered_error(self, grouping: Grouping, totals: Totals, number: str, terms: Terms | None) -> float | None:
        """Return the error of a trial answer, of which AUTO finds bounds. Return None if nothing is tried."""
        if not self.auto:
            return None
        # in a trial of its own, nothing of another question is stored
        with self.plans.trial() as trial:
            answer = trial.answered(self._question(grouping.columns, number), terms)
        if answer.noise is None:
            # AUTO finds no bounds, and the number is NULL
            return 1.0
        return grouping.answered_error(number, totals[number], answer.exact, answer.noise)

    def _curves(
        self, trial: Trial, grouping: Grouping, grid: Grid, best: Choice, numbers: Sequence[str]
    ) -> list[Curve]:
        """Return the geometric mean of the errors of all numbers against each bound, the others at their best."""

        def mean(choice: Choice) -> float:
            return mean_of([self._error(trial, grouping, number, choice) for number in numbers])

        curves = []
        of_groups = (grid.max_groups, self.table.max_groups, best.max_groups)
        of_rows = (grid.max_rows, self.table.max_rows_per_group, best.max_rows)
        for name, (places, declared, lowest) in (
            ("max_groups_contributed", of_groups),
            ("max_rows_per_group", of_rows),
        ):
            errors = {}
            for place in sorted({*places, *([declared] if declared else [])}):
                is_rows = name == "max_rows_per_group"
                changed = replace(best, max_rows=place) if is_rows else replace(best, max_groups=place)
                errors[place] = mean(changed)
            marks = {lowest: "best"} | ({declared: "declared"} if declared and declared != lowest else {})
            curves.append(Curve(name, grouping.name, errors, marks))
        return curves


def _summed(value: object) -> Statistic:
    """Return the statistic of a sum."""
    if not isinstance(value, LinearValue) or value.linear.statistic is None:
        raise AssertionError("a sum under bounds has a statistic of its own")
    return value.linear.statistic
