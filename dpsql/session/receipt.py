"""The receipt of an answer, from plan and stored points; nothing of the data beyond what is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dpsql.query.private_query import PRESENCE, Estimate, Frame, PrivateQuery, Statistic
from dpsql.release.calibrate import Calibration, Level, guarantee
from dpsql.release.estimates import Z_95, linear_sigma, noise_sigma
from dpsql.release.histogram import Histogram
from dpsql.session.result import ColumnReceipt, Receipt
from dpsql.state import DELTA_UNITS_PER_ONE, NANO_PER_RHO, Charged, Point


def make_receipt(
    query: PrivateQuery,
    calibration: Calibration,
    points: Mapping[Statistic, Point],
    charged: Charged,
    default_delta: float,
) -> Receipt:
    """What is shown, at the levels that are stored (which may be above those asked for)."""
    frame, presence, histogram = query.frame, points[PRESENCE], calibration.histogram
    served = tuple(Level(s, point.rho_nano, point.sigma, 0.0) for s, point in points.items())
    delta = query.request.delta if query.request.delta is not None else default_delta
    asked = all(
        point.rho_nano == level.rho_nano for point, level in zip(points.values(), calibration.levels, strict=True)
    )
    epsilon, total_delta = (
        (calibration.epsilon, calibration.delta)
        if asked and presence.tau == calibration.tau
        else guarantee(histogram, served, presence.tau, delta)
    )
    return Receipt(
        query_hash=query.query_hash,
        table=frame.table,
        version=frame.version,
        unit=frame.unit,
        mechanism=histogram.name,
        rho=sum(point.rho_nano for point in points.values()) / NANO_PER_RHO,
        epsilon=epsilon,
        delta=total_delta,
        charged_rho=charged.rho_nano / NANO_PER_RHO,
        charged_delta=charged.delta_units / DELTA_UNITS_PER_ONE,
        reused=not charged.charge_ids,
        max_groups=frame.max_groups,
        max_keys=frame.key_count,
        threshold=shown_threshold(frame, presence.tau, query.min_units),
        columns=column_receipts(query, histogram, {s: point.sigma for s, point in points.items()}),
        notes=notes(query),
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
    """The noise of every result column that is one aggregate."""
    total = {statistic: noise_sigma(statistic, sigma, histogram) for statistic, sigma in sigmas.items()}
    return tuple(
        _column(column.name, query.estimates[column.estimate], query.frame.unit_groups, total)
        for column in query.finish.columns
        if column.estimate is not None
    )


def _column(name: str, estimate: Estimate, unit_groups: int, sigmas: Mapping[Statistic, float]) -> ColumnReceipt:
    statistic = estimate.numerator.statistic or PRESENCE
    if estimate.denominator is not None:
        return ColumnReceipt(name, estimate.name, estimate.clamp, None, None, None, None, statistic.lattice)
    sigma = linear_sigma(estimate.numerator, sigmas, sigmas[PRESENCE])
    return ColumnReceipt(
        name=name,
        aggregate=estimate.name,
        bounds=statistic.interval,
        linf=statistic.radius,
        l2=statistic.radius * math.sqrt(unit_groups),
        sigma=sigma,
        half_width_95=Z_95 * sigma,
        lattice=statistic.lattice,
    )


def notes(query: PrivateQuery) -> tuple[str, ...]:
    """Rules that shape the answer and that its numbers alone do not show."""
    frame = query.frame
    found = [f"rows where {frame.unit_column.sql} is NULL are left out"]
    if frame.max_groups is not None and frame.max_groups < (frame.key_count or math.inf):
        found.append(
            f"each unit counts in at most {frame.max_groups} groups; which ones is chosen by a secret hash, "
            "so sums over few groups of units with many are too low"
        )
    if frame.has_private_keys:
        found.append("groups near the threshold are shown when their noise is high, so their counts lean upwards")
    if frame.sparsity is not None:
        found.append(_SPARSITY_NOTES[frame.sparsity.kind].format(k=frame.sparsity.k))
    if any(statistic.row_cap for statistic in query.statistics):
        found.append("rows of one unit in one group beyond max_rows_per_group are scaled down to it")
    return tuple(found)


_SPARSITY_NOTES = {
    "top_k": "only the {k} largest groups can be shown, and of these only groups that exceed the next largest by more "
    "than the threshold",
    "sketch": "counts come from a sketch of {k} counters: they may be too low by as much as the upper ends of their "
    "intervals say, never too high but for noise",
}
