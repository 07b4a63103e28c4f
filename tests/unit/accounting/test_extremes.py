"""Every function of the accounting at inputs far too small and far too large: a safe number or a refusal of ours."""

from __future__ import annotations

import dataclasses
import inspect
import math
import random
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import mpmath
import pytest

from dpsql.accounting import (
    composition,
    correlated_histogram,
    discrete_histogram,
    gaussian,
    skellam,
    window,
    zcdp,
)
from dpsql.accounting.best_point import Point, best_point
from dpsql.accounting.correlated_histogram import CorrelatedProfile, TopKProfile
from dpsql.accounting.profile import (
    Profile,
    smallest_epsilon,
    smallest_query_threshold,
    smallest_sigma,
    smallest_threshold,
)
from dpsql.accounting.sparse_histogram import SparseProfile, WeightedProfile
from dpsql.errors import CalibrationError
from dpsql.noise.rounded_gaussian import slack_delta, slack_delta_zcdp
from tests.unit.accounting.added_deltas import AddedDeltasProfile

Asked = Callable[..., object]
MODULES: tuple[ModuleType, ...] = (
    composition,
    correlated_histogram,
    discrete_histogram,
    gaussian,
    skellam,
    window,
    zcdp,
)
PROFILES: tuple[type[Profile], ...] = (
    SparseProfile,
    AddedDeltasProfile,
    WeightedProfile,
    CorrelatedProfile,
    TopKProfile,
)
INVERSES = (smallest_epsilon, smallest_query_threshold, smallest_sigma, smallest_threshold, best_point)
INNER = {
    *(gaussian.log_delta, gaussian.log_delta_error, gaussian.log_delta_up, gaussian.round_delta_up),
    *(gaussian.shift_deltas, window.shown_once, correlated_histogram.quietest),
}
"""Steps of the others, which check their inputs."""

SIZES = (0.0, 5e-324, 1e-300, 1e-160, 1e-20, 1e-3, 0.5, 1.0, 3.0, 40.0, 1e3, 1e9, 1e20, 1e160, 1e300, 1.7e308)
DELTAS = (0.0, 5e-324, 1e-300, 1e-280, 1e-100, 1e-9, 1e-6, 1e-3, 0.5, 0.99, 1.0 - 2.0**-53, 1.0)
NONSENSE = (math.nan, math.inf, -math.inf, -1.0)
VALUES: dict[str, tuple[object, ...]] = {
    "delta": DELTAS,
    "threshold_delta": DELTAS,
    "max_groups": (0, 1, 2, 7, 1000, 10**6, 10**7, 10**400),
    "counted_groups": (0, 1, 2, 7, 1000, 10**6, 10**400),
    # the exact search over a million keys takes minutes, however ordinary the other inputs are
    "k": (0, 1, 2, 7, 30, 10**400),
    "correlation": (None, 0.0, 5e-324, 1e-300, 1e-9, 0.3, 1.0, 100.0, 1e9, 1e300),
    "floor_correlation": (None, 0.0, 1e-300, 1e-9, 0.3, 1.0, 1e9, 1e300),
    "presence_share": (0.0, 5e-324, 1e-300, 1e-9, 0.5, 1.0, 2.0),
    "analysis": ("exact", "add-the-deltas", "improved", "tight", "none"),
    "route": ("lattice", "zcdp"),
    "order": (1, 1.0001, 2, 10, 10**6, 1e300, 10**400),
    "shift": (0, 1, 30, 10**9),
    "draws": (0, 1, 1000, 1 << 60, 10**400),
}


def of_profile(kind: type[Profile], function: Asked) -> Asked:
    """One function of a profile, which takes the profile's parameters beside its own."""

    def asked(**request: Any) -> object:
        names = [field.name for field in dataclasses.fields(kind)]
        profile = kind(**{name: request.pop(name) for name in names if name in request})
        return function(profile, **request)

    own = list(inspect.signature(function).parameters.values())[1:]
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    asked.__signature__ = inspect.Signature([*inspect.signature(kind).parameters.values(), *parameters])  # type: ignore[attr-defined]
    asked.__name__, asked.__module__ = function.__name__, kind.__name__
    return asked


def level(profile: Profile) -> float:
    return profile.rho


def asked_functions() -> list[Asked]:
    found = {
        value
        for module in MODULES
        for name, value in vars(module).items()
        if inspect.isfunction(inspect.unwrap(value) if callable(value) else None)
        and not name.startswith("_")
        and value.__module__ == module.__name__
    }
    profiled = {
        of_profile(kind, function)
        for kind in PROFILES
        for function in (kind.delta, kind.threshold_delta, level, *INVERSES)
    }
    functions = (found - INNER) | profiled | {slack_delta, slack_delta_zcdp}
    return sorted(functions, key=lambda one: (one.__module__, one.__name__))


def one_value(name: str, draw: random.Random) -> object:
    if name in {"rhos", "taus", "sigmas"}:
        return tuple(draw.choice(SIZES) for _ in range(draw.choice((1, 2, 3))))
    if draw.random() < 0.02:
        return draw.choice(NONSENSE)
    return draw.choice(VALUES.get(name, SIZES))


def one_request(function: Asked, draw: random.Random) -> dict[str, object]:
    parameters = inspect.signature(function).parameters.values()
    return {
        one.name: one_value(one.name, draw)
        for one in parameters
        if one.default is inspect.Parameter.empty or draw.random() < 0.5
    }


