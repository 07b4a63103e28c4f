"""Steps 4 and 5 without the charge: serving, guarantee and price of a query, or of each of its grouping sets.

Plans are explained by the same offers as they are answered by. The receipt of an answer is written from the offer and
the levels that serve it: nothing of the data beyond what is shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dpsql.cascade.reader import Reader
from dpsql.cascade.serving import Draw, Serving, Step
from dpsql.cascade.servings import servings_of
from dpsql.errors import AccessError
from dpsql.mechanism.calibrate import (
    Calibration,
    calibrate,
    independent_guarantee,
    level_of,
    unasked_nano,
    window_guarantee,
)
from dpsql.mechanism.histogram import Histogram
from dpsql.mechanism.measure import Level, Shape
from dpsql.mechanism.registry import histogram_of
from dpsql.model.frame import PRESENCE, Frame, Statistic
from dpsql.model.identity import base_hash, in_question, statistic_hash
from dpsql.model.private_query import FrameQuery
from dpsql.model.statistic_kinds import COVERAGE_KINDS, LEFT_OUT_KINDS
from dpsql.release.estimates import noise_sigma
from dpsql.state import ChargeItem, Spent, State, delta_units_up


@dataclass(frozen=True)
class Offer:
    """Query of one frame with the way it will be served; nothing is charged, read or drawn yet.

    Attributes:
        query: on the current generation of its frame.
        histogram: how the presence count is noised.
        servings: how each statistic is served, presence first.
        epsilon, delta: guarantee of what is served together with the keys that are shown, both rounded up.
        asked_nano: level in nano-rho that was asked for, all statistics together.
        items: the price.
        auto_nano: levels that the guarantee covers because of AUTO, as in `Calibration`, and because of `chosen_nano`.
        asked: each statistic at the highest level that could be charged for it, whatever is stored.
        cut_delta: delta of the threshold that could be charged, whatever is stored.
        chosen_nano: levels that the guarantee covers because released numbers chose the level of a stored point.

    """

    query: FrameQuery
    histogram: Histogram
    servings: tuple[Serving, ...]
    epsilon: float
    delta: float
    asked_nano: int
    items: tuple[ChargeItem, ...]
    auto_nano: int
    asked: tuple[Level, ...]
    cut_delta: float
    chosen_nano: int = 0

    @property
    def presence(self) -> Serving:
        """Serving of the presence count."""
        return self.servings[0]

    @property
    def coverage(self) -> tuple[Serving, ...]:
        """Servings of the coverage."""
        return tuple(serving for serving in self.servings if serving.level.statistic.kind in COVERAGE_KINDS)

    @property
    def left_out(self) -> tuple[Serving, ...]:
        """Servings of the numbers of rows left out."""
        return tuple(serving for serving in self.servings if serving.level.statistic.kind in LEFT_OUT_KINDS)

    @property
    def left_out_drawn(self) -> tuple[Serving, ...]:
        """Servings of the numbers of rows left out that are drawn."""
        return tuple(one for one in self.left_out if one.is_drawn)

    @property
    def drawn(self) -> tuple[Statistic, ...]:
        """Statistics with a point that is drawn from exact values."""
        return tuple(serving.level.statistic for serving in self.servings if serving.is_drawn)

    @property
    def rho_nano(self) -> int:
        """Levels that are served, added up."""
        return sum(serving.level.rho_nano for serving in self.servings)

    @property
    def noise(self) -> dict[Statistic, float]:
        """Standard deviation of each statistic's point, in the units of the aggregate."""
        levels = (serving.level for serving in self.servings)
        return {level.statistic: noise_sigma(level.statistic, level.sigma, self.histogram) for level in levels}


