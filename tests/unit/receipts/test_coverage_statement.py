"""What is said of coverage is true, all of it together, whichever size is chosen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from dpsql.bound.coverage import BUCKETS, CORNERS, PLACES
from dpsql.mechanism.gaussian_measure import GAUSSIAN
from dpsql.release import coverage
from dpsql.release.coverage import Kept, kept_of
from tests.other_laws import LAPLACE

Floats = npt.NDArray[np.float64]


def _web_log() -> Floats:
    """Rows of 20,000 visitors by a Pareto law of index 1.2, cut at 3,000: 3.6 % of them have 54 % of the rows."""
    return np.minimum(np.floor(4.3 * np.random.default_rng(1).pareto(1.2, 20_000)) + 1.0, 3_000.0)


TABLES = {
    "web log": _web_log(),
    "one row a unit": np.ones(2_000),
    "few keys": np.random.default_rng(2).integers(1, 6, 8_000).astype(np.float64),
    "tail": 16.0 * np.random.default_rng(12).lognormal(0.0, 1.5, 3_000),
    # sizes just beyond the last place that has two ends, and others whose place a hash decides
    "few units": np.repeat([20_000.0, 32_769.0], [200, 100]),
}


def _places(sizes: Floats, most: float, random: np.random.Generator) -> Floats:
    """Units by place where each keeps at most so much, as the SQL of coverage places them."""
    bucket = np.maximum(np.ceil(np.log2(sizes)), 0.0).astype(int)
    drawn, ends = random.random(len(sizes)), 2.0**bucket
    corner = (drawn * ends < sizes) + 2 * (drawn * np.minimum(ends, most) < np.minimum(sizes, most))
    places = np.where(bucket < BUCKETS, CORNERS * bucket + corner, PLACES - 1)
    return np.bincount(places, minlength=PLACES).astype(np.float64)


def _is_true(kept: Kept, sizes: Floats, most: float) -> bool:
    """Check everything that is said against the sizes."""
    if not kept.share:
        return True
    left, is_beyond = np.minimum(sizes, most), sizes > kept.share.size
    share = left[~is_beyond].sum() / sizes[~is_beyond].sum()
    return bool(
        kept.share.low <= share <= kept.share.high
        and kept.least_beyond <= is_beyond.sum() <= kept.most_beyond
        and kept.part_beyond <= sizes[is_beyond].sum() / sizes.sum()
        and left.sum() / sizes.sum() <= kept.high_of_all
    )


def _held(name: str, most: float, sigma: float, releases: int = 100) -> tuple[int, list[Kept]]:
    """Count the releases of which everything is true; a secret places units for every fifth of them."""
    random, sizes, found = np.random.default_rng(7), TABLES[name], []
    for number in range(releases):
        if number % 5 == 0:
            places = _places(sizes, most, random)
        found.append(kept_of(places + random.normal(0.0, sigma, PLACES), sigma, 1.0, most, measure=GAUSSIAN))
    return sum(_is_true(kept, sizes, most) for kept in found), found


CASES = [
    ("web log", np.inf, 26.0),
    ("web log", 8.0, 26.0),
    ("one row a unit", np.inf, 26.0),
    ("few keys", 3.0, 36.0),
    ("tail", 100.0, 8.0),
    ("few units", np.inf, 0.1),
    ("few units", np.inf, 1.0),
]


@pytest.mark.parametrize(("name", "most", "sigma"), CASES)
def test_all_of_it_is_true_together(name: str, most: float, sigma: float) -> None:
    """Of 100 with probability 0.95 fewer than 88 are true with probability 0.002."""
    held, _ = _held(name, most, sigma)
    assert held >= 88


def test_the_check_catches_ends_that_hold_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: ends of 95 % each, and nothing for the choice of the size."""
    planted = coverage._Factors(1.645, 1.645, 1.645, 1.645)
    monkeypatch.setattr(coverage, "_factors", lambda measure, statements: planted)
    assert min(_held(*case)[0] for case in CASES[-3:]) < 88


