"""Intervals of counts that are shown because they exceed a threshold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from dpsql.mechanism.gaussian_measure import GAUSSIAN
from dpsql.model.estimates import Estimate, Linear, Sum
from dpsql.model.frame import PRESENCE
from dpsql.model.top_rows import TopRows
from dpsql.release import near_threshold
from dpsql.release.near_threshold import Hidden, hidden_counts
from dpsql.release.top_rows import RowOrder, Selection, selection_of, wider_of
from tests.other_laws import LAPLACE
from tests.target_walks import COSTS, COUNT, TOTAL, Groups

PLAIN = float(stats.norm.ppf(0.975))
FALSE_ALARM = 1e-4
"""Probability at most with which a seeded count of misses exceeds its limit, if intervals miss in 5 % of cases."""


def hidden(above: npt.ArrayLike, threshold: float = 50.0) -> Hidden:
    """Return counts above a threshold, in standard deviations."""
    excess = np.asarray(above, dtype=np.float64)
    return Hidden(excess, threshold + excess, GAUSSIAN)


@pytest.mark.parametrize("factor", [1.0, 1.6])
def test_lower_ends_are_those_of_counts_that_had_to_exceed_the_threshold(factor: float) -> None:
    excess = np.array([0.4, 0.7, 1.0, 2.0, 4.0])
    quantiles = hidden(excess).wider(factor) * PLAIN
    # the probability of so large a count, given that it is shown, with the truth at the lower end
    odds = stats.norm.sf(quantiles) / stats.norm.sf(quantiles - excess)
    assert odds == pytest.approx(stats.norm.sf(factor * PLAIN), rel=0.02)
    assert (odds <= stats.norm.sf(factor * PLAIN)).all()


def test_lower_ends_are_those_of_the_law_of_the_noise() -> None:
    counts, plain = hidden([2.8, 3.0, 4.0]), LAPLACE.quantile(0.025)
    quantiles = replace(counts, measure=LAPLACE).wider(1.0) * plain
    odds = LAPLACE.tail(quantiles) / LAPLACE.tail(quantiles - counts.above)
    assert odds == pytest.approx(0.025, rel=0.02)


def test_counts_far_above_the_threshold_keep_their_intervals() -> None:
    assert hidden([6.5, 9.0, 1e6]).wider(1.5).tolist() == pytest.approx([1.5] * 3)


def test_no_lower_end_is_below_zero() -> None:
    """A count at the threshold may have any truth, but none below 0."""
    near = hidden([-1.0, 0.0, 1e-9, 0.1], threshold=5.5)
    assert near.wider(1.2) * PLAIN == pytest.approx(near.counts)
    # a number that is itself within its interval of 0 keeps it
    assert hidden([0.5], threshold=1.0).wider(1.2).tolist() == pytest.approx([1.2])


def missed(truth: float, *, knows: bool) -> tuple[int, int]:
    """Return how many intervals of shown counts miss, and how many are shown; the threshold is 5.5."""
    random = np.random.default_rng(round(10 * truth))
    counts = truth + random.normal(size=400_000)
    shown = counts[counts > 5.5]
    widths = PLAIN * (Hidden(shown - 5.5, shown, GAUSSIAN).wider(1.0) if knows else np.ones(len(shown)))
    return int(np.count_nonzero(np.abs(shown - truth) > widths)), len(shown)


@pytest.mark.parametrize("truth", [2.5, 3.5, 4.5, 5.5, 6.5, 9.0])
def test_intervals_of_shown_counts_cover(truth: float) -> None:
    misses, shown = missed(truth, knows=True)
    assert shown > 100
    assert misses <= stats.binom.ppf(1.0 - FALSE_ALARM, shown, 0.05)


def test_intervals_that_do_not_know_of_the_threshold_miss() -> None:
    """Planted fault: plain intervals of the same counts."""
    misses, shown = missed(3.5, knows=False)
    assert misses > stats.binom.ppf(1.0 - FALSE_ALARM, shown, 0.05)


@pytest.mark.parametrize("ratio", [1.05, 1.4, 3.0])
def test_counts_whose_groups_a_quieter_number_has_shown_cover(ratio: float) -> None:
    """The threshold is 5.5 for a number with less noise, which is a part of the count's own."""
    random = np.random.default_rng(round(100 * ratio))
    for far in (2.0, 3.0, 4.0):
        truth = 5.5 - far / ratio
        quiet = truth + random.normal(size=400_000) / ratio
        quiet = quiet[quiet > 5.5]
        counts = quiet + random.normal(size=len(quiet)) * np.sqrt(1.0 - ratio**-2)
        widths = PLAIN * Hidden(counts - 5.5, counts, GAUSSIAN, ratio).wider(1.0)
        misses = np.count_nonzero(np.abs(counts - truth) > widths)
        assert misses <= stats.binom.ppf(1.0 - FALSE_ALARM, len(counts), 0.05)
        # planted fault: plain intervals of the same counts
        assert ratio > 2.0 or np.mean(np.abs(counts - truth) > PLAIN) > 0.2


def test_only_numbers_with_noise_of_the_count_are_wider() -> None:
    step = Groups((COUNT,), {PRESENCE: np.array([60.0, 6.0]), COSTS: np.zeros(2)}, {PRESENCE: 1.0, COSTS: 1.0})
    frame = step.exact_step(10**9).found.values
    order = RowOrder(TopRows(0, True, False, 5), COUNT)
    rows = selection_of(order, frame, slice(None), threshold=5.5)
    assert isinstance(rows.hidden, Hidden)
    assert rows.hidden.above == pytest.approx(hidden_counts(frame, 5.5).above)
    plain, near = np.asarray(wider_of(order, COUNT, rows))
    assert plain == 1.0
    assert near == pytest.approx(rows.hidden.counts[1] / PLAIN)
    assert wider_of(order, TOTAL, rows) == 1.0
    recentred = Estimate("total", Sum(Linear(COSTS, 3.0)), "DOUBLE")
    assert np.asarray(wider_of(order, recentred, rows))[1] == pytest.approx(near)
    assert wider_of(order, COUNT, replace(rows, hidden=None)) == 1.0
    assert wider_of(None, COUNT, Selection(0, 0, 0, GAUSSIAN)) == 1.0


def test_no_widths_are_kept_from_one_reader_to_the_next() -> None:
    """A quantile follows from released numbers, so a quicker second time would tell of another reader's answer."""
    assert not hasattr(near_threshold._after_threshold, "cache_info")
