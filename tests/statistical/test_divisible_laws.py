"""Draws and shares of noise that parties share, at fixed seeds, against the probabilities of each law.

A true law falls below ACCEPTED with chance 1e-4 a check. The faults fall below CAUGHT.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpsql.noise.divisible import (
    DiscreteLaplace,
    DivisibleLaw,
    GeneralizedDiscreteLaplace,
    MultiScaleLaplace,
    TransformedLaplace,
    ValueLaplace,
)
from dpsql.noise.divisible.law import gamma_for
from dpsql.noise.divisible.scaled_sum import ScaledShare
from dpsql.noise.entropy import Integers
from tests.deterministic_entropy import SeededEntropy

pytestmark = pytest.mark.statistical

ACCEPTED, CAUGHT = 1e-4, 1e-9
LAWS: dict[str, DivisibleLaw] = {
    "discrete Laplace": DiscreteLaplace.of(2, 3),
    "generalized": GeneralizedDiscreteLaplace.of(5, 5, parties=1000),
    "multi-scale": MultiScaleLaplace.of(3, 5),
    "spaced": MultiScaleLaplace.of(3, 20),
    "nearest": MultiScaleLaplace.of_nearest(3, 20),
    "values": ValueLaplace.of(2, [5, 10, 30]),
    "dense": ValueLaplace.of(0.4, [2, 5]),
    "lattice": TransformedLaplace.of(9, 1).on_lattice(8),
}


def p_value(drawn: Integers, law: DivisibleLaw, width: float = 8) -> float:
    """Chi-square over single numbers with at least 20 expected draws, and all others as one cell."""
    reach = int(width * law.variance**0.5) + 20
    x = np.arange(-reach, reach + 1)
    expected = np.exp(law.log_pmf(x)) * drawn.size
    often = expected >= 20
    counts = np.array([(drawn == number).sum() for number in x[often]])
    seen = np.append(counts, drawn.size - counts.sum())
    wanted = np.append(expected[often], drawn.size - expected[often].sum())
    return float(stats.chisquare(seen, wanted).pvalue)


@pytest.mark.parametrize("name", LAWS)
def test_draws_have_their_law(name: str) -> None:
    assert p_value(LAWS[name].draw(40_000, SeededEntropy(36)), LAWS[name]) > ACCEPTED


@pytest.mark.long
@pytest.mark.parametrize("name", LAWS)
def test_a_million_draws_have_their_law(name: str) -> None:
    assert p_value(LAWS[name].draw(1_000_000, SeededEntropy(37)), LAWS[name]) > ACCEPTED


def summed(law: DivisibleLaw, parties: int, count: int, seed: int) -> Integers:
    """Return sums of the shares of all parties."""
    entropy, share = SeededEntropy(seed), law.share(parties)
    sums: Integers = share.draw(parties * count, entropy).reshape(parties, count).sum(axis=0)
    return sums


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize(("parties", "count"), [(2, 20_000), (7, 10_000)])
def test_shares_add_up_to_the_law(name: str, parties: int, count: int) -> None:
    assert p_value(summed(LAWS[name], parties, count, 38), LAWS[name]) > ACCEPTED


def test_a_thousand_shares_add_up_to_the_law() -> None:
    assert p_value(summed(LAWS["nearest"], 1000, 1_000, 39), LAWS["nearest"]) > ACCEPTED


@pytest.mark.long
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize(("parties", "count"), [(2, 500_000), (7, 150_000), (1000, 5_000)])
def test_many_shares_add_up_to_the_law(name: str, parties: int, count: int) -> None:
    assert p_value(summed(LAWS[name], parties, count, 40), LAWS[name]) > ACCEPTED


def test_a_missing_party_and_an_epsilon_off_by_a_tenth_are_caught() -> None:
    law = LAWS["multi-scale"]
    entropy, share = SeededEntropy(41), law.share(7)
    six_of_seven = share.draw(6 * 20_000, entropy).reshape(6, 20_000).sum(axis=0)
    assert p_value(six_of_seven, law) < CAUGHT
    wider = MultiScaleLaplace(1, 5, gamma_for(2.7))
    assert p_value(wider.draw(40_000, SeededEntropy(42)), law) < CAUGHT


def test_a_share_of_one_is_the_law() -> None:
    law = MultiScaleLaplace.of(3, 5)
    share = law.share(1)
    assert isinstance(share, ScaledShare)
    assert share.variance == pytest.approx(law.variance)
    np.testing.assert_array_equal(share.draw(50, SeededEntropy(43)), law.draw(50, SeededEntropy(43)))