def test_of_a_web_log_the_least_part_beyond_is_a_fifth_of_the_true_one() -> None:
    sizes = TABLES["web log"]
    _, found = _held("web log", 184.0, 26.0)
    told = [kept for kept in found if kept.share]
    parts = [(kept.part_beyond, sizes[sizes > kept.share.size].sum() / sizes.sum()) for kept in told if kept.share]
    assert sum(part >= true / 5 for part, true in parts) >= 80
    assert len(told) == 100


@pytest.mark.parametrize("name", ["one row a unit", "few keys"])
def test_the_lower_end_is_near_the_share_where_nobody_is_beyond(name: str) -> None:
    _, found = _held(name, np.inf, 26.0, 40)
    whole = [kept.share for kept in found if kept.share and kept.share.size >= TABLES[name].max()]
    assert len(whole) >= 20
    assert sum(share.low >= 0.8 for share in whole) >= len(whole) / 2


def test_without_noise_the_numbers_are_those_of_the_places() -> None:
    """10,000 units with 1 row, 5,000 with 4 of which 2 are left, and 100 with 64 of which 2 are left."""
    noisy = np.zeros(PLACES)
    noisy[3], noisy[CORNERS * 2 + 3], noisy[CORNERS * 6 + 3] = 10_000.0, 5_000.0, 100.0
    kept = kept_of(noisy, 1e-3, 1.0, 2.0, measure=GAUSSIAN)
    assert kept.share
    assert kept.share.size == 64.0
    assert kept.share.value == pytest.approx((10_000 + 2 * 5_000 + 2 * 100) / (10_000 + 4 * 5_000 + 64 * 100))
    assert kept.share.low < kept.share.value < kept.share.high < kept.share.low + 0.02
    assert (kept.least_beyond, kept.part_beyond) == (0.0, 0.0)
    assert kept.high_of_all == kept.share.high
    # the last place has no end: its units are beyond any size
    noisy[-1] = 50.0
    kept = kept_of(noisy, 1e-3, 1.0, 2.0, measure=GAUSSIAN)
    assert kept.share
    beyond = 50 * 2.0**15
    assert kept.least_beyond == pytest.approx(50.0, abs=0.05)
    assert kept.most_beyond == pytest.approx(50.0, abs=0.05)
    assert kept.part_beyond == pytest.approx(beyond / (beyond + 36_400), abs=1e-3)
    assert kept.high_of_all < 0.1


def test_where_no_unit_can_be_larger_nobody_is_beyond() -> None:
    noisy = np.random.default_rng(1).normal(0.0, 20.0, PLACES)
    noisy[3] += 5_000.0
    noisy[CORNERS * 2 + 3] += 5_000.0
    assert kept_of(noisy, 20.0, 1.0, measure=GAUSSIAN).most_beyond > 0.0
    kept = kept_of(noisy, 20.0, 1.0, measure=GAUSSIAN, largest=4.0)
    assert kept.share
    assert (kept.share.size, kept.most_beyond) == (4.0, 0.0)


def test_longer_tails_make_wider_ends() -> None:
    noisy = _places(TABLES["few keys"], 3.0, np.random.default_rng(3))
    gaussian, laplace = (kept_of(noisy, 5.0, 1.0, 3.0, measure=one) for one in (GAUSSIAN, LAPLACE))
    assert gaussian.share
    assert laplace.share
    assert laplace.share.low < gaussian.share.low
    assert laplace.share.high > gaussian.share.high


def test_more_statements_hold_together_by_wider_ends() -> None:
    noisy = _places(TABLES["few keys"], 3.0, np.random.default_rng(3))
    one, three = (kept_of(noisy, 5.0, 1.0, 3.0, measure=GAUSSIAN, statements=number) for number in (1, 3))
    assert one.share
    assert three.share
    assert one.share.size == three.share.size == 8.0
    assert three.share.low < one.share.low
    assert three.share.high > one.share.high
