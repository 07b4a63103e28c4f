"""The integer coins of the discrete Gaussian, exactly; its law is tested in tests/statistical."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpsql.errors import CalibrationError, ReleaseError
from dpsql.noise import discrete_gaussian
from dpsql.noise.discrete_gaussian import (
    DiscreteCorrelatedGaussian,
    DiscreteGaussian,
    bernoulli_exp,
    bernoulli_exp_exactly,
    discrete_laplace,
    rational_variance,
    uniform_below,
)
from tests.deterministic_entropy import ScriptedEntropy, SeededEntropy


def floats_in(source: str) -> list[str]:
    """Everything in a module by which a floating-point number could come about."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, float | complex):
            found.append(repr(node.value))
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
            found.append(ast.unparse(node))
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name in {"exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "float", "float64", "mean", "divide"}:
            found.append(name)
    return found


def test_no_floating_point_number_can_come_about() -> None:
    # The one float is the sigma that `rational_variance` takes, and turns into a fraction exactly.
    assert floats_in(inspect.getsource(discrete_gaussian)) == ["float"]
    assert "Fraction(require_positive(" in inspect.getsource(rational_variance)


@pytest.mark.parametrize("planted", ["x = 0.5", "x = a / b", "x /= b", "x = math.exp(a)", "x = np.float64(a)"])
def test_a_planted_float_is_found(planted: str) -> None:
    assert floats_in(planted) != []


class NeedsAnother(Exception):  # noqa: N818
    """The script of uniform integers has ended; the next one lies below `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit


def chance(monkeypatch: pytest.MonkeyPatch, toss: Callable[[], bool], least_weight: Fraction) -> tuple[Fraction, ...]:
    """Chance that `toss` is true, by walking through all its uniform integers; and the weight of what was cut."""
    script: list[int] = []
    position = 0

    def scripted(limit: int, count: int, _entropy: object) -> NDArray[np.uint64]:
        nonlocal position
        if limit == 1 or count == 0:
            return np.zeros(count, dtype=np.uint64)
        assert count == 1
        if position == len(script):
            raise NeedsAnother(limit)
        position += 1
        return np.array([script[position - 1]], dtype=np.uint64)

    monkeypatch.setattr(discrete_gaussian, "uniform_below", scripted)
    waiting: list[tuple[list[int], Fraction]] = [([], Fraction(1))]
    true = cut = Fraction(0)
    while waiting:
        script, weight = waiting.pop()
        position = 0
        if weight < least_weight:
            cut += weight
            continue
        try:
            true += weight * int(toss())
        except NeedsAnother as needs:
            waiting += [([*script, value], weight / needs.limit) for value in range(needs.limit)]
    return true, cut


@pytest.mark.parametrize(("above", "below"), [(0, 1), (1, 1), (1, 2), (2, 3), (3, 5), (1, 7)])
def test_a_coin_has_exactly_its_chance(monkeypatch: pytest.MonkeyPatch, above: int, below: int) -> None:
    coin = below, np.array([above], dtype=np.uint64)
    true, cut = chance(monkeypatch, lambda: bool(bernoulli_exp(1, (coin,), SeededEntropy(0))[0]), Fraction(1, 10**5))
    assert cut < 0.02
    assert float(true) <= math.exp(-above / below) <= float(true + cut)


@pytest.mark.parametrize("variance", [Fraction(1, 2), Fraction(1), Fraction(3, 2)])
@pytest.mark.parametrize("size", [0, 1, 2])
def test_a_proposal_is_kept_with_exactly_its_chance(
    monkeypatch: pytest.MonkeyPatch, variance: Fraction, size: int
) -> None:
    law = DiscreteGaussian(variance)
    kept = np.array([size])
    true, cut = chance(monkeypatch, lambda: bool(law._accepted(kept, SeededEntropy(0))[0]), Fraction(1, 3000))
    assert law._exponent(size) == (size - variance / (math.isqrt(math.floor(variance)) + 1)) ** 2 / (2 * variance)
    assert cut < 0.2
    assert float(true) <= math.exp(-law._exponent(size)) <= float(true + cut)


@given(st.integers(1, 1 << 63), st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=8))
def test_uniform_integers_drop_the_incomplete_block(limit: int, words: list[int]) -> None:
    whole = (1 << 64) - (1 << 64) % limit
    entropy = ScriptedEntropy([*words, 0])
    good = [word % limit for word in words if word < whole]
    assert uniform_below(limit, 1, entropy).tolist() == [0 if limit == 1 else [*good, 0][0]]


def test_several_words_are_drawn_again_where_they_fall_outside() -> None:
    outside = (1 << 64) - 1
    entropy = ScriptedEntropy([outside, 7, outside, outside, 8, 9])
    assert uniform_below(3, 3, entropy).tolist() == [0, 1, 2]
    assert entropy.left == 0


@pytest.mark.parametrize("limit", [1, 2, 3, (1 << 63) - 25, 1 << 63, (1 << 100) + 7])
def test_single_uniform_integers_lie_below_their_limit(limit: int) -> None:
    drawn = [discrete_gaussian._one_uniform_below(limit, SeededEntropy(seed)) for seed in range(100)]
    assert min(drawn) >= 0
    assert max(drawn) < limit
    assert max(drawn) >= limit // 2


def test_single_coins_have_the_chance_of_the_exponential() -> None:
    entropy, tosses = SeededEntropy(4), 4000
    for exponent in (Fraction(0), Fraction(2, 7), Fraction(1), Fraction(9, 4), Fraction(1 << 70, (1 << 70) + 1)):
        share = sum(bernoulli_exp_exactly(exponent, entropy) for _ in range(tosses)) / tosses
        # 4.5 standard errors at most.
        assert abs(share - math.exp(-exponent)) <= 4.5 * math.sqrt(0.25 / tosses)


def test_far_proposals_take_the_exact_way_and_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    law = DiscreteGaussian(rational_variance(2.0**20))
    far = np.array([1 << 40, -(1 << 50), 3], dtype=np.int64)
    monkeypatch.setattr(discrete_gaussian, "discrete_laplace", lambda *_: far)
    kept = [law._proposed(3, SeededEntropy(seed)).tolist() for seed in range(20)]
    assert {tuple(values) for values in kept} <= {(3,), ()}
    assert [3] in kept


@given(st.floats(1e-3, 1e8))
def test_the_rational_variance_is_no_smaller_and_hardly_larger(sigma: float) -> None:
    variance = rational_variance(sigma)
    assert Fraction(sigma) ** 2 <= variance <= Fraction(sigma) ** 2 * (1 + Fraction(1, 1 << 30))
    assert Fraction(float(variance)) == variance
    DiscreteGaussian(variance)


@pytest.mark.parametrize(
    "variance", [Fraction(0), Fraction(-1), Fraction(1, 1 << 57), Fraction(1 << 57), Fraction((1 << 55) + 1, 1 << 9)]
)
def test_a_variance_beyond_the_integers_is_refused(variance: Fraction) -> None:
    if variance == Fraction((1 << 55) + 1, 1 << 9):
        DiscreteGaussian(variance)
        return
    with pytest.raises(CalibrationError):
        DiscreteGaussian(variance)


@pytest.mark.parametrize("wrong", [1.5, 2, math.nan])
def test_only_fractions_are_taken(wrong: Fraction) -> None:
    with pytest.raises(CalibrationError):
        DiscreteGaussian(wrong)
    with pytest.raises(CalibrationError):
        DiscreteCorrelatedGaussian(Fraction(1), wrong)
    with pytest.raises(CalibrationError):
        rational_variance(-float(wrong))


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ReleaseError):
        DiscreteGaussian(Fraction(1)).draw(-1, SeededEntropy(1))


def test_no_draws_need_no_entropy_to_end() -> None:
    assert DiscreteGaussian(Fraction(1)).draw(0, ScriptedEntropy([])).size == 0


def test_laplace_proposals_of_scale_one_have_no_offset() -> None:
    assert np.abs(discrete_laplace(1, 10_000, SeededEntropy(2))).max() < 20


def test_the_correlated_draw_adds_one_common_integer() -> None:
    mechanism = DiscreteCorrelatedGaussian(Fraction(9), Fraction(1, 3))
    noise = mechanism.draw(20, SeededEntropy(6))
    entropy = SeededEntropy(6)
    own = DiscreteGaussian(Fraction(36)).draw(20, entropy)
    common = int(DiscreteGaussian(Fraction(12)).draw(1, entropy)[0])
    assert noise.common == common
    assert noise.values.tolist() == (own + common).tolist()
