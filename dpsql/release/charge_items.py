"""The price of an offer: an item for each statistic that is to be charged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dpsql.cascade.serving import Draw, Serving, Step
from dpsql.mechanism.calibrate import Calibration, Level, level_of
from dpsql.mechanism.histogram import Histogram
from dpsql.model.frame import PRESENCE
from dpsql.state import ChargeItem, Spent, delta_units_up


def charge_items(servings: Iterable[Serving], histogram: Histogram) -> tuple[ChargeItem, ...]:
    """Return the price: each draw and its imprecision, and the thresholds that are due."""
    items = []
    for serving in (one for one in servings if one.steps or one.shown_steps):
        due = _cost(serving.priced_steps)
        if due.rho_nano or due.delta_units:
            is_gaussian = histogram.is_gaussian or serving.level.statistic != PRESENCE
            # what the steps cost that are needed, where a reader is shown the price of others
            taken = None if serving.shown_steps is None else _cost(serving.steps)
            items.append(
                ChargeItem(serving.pin.statistic_hash, due.rho_nano, due.delta_units, is_gaussian, taken=taken)
            )
    return tuple(items)


def _cost(steps: Sequence[Step]) -> Spent:
    """Return the cost of steps: each draw and its imprecision, and the thresholds that are due."""
    drawn = [step.fresh for step in steps if isinstance(step, Draw)]
    # each part is rounded up by itself, as it is where it is stored
    parts = (*(level.noise_delta for level in drawn), *(step.delta for step in steps))
    return Spent(sum(level.rho_nano for level in drawn), sum(map(delta_units_up, parts)))


def draw_price(name: str, fresh: Level) -> ChargeItem:
    """Return the price of a draw without a threshold: its level, and its imprecision."""
    return ChargeItem(name, fresh.rho_nano, delta_units_up(fresh.noise_delta))


def asked_at(ceiling: int, calibration: Calibration) -> tuple[Level, ...]:
    """Return the statistics of a query at the ceiling, where each is drawn whatever is asked for."""
    return tuple(level_of(level.statistic, ceiling, calibration.histogram) for level in calibration.levels)
