"""An accountant for state files that shares no code with `dpsql.accounting`: it uses Google's dp-accounting.

It reads stored points, not charges. It has a table of its own of how far one visitor moves a release. The table follows
from the policy of `budget_sessions.py` and from docs/proofs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant, privacy_loss_mechanism
from dp_accounting.rdp import rdp_privacy_accountant
from scipy import stats

import dpsql
from dpsql.errors import BudgetError
from dpsql.mechanism.gaussian_measure import GaussianHistogram
from dpsql.model.frame import KEYS_FIRST, Frame, Statistic
from dpsql.receipts import remarks
from dpsql.release import stage

MAX_GROUPS, MAX_ROWS = 3, 2
"""Most groups in which a visitor counts, and most rows in each of them."""
LARGEST_COST = 10.0
_GRID = 2.0**-20
"""Step of noisy counts, by which rounding may raise a count that is compared with a threshold."""
_DELTA_UNIT = 2.0**-100


@dataclass(frozen=True)
class Measured:
    """A statistic of a frame: the meaning of a stored point."""

    statistic: Statistic
    frame: Frame


@dataclass(frozen=True)
class Account:
    """What a history of releases came to.

    Attributes:
        distances: of each drawn Gaussian release, the squared distance in units of its noise.
        thresholds: delta of all thresholds together, with the imprecision of draws.

    """

    distances: tuple[float, ...]
    thresholds: float

    @property
    def distance(self) -> float:
        """Squared distance of all releases together: Gaussian releases add up exactly."""
        return math.fsum(self.distances)


@contextmanager
def measured() -> Iterator[dict[str, Measured]]:
    """Note the statistic and frame of each stored point, by the hash under which it is stored.

    Meanwhile no words are found for refusals and empty answers, and receipts have no guarantee of their own. Prices and
    budgets do not depend on any of them, they take half of the time, and other tests show them.
    """
    known: dict[str, Measured] = {}
    new_points = getattr(stage, "new_points")  # noqa: B009 - stage imports it and does not export it

    def noting(offer: Any, *arguments: Any) -> Any:
        for serving in offer.servings:
            known[serving.pin.statistic_hash] = Measured(serving.level.statistic, offer.query.frame)
        return new_points(offer, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "new_points", noting)
        patch.setattr(BudgetError, "asks_too_much", False)
        patch.setattr(remarks, "_higher", lambda _: ())
        patch.setattr(GaussianHistogram, "guarantee", lambda *_: (1.0, 1.0))
        yield known


def account_of(session: dpsql.Session, known: Mapping[str, Measured]) -> Account:
    """Return the account of all that was drawn, from the rows of the state file."""
    with session._access.read()._database.read() as connection:
        names = "statistic_hash, value_count, sigma, tau, threshold_delta_units, correlation, floor_correlation"
        rows = connection.execute(f"SELECT {names}, source_rho FROM point ORDER BY id").fetchall()
        (charges,) = connection.execute("SELECT count(*) FROM charge WHERE delta_units <> '0'").fetchone()
    cascades: dict[str, float] = {}
    releases: list[float] = []
    thresholds = charges * _DELTA_UNIT
    for name, count, sigma, tau, units, correlation, floor, source in rows:
        point = known.get(name)
        if source is None:
            moved = _auto_distance(count) if point is None else _distance(point, correlation, floor)
            if point and _stands_alone(point, correlation):
                releases.append(moved / sigma**2)
            else:
                # points of one cascade are averages, so the last one holds all draws
                cascades[name] = max(cascades.get(name, 0.0), moved / sigma**2)
        if tau is not None:
            assert point is not None
            thresholds += _threshold(point, (sigma, tau, correlation), int(units) * _DELTA_UNIT)
    return Account((*cascades.values(), *releases), thresholds)


def _stands_alone(point: Measured, correlation: float) -> bool:
    """Check whether each point is a release of its own: private keys with a common term, outside a window."""
    frame = point.frame
    return point.statistic.kind == "presence" and frame.has_private_keys and correlation > 0.0 and not frame.window


def _auto_distance(places: int) -> float:
    """Return the squared distance of a histogram of AUTO.

    A visitor is in one place of it; in two if it counts largest and smallest values, which has many places.
    """
    return 2.0 if places > 100 else 1.0


def _distance(point: Measured, correlation: float, floor: float | None) -> float:
    """Return the largest squared distance that one visitor moves a release with noise of deviation 1."""
    frame, kind = point.frame, point.statistic.kind
    groups, keys = _groups(frame), frame.key_count or 1
    if kind == "presence":
        if frame.bounding.sparsity:
            return _largest_groups(frame.bounding.sparsity.k, MAX_GROUPS, correlation, floor or 0.0)
        if frame.mechanism == "discrete_correlated_gaussian":
            return (keys + 1.0 / correlation) / 4.0
        return _common_term(keys, groups, correlation) if correlation else _in_groups(frame, groups)
    assert kind in ("rows", "sum")
    radius = _rows_radius(point.statistic) if kind == "rows" else _sum_radius(point.statistic, frame)
    return radius**2 * _in_groups(frame, groups)


def _groups(frame: Frame) -> int:
    """Return the most groups of one visitor, which AUTO and rounds of key selection choose for themselves."""
    bounding = frame.bounding
    assert bounding.max_groups is not None
    return min(bounding.max_groups, frame.key_count or bounding.max_groups)


def _rows_radius(statistic: Statistic) -> float:
    """Return half of the interval of a visitor's rows in a group: from 1, or from 0 if rows need a value."""
    return MAX_ROWS / 2.0 if statistic.value_sql else (MAX_ROWS - 1) / 2.0