def numbers(result: object) -> list[float]:
    if dataclasses.is_dataclass(result):
        return [x for one in dataclasses.fields(result) for x in numbers(getattr(result, one.name))]
    return [result] if isinstance(result, float) else []


def check(function: Asked, requests: int, most_groups: int | None = None) -> None:
    """Ask at random extremes, of which a search takes seconds where a million groups are allowed."""
    draw = random.Random(f"{function.__module__} {function.__name__}")
    for _ in range(requests):
        request = one_request(function, draw)
        if most_groups is not None and request.get("max_groups") == 10**6:
            request["max_groups"] = most_groups
        try:
            result = function(**request)
        except CalibrationError:
            continue
        assert all(math.isfinite(number) and number >= 0.0 for number in numbers(result)), (request, result)
        least = smallest_delta(function, request)
        if least is not None:
            assert isinstance(result, float)
            assert result >= least * (1 - mpmath.mpf(2) ** -40), (request, result, least)


def shift_delta(epsilon: object, mu: mpmath.mpf) -> mpmath.mpf:
    """D(mu, epsilon) in many digits."""
    loss = mpmath.mpf(epsilon)
    if mu == 0:
        return mpmath.mpf(0)
    if mu > 1000 and mu * mu > 4 * loss:
        return mpmath.mpf(1) - mpmath.mpf(2) ** -40
    if loss > 40 * mu + mu * mu:
        return mpmath.mpf(0)
    return mpmath.ncdf(mu / 2 - loss / mu) - mpmath.exp(loss) * mpmath.ncdf(-mu / 2 - loss / mu)


def smallest_delta(function: Asked, request: dict[str, object]) -> mpmath.mpf | None:
    """A closed form that no right answer is below: one key that moves by 1, or one of the unit's own that passes."""
    name = function.__name__
    with mpmath.workdps(700):
        if function is gaussian.delta:
            return shift_delta(request["epsilon"], mpmath.mpf(request["sensitivity_l2"]) / mpmath.mpf(request["sigma"]))
        if function is zcdp.composed_delta:
            return max(
                mpmath.mpf(request["threshold_delta"]),
                shift_delta(request["epsilon"], mpmath.sqrt(2 * mpmath.mpf(request["rho"])))
                * (1 - mpmath.mpf(request["threshold_delta"])),
            )
        correlated = function.__module__ == CorrelatedProfile.__name__
        if name not in {"delta", "threshold_delta"} or not (
            correlated or function.__module__ == SparseProfile.__name__
        ):
            return None
        sigma, tau = mpmath.mpf(request["sigma"]), mpmath.mpf(request["tau"])
        if correlated:
            k = request["k"]
            assert isinstance(k, int)
            correlation = request.get("correlation")
            sigma *= mpmath.sqrt(1 + (1 / mpmath.sqrt(k) if correlation is None else mpmath.mpf(correlation)))
        passes = mpmath.ncdf(-tau / sigma) if tau < 1000 * sigma else mpmath.mpf(0)
        if name == "threshold_delta":
            return passes
        return max(passes, shift_delta(request["epsilon"], 1 / sigma))


SLOW = ("best_", "smallest_", "quietest_", "discrete_", "window_")
"""Names of functions that search or integrate."""


def is_slow(function: Asked) -> bool:
    return function.__name__.startswith(SLOW) or function.__module__.endswith(("CorrelatedProfile", "TopKProfile"))


@pytest.mark.parametrize(
    "function", asked_functions(), ids=lambda one: f"{one.__module__.split('.')[-1]}.{one.__name__}"
)
def test_a_safe_number_or_a_refusal(function: Asked) -> None:
    if is_slow(function):
        check(function, 4, most_groups=10_000)
    else:
        check(function, 15)


@pytest.mark.long
@pytest.mark.parametrize(
    "function", asked_functions(), ids=lambda one: f"{one.__module__.split('.')[-1]}.{one.__name__}"
)
def test_a_safe_number_or_a_refusal_at_many_extremes(function: Asked) -> None:
    check(function, 30 if is_slow(function) else 200)


@pytest.mark.parametrize("max_groups", [1, 7])
@pytest.mark.parametrize("kind", [SparseProfile, partial(WeightedProfile, counted_groups=7)])
def test_a_point_at_epsilon_0_and_a_tiny_delta_is_refused_or_holds(
    kind: Callable[..., Profile], max_groups: int
) -> None:
    profile = kind(max_groups=max_groups, sigma=1.0)
    for delta in (1e-300, 1e-281):
        with pytest.raises(CalibrationError, match="delta must be from 1e-280"):
            best_point(profile, 0.0, delta)
    with pytest.raises(CalibrationError, match="leaves the floating-point range"):
        best_point(profile, 0.0, 1e-200)
    point = best_point(profile, 0.0, 1e-100)
    assert isinstance(point, Point)
    assert 0.0 < point.delta <= 1e-100
    assert math.isfinite(point.sigma * point.tau)


def test_every_function_that_is_asked_is_here() -> None:
    names = {one.__name__ for one in asked_functions()}
    assert {"best_point", "delta", "window_delta", "gaussian_rho", "epsilon", "skellam_renyi"} <= names
    assert len(asked_functions()) > 45
