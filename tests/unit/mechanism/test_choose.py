"""The planner's choice: least noise by policy and text, top-k where it is asked for or needed, shapes that last."""

from __future__ import annotations

import itertools
import math

import pytest

from dpsql.accounting.correlated_histogram import CorrelatedProfile
from dpsql.mechanism.calibrate import Calibration, calibrate
from dpsql.mechanism.correlated_gaussian import ListedHistogram
from dpsql.mechanism.histogram import Histogram, count_sigma
from dpsql.mechanism.measure import Shape
from dpsql.mechanism.registry import choose_frame, histogram_of, mechanism_of, unit_noise
from dpsql.model.estimates import UNITS, Estimate
from dpsql.model.frame import PRESENCE, Frame, Sparsity, Statistic
from dpsql.model.identity import frame_hash
from dpsql.model.private_query import EachKey, Finish, FrameQuery, Request
from tests.frames import with_bounding
from tests.unit.mechanism.key_frames import frame, top_k

WITHOUT_AND_WITH_COMMON_NOISE: tuple[str, ...] = ("gaussian", "correlated_gaussian")
SUM = Statistic(kind="sum", low_steps=0, high_steps=64, lattice_exponent=0, value_sql='"x"')


def query(*frames: Frame, request: Request | None = None, sums: bool = False) -> FrameQuery:
    statistics = (PRESENCE, SUM) if sums else (PRESENCE,)
    return FrameQuery(
        frame=frames[0],
        alternatives=frames[1:],
        statistics=statistics,
        weights=(0.6, 0.4) if sums else (1.0,),
        estimates=(Estimate("n", UNITS, "BIGINT"),),
        finish=Finish(()),
        request=request or Request(0.1, None, 1e-6),
        groups=EachKey(),
    )


def calibrated(asked: FrameQuery) -> Calibration:
    return calibrate(asked, histogram_of(asked.frame))


@pytest.mark.parametrize(("k", "max_groups"), [(2, 1), (2, 2), (50, 3), (50, 8), (50, 50), (4000, 12), (4000, 400)])
def test_listed_keys_get_the_noise_that_is_least(k: int, max_groups: int) -> None:
    candidates = [frame(name, listed=k, max_groups=max_groups) for name in WITHOUT_AND_WITH_COMMON_NOISE]
    chosen = choose_frame(query(*candidates))
    noise = {name.mechanism: unit_noise(name) for name in candidates}
    # a thousandth of noise is not worth another mechanism
    assert unit_noise(chosen.frame) <= min(noise.values()) / 0.999
    assert {chosen.frame.mechanism, chosen.alternatives[0].mechanism} == set(noise)
    assert noise["gaussian"] == pytest.approx(math.sqrt(max_groups / 2), rel=1e-9)


def test_common_noise_pays_from_the_root_of_the_number_of_keys() -> None:
    """Below, its best correlation still has a little less noise, above it has up to half."""
    ratios = {}
    for max_groups in (12, 62, 400, 4000):
        candidates = [frame(name, listed=4000, max_groups=max_groups) for name in WITHOUT_AND_WITH_COMMON_NOISE]
        ratios[max_groups] = unit_noise(candidates[1]) / unit_noise(candidates[0])
    assert 0.99 < ratios[12] < 1.0
    assert ratios[12] > ratios[62] > ratios[400] > ratios[4000]
    assert ratios[4000] == pytest.approx((1 + 4000**-0.5) / 2, rel=1e-3)


@pytest.mark.parametrize("k", [1, 2, 3, 10, 100, 5000])
def test_after_top_k_common_noise_is_never_worse(k: int) -> None:
    chosen = choose_frame(query(top_k("csh", k), top_k("gshm", k)))
    assert chosen.frame.mechanism == "csh"
    assert unit_noise(top_k("csh", k)) < unit_noise(top_k("gshm", k))
    # sigma² (1 + correlation) = (sqrt k + sqrt 2)² / (8 rho), up to whole numbers of keys
    assert unit_noise(top_k("csh", k)) == pytest.approx((math.sqrt(k) + math.sqrt(2)) / math.sqrt(8), rel=0.05)


def test_a_bound_on_groups_helps_counts_after_top_k_but_not_in_a_sketch() -> None:
    assert unit_noise(top_k("csh", 100, 5)) < unit_noise(top_k("csh", 100))
    sketch = frame("csh", max_groups=5, sparsity=Sparsity("sketch", 100))
    assert unit_noise(sketch) == unit_noise(top_k("csh", 100))


