"""Two sums after a party dropped out and its numbers arrived late: docs/divisible-noise.md, "If a party drops out"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from dpsql.noise.divisible import DiscreteLaplace, GeneralizedDiscreteLaplace, Share
from dpsql.noise.divisible.law import Logs
from tests.deterministic_entropy import SeededEntropy

EPSILON, MAX_CHANGE, REACH = 1, 20, 300
LAW = DiscreteLaplace.of(EPSILON, MAX_CHANGE)
NIGHTS = {"north": 4120, "south": 2310, "east": 990}
WITHOUT_EAST = ("north", "south")

Packets = dict[str, NDArray[np.uint64]]


def noisy_numbers(parties: Iterable[str], share: Share, entropy: SeededEntropy) -> dict[str, int]:
    """Return the number of each party with its share of the noise."""
    return {party: NIGHTS[party] + int(share.draw(1, entropy)[0]) for party in parties}


def masked(noisy: Mapping[str, int], entropy: SeededEntropy) -> Packets:
    """Return the packets that the parties send: each pair adds and subtracts one mask."""
    sent = {party: np.array([number]).astype(np.uint64) for party, number in noisy.items()}
    names = list(noisy)
    for place, one in enumerate(names):
        for other in names[:place]:
            mask = entropy.words(1)
            sent[one], sent[other] = sent[one] + mask, sent[other] - mask
    return sent


def total(packets: Packets, parties: Iterable[str]) -> int:
    """Return the sum of the packets of some parties."""
    return int(sum((packets[party] for party in parties), np.zeros(1, dtype=np.uint64)).astype(np.int64)[0])


def largest_loss(logs: Logs, change: int) -> float:
    """Return the largest log ratio of the probabilities of two whole numbers at a distance of 1 to `change`."""
    return max(float(np.abs(logs[step:] - logs[:-step]).max()) for step in range(1, change + 1))


def logs_of(law: DiscreteLaplace | GeneralizedDiscreteLaplace) -> Logs:
    return law.log_pmf(np.arange(-REACH, REACH + 1))


def test_the_difference_of_two_sums_of_the_same_noisy_numbers_is_the_late_party_alone() -> None:
    entropy = SeededEntropy(48)
    noisy = noisy_numbers(NIGHTS, LAW.share(3), entropy)
    first = masked(noisy, entropy)
    again = masked({party: noisy[party] for party in WITHOUT_EAST}, entropy)
    assert total(first, NIGHTS) - total(again, WITHOUT_EAST) == noisy["east"]


def test_revealed_masks_make_the_late_numbers_bare() -> None:
    """The masks of the two others with the late party are known; only the sum of these masks matters."""
    entropy = SeededEntropy(51)
    noisy = noisy_numbers(NIGHTS, LAW.share(3), entropy)
    sent = masked(noisy, entropy)
    revealed = total(sent, WITHOUT_EAST) - sum(noisy[party] for party in WITHOUT_EAST)
    assert (total(sent, ["east"]) + revealed) % 2**64 == noisy["east"]


def test_the_same_noisy_numbers_again_cost_the_late_party_the_epsilon_of_one_share() -> None:
    """The two sums are one to one with the second sum and the late numbers, which are independent."""
    one, two = LAW.share(3), GeneralizedDiscreteLaplace(2 * LAW.share(3).shape, LAW.gamma)
    late, others = largest_loss(logs_of(one), MAX_CHANGE), largest_loss(logs_of(two), MAX_CHANGE)
    assert late == pytest.approx(one.epsilon(MAX_CHANGE), rel=1e-9)
    assert late == pytest.approx(3.48, abs=0.005)
    assert others == pytest.approx(two.epsilon(MAX_CHANGE), rel=1e-9)
    assert others == pytest.approx(1.80, abs=0.005)


@pytest.mark.parametrize("parties", [1, 2, 3])
def test_the_noise_of_a_list_is_the_whole_law_for_each_size(parties: int) -> None:
    share = LAW.share(parties)
    whole = GeneralizedDiscreteLaplace(parties * share.shape, share.gamma)
    np.testing.assert_allclose(logs_of(whole), logs_of(LAW), atol=1e-12)
    assert largest_loss(logs_of(whole), MAX_CHANGE) == pytest.approx(EPSILON, rel=1e-9)


def test_fresh_shares_add_up_their_epsilons() -> None:
    """A patient of the two that sent twice is in both sums, and one of the late hospital is in the first sum alone."""
    logs, reach = logs_of(LAW), slice(None, None, 4)
    moved = [(logs[MAX_CHANGE:] - logs[:-MAX_CHANGE])[reach], np.zeros(1)]
    both = np.add.outer(moved[0], moved[0])
    first_alone = np.add.outer(moved[0], moved[1])
    assert np.abs(both).max() == pytest.approx(2 * EPSILON, rel=1e-9)
    assert np.abs(first_alone).max() == pytest.approx(EPSILON, rel=1e-9)
    assert np.abs(both).max() <= 2 * LAW.epsilon(MAX_CHANGE)


def test_the_difference_of_two_sums_of_fresh_shares_keeps_the_noise_of_both() -> None:
    entropy, errors = SeededEntropy(49), []
    for _ in range(400):
        first = masked(noisy_numbers(NIGHTS, LAW.share(3), entropy), entropy)
        again = masked(noisy_numbers(WITHOUT_EAST, LAW.share(2), entropy), entropy)
        errors.append(total(first, NIGHTS) - total(again, WITHOUT_EAST) - NIGHTS["east"])
    # the planted fault of the page, the same noisy numbers again, has the variance of one share: a sixth
    assert np.mean(np.square(errors)) == pytest.approx(2 * LAW.variance, rel=0.3)
    assert LAW.share(3).variance == pytest.approx(LAW.variance / 3)


def test_a_sum_without_the_late_party_is_a_mask() -> None:
    """Other masks on the numbers and noise give sums that fill all 64-bit numbers."""
    noisy = noisy_numbers(NIGHTS, LAW.share(3), SeededEntropy(50))
    sums = [total(masked(noisy, SeededEntropy(seed)), WITHOUT_EAST) for seed in range(64)]
    assert {total(masked(noisy, SeededEntropy(seed)), NIGHTS) for seed in range(64)} == {sum(noisy.values())}
    assert len({number >> 60 for number in sums}) == 16
