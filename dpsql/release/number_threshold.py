"""A threshold on the numbers of a frame whose keys were selected first: it shows keys that no round has selected.

The numbers have a value on every key of the rows, shown or hidden. A key is shown, too, where the noisy value of one
statistic passes a threshold: the count of units, or a count of rows that a norm bounds. What one unit adds to it over
all its keys has an l2 norm of at most a scale, so that divided by it the statistic is a round of key selection
(docs/proofs/key-rounds.md, Lemma 1 and Theorem 5). The threshold is stored with the point, and charged once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from dpsql.cascade.serving import Draw, KeySelection, Lowering, Serving, Step
from dpsql.errors import CalibrationError
from dpsql.mechanism.calibrate import ROOM
from dpsql.mechanism.histogram import Histogram
from dpsql.mechanism.independent_gaussian import NormedHistogram
from dpsql.model.frame import KEYS_FIRST, PRESENCE, Norm, Statistic
from dpsql.model.identity import frame_hash
from dpsql.model.private_query import FrameQuery
from dpsql.release.offer import Offer, charge_items
from dpsql.release.points import served_point, shown_keys, stored_keys
from dpsql.release.runtime import Runtime
from dpsql.state import DELTA_UNITS_PER_ONE, SideTable, to_arrow

_LEAST_SHARE = 0.25
"""Share of the level of all numbers from which on a statistic may show keys."""


def hiding_statistic(query: FrameQuery) -> Statistic | None:
    """Return the statistic of a query by whose threshold keys may be shown; None where no share is large enough.

    The count of units comes first. A count of rows takes its place if a norm bounds it, and no unit is counted.
    """
    if query.weights[0] >= _LEAST_SHARE:
        return PRESENCE
    shares = zip(query.statistics[1:], query.weights[1:], strict=True)
    rows = [one for one, share in shares if one.kind == "rows" and share >= _LEAST_SHARE]
    return next((one for one in rows if isinstance(one.limit, Norm) and not one.centre), None)


def scale_of(statistic: Statistic, histogram: Histogram) -> float:
    """Return what a noisy value is divided by: the l2 norm of a unit that counts fully in one group."""
    return 1.0 if statistic == PRESENCE else histogram.sum_l2(statistic)


def with_threshold(
    offer: Offer, statistic: Statistic, delta: float, minimum_units: int, side_table: SideTable
) -> Offer:
    """Return an offer of numbers on selected keys that shows the keys which pass a threshold, too.

    A stored threshold of the served point shows its keys; else that of the lowest point above it, for nothing; else
    one is due. So a new threshold is at a higher level than all others, and changes no answer at a lower one.

    Args:
        offer: how the numbers are served.
        statistic: by which keys are shown.
        delta: the most that the threshold may cost.
        minimum_units: fewest units that a group may have.
        side_table: where thresholds are stored.

    Raises:
        CalibrationError: the precision of the noise costs all of delta.

    """
    place = [serving.level.statistic for serving in offer.servings].index(statistic)
    serving = offer.servings[place]
    stored = {one.rho_nano: one for one in side_table.levels(serving.pin.statistic_hash) if one.tau is not None}
    found = stored.get(serving.level.rho_nano) or next(
        (one for rho_nano, one in sorted(stored.items()) if rho_nano > serving.level.rho_nano), None
    )
    if found and found.tau is not None:
        paid = found.threshold_delta_units / DELTA_UNITS_PER_ONE
        selection, steps = KeySelection(found.rho_nano, found.sigma, found.tau, paid), serving.steps
    else:
        draws = sum(one.source_rho_nano is None for one in side_table.levels(serving.pin.statistic_hash))
        selection = _due(serving, offer, delta, draws + 1)
        steps = _steps(serving, selection)
    level = serving.level
    if selection.rho_nano > level.rho_nano:
        disclosed = replace(level, rho_nano=selection.rho_nano, sigma=selection.sigma, noise_delta=0.0)
    else:
        disclosed = serving.disclosed
    # the minimum is of the moment, and no part of what is stored
    shown = replace(selection, tau=selection.tau + minimum_units - 1)
    serving = replace(serving, tau=selection.tau, steps=steps, keys_from=(shown,), disclosed=disclosed)
    servings = (*offer.servings[:place], serving, *offer.servings[place + 1 :])
    items = charge_items(servings, offer.histogram)
    return replace(offer, servings=servings, items=items, delta=min(1.0, offer.delta + selection.delta))


def threshold_of(offer: Offer) -> tuple[Statistic, float] | None:
    """Return the statistic of numbers on selected keys that shows more keys, and its threshold in its own units."""
    serving = _hiding(offer)
    if not serving:
        return None
    statistic = serving.level.statistic
    return statistic, scale_of(statistic, offer.histogram) * (1.0 + serving.keys_from[0].tau)


def shown_beside(offer: Offer, keys: pa.Table, runtime: Runtime) -> pa.Table:
    """Return selected keys with those that pass the threshold of the numbers, which are stored."""
    serving = _hiding(offer)
    if not serving:
        return keys
    (selection,), frame, side_table = serving.keys_from, offer.query.frame, runtime.state.side_table
    values = served_point(serving, side_table, selection).noisy_values
    values = values[: _passing(serving, selection, frame_hash(frame), side_table)]
    passed = shown_keys(values / scale_of(serving.level.statistic, offer.histogram), selection.tau, 1)
    found = stored_keys(frame, side_table).take(to_arrow(passed.astype(np.int64)))
    both = pa.concat_tables([keys.select(found.column_names), found])
    return runtime.sandbox.run("SELECT DISTINCT * FROM keys", {"keys": both})


def _passing(serving: Serving, selection: KeySelection, frame: str, side_table: SideTable) -> int:
    """Return how many of the first keys of a frame may pass a threshold.

    A key that the frame got later has noise alone. If it could pass, the same question would have another answer, and
    a unit whose rows change would have new keys at every draw, of which the delta of the threshold knows nothing. The
    counts of units are those of the first draw, and so are the keys that they may show.
    """
    if serving.level.statistic == PRESENCE and (snapshot := side_table.snapshot(frame)):
        return len(snapshot.values)
    return side_table.first_count(serving.pin.statistic_hash, selection.rho_nano)


def _hiding(offer: Offer) -> Serving | None:
    """Return the serving by whose threshold keys are shown beside selected ones."""
    if offer.query.frame.mechanism != KEYS_FIRST:
        return None
    return next((serving for serving in offer.servings if serving.keys_from), None)


def _due(serving: Serving, offer: Offer, delta: float, draws: int) -> KeySelection:
    """Return the threshold of a point that has none, by the noise that it has.

    A unit's count is the same in all of its groups, at most so many, and of the first draw. Its rows may be more in one
    group than in another, and in other groups at each of the draws.
    """
    level = serving.level
    target = delta - ROOM * level.noise_delta
    if target <= 0.0:
        raise CalibrationError(
            f"delta = {delta:.3g} of a threshold is below what the finite precision of the noise costs; ask for more"
        )
    if level.statistic != PRESENCE:
        if not isinstance(offer.histogram, NormedHistogram):
            raise AssertionError("a count of rows that shows keys is bounded by a norm")
        sigma = level.sigma / scale_of(level.statistic, offer.histogram)
        return KeySelection(level.rho_nano, level.sigma, *offer.histogram.threshold_of_rows(target, sigma, draws))
    hiding = replace(offer.histogram, hides=True)
    tau_of_units = hiding.threshold(target, level.sigma)
    if tau_of_units is None:
        raise AssertionError("a threshold is for keys that hide")
    shown = hiding.threshold_delta(level.sigma, tau_of_units)
    return KeySelection(level.rho_nano, level.sigma, tau_of_units, shown)


def _steps(serving: Serving, due: KeySelection) -> tuple[Step, ...]:
    """Return the steps of a serving with its threshold: of a new point, or of a stored one."""
    made = [place for place, step in enumerate(serving.steps) if _level_of(step) == serving.level.rho_nano]
    if not made:
        return (*serving.steps, due)
    steps = list(serving.steps)
    step = steps[made[-1]]
    if isinstance(step, Draw | Lowering):
        steps[made[-1]] = replace(step, tau=due.tau, delta=due.delta)
    return tuple(steps)


def _level_of(step: Step) -> int:
    return step.rho_nano if isinstance(step, KeySelection) else step.level.rho_nano
