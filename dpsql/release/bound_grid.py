"""Grids of bounds, and the bounds of a grid with the least expected error.

Bounds are numbers 1, 2, 5, 10, 20, …, so that they tell little of any unit. None follows the numbers of the ten units
with the largest ones, or of one unit in a thousand if that is more (`UNITS_LEFT_OUT`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dpsql.release.bound_errors import PEOPLE, ROWS, Bounds, Pairs
from dpsql.release.raw_groups import ValueSpread

MOST = 1000
"""The largest number of groups or rows that is compared."""
_STEPS = (1.0, 2.0, 5.0, 10.0)
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Choice:
    """Bounds that are compared: of groups, of rows, and of values by column."""

    max_groups: int
    max_rows: int
    values: tuple[tuple[str, Bounds], ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """The bounds that are compared."""

    max_groups: tuple[int, ...]
    max_rows: tuple[int, ...]
    values: Mapping[str, tuple[Bounds, ...]]


ErrorOf = Callable[[int, int, int, str, Bounds], float]
"""Error of a grouping's number under bounds: grouping, max_groups, max_rows, column, and bounds of its values."""
NO_BOUNDS = (0.0, 0.0)
"""The bounds of numbers that have none."""


def rounded_up(number: float) -> float:
    """Return the least number of 1, 2, 5, 10, … times a power of ten that is not below a positive one.

    >>> [rounded_up(one) for one in (0.3, 1, 3, 6, 41, 261.5)]
    [0.5, 1.0, 5.0, 10.0, 50.0, 500.0]
    """
    power = 10.0 ** math.floor(math.log10(number))
    return next(float(f"{step * power:.6g}") for step in _STEPS if step * power >= number * (1.0 - 1e-12))


def numbers_up_to(number: float) -> tuple[int, ...]:
    """Return 1, 2, 5, 10, … up to the first that is not below a number.

    >>> numbers_up_to(12)
    (1, 2, 5, 10, 20)
    """
    end = min(rounded_up(max(number, 1.0)), float(MOST))
    found = [1]
    while found[-1] < end:
        found.append(int(rounded_up(found[-1] + 0.5)))
    return tuple(found)


def grid_of(all_pairs: Sequence[Pairs], spreads: Mapping[str, ValueSpread]) -> Grid:
    """Return the grid for some groupings and the values of some columns."""
    groups = max(pairs.usual_number(pairs.groups) for pairs in all_pairs)
    rows = max(pairs.usual_number(pairs.most_rows) for pairs in all_pairs)
    return Grid(numbers_up_to(groups), numbers_up_to(rows), {name: bounds_of(one) for name, one in spreads.items()})


def bounds_of(spread: ValueSpread) -> tuple[Bounds, ...]:
    """Return the bounds of values that are compared: ends beyond some quantiles, 0 where nothing lies beyond it."""
    half = len(spread.quantiles) // 2
    # one unit may have most of the values, so quantiles end where those of usual units do
    least, most = spread.usual
    # the ends of the middle half, of nearly all values, and the one between
    lows = {-rounded_up(-one) if one < 0.0 else 0.0 for one in (max(one, least) for one in spread.quantiles[:half:2])}
    highs = {rounded_up(one) if one > 0.0 else 0.0 for one in (min(one, most) for one in spread.quantiles[half:])}
    return tuple(sorted((low, high) for low in lows for high in highs if low < high)) or ((0.0, 1.0),)


def best_choice(grid: Grid, groupings: int, error: ErrorOf) -> Choice:
    """Return the bounds with the least geometric mean of errors over counts of people, rows and sums.

    All sums together count as much as the rows do. Bounds of values are chosen by the errors of sums.
    """
    first = tuple((column, listed[0]) for column, listed in grid.values.items())
    best, least = Choice(grid.max_groups[0], grid.max_rows[0], first), math.inf
    places = range(groupings)
    for groups in grid.max_groups:
        people = sum(_log(error(one, groups, 1, PEOPLE, NO_BOUNDS)) for one in places)
        for rows in grid.max_rows:
            score = people + sum(_log(error(one, groups, rows, ROWS, NO_BOUNDS)) for one in places)
            values = []
            for column, listed in grid.values.items():
                errors = {
                    bounds: sum(_log(error(one, groups, rows, column, bounds)) for one in places) for bounds in listed
                }
                chosen = min(errors, key=lambda bounds: errors[bounds])
                score += errors[chosen] / len(grid.values)
                values.append((column, chosen))
            if score < least:
                best, least = Choice(groups, rows, tuple(values)), score
    return best


def factor(before: Sequence[float | None], after: Sequence[float | None]) -> float:
    """Return how many times larger errors are than others, in the geometric mean of those that are known."""
    pairs = zip(before, after, strict=True)
    known = ((one, other) for one, other in pairs if one is not None and other is not None)
    logs = [_log(one) - _log(other) for one, other in known if math.isfinite(one) and math.isfinite(other)]
    return math.exp(math.fsum(logs) / len(logs)) if logs else 1.0


def mean_of(errors: Sequence[float]) -> float:
    """Return the geometric mean of errors."""
    return math.exp(math.fsum(map(_log, errors)) / len(errors))


def _log(error: float) -> float:
    return math.log(max(error, _TINY))