def offers_of(parts: Sequence[FrameQuery], state: State, reader: Reader) -> tuple[Offer, ...]:
    """Return how queries of frames that are released together are served.

    Args:
        parts: as `current` gives them.
        state: the state file.
        reader: who asks, with their clearance, which holds for all parts together.

    Raises:
        AccessError, CalibrationError: nothing was charged or read.

    """
    calibrations = [calibrate(part, held_histogram(part, state)) for part in parts]
    asked_nano = sum(calibration.rho_nano for calibration in calibrations)
    if any(part.unasked for part in parts):
        # whether a reader may ask does not hang on what AUTO found
        reader.require(asked_nano + sum(map(unasked_nano, parts, calibrations)))
    if not all(part.frame.rows_sql.relation for part in parts):
        from dpsql.release.gone_rows import measurable  # noqa: PLC0415 — few queries need it

        calibrations = [measurable(*each, state, reader) for each in zip(parts, calibrations, strict=True)]
    offers, serve = [], servings_of
    if reader.rho_limit is not None:
        from dpsql.cascade.seen import seen_servings  # noqa: PLC0415 — few readers have a limit

        serve = seen_servings
    for part, asked in zip(parts, calibrations, strict=True):
        calibration, chosen_nano = asked, 0
        if not calibration.histogram.measure.rises:
            from dpsql.cascade.apart import apart_servings  # noqa: PLC0415 — few laws have no rises

            serve = apart_servings
        servings = serve(part, calibration, state, reader, asked_nano)
        if len(servings) < len(calibration.levels):
            served = {in_question(one.level.statistic) for one in servings}
            levels = tuple(one for one in calibration.levels if in_question(one.statistic) in served)
            calibration = replace(calibration, levels=levels)
        if any(one.disclosed.rho_nano != one.pin.asked_rho_nano for one in servings):
            from dpsql.release.chosen_levels import nano_of_choices  # noqa: PLC0415 — few queries need it

            chosen_nano = nano_of_choices(servings, part.frame, state)
            calibration = replace(calibration, auto_nano=calibration.auto_nano + chosen_nano)
        guaranteed = _guarantee(part, calibration, servings)
        items = charge_items(servings, calibration.histogram)
        asked_levels = calibration.levels
        if ceiling := part.frame.ceiling:
            # there each is drawn whatever is asked for
            asked_levels = tuple(level_of(one.statistic, ceiling, calibration.histogram) for one in asked_levels)
        terms = (*guaranteed, calibration.rho_nano, items, calibration.auto_nano, asked_levels, calibration.cut.delta)
        offers.append(Offer(part, calibration.histogram, servings, *terms, chosen_nano))
    return tuple(offers)


def current(query: FrameQuery, state: State, reader: Reader) -> FrameQuery:
    """Return the query on the last generation of its frame, or on the next one if a refresh is asked for.

    Of several frames the finest comes first: units of sums are bounded by the salt of its generation.

    Raises:
        AccessError: a reader with a limit asks for a refresh, which adds to what they hold of the same rows.

    """
    refresh = query.request.refresh
    if refresh and reader.has_limit:
        raise AccessError(
            f"a refresh is one more release of the same rows, and {reader.name!r} has a limit; the curator can refresh"
        )
    last = state.side_table.generation(base_hash(query.frame))
    generation = 0 if last is None else last + refresh
    return replace(query, frame=replace(query.frame, generation=generation))


def held_histogram(query: FrameQuery, state: State) -> Histogram:
    """Return how noise is added to the presence count; a frame with a stored point keeps its shape."""
    stored = state.side_table.levels(statistic_hash(PRESENCE, query.frame))
    shape = Shape(stored[0].correlation, stored[0].floor_correlation) if stored else None
    return histogram_of(query.frame, shape)


