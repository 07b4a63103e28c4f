"""Errors of the numbers of one grouping: those that bounds and noise are expected to give, and those of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dpsql.release.bound_errors import (
    PEOPLE,
    ROWS,
    Floats,
    Kept,
    Noise,
    Pairs,
    bounded_sums,
    kept,
    kept_share,
    mean_error,
    total_error,
)
from dpsql.release.bound_grid import Bounds


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """The rows of a table by one or more columns.

    Attributes:
        columns: their names.
        pairs: the rows of each unit in each group.
        lows: the least value of a column whose sums are compared.
        share: share of the units that was read.
        is_listed: whether the keys are a public list.

    """

    columns: tuple[str, ...]
    pairs: Pairs
    lows: Mapping[str, float]
    share: float
    is_listed: bool
    _people: dict[int, Kept] = field(default_factory=dict)
    _true: dict[str, Floats] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the columns as they are shown."""
        return ", ".join(self.columns)

    def true(self, number: str) -> Floats:
        """Return the true number of each group."""
        if number not in self._true:
            values = {PEOPLE: np.ones(1), ROWS: self.pairs.rows} | dict(self.pairs.totals)
            self._true[number] = self.pairs.added_up(values[number]) / self.share
        return self._true[number]

    def error(self, number: str, groups: int, rows: int, bounds: Bounds, noise: Noise) -> float:
        """Return the expected errors of all groups, added up, over the numbers of all groups.

        Args:
            number: people, rows, or a column for its sum.
            groups: most groups of a unit.
            rows: most rows of a unit in each.
            bounds: those of a value of the column.
            noise: that of the number.

        """
        pairs, counted = self.pairs, kept_share(self.pairs.groups, groups)
        if groups not in self._people:
            self._people[groups] = self._whole(kept(pairs, 1.0, counted))
        people = self._people[groups]
        true = self.true(number)
        if number == PEOPLE:
            errors = total_error(true, people, noise, None, is_positive=True)
            return self._relative(errors, noise.sigma, true, is_positive=True)
        if number == ROWS:
            part = kept(pairs, np.minimum(pairs.rows, rows), counted)
        else:
            part = kept(pairs, bounded_sums(pairs, number, bounds, rows), counted)
        is_positive = number == ROWS or bounds[0] >= 0.0
        errors = total_error(true, self._whole(part), noise, people, is_positive=is_positive)
        return self._relative(errors, noise.sigma, true, is_positive=is_positive)

    def answered_error(self, number: str, true: Mapping[str, float], exact: Mapping[str, float], sigma: float) -> float:
        """Return the expected errors of all groups of an answer, added up, over the numbers of all groups.

        Args:
            number: people, rows, or a column for its sum.
            true: the true number of each group.
            exact: the bounded numbers of the shown groups without noise.
            sigma: standard deviation of the noise.

        """
        is_positive = number in (PEOPLE, ROWS) or self.lows[number] >= 0.0
        names = [name for name in true if name in exact]
        truth = np.array([true[name] for name in names])
        floor = 0.0 if is_positive else -np.inf
        means = np.array([exact[name] for name in names])
        errors = float(mean_error(truth, means, np.full(len(names), sigma), floor).sum())
        errors += sum(abs(value) for name, value in true.items() if name not in exact)
        return self._relative(errors, sigma, np.array(list(true.values())), is_positive=is_positive)

    def kept_rows(self, groups: int | None, rows: int | None) -> float:
        """Return the share of the rows that bounds keep."""
        each = self.pairs.rows if rows is None else np.minimum(self.pairs.rows, rows)
        return float((each * kept_share(self.pairs.groups, groups)).sum() / self.pairs.rows.sum())

    def _whole(self, part: Kept) -> Kept:
        """Return what is kept of all units, from what is kept of those that were read."""
        return part if self.share == 1.0 else Kept(part.mean / self.share, part.variance / self.share)

    def _relative(self, errors: float, sigma: float, true: Floats, *, is_positive: bool) -> float:
        """Return errors with those of listed keys without rows, over the size of all numbers."""
        none = np.zeros(1)
        floor = 0.0 if is_positive else -np.inf
        errors += self.pairs.empty * float(mean_error(none, none, none + sigma, floor)[0])
        size = float(np.abs(true).sum())
        return errors / size if size else float("inf")
