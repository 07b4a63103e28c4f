"""The receipt of an answer, from plan and stored points; nothing of the data beyond what is shown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from dpsql.query.frame import PRESENCE, Frame, Statistic
from dpsql.query.identity import query_hash
from dpsql.query.private_query import AutoLevel, Estimate, PrivateQuery
from dpsql.release.calibrate import Calibration, Level, guarantee, independent_guarantee, window_guarantee
from dpsql.release.estimates import Z_95, linear_noise, noise_sigma, norms_of, shown_sigma
from dpsql.release.histogram import Histogram
from dpsql.session.result import ColumnReceipt, Receipt
from dpsql.session.serving import Serving
from dpsql.state import DELTA_UNITS_PER_ONE, NANO_PER_RHO, Charged
from dpsql.state import Level as StoredLevel


@dataclass(frozen=True, slots=True)
class Terms:
    """What is served and what it guarantees, before anything is charged or drawn.

    Attributes:
        levels: one per statistic, as stored where a point reaches the level asked for, else as they are to be drawn.
        tau: threshold of the presence count that is served; None with public keys.
        epsilon, delta: guarantee of these levels together with the keys that are shown, both rounded up.
        keys_rho_nano: level of the charged release that the keys were shown by, where that is above the count's own.
        tells_rho_nano: level of discrete counts that those which are served were made of, and tell as much as.
        beside_rho_nano: levels of independent releases whose keys are shown beside those of the served one, added up.

    """

    levels: tuple[Level, ...]
    tau: float | None
    epsilon: float
    delta: float
    keys_rho_nano: int | None = None
    tells_rho_nano: int | None = None
    beside_rho_nano: int = 0


def terms_of(query: PrivateQuery, calibration: Calibration, servings: tuple[Serving, ...]) -> Terms:
    """The terms of a query, given how its statistics are served.

    Raises:
        CalibrationError: no guarantee can be computed.

    """
    levels = tuple(serving.level for serving in servings)
    presence, histogram, delta = servings[0], calibration.histogram, query.request.delta
    keys = presence.told_nano if presence.stands_alone else max((one.rho_nano for one in presence.keys_from), default=0)
    keys_nano = keys if keys > levels[0].rho_nano else None
    if query.frame.window is not None:
        told = (_told(presence), *levels[1:])
        guaranteed = window_guarantee(histogram, told, query.frame.window, calibration.auto_nano)
        return Terms(levels, presence.tau, *guaranteed, keys_nano)
    asked = all(
        serving.level.rho_nano == level.rho_nano for serving, level in zip(servings, calibration.levels, strict=True)
    )
    single = all(serving.is_single_draw for serving in servings) and len(presence.keys_from) <= 1
    if asked and single and presence.tau == calibration.tau:
        return Terms(levels, presence.tau, calibration.epsilon, calibration.delta)
    if presence.stands_alone and len(presence.keys_from) > 1:
        rho_nano = sum(serving.guaranteed_nano for serving in servings) + calibration.auto_nano
        shown = _threshold_delta(presence, presence.keys_from)
        guaranteed = independent_guarantee(histogram, levels, rho_nano, shown, delta)
        beside_nano = presence.guaranteed_nano - presence.told_nano
        return Terms(levels, presence.tau, *guaranteed, keys_nano, beside_rho_nano=beside_nano)
    # the keys are those that charged points have shown, so what these guarantee is part of it
    own, tau, others = _told(presence), presence.tau, presence.keys_from
    if presence.keys_from and keys >= levels[0].rho_nano:
        tau, others = presence.keys_from[0].tau, presence.keys_from[1:]
        if tau is None:
            raise AssertionError("keys are shown by charged points")
    elif presence.keys_from:
        tau = presence.keys_from[0].tau
    epsilon, total = guarantee(histogram, (own, *levels[1:]), tau, delta, calibration.auto_nano)
    total = min(1.0, (total + _threshold_delta(presence, others)) * (1.0 + 2.0**-51))
    tells = None if presence.tells_of is None else presence.tells_of.rho_nano
    return Terms(levels, presence.tau, epsilon, total, keys_nano, tells)


def _told(presence: Serving) -> Level:
    """The level that counts and keys tell of, with the noise that the count has there."""
    beyond = presence.keys_from if presence.tells_of is None else (*presence.keys_from, presence.tells_of)
    highest = max(beyond, key=lambda level: level.rho_nano, default=None)
    if highest is None or highest.rho_nano <= presence.level.rho_nano:
        return presence.level
    return Level(presence.statistic, highest.rho_nano, highest.sigma, 0.0)


def _threshold_delta(presence: Serving, levels: tuple[StoredLevel, ...]) -> float:
    """What the thresholds cost by which some levels show keys; what is not paid yet is due."""
    stored = sum(level.threshold_delta_units for level in levels) / DELTA_UNITS_PER_ONE
    is_own = any(level.rho_nano == presence.level.rho_nano for level in levels)
    return stored + (presence.cut.delta if is_own and presence.cut is not None else 0.0)


def with_price(receipt: Receipt, charged: Charged) -> Receipt:
    """The receipt with what was charged."""
    return replace(
        receipt,
        charged_rho=charged.rho_nano / NANO_PER_RHO,
        charged_delta=charged.delta_units / DELTA_UNITS_PER_ONE,
        reused=not charged.charge_ids,
    )


def make_receipt(query: PrivateQuery, histogram: Histogram, terms: Terms) -> Receipt:
    """What is shown, at the levels that are served (which may be above those asked for), before a price is known."""
    frame = query.frame
    return Receipt(
        query_hash=query_hash(query),
        table=frame.table,
        version=frame.version,
        unit=frame.unit,
        mechanism=histogram.name,
        rho=(sum(level.rho_nano for level in terms.levels) + sum(query.told_levels.values())) / NANO_PER_RHO,
        epsilon=terms.epsilon,
        delta=terms.delta,
        charged_rho=0.0,
        charged_delta=0.0,
        reused=True,
        max_groups=frame.max_groups,
        max_keys=frame.key_count,
        threshold=shown_threshold(frame, terms.tau, query.min_units),
        columns=column_receipts(query, histogram, {level.statistic: level.sigma for level in terms.levels}),
        notes=notes(query, terms),
    )


def shown_threshold(frame: Frame, tau: float | None, min_units: int) -> float | None:
    """The number that a noisy count of units must exceed for its key to be shown.

    After top-k or of a sketch it stands on top of what was subtracted, which is itself an answer and no part of this.
    """
    if tau is None:
        return float(min_units) if min_units > 1 else None
    if frame.sparsity is not None:
        return 1.0 + tau
    return max(frame.minimum_units, min_units) + tau


def column_receipts(
    query: PrivateQuery, histogram: Histogram, sigmas: Mapping[Statistic, float]
) -> tuple[ColumnReceipt, ...]:
    """The noise of every result column that is one aggregate, from that of the statistics' points."""
    noise = {statistic: noise_sigma(statistic, sigma, histogram) for statistic, sigma in sigmas.items()}
    return columns_with(query, histogram, noise)