def _guarantee(query: FrameQuery, calibration: Calibration, servings: tuple[Serving, ...]) -> tuple[float, float]:
    """(epsilon, delta) of what is served together with the keys that are shown, both rounded up.

    Raises:
        CalibrationError: no guarantee can be computed.

    """
    levels = tuple(serving.level for serving in servings)
    presence, histogram, delta = servings[0], calibration.histogram, query.request.delta
    disclosed, keys_from = (presence.disclosed, *levels[1:]), presence.keys_from
    if query.frame.window:
        return window_guarantee(histogram, disclosed, query.frame.window, calibration.auto_nano)
    asked = [level.rho_nano for level in levels] == [level.rho_nano for level in calibration.levels]
    single = all(serving.is_single_draw for serving in servings) and len(keys_from) <= 1
    if asked and single and presence.tau == calibration.cut.tau:
        return calibration.epsilon, calibration.delta
    if len(keys_from) > 1 and presence.stands_alone:
        rho_nano = sum(serving.guaranteed_nano for serving in servings) + calibration.auto_nano
        return independent_guarantee(histogram, levels, rho_nano, presence.keys_delta, delta)
    # the keys are those that charged points have shown, so what the highest of these guarantees is part of it
    tau = keys_from[0].tau if keys_from else None
    others = math.fsum(keys.delta for keys in keys_from if keys.rho_nano < presence.disclosed.rho_nano)
    epsilon, total = histogram.guarantee(disclosed, tau, delta, calibration.auto_nano)
    return epsilon, min(1.0, (total + others) * (1.0 + 2.0**-51))


def shown_threshold(frame: Frame, tau: float | None, min_units: int) -> float | None:
    """Return the number that a noisy count of units must exceed for its key to be shown.

    After top-k or of a sketch it stands on top of what was subtracted, which is itself an answer and no part of this.
    """
    if tau is None:
        return float(min_units) if min_units > 1 else None
    if frame.bounding.sparsity:
        return 1.0 + tau
    return max(frame.bounding.minimum_units, min_units) + tau


def charge_items(servings: Iterable[Serving], histogram: Histogram) -> tuple[ChargeItem, ...]:
    """Return the price: each draw and its imprecision, and the thresholds that are due."""
    items = []
    for serving in (one for one in servings if one.steps or one.shown_steps):
        due = _cost(serving.priced_steps)
        if due.rho_nano or due.delta_units:
            # what the steps cost that are needed, where a reader is shown the price of others
            taken = None if serving.shown_steps is None else _cost(serving.steps)
            amounts = due.rho_nano, due.delta_units, histogram.measure.composition
            items.append(ChargeItem(serving.pin.statistic_hash, *amounts, taken=taken))
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


def price_of(offers: Iterable[Offer]) -> tuple[ChargeItem, ...]:
    """Return the price of offers that follow each other: a statistic that rises several times costs its last level.

    Releases of a law that does not rise cost all of their levels. An open charge pays for the first rise alone, so that
    a later one may cost more.
    """
    found: dict[str, ChargeItem] = {}
    for rises, item in ((offer.histogram.measure.rises, item) for offer in offers for item in offer.items):
        before = found.get(item.statistic_hash)
        found[item.statistic_hash] = _together(before, item, rises=rises) if before else item
    return tuple(found.values())


def amounts_of(offers: Iterable[Offer]) -> tuple[int, int]:
    """Return nano-rho and delta units of the price of offers that follow each other."""
    items = price_of(offers)
    return sum(item.rho_nano for item in items), sum(item.delta_units for item in items)


def _together(before: ChargeItem, item: ChargeItem, *, rises: bool) -> ChargeItem:
    """Return the price of two levels of a statistic, both from what is stored; each has imprecision of its own."""
    taken, together = (
        [one.taken or Spent(one.rho_nano, one.delta_units) for one in (before, item)],
        max if rises else sum,
    )
    return replace(
        item,
        rho_nano=together((before.rho_nano, item.rho_nano)),
        delta_units=before.delta_units + item.delta_units,
        taken=Spent(together([one.rho_nano for one in taken]), sum(one.delta_units for one in taken)),
    )


def with_caps(offer: Offer, levels: Sequence[Level]) -> Offer:
    """Return an offer whose charges store their caps, because released numbers chose its level.

    Args:
        offer: at the level that was chosen.
        levels: the statistics at the highest level that could have been chosen.

    """
    at_cap = {in_question(level.statistic): level for level in levels}
    served = ((one.pin.statistic_hash, at_cap.get(in_question(one.level.statistic))) for one in offer.servings)
    caps = {name: level.rho_nano for name, level in served if level}
    items = (replace(item, cap_nano=caps.get(item.statistic_hash)) for item in offer.items)
    asked = tuple(at_cap.get(in_question(level.statistic), level) for level in offer.asked)
    return replace(offer, items=tuple(items), asked=asked)
