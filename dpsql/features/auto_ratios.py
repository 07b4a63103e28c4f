"""Bounds of a unit for answers that are ratios of its rows: quantiles, averages and spreads.

Noise of a ratio is that of its counts over the rows that are counted. Scaling all people down alike changes no ratio:
what it takes from the rows it takes from the noise, too. So bounds of a ratio are chosen by its own error. Weights that
bounds take from some people alone count as a bias, since these people may differ. The choice is public computation on
noisy histograms that were released (docs/proofs/auto.md).

Which estimates a text asks for is public, so one text has one purpose: counts, or ratios of counts of rows. The bounds
of ratios are chosen together from both histograms of units, by groups and by norms of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpsql.bound.unit_histograms import NORM_STEPS_PER_DOUBLING
from dpsql.features.auto_choices import TYPICAL_GROUPS, Floats, held_groups, largest_size
from dpsql.features.auto_histograms import Question
from dpsql.features.auto_norms import USUAL_ROWS_PLACES, likely_units, on_row_lattice
from dpsql.mechanism.calibrate import AUTO_PARTS
from dpsql.model.estimates import UNITS, BoundedValue, NoValue, Quantile
from dpsql.model.frame import NANO
from dpsql.model.private_query import AutoBounds, AutoGroups, AutoQuestion, FrameQuery
from dpsql.state import Point, SideTable

_UNSEEN = 9.0
"""A square of the sampling error weighs so much more than one of noise, which alone is in the stated interval."""
_BETWEEN = 0.25
"""People are taken to differ in so much of the variance of the values. The rest is within their rows."""
_MOST_ERROR = 0.5
"""A group with a larger error is of no use. Its threshold is about there, too."""
_OF_NO_USE = 1e-3
"""The weight of errors where no group is of use: then bounds with the least error are chosen."""
_DIGITS = 9
_MOST_RANKS = 4096
_MOST_ROWS = 1024
_CLOSE = 1.02
"""The best use over this is good enough: of such norms the largest is chosen, as it leaves out least."""
_STEP = 1.0 / 8.0
"""Norms that may be chosen are so many doublings apart."""


@dataclass(frozen=True, slots=True)
class RatioKind:
    """Constants of the error of a ratio, as a share of all ranks or of the interval of the bounds.

    Attributes:
        noise: noise of the ratio if a unit adds one row, times the rows of a group and sqrt(rho).
        variance: variance of a row.
        difference: by how much people are taken to differ of whom bounds leave more than of others.
        size_power: the power of its size by which the error of a group counts.

    """

    noise: float
    variance: float
    difference: float
    size_power: float = 1.0


QUANTILE = RatioKind(noise=3.0, variance=0.25, difference=0.05)
"""In ranks. Running totals of some 256 cells have 1.66 times the noise of one, and 1.66 times its sensitivity."""
AVERAGE = RatioKind(noise=0.6, variance=0.0625, difference=0.1, size_power=2.0)
"""In intervals of the bounds: half of one for the sum, and some more for the number of rows below it. Noise is smaller
than that of a quantile, so that the bias of the largest groups decides."""


@dataclass(frozen=True, slots=True)
class People:
    """Units by what they have, as noisy histograms tell it.

    Attributes:
        units: number of units of each kind.
        groups: in how many groups one of them is.
        rows: how many rows it has in each of these.

    """

    units: Floats
    groups: Floats
    rows: Floats

    @property
    def pairs(self) -> Floats:
        """Return the pairs of units and groups of each kind."""
        return self.units * self.groups

    @property
    def norms(self) -> Floats:
        """Return the l2 norm of a unit's rows of each kind."""
        return self.rows * np.sqrt(self.groups)


@dataclass(frozen=True, slots=True)
class RatioUse:
    """The use of bounds, as far as policy and text say it.

    Attributes:
        kind: constants of the ratio.
        rho: level of the statistics.
        key_count: number of public keys; None if keys are private.

    """

    kind: RatioKind
    rho: float
    key_count: int | None


def held_norms(noisy: Floats, sigma: float, usual_places: int) -> tuple[Floats, Floats] | None:
    """Return units and norms of rows of the places that are likely to hold units; None if there are none.

    Args:
        noisy: number of units in each place of norms.
        sigma: its noise.
        usual_places: how many places, the first ones, are likely to hold units whoever they are.

    """
    units = likely_units(noisy, sigma, usual_places)
    held = np.flatnonzero(units > 0.0)
    return (units[held], np.exp2(held / NORM_STEPS_PER_DOUBLING)) if held.size else None


def coupled(groups: tuple[Floats, Floats], norms: tuple[Floats, Floats] | None) -> People:
    """Return people of whom those in more groups have the larger norms.

    Args:
        groups: numbers of units, and of groups, in ascending order.
        norms: parts of the units, and norms of rows, in ascending order; None if each unit has one row in a group.

    """
    units, counts = groups
    if norms is None:
        return People(units, counts, np.ones_like(counts))
    total = float(units.sum())
    ends = np.cumsum(units) / total, np.cumsum(norms[0]) / float(norms[0].sum())
    cuts = np.unique(np.round(np.concatenate(ends), 12))
    middles = cuts - np.diff(cuts, prepend=0.0) / 2.0
    own, other = (np.minimum(np.searchsorted(one, middles), len(one) - 1) for one in ends)
    rows = np.maximum(1.0, norms[1][other] / np.sqrt(counts[own]))
    parts = np.asarray(np.diff(cuts, prepend=0.0) * total, dtype=np.float64)
    return People(parts, counts[own], rows)


