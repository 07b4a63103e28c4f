"""The price of an offer: an item for each statistic that is to be charged."""

from __future__ import annotations

from collections.abc import Iterable

from dpsql.cascade.serving import Draw, Serving, Step
from dpsql.mechanism.calibrate import Calibration, Level, level_of
from dpsql.mechanism.histogram import Histogram
from dpsql.model.frame import PRESENCE
from dpsql.state import ChargeItem, Spent, delta_units_up


def charge_items(servings: Iterable[Serving], histogram: Histogram) -> tuple[ChargeItem, ...]:
    """Return the price: each draw and its imprecision, and the thresholds that are due."""
    items = []
    for serving in servings:
        steps = serving.steps if serving.shown_steps is None else serving.shown_steps
        drawn = [step.fresh for step in steps if isinstance(step, Draw)]
        rho_nano = sum(level.rho_nano for level in drawn)
        # each part is rounded up by itself, as it is where it is stored
        parts = (*(level.noise_delta for level in drawn), *(step.delta for step in steps))
        delta_units = sum(map(delta_units_up, parts))
        if rho_nano or delta_units:
            is_gaussian = histogram.is_gaussian or serving.level.statistic != PRESENCE
            taken = None if serving.shown_steps is None else _taken(serving.steps)
            items.append(ChargeItem(serving.pin.statistic_hash, rho_nano, delta_units, is_gaussian, taken=taken))
    return tuple(items)


def _taken(steps: Iterable[Step]) -> Spent:
    """Return what the steps cost that are needed, where a reader is shown the price of others."""
    found = list(steps)
    drawn = [step.fresh for step in found if isinstance(step, Draw)]
    parts = (*(level.noise_delta for level in drawn), *(step.delta for step in found))
    return Spent(sum(level.rho_nano for level in drawn), sum(map(delta_units_up, parts)))


def asked_at(ceiling: int, calibration: Calibration) -> tuple[Level, ...]:
    """Return the statistics of a query at the ceiling, where each is drawn whatever is asked for."""
    return tuple(level_of(level.statistic, ceiling, calibration.histogram) for level in calibration.levels)
