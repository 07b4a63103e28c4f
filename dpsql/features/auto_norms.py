"""The norm that AUTO chooses: what a unit may add over all its groups, from a noisy histogram of units by theirs.

What lies beyond a norm is scaled down, which no interval tells of; what lies below it pays for noise that nobody needs.
The choice is public computation on a histogram that was released: a bad guess costs accuracy, never privacy
(docs/proofs/auto.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpsql.bound.unit_histograms import NORM_STEPS_PER_DOUBLING
from dpsql.features.auto_choices import LIKELY, WIDEST, Floats, held_units, holds_most, largest_size
from dpsql.model.frame import COUNT_LATTICE_EXPONENT

_BIAS = 9.0
"""How much more a square of what bounds leave out weighs than one of noise, because stated intervals have noise alone:
what is left out of the largest groups is to be a third of it, so that they hold as often as they say."""
_DIGITS = 3
USUAL_ROWS_PLACES = 10 * NORM_STEPS_PER_DOUBLING + 1
"""Places of norms up to 1,024 rows, as most people have in most tables."""
FEW_KEYS = 32
"""Up to so many keys, the whole error of a table chooses its norm (`auto_few_keys`). Of more, many may be so small that
noise costs them no more than they have."""
_TAIL = 1.0 / 3.0
"""What is likely to lie beyond the places that surely hold units counts so much: its square once, not ninefold."""
_SLOWEST_FALL = 0.5
"""Where a doubling of norms has more of the units of the one before, units of norms without end would have all."""
_LEAST_UNITS = 0.5
_STEP = 1.0 / 16.0
"""Norms that may be chosen are so many doublings apart."""


@dataclass(frozen=True, slots=True)
class NormUse:
    """How a norm will be used, as far as policy and text say it.

    Attributes:
        rho: what the statistics of a query have that leaves a histogram of this level for AUTO.
        groups: in how many groups a unit is taken to be.
        key_count: number of keys; None where it is not known.
        usual_places: how many places, the first ones, are likely to hold units whoever they are.
        is_of_few: whether the keys are few, so that `auto_few_keys` chooses the norm.

    """

    rho: float
    groups: int
    key_count: int | None
    usual_places: int = 0
    is_of_few: bool = False


def chosen_norm(noisy: Floats, sigma: float, use: NormUse) -> float | None:
    """The norm with the least predicted sum of squared errors, what bounding leaves out counted ninefold.

    Norms are taken to be the end of their place, a unit of norm v in g groups to have v sqrt(g) in all, group sizes to
    fall as 1/rank, and bounds to leave the same part of every group; of private keys those groups count of which twice
    the noise is less than the size. Where few places surely hold units, neighbouring ones are added up, and what is
    likely to lie beyond the last of them counts for a third.

    Args:
        noisy: number of units in each place, in units.
        sigma: its noise.
        use: how it will be used.

    Returns: a number of steps; None where no place, nor all together, are likely to hold units.

    """
    units = likely_units(noisy, sigma, use.usual_places)
    if not units.any():
        return None
    units = _with_tail(units, noisy[1:], sigma)
    held = np.flatnonzero(units)
    units, ends = units[held], np.exp2(held / NORM_STEPS_PER_DOUBLING)
    norms = np.exp2(np.arange(held[0] / NORM_STEPS_PER_DOUBLING, np.log2(ends[-1]) + _STEP / 2.0, _STEP))
    total = float(units @ ends)
    most = total * math.sqrt(use.groups)
    # any number of units: what one has in a group is no number of them
    largest = largest_size(most, most, use.key_count)
    errors = []
    for norm in norms:
        lost = float(units @ np.maximum(ends - norm, 0.0)) / total
        noise = norm / math.sqrt(2.0 * use.rho)
        groups = float(use.key_count or max(1.0, largest / (2.0 * noise)))
        squares = math.pi**2 / 6.0 - 1.0 / (groups + 0.5)
        hidden = 0.0 if use.key_count else largest**2 / groups
        errors.append(_BIAS * (lost * largest) ** 2 * squares + groups * noise**2 + hidden)
    return float(norms[int(np.argmin(errors))])


def likely_units(noisy: Floats, sigma: float, usual_places: int) -> Floats:
    """Return the units of each place of norms above 0; 0 where none are known of.

    Where no place surely holds units, usual ones are likely to.
    """
    units = held_units(noisy[1:], sigma)
    if not units.any():
        units[:usual_places] = held_units(noisy[1 : usual_places + 1], sigma, LIKELY)
    return units


def sure_norm(noisy: Floats, sigma: float) -> bool:
    """Whether places are known that surely hold units, and three quarters of all from a quarter to four times these."""
    places = noisy[1:]
    held = held_units(places, sigma) != 0.0
    if not held.any():
        return False
    first, last = np.flatnonzero(held)[[0, -1]]
    near = slice(max(0, first - WIDEST), last + 1 + WIDEST)
    return holds_most(places[held], places[near][~held[near]], sigma)


def _with_tail(units: Floats, noisy: Floats, sigma: float) -> Floats:
    """The same with what is likely to lie beyond the last place that surely holds units.

    A doubling of norms is expected to have as much less than the one before as that has less than the one before it.
    Expected and counted numbers are averaged by what is known of each, less a standard deviation of what noise leaves
    in it; so light tails are cut where they end, and heavy ones go on where places alone say nothing.
    """
    units, doubling = units.copy(), NORM_STEPS_PER_DOUBLING
    last, noise = int(np.flatnonzero(units)[-1]) + 1, sigma * math.sqrt(doubling)
    here = float(units[max(last - doubling, 0) : last].sum())
    before = float(noisy[max(last - 2 * doubling, 0) : max(last - doubling, 0)].sum())
    fall = min(here / max(before, 1.0), _SLOWEST_FALL)
    for start in range(last, len(noisy) - doubling + 1, doubling):
        place = slice(start, start + doubling)
        expected = fall * here
        weight = expected**2 / (expected**2 + noise**2)
        found = (1.0 - weight) * expected + weight * (float(noisy[place].sum()) - noise)
        if found < _LEAST_UNITS:
            break
        units[place] = _TAIL * found / doubling
        fall, here = min(fall, found / here), found
    return units


def mean_norm(noisy: Floats, sigma: float) -> float | None:
    """Return the mean norm of units, in steps, by the places that surely hold units; None where none does."""
    units = held_units(noisy[1:], sigma)
    if not units.any():
        return None
    # the middle of a place, on a logarithmic scale
    middles = np.exp2((np.arange(len(units)) - 0.5) / NORM_STEPS_PER_DOUBLING)
    return float(units @ np.maximum(middles, 1.0)) / float(units.sum())


def on_row_lattice(norm: float) -> float:
    """Return the least norm on the lattice of rows that is no less: on it, one of 1.41 would be one of 1."""
    return math.ceil(norm * 2.0**-COUNT_LATTICE_EXPONENT - 1e-9) * 2.0**COUNT_LATTICE_EXPONENT


def rounded_up(norm: float) -> float:
    """The least number of three digits that is no less."""
    exponent = math.floor(math.log10(norm)) - _DIGITS + 1
    step = 10.0**exponent
    # a number that has three digits stays what it is
    return float(f"{math.ceil(norm / step - 1e-9) * step:.{_DIGITS}g}")
