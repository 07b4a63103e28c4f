"""The end of people that one group may lack, against brute force over numbers of groups.

The statistical test has a fixed seed and a planted fault, an end that holds in half of the releases.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom

from dpsql.bound.coverage import BUCKETS, CORNERS, PLACES, most_left
from dpsql.features import target_missing as missing_people  # MERGED
from dpsql.features.target_missing import ERROR, missing_weights, most_missing
from dpsql.mechanism.gaussian_measure import GAUSSIAN
from dpsql.model.frame import PRESENCE, Bounding, Frame
from dpsql.model.rows import Key, PublicKeys, Rows, RowsSql
from tests.other_laws import LAPLACE

Floats = npt.NDArray[np.float64]
RELEASES = 600


def frame_of(groups: int, keys: int | None, counted: int | None = None) -> Frame:
    """Return a frame whose units count in some groups, of some public keys or of private ones."""
    public = PublicKeys((("t", "key"),), (keys,), "", (False,)) if keys else None
    rows = Rows("person", "t", "1", Key("unit", "BIGINT"))
    return Frame(rows, RowsSql("t"), Bounding(groups, counted), (Key("key", "BIGINT"),), public)


def left_of(sizes: Floats, frame: Frame) -> Floats:
    """Return in how many groups a unit counts in the mean, as the SQL of coverage computes it."""
    counted = frame.bounding.most_counted or math.inf
    kept = np.minimum(1.0, counted / sizes)
    weight = np.minimum(1.0, np.sqrt(frame.unit_groups / np.minimum(sizes, counted)))
    return sizes * kept * (weight if frame.bounding.counted_groups else 1.0)


def placed(sizes: Floats, drawn: Floats, frame: Frame) -> npt.NDArray[np.int64]:
    """Return the places of units, as the SQL of coverage computes them."""
    bucket = np.maximum(np.ceil(np.log2(sizes)), 0.0)
    ends, left = 2.0**bucket, left_of(sizes, frame)
    corner = (drawn * ends < sizes) + 2 * (drawn * np.minimum(ends, most_left(PRESENCE, frame)) < left)
    return np.where(bucket < BUCKETS, CORNERS * bucket + corner, PLACES - 1).astype(np.int64)


BOUNDS = [(1, 12), (2, 12), (3, 8), (4, 12), (6, 8), (7, 100), (4, None)]
FRAMES = [*(frame_of(groups, keys) for groups, keys in BOUNDS), frame_of(2, 30, 9)]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda one: f"{one.bounding.max_groups} of {one.key_count}")
def test_the_weights_of_a_unit_are_at_least_what_one_of_its_groups_lacks(frame: Frame) -> None:
    drawn = (np.arange(4_000) + 0.5) / 4_000
    candidates, fails = missing_weights(frame), 0
    assert len(candidates) in (1, 2)
    for size in range(1, 1 + min(frame.key_count or 140, 140)):
        sizes = np.full(len(drawn), float(size))
        lacks = 1.0 - float(left_of(sizes, frame)[0]) / size
        means = [float(weights[placed(sizes, drawn, frame)].mean()) for weights in candidates]
        assert min(means) >= lacks - 1e-3
        # the last weights take no unit for one that lacks groups
        assert lacks > 1e-9 or abs(means[-1]) < 1e-3
        fails += 0.9 * min(means) < lacks - 1e-3
    assert fails, "weights that are a tenth too small would not fail"


def test_nobody_lacks_a_group_if_all_groups_count() -> None:
    (weights,) = missing_weights(frame_of(8, 8))
    assert not weights.any()
    assert most_missing(np.full(PLACES, 1e6), 1.0, frame_of(8, 8), GAUSSIAN) == 0.0


def missed(frame: Frame, sizes: Floats, sigma: float) -> int:
    """Count releases whose end is below what the one group lacks that all units are in."""
    random, count = np.random.default_rng(11), 0
    for _ in range(RELEASES):
        noisy = np.bincount(placed(sizes, random.random(len(sizes)), frame), minlength=PLACES) + random.normal(
            0.0, sigma, PLACES
        )
        lacking = int(np.count_nonzero(random.random(len(sizes)) >= left_of(sizes, frame) / sizes))
        count += most_missing(noisy, sigma, frame, GAUSSIAN) < lacking
    return count


@pytest.mark.parametrize(
    ("frame", "sizes"),
    [
        (frame_of(4, 8), np.repeat([3.0, 8.0], [300, 250])),
        (frame_of(3, 8), np.repeat([3.0, 4.0, 8.0], [200, 200, 90])),
    ],
)
def test_the_end_is_seldom_too_low_though_all_are_in_one_group(
    frame: Frame, sizes: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a probability of `ERROR` more misses than this have a probability of 1e-6."""
    most = int(binom.isf(1e-6, RELEASES, ERROR))
    assert missed(frame, sizes, 12.0) <= most
    monkeypatch.setattr(missing_people, "ERROR", 0.5)
    assert missed(frame, sizes, 12.0) > most


def test_an_end_follows_the_noise_and_the_units_that_are_seen() -> None:
    frame, empty = frame_of(4, 8), np.zeros(PLACES)
    assert most_missing(empty, 100.0, frame, GAUSSIAN) == pytest.approx(0.5 * 2.2414 * 100.0, rel=1e-3)
    assert most_missing(empty, 100.0, frame, LAPLACE) > 1.1 * most_missing(empty, 100.0, frame, GAUSSIAN)
    seen = replace(frame, public_keys=None)
    assert most_missing(empty, 100.0, seen, GAUSSIAN) > 5.0 * most_missing(empty, 100.0, frame, GAUSSIAN)
    some = np.bincount(placed(np.full(1_000, 8.0), np.full(1_000, 0.5), frame), minlength=PLACES).astype(np.float64)
    assert most_missing(some, 1.0, frame, GAUSSIAN) > 500.0
    assert most_missing(np.full(PLACES, -1e6), 1.0, frame, GAUSSIAN) == 0.0