def _sum_radius(statistic: Statistic, frame: Frame) -> float:
    """Return the most that a visitor's sum in a group is away from its centre."""
    if statistic.group_bounds_steps:
        # AUTO found the bounds of a group
        low, high = statistic.group_bounds_steps
        return (high - low) / 2.0 * 2.0**statistic.lattice_exponent
    # where keys come first, units of a group are not counted with its sum, and the centre is 0
    return LARGEST_COST * MAX_ROWS / (1.0 if frame.mechanism == KEYS_FIRST else 2.0)


def _in_groups(frame: Frame, groups: int) -> float:
    """Return the squared norm of 1 in each of `groups` groups, after the factor that running totals have."""
    if frame.factorised is None:
        return float(groups)
    return _factorised(frame.factorised.ordering.length, groups, frame.factorised.sixteenths)


@lru_cache(maxsize=64)
def _factorised(length: int, groups: int, sixteenths: int) -> float:
    """Return the largest squared norm over sets of columns of a power of the matrix of running totals."""
    power, series = sixteenths / 16.0, [1.0]
    for place in range(1, length):
        series.append(series[-1] * (power + place - 1) / place)
    matrix = np.array(
        [[series[row - column] if row >= column else 0.0 for column in range(length)] for row in range(length)]
    )
    sets = itertools.combinations(range(length), groups)
    return max(float(np.sum(matrix[:, list(chosen)].sum(axis=1) ** 2)) for chosen in sets)


@lru_cache(maxsize=64)
def _common_term(keys: int, groups: int, correlation: float) -> float:
    """Return the largest squared distance of counts of all keys with a common term."""
    covariance = np.eye(keys) + correlation
    return max(_squared(np.repeat([1.0, 0.0], [moved, keys - moved]), covariance) for moved in range(groups + 1))


@lru_cache(maxsize=64)
def _largest_groups(k: int, groups: int, correlation: float, floor: float) -> float:
    """Return the largest squared distance of k counts and their floor (docs/proofs/top-k.md, Lemma 1).

    Either the floor rests, and a visitor's own counts rise; or it rises, and the other counts fall.
    """
    covariance = np.eye(k + 1)
    covariance[:k, :k] += correlation
    covariance[:k, k] = covariance[k, :k] = -correlation
    covariance[k, k] = correlation + floor
    rests = [np.repeat([1.0, 0.0], [own, k + 1 - own]) for own in range(min(k, groups) + 1)]
    rises = [np.append(np.repeat([0.0, -1.0], [own, k - own]), 1.0) for own in range(min(k, groups - 1) + 1)]
    return max(_squared(moved, covariance) for moved in (*rests, *rises))


def _squared(moved: Any, covariance: Any) -> float:
    return float(moved @ np.linalg.solve(covariance, moved))


def _threshold(point: Measured, noise: tuple[float, float, float], paid: float) -> float:
    """Return the chance that a group of one visitor is shown.

    In windows, and where visitors have weights, return the delta that was paid.
    """
    (sigma, tau, correlation), bounding = noise, point.frame.bounding
    if point.frame.window or bounding.counted_groups:
        return paid
    shown = bounding.sparsity.k if bounding.sparsity else _groups(point.frame)
    common = np.linspace(-12.0, 12.0, 4801) if correlation else np.zeros(1)
    weight = stats.norm.pdf(common) if correlation else np.ones(1)
    above = stats.norm.sf((tau - _GRID - common * sigma * math.sqrt(correlation)) / sigma)
    chance = float(np.sum(weight / weight.sum() * -np.expm1(shown * np.log1p(-above))))
    assert chance <= paid * (1.0 + 1e-6)
    return chance


def gaussian_delta(epsilon: float, distance: float) -> float:
    """Return the exact delta of Gaussian releases that are together at a squared distance."""
    if not distance:
        return 0.0
    law = privacy_loss_mechanism.GaussianPrivacyLoss(1.0 / math.sqrt(distance))
    return float(law.get_delta_for_epsilon(epsilon))


def zcdp_delta(epsilon: float, distance: float) -> float:
    """Return the delta of releases of which only Renyi divergences are known."""
    if not distance:
        return 0.0
    best = 1.0 + (epsilon + 1.0) / distance
    orders = 1.0 + np.geomspace(1e-3 * best, 10.0 * best, 4000)
    return float(rdp_privacy_accountant.compute_delta(orders, orders * distance / 2.0, epsilon)[0])


def composed_delta(epsilon: float, distances: Sequence[float], interval: float) -> float:
    """Return delta by numerical composition, release by release, rounded up to a grid of losses."""
    accountant = pld_privacy_accountant.PLDAccountant(value_discretization_interval=interval)
    for squared in distances:
        accountant.compose(dp_event.GaussianDpEvent(1.0 / math.sqrt(squared)))
    return float(accountant.get_delta(epsilon))
