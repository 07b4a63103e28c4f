"""Figures that ``benchmarks.left_out`` measured of each table, and claims about them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from benchmarks.left_out_tables import Floats, Table
from dpsql.release.left_out import LeftOut

CUT = 0.08
DRAWS = 300
"""The number of rows left out is drawn again so many times beside each release."""
SLACK = 1.15
"""A claim fails if its figure is above its limit by more than this factor."""
_LONE = ("one person with half",)
"""Tables in which one person has most of what is left out; no number released with noise for one person sees it."""
_MOST_BIASED = {"clinic by city": 0.08, "clinic by diagnosis": 0.08, "web log, Pareto 1.2": 0.24}
_BIASED, _HARDLY_BIASED = 0.15, 0.02


@dataclass(frozen=True, eq=False)
class Release:
    """One answer beside the truth; arrays are over the groups that are shown.

    Attributes:
        true: the number of all rows.
        kept: what bounds keep of it, without noise.
        numbers: the number that is shown.
        whole: ``dp_unbounded``.
        is_largest: whether a group is one of the largest of all.
        found: the released number of rows left out.
        exact: this number without noise.
        begins_too_low: whether the lines below the answer begin with "too low".
        number: of the release; its draws follow from this.

    """

    true: Floats
    kept: Floats
    numbers: Floats
    whole: Floats
    is_largest: npt.NDArray[np.bool_]
    found: LeftOut
    exact: float
    begins_too_low: bool
    number: int

    @property
    def left_out(self) -> float:
        """Rows, or the amount, in shown groups that bounds leave out."""
        return float((self.true - self.kept).sum())

    @property
    def part_left_out(self) -> float:
        """Share of all in shown groups that bounds leave out."""
        return self.left_out / float(self.true.sum())

    def errors(self, numbers: Floats) -> Floats:
        """Return the relative errors, with their signs, of numbers of the largest groups."""
        errors: Floats = (numbers / self.true - 1.0)[self.is_largest]
        return errors

    @property
    def bias(self) -> float:
        """Mean relative error of the numbers of the largest groups, with its sign."""
        return float(np.mean(self.errors(self.numbers)))

    @property
    def bias_over_draws(self) -> float:
        """Mean bias of the estimate over the draws."""
        return statistics.fmean(float(np.mean(self.errors(self.numbers * one.factor))) for one in self.draws)

    @property
    def estimate(self) -> Floats:
        """Number that a reader has by ``dp_unbounded``: the bounded one if that is NULL."""
        return np.where(np.isnan(self.whole), self.numbers, self.whole)

    @cached_property
    def draws(self) -> tuple[LeftOut, ...]:
        """The number as it was released, and drawn again; the same at each call."""
        noise = np.random.default_rng(self.number).normal(0.0, self.found.sigma, DRAWS)
        return (self.found, *(replace(self.found, value=self.exact + float(one)) for one in noise))


@dataclass(frozen=True)
class Cell:
    """A cell of a question by relative error.

    Attributes:
        is_called: whether the answer calls it within the error.
        is_called_by_noise: whether the interval of the bounded number alone is within the error.
        is_within: whether it is within the error of the true number.

    """

    is_called: bool
    is_called_by_noise: bool
    is_within: bool


@dataclass(frozen=True, eq=False)
class Measured:
    """Releases of a table, and the cells of questions by relative error.

    Attributes:
        name: the name of the table.
        table: the table.
        releases: the releases.
        cells: the cells.
        seconds: the time of all.

    """

    name: str
    table: Table
    releases: tuple[Release, ...]
    cells: tuple[Cell, ...]
    seconds: float

    def mean(self, of: Callable[[Release], float]) -> float:
        """Return a mean over the releases."""
        return statistics.fmean(map(of, self.releases))

    def error(self, of: Callable[[Release], Floats]) -> float:
        """Return the mean relative error of numbers of the largest groups."""
        return self.mean(lambda one: float(np.mean(np.abs(one.errors(of(one))))))

    def bias(self, of: Callable[[Release], Floats]) -> float:
        """Return the mean relative error with its sign."""
        return self.mean(lambda one: float(np.mean(one.errors(of(one)))))

    @property
    def ratio(self) -> float:
        """Error of ``dp_unbounded`` over that of the numbers."""
        return self.error(lambda one: one.estimate) / self.error(lambda one: one.numbers)

    @property
    def is_cut(self) -> bool:
        """Return whether bounds leave out as much as of a table that is called cut."""
        return self.mean(lambda one: one.part_left_out) > CUT

    @property
    def part_too_low(self) -> float:
        """Part of the draws that are said to be too low."""
        return _part(draw.is_too_low for one in self.releases for draw in one.draws)

    @property
    def part_held(self) -> float:
        """Part of the draws whose lower end is not above what is left out."""
        return _part(draw.least <= one.left_out for one in self.releases for draw in one.draws)

    @property
    def called(self) -> list[Cell]:
        """Cells that the answer calls within the error."""
        return [one for one in self.cells if one.is_called]

    @property
    def within(self) -> str:
        """Part of the cells called within the error that are, and how many the interval alone would call so."""
        called, before = self.called, sum(one.is_called_by_noise for one in self.cells)
        part = f"{_part(one.is_within for one in called):.0%} of {len(called)}" if called else "none called"
        return f"{part}; {before}"


@dataclass(frozen=True)
class Claim:
    """A figure that is at most a limit.

    Attributes:
        name: what is claimed.
        figure: what was measured.
        limit: the most that it may be.

    """

    name: str
    figure: float
    limit: float

    @property
    def fails(self) -> bool:
        """Return whether the figure is above its limit by more than the slack."""
        return not self.figure <= SLACK * self.limit

    def __str__(self) -> str:
        verdict = "FAILS" if self.fails else "holds" if self.figure <= self.limit else "holds nearly"
        return f"{verdict}: {self.name}: {self.figure:.3f}, at most {self.limit:g}"


def claims(found: Sequence[Measured]) -> Iterator[Claim]:
    """Yield all claims on tables that were measured."""
    yield from _on_errors([one for one in found if one.table.is_cut], "cut", mean=0.80, most=1.05)
    yield from _on_errors([one for one in found if not one.table.is_cut], "hardly cut", mean=1.05, most=1.20)
    for one in found:
        if one.name in _MOST_BIASED:
            over_draws = one.mean(lambda release: release.bias_over_draws)
            name = f"{one.name}, bias of dp_unbounded ({over_draws:+.3f} over all draws)"
            yield Claim(name, abs(one.bias(lambda release: release.estimate)), _MOST_BIASED[one.name])
    worst = min(found, key=lambda one: one.part_held)
    yield Claim(f"lower end above what is left out, most often of {worst.name}", 1.0 - worst.part_held, 0.07)
    not_lone = [one for one in found if one.name not in _LONE]
    releases = [release for one in not_lone for release in one.releases]
    yield from _on_words(releases)
    if called := [cell for one in not_lone for cell in one.called]:
        name = f"of {len(called)} cells called within the error, those that are not"
        yield Claim(name, 1.0 - _part(cell.is_within for cell in called), 0.10)


def _on_errors(found: Sequence[Measured], called: str, mean: float, most: float) -> Iterator[Claim]:
    """Yield the claims on errors of ``dp_unbounded`` over those of the numbers."""
    if found:
        geometric = math.exp(statistics.fmean(math.log(one.ratio) for one in found))
        worst = max(found, key=lambda one: one.ratio)
        name = f"{len(found)} tables that are {called}, error of dp_unbounded over that of the numbers"
        yield Claim(f"{name}, geometric mean", geometric, mean)
        yield Claim(f"{name}, most, of {worst.name}", worst.ratio, most)


def _on_words(releases: Sequence[Release]) -> Iterator[Claim]:
    """Yield the claims on how often "too low" is said where numbers are, and where they are not."""
    said = [one for one in releases if one.begins_too_low != one.found.is_too_low]
    yield Claim("answers that do not begin as their number of rows left out says", _part_of(said, releases), 0.0)
    if low := [one for one in releases if one.bias < -_BIASED]:
        part = _part(not draw.is_too_low for one in low for draw in one.draws)
        yield Claim(f"of {len(low)} answers more than {_BIASED:.0%} too low, those that do not say so", part, 0.20)
    if right := [one for one in releases if abs(one.bias) < _HARDLY_BIASED]:
        part = _part(draw.is_too_low for one in right for draw in one.draws)
        yield Claim(f"of {len(right)} answers within {_HARDLY_BIASED:.0%}, those that say too low", part, 0.03)


def _part(hits: Iterable[bool]) -> float:
    """Return the part of true ones."""
    return statistics.fmean(map(float, hits))


def _part_of(some: Sequence[object], all_of_them: Sequence[object]) -> float:
    return len(some) / len(all_of_them) if all_of_them else 0.0