def supposed(norms: tuple[Floats, Floats] | None, most: int | None) -> People:
    """Return people of whose groups no histogram tells: few, and no more than their norms allow.

    Args:
        norms: numbers of units, and norms of their rows; None if these are unknown, too.
        most: in how many groups a unit is at most; None for any number.

    """
    if norms is None:
        return People(np.ones(1), np.ones(1), np.ones(1))
    units, sizes = norms
    groups = np.clip(np.floor(sizes**2 + 1e-9), 1.0, float(min(most or TYPICAL_GROUPS, TYPICAL_GROUPS)))
    return People(units, groups, sizes / np.sqrt(groups))


def chosen_cuts(people: People, groups: Sequence[int], use: RatioUse) -> tuple[int, int]:
    """Return the numbers of groups of a unit, and of its rows in each, with the best predicted use.

    Args:
        people: what units have.
        groups: numbers of groups that may be chosen, in ascending order.
        use: how the bounds will be used.

    """
    most = float(people.groups.max())
    # a number of groups that no unit exceeds leaves all of them
    some = [one for one in groups if one < most] + [one for one in groups if one >= most][:1]
    options = [(one, rows) for one in some for rows in _row_numbers(float(people.rows.max()))]
    # of bounds alike the first ones, whatever the last digits say
    found = [round(_use_of(people, _cut(people, *option), use), _DIGITS) for option in options]
    return options[int(np.argmax(found))]


def chosen_ratio_norm(people: People, use: RatioUse) -> float:
    """Return the norm of a unit's rows over all its groups with the best predicted use; the largest of some alike.

    Args:
        people: what units have.
        use: how the norm will be used.

    """
    last = math.log2(max(1.0, float(people.norms.max())))
    options = np.exp2(np.append(np.arange(0.0, last, _STEP), last))
    found = np.array([_use_of(people, _scaled(people, float(norm)), use) for norm in options])
    return float(options[np.flatnonzero(found >= found.max() / _CLOSE)[-1]])


def _row_numbers(most: float) -> Iterator[int]:
    """Yield numbers of rows that may be chosen: each up to four, then four to a doubling."""
    rows, step = 1, 1
    while rows < min(most, _MOST_ROWS):
        yield rows
        if rows >= 8 * step:
            step *= 2
        rows += step
    yield rows


def _cut(people: People, groups: int, rows: int) -> tuple[Floats, Floats, float]:
    """Return rows that count, the chance that a group of a unit counts, and how far a unit moves all counts."""
    chance = np.minimum(1.0, groups / people.groups)
    return np.minimum(people.rows, float(rows)), chance, rows * math.sqrt(groups)


def _scaled(people: People, norm: float) -> tuple[Floats, Floats, float]:
    """Return the same where a norm bounds all rows of a unit."""
    return people.rows * np.minimum(1.0, norm / people.norms), np.ones_like(people.rows), norm


def _use_of(people: People, counted: tuple[Floats, Floats, float], use: RatioUse) -> float:
    """Return the use of all groups: of each a power of its size without an error, and 0 from a large error on."""
    errors = _errors(people, *counted, use)
    shares = np.arange(1.0, len(errors) + 1.0) ** -use.kind.size_power
    found = float(shares @ np.maximum(0.0, 1.0 - errors / _MOST_ERROR))
    return found + _OF_NO_USE / (1.0 + float(errors[0]))


def _errors(people: People, counted: Floats, chance: Floats, moved: float, use: RatioUse) -> Floats:
    """Return the predicted error of each group, the largest group first.

    Of a group with U units and W counted rows, its square is (noise moved / W)^2 / rho, ninefold the sampling error of
    the counted rows, and the square of a bias. The bias is the assumed difference times the total variation between
    the weights of people in the counted rows and in all rows. Group sizes are taken to fall as 1 / rank.

    Args:
        people: what units have.
        counted: rows of a pair that count.
        chance: probability that the pair counts.
        moved: l2 norm by which a unit moves all counts of rows.
        use: how the bounds will be used.

    """
    kind, rows, share = use.kind, people.rows, people.pairs / people.pairs.sum()
    kept, total = float(share @ (chance * counted)), float(share @ rows)
    squares, products = float(share @ (chance * counted**2)), float(share @ (chance * counted * rows))
    between = squares / kept**2 - 2.0 * products / (kept * total) + float(share @ rows**2) / total**2
    within = float(share @ (chance * counted**2 / rows)) / kept**2 - 1.0 / total
    sampling = kind.variance * (_BETWEEN * max(between, 0.0) + (1.0 - _BETWEEN) * max(within, 0.0))
    variation = 0.5 * float(share @ np.abs(chance * counted / kept - rows / total))
    sizes = _sizes(people, use.key_count)
    noise = kind.noise * moved / (math.sqrt(use.rho) * kept)
    squared = (noise / sizes) ** 2 + _UNSEEN * sampling / sizes + (kind.difference * variation) ** 2
    return np.sqrt(squared)