def columns_with(
    query: PrivateQuery, histogram: Histogram, noise: Mapping[Statistic, float], roundings: int = 1
) -> tuple[ColumnReceipt, ...]:
    """The noise of every result column that is one aggregate, from that of the statistics' values."""
    return tuple(
        _column(column.name, query.estimates[column.estimate], query, histogram, noise, roundings)
        for column in query.finish.columns
        if column.estimate is not None
    )


def _column(
    name: str,
    estimate: Estimate,
    query: PrivateQuery,
    histogram: Histogram,
    noise: Mapping[Statistic, float],
    roundings: int,
) -> ColumnReceipt:
    statistic, frame = estimate.numerator.statistic or PRESENCE, query.frame
    l2 = histogram.sum_l2(statistic)
    if statistic == PRESENCE and frame.sparsity is not None:
        # what a floor is subtracted from may all move because of a unit with one group
        l2 = statistic.radius * math.sqrt(frame.sparsity.k)
    if estimate.denominator is not None or estimate.quantile is not None:
        return ColumnReceipt(name, estimate.name, estimate.clamp, None, None, None, None, statistic.lattice)
    norms = norms_of(estimate, query.buckets, histogram)
    sigma = float(shown_sigma(estimate, linear_noise(estimate.numerator, noise) * norms.max(initial=0.0), roundings))
    return ColumnReceipt(
        name=name,
        aggregate=estimate.name,
        bounds=statistic.interval,
        linf=statistic.radius * frame.finer_per_group,
        l2=l2,
        sigma=sigma,
        half_width_95=Z_95 * sigma,
        lattice=statistic.lattice,
    )