def test_the_presence_counts_share_shrinks_with_its_noise() -> None:
    """The share that makes the summed relative variances least: noise after the choice is what counts."""
    independent, correlated = (frame(name, listed=50, max_groups=50) for name in WITHOUT_AND_WITH_COMMON_NOISE)
    before, after = (
        choose_frame(query(independent, sums=True)).weights,
        choose_frame(query(correlated, sums=True)).weights,
    )
    assert before == (0.6, 0.4)
    ratio = unit_noise(correlated) / unit_noise(independent)
    assert after[0] / after[1] == pytest.approx(1.5 * ratio)
    assert math.fsum(after) == pytest.approx(1.0)


FRAMES = (
    frame("gaussian", listed=20, max_groups=3),
    frame("correlated_gaussian", listed=20, max_groups=20),
    frame("correlated_gaussian", listed=20, max_groups=2),
    frame("discrete_correlated_gaussian", listed=20, max_groups=20),
    frame("gshm", max_groups=4),
    top_k("csh", 30),
    top_k("csh", 30, 4),
    top_k("gshm", 30),
    frame("csh", sparsity=Sparsity("sketch", 30)),
)
REQUESTS = (Request(0.02, None, 1e-6), Request(2.0, None, 1e-9), Request(None, 0.3, 1e-6), Request(None, 3.0, 1e-8))


@pytest.mark.parametrize("asked", FRAMES, ids=lambda f: f"{f.mechanism}-{f.key_count}-{f.bounding.max_groups}")
@pytest.mark.parametrize("sums", [False, True])
def test_every_mechanism_answers_every_request_within_it(asked: Frame, sums: bool) -> None:
    for request in REQUESTS:
        made = calibrated(query(asked, request=request, sums=sums))
        histogram = made.histogram
        assert histogram.hides == (made.cut.tau is not None) == (made.cut.delta > 0.0)
        assert made.cut.delta <= (request.delta or 0.0)
        assert made.delta <= (request.delta or 0.0) * (1 + 1e-9)
        if request.epsilon is not None:
            assert made.epsilon <= request.epsilon * (1 + 1e-9)
            # and hardly less: an analyst gets what was asked for
            assert made.epsilon > 0.97 * request.epsilon
        else:
            assert made.rho_nano == round((request.rho or 0.0) * 1e9)


@pytest.mark.parametrize("asked", FRAMES[:4], ids=lambda f: f"{f.mechanism}-{f.bounding.max_groups}")
def test_the_price_of_listed_counts_covers_their_distance(asked: Frame) -> None:
    """The ledger's rho against the distance of two neighbours, computed from the covariance itself."""
    histogram = histogram_of(asked)
    sigma = histogram.sigma(0.1)
    k = asked.key_count or 1
    own, shared = sigma**2, sigma**2 * histogram.shape.correlation
    worst = max(m / own - m * m * shared / (own * (own + k * shared)) for m in range(1, asked.unit_groups + 1))
    assert worst / 2 <= 0.1 * (1 + 1e-12)
    if isinstance(histogram, ListedHistogram):
        assert (
            CorrelatedProfile(
                k=k, sigma=sigma, correlation=histogram.shape.correlation, max_groups=asked.unit_groups
            ).rho
            <= 0.1
        )


@pytest.mark.parametrize("asked", FRAMES, ids=lambda f: f"{f.mechanism}-{f.key_count}-{f.bounding.max_groups}")
def test_a_frame_that_has_points_keeps_their_shape(asked: Frame) -> None:
    fresh = histogram_of(asked)
    assert histogram_of(asked, fresh.shape) == fresh
    if fresh.shape.correlation:
        other = Shape(0.5, fresh.shape.floor_correlation and 0.25)
        kept = histogram_of(asked, other)
        assert kept.shape == other
        assert kept.sigma(0.1) != fresh.sigma(0.1)


@pytest.mark.parametrize("asked", FRAMES, ids=lambda f: f"{f.mechanism}-{f.key_count}-{f.bounding.max_groups}")
def test_noise_that_is_not_gaussian_is_refused_where_the_budget_is_exact_for_it(asked: Frame) -> None:
    is_gaussian = histogram_of(asked).measure.composition == "gaussian"
    assert is_gaussian == ("composition = gaussian" not in mechanism_of(asked).without)


def test_frames_of_different_mechanism_or_sparsity_are_different_frames() -> None:
    hashes = [frame_hash(one) for one in FRAMES]
    assert len(set(hashes)) == len(hashes)
    assert frame_hash(with_bounding(FRAMES[5], sparsity=Sparsity("top_k", 31))) not in hashes


def test_noise_scales_with_the_root_of_rho_for_every_mechanism() -> None:
    def scale(histogram: Histogram, rho: float) -> float:
        return count_sigma(histogram, histogram.sigma(rho)) * math.sqrt(rho)

    for asked, (low, high) in itertools.product(FRAMES, [(0.001, 0.1), (0.1, 10.0)]):
        histogram = histogram_of(asked)
        assert scale(histogram, low) == pytest.approx(scale(histogram, high), rel=1e-6)
