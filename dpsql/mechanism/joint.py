"""Several frames released as one: how a request is shared among them, and what they guarantee together.

*Guarantee*: levels of zCDP add up, whatever each statistic is about; Gaussian noise at levels that add up to rho is one
Gaussian release at rho, and a threshold that lets a new key pass with probability delta adds that delta in both
directions (docs/proofs/ledger.md; distance in total variation alone would give e^epsilon times as much in one).
docs/proofs/grouping-sets.md, Theorem 2; of one frame that is chosen by what another one shows,
docs/proofs/other-group.md, Theorem 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dpsql.errors import CalibrationError
from dpsql.mechanism.calibrate import ROOM, total_nano
from dpsql.mechanism.gaussian_measure import ZCDP
from dpsql.mechanism.histogram import MOST_AUTO_DRAWS, MOST_DRAWN, Histogram
from dpsql.mechanism.measure import Measure
from dpsql.model.frame import NANO, Statistic
from dpsql.model.private_query import Request
from dpsql.noise.kept_delta import delta_of_conversion

_THRESHOLDS = 0.5
"""Part of delta that thresholds get where keys hide; the rest is what the conversion to epsilon takes."""


@dataclass(frozen=True, slots=True)
class ShownFrame:
    """What one frame shows in a joint release.

    Attributes:
        histogram: how its presence count is noised.
        rho_nano: levels that its numbers and keys tell of, added up.
        threshold_delta: what the thresholds cost that its keys have passed.
        statistics: what is noised.
        draws_per_point: how many draws a point may be an average of.
        auto_nano: level of what AUTO chose the frame by.

    """

    histogram: Histogram
    rho_nano: int
    threshold_delta: float
    statistics: tuple[Statistic, ...]
    draws_per_point: int
    auto_nano: int = 0

    @property
    def measure(self) -> Measure:
        """The measure that states its cost, beside the thresholds' delta.

        Where shown counts share noise with hidden ones, or with a floor, it is that of zCDP, which is no less
        (docs/proofs/ledger.md, Theorem 2).
        """
        shares = self.histogram.hides and self.histogram.shape.floor_correlation is not None
        return ZCDP if shares else self.histogram.measure


def shared_requests(
    request: Request,
    histograms: Sequence[Histogram],
    noises: Sequence[float],
    statistics: tuple[Statistic, ...],
    auto_nano: int = 0,
) -> tuple[Request, ...]:
    """The request of each frame: all by rho, in proportion to the noise of a count.

    So the sum of the variances of a count in each set is least. What thresholds may cost is shared equally.

    Args:
        request: of all together.
        histograms: how the presence counts are noised.
        noises: standard deviation of a count of each at rho = 1.
        statistics: what is noised in each.
        auto_nano: level that is left for AUTO, and shared by none of them.

    Raises:
        CalibrationError: delta is below what the precision of the noise allows.

    """
    hiding = sum(histogram.hides for histogram in histograms)
    delta = request.delta * _THRESHOLDS / hiding if hiding else request.delta
    total = request.rho
    if total is None:
        draws = sum(histogram.draws_of(statistics) for histogram in histograms) + _auto_draws(auto_nano)
        total = _rho(request, draws, _measure_of(histogram.measure for histogram in histograms), hides=bool(hiding))
    shared_nano = total_nano(request, total) - auto_nano
    shares = [math.floor(noise / math.fsum(noises) * shared_nano) for noise in noises]
    shares[0] += shared_nano - sum(shares)
    return tuple(
        replace(request.at(share / NANO), delta=delta if histogram.hides else request.delta)
        for share, histogram in zip(shares, histograms, strict=True)
    )


def equal_requests(request: Request, parts: Sequence[Sequence[ShownFrame]]) -> tuple[Request, ...]:
    """Return the request of each of several queries of one unit: all by rho, and at the same level.

    What the conversion to epsilon takes of delta counts once. Queries with private keys share the rest equally.

    Args:
        request: of all queries together.
        parts: the frames of each query.

    Raises:
        CalibrationError: delta is below what the precision of the noise allows, or the level is too small.

    """
    hides = [any(frame.histogram.hides for frame in frames) for frames in parts]
    delta = request.delta * _THRESHOLDS / sum(hides) if any(hides) else request.delta
    total = request.rho
    if total is None:
        frames = [frame for part in parts for frame in part]
        draws = sum(frame.histogram.draws_of(frame.statistics) + _auto_draws(frame.auto_nano) for frame in frames)
        total = _rho(request, draws, _measure_of(frame.measure for frame in frames), hides=any(hides))
    share = math.floor(total * NANO / len(parts)) / NANO
    if not share:
        raise CalibrationError(f"{request.amount} = {total:.3g} is too small for {len(parts)} private queries")
    return tuple(replace(request.at(share), delta=delta if hidden else request.delta) for hidden in hides)


def _auto_draws(auto_nano: int) -> int:
    return MOST_DRAWN * MOST_AUTO_DRAWS if auto_nano else 0


def _measure_of(measures: Iterable[Measure]) -> Measure:
    """Return the measure of releases together: their own if it is one, else that of zCDP, which holds for all."""
    found = set(measures)
    return found.pop() if len(found) == 1 else ZCDP


def _rho(request: Request, draws: int, measure: Measure, *, hides: bool) -> float:
    """Return the largest rho that keeps (epsilon, delta), rounded down.

    Args:
        request: by epsilon.
        draws: of noise, whose precision costs delta.
        measure: states the cost of all of it.
        hides: whether keys pass a threshold.

    """
    target = _conversion_delta(request.delta, hides=hides) - ROOM * measure.imprecision_at(draws, request.asked_epsilon)
    if target <= 0.0:
        raise CalibrationError(
            f"delta = {request.delta:.3g} is below what the finite precision of the noise costs; ask for more"
        )
    if request.by_budget:
        converted = delta_of_conversion(request.asked_epsilon, request.delta)
        return measure.budget_rho(request.asked_epsilon, min(target, converted))
    return measure.rho(request.asked_epsilon, target)


def _conversion_delta(delta: float, *, hides: bool) -> float:
    """What the conversion to epsilon takes of delta; a little less, which is lost where parts are added up."""
    return delta * (1.0 - 2.0**-48) * (1.0 - _THRESHOLDS if hides else 1.0)


def joint_guarantee(parts: Sequence[ShownFrame], request: Request) -> tuple[float, float]:
    """(epsilon, delta) of all frames together, both rounded up.

    What is asked by rho may spend its delta on noise and thresholds; stored thresholds may cost more, and what the
    draws' precision adds comes on top.
    """
    hides, measure = any(part.histogram.hides for part in parts), _measure_of(part.measure for part in parts)
    rho = sum(part.rho_nano + part.auto_nano for part in parts) / NANO
    draws = sum(part.draws_per_point * part.histogram.draws_of(part.statistics) for part in parts)
    draws += sum(_auto_draws(part.auto_nano) for part in parts)
    converted = _conversion_delta(request.delta, hides=hides)
    if request.epsilon is not None:
        room = converted - ROOM * measure.imprecision_at(draws, request.epsilon)
        converted = room if room > 0.0 else converted
    epsilon = measure.joint_epsilon(converted, rho)
    imprecision = measure.imprecision_at(draws, epsilon)
    total = math.fsum([measure.converted_delta(converted), *(part.threshold_delta for part in parts), imprecision])
    return epsilon, min(1.0, total * (1.0 + 2.0**-50))