def notes(query: PrivateQuery, terms: Terms) -> tuple[str, ...]:
    """Rules that shape the answer and that its numbers alone do not show."""
    frame = query.frame
    found = [f"rows where {frame.unit_column.sql} is NULL are left out", *frame.cuts]
    if frame.counted_groups is not None:
        found.append(
            f"a unit in n groups, more than {frame.max_groups}, counts in each with weight sqrt({frame.max_groups} / n)"
            f", in at most {frame.counted_groups} groups, so counts and sums over such units are too low"
        )
    elif frame.finer is None and frame.max_groups is not None and frame.max_groups < (frame.key_count or math.inf):
        found.append(
            f"each unit counts in at most {frame.max_groups} groups; which ones is chosen by a secret hash, "
            "so sums over few groups of units with many are too low"
        )
    if frame.finer is not None:
        keys = ", ".join(key.sql for key in frame.finer.keys)
        found.append(f"groups are sums of the groups by {keys}, in which units are bounded")
    found += _auto_notes(query)
    if query.total is not None:
        found.append("errors differ by row; what is stated of a column is the largest of them")
    if query.buckets is not None:
        found.append("groups are added up from a release by finer keys, and a unit counts in each of these")
    if frame.factorised is not None:
        found.append("noise was added to partial sums: long ranges and totals have little of it, single keys much")
    if frame.has_private_keys:
        found.append("groups near the threshold are shown when their noise is high, so their counts lean upwards")
    found += _level_notes(terms)
    if frame.sparsity is not None and query.min_units > 1:
        found.append(f"of these, groups whose noisy count of units exceeds {query.min_units} by the threshold, too")
    if frame.sparsity is not None:
        found.append(_SPARSITY_NOTES[frame.sparsity.kind].format(k=frame.sparsity.k))
    found += [
        f"of one unit at most {most:.9g} distinct values count in a group; which ones is chosen by a secret hash"
        for most in sorted({statistic.interval[1] for statistic in query.statistics if statistic.kind == "values"})
    ]
    found += [
        f"quantiles of {statistic.value_sql} are read from {statistic.cells} cells, each of them "
        f"{(statistic.cell_bounds[1] - statistic.cell_bounds[0]) / statistic.cells:.9g} wide"
        for statistic in query.statistics
        if statistic.cell_bounds is not None
    ]
    if any(statistic.row_cap for statistic in query.statistics):
        found.append("rows of one unit in one group beyond max_rows_per_group are scaled down to it")
    return tuple(found)


def _level_notes(terms: Terms) -> Iterator[str]:
    """Levels that an answer tells of beside that of its numbers."""
    if terms.keys_rho_nano is not None:
        yield (
            f"rho is that of the numbers; which keys there are was shown by a release with a count of units at rho = "
            f"{terms.keys_rho_nano / NANO_PER_RHO:.9g}, which epsilon and delta cover"
        )
    if terms.beside_rho_nano:
        yield (
            "keys of independent releases that this reader holds are shown, too: epsilon and delta cover these, at "
            f"rho = {terms.beside_rho_nano / NANO_PER_RHO:.9g} more"
        )
    if terms.tells_rho_nano is not None:
        yield (
            "counts were made of others with discrete noise, whose lattice shows through: epsilon and delta are those "
            f"of counts at rho = {terms.tells_rho_nano / NANO_PER_RHO:.9g}"
        )


def _auto_notes(query: PrivateQuery) -> Iterator[str]:
    if query.auto is not None and query.auto.level is not None:
        yield (
            f"AUTO chose max_groups = {query.frame.max_groups} from a noisy histogram of units by their number of "
            f"groups, {_chosen_at(query.auto.level)}"
        )
    for asked in query.auto_bounds:
        if asked.bounds is not None and asked.level is not None:
            yield (
                f"AUTO found bounds [{asked.bounds[0]:.9g}, {asked.bounds[1]:.9g}] for {asked.name} in "
                f"noisy histograms of units by their largest and smallest values, {_chosen_at(asked.level)}; what "
                "lies outside is clamped"
            )


def _chosen_at(level: AutoLevel) -> str:
    """The level of a histogram, and whether its choice lasts."""
    at = f"at rho = {level.rho_nano / NANO_PER_RHO:.9g}, which is part of rho"
    if level.is_sure:
        return f"{at} and paid once for this version of the table"
    return f"{at}; it is too noisy for a choice that lasts, so a query with more rho may get another"


_SPARSITY_NOTES = {
    "top_k": "only the {k} largest groups can be shown, and of these only groups that exceed the next largest by more "
    "than the threshold",
    "sketch": "counts come from a sketch of {k} counters: they may be too low by as much as the upper ends of their "
    "intervals say, never too high but for noise",
}