def _sizes(people: People, key_count: int | None) -> Floats:
    """Return the units of the groups, the largest first."""
    largest = max(1.0, largest_size(float(people.pairs.sum()), float(people.units.sum()), key_count))
    ranks = np.arange(1.0, min(key_count or math.floor(largest), _MOST_RANKS) + 1.0)
    return largest / ranks


def ratio_kind(query: FrameQuery) -> RatioKind | None:
    """Return the kind of ratio that the rows of a query are counted for; None if a count or a sum needs them, too.

    A query with a quantile is one of quantiles. Numbers of units do not depend on how many rows a unit has.
    """
    of_rows = [
        one.value.instead if isinstance(one.value, NoValue) else one.value
        for one in query.estimates
        if one.value != UNITS or one.counts_rows
    ]
    if not of_rows or not all(isinstance(one, BoundedValue) for one in of_rows):
        return None
    return QUANTILE if any(isinstance(one, Quantile) for one in of_rows) else AVERAGE


def groups_for_ratios(query: FrameQuery, asked: AutoGroups) -> bool:
    """Return whether a number of groups is chosen by the error of ratios alone.

    With a norm or with weights, rows of a unit are scaled down over all its groups, whose number hardly matters.
    """
    counts_units = any(one.value == UNITS for one in query.estimates)
    return not (asked.weighted or query.frame.bounding.by_norm or counts_units) and ratio_kind(query) is not None


def ratio_groups(query: FrameQuery, asked: AutoGroups, side_table: SideTable) -> int:
    """Return the number of groups that stored histograms choose for ratios; all of them are stored."""
    rows = next((one for one in query.auto if isinstance(one, AutoBounds) and one.statistic.kind == "rows_norm"), None)
    use, people = _use_and_people(query, rows, side_table)
    return chosen_cuts(people, asked.candidates, use)[0]


def ratio_norm(
    query: FrameQuery, asked: AutoBounds, most_groups: Callable[[AutoGroups], int], side_table: SideTable
) -> float | None:
    """Return the norm of rows that stored histograms choose for ratios; None if one of them is not stored yet.

    Without ``bounding = NORM`` it bounds a unit's rows in each of its groups.

    Args:
        query: the query, at its reader's levels.
        asked: the question.
        most_groups: the number of groups that AUTO chooses.
        side_table: where histograms are stored.

    """
    first = query.auto[0]
    if isinstance(first, AutoGroups) and not query.auto_levels[0].is_stored:
        return None
    use, people = _use_and_people(query, asked, side_table)
    if query.frame.bounding.by_norm:
        return on_row_lattice(chosen_ratio_norm(people, use))
    if not isinstance(first, AutoGroups):
        groups: Sequence[int] = (query.frame.bounding.max_groups or 1,)
    elif first.chosen or not groups_for_ratios(query, first):
        groups = (first.chosen or most_groups(first),)
    else:
        groups = first.candidates
    return float(chosen_cuts(people, groups, use)[1])


def _use_and_people(query: FrameQuery, rows: AutoBounds | None, side_table: SideTable) -> tuple[RatioUse, People]:
    """Return how bounds will be used, and what stored histograms tell of units."""
    kind, frame, first = ratio_kind(query), query.frame, query.auto[0]
    if kind is None:
        raise AssertionError("a query of ratios")
    levels = {
        Question(one).statistic_hash: level.rho_nano for one, level in zip(query.auto, query.auto_levels, strict=True)
    }
    by_rows = _point(rows, levels, side_table) if rows else None
    by_groups = _point(first, levels, side_table) if isinstance(first, AutoGroups) else None
    norms = held_norms(by_rows.noisy_values, by_rows.sigma, USUAL_ROWS_PLACES) if by_rows else None
    held = None
    if isinstance(first, AutoGroups) and by_groups:
        held = held_groups(by_groups.noisy_values, by_groups.sigma, first.candidates)
    most = first.candidates[-1] if isinstance(first, AutoGroups) else frame.bounding.max_groups
    known = [one for one in (most, frame.key_count) if one]
    people = coupled(held, norms) if held else supposed(norms, min(known, default=None))
    # what a query that leaves these levels for its questions has for its statistics
    own_nano = max(one.rho_nano for one in (by_rows, by_groups) if one) * len(query.auto)
    rho = own_nano * (AUTO_PARTS - 1) / NANO
    return RatioUse(kind, rho, frame.key_count), people


def _point(asked: AutoQuestion, levels: Mapping[str, int], side_table: SideTable) -> Point:
    """Return the stored histogram of a question at its reader's level."""
    question = Question(asked)
    return question.point(side_table, levels[question.statistic_hash])
