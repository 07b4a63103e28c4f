"""Numbers in the text and tables of pages, each with the code that computes it.

A quote is a piece of a page with {} in place of each number. The numbers are printed in the form that the page has.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import bdtr, ndtr, ndtri

import dpsql
from benchmarks import discrete_noise, range_queries
from dpsql.accounting import gaussian
from dpsql.accounting.window import shown_once, window_delta, window_threshold
from dpsql.mechanism.gaussian_measure import GAUSSIAN
from dpsql.mechanism.gaussian_walks import INTERVALS, QUANTILES
from dpsql.noise import divisible
from dpsql.noise.divisible import (
    DiscreteLaplace,
    DiscreteStaircase,
    GeneralizedDiscreteLaplace,
    MultiScaleLaplace,
    TransformedLaplace,
    ValueLaplace,
)
from dpsql.noise.divisible.law import gamma_for
from dpsql.noise.running_totals import SQUARE_ROOT, FractionalSum, best_power, totals_error
from dpsql.release.left_out import LOW, SURE
from dpsql.release.top_rows import Selection
from tests.documents.pages import ROOT, read_page

Numbers = Callable[[], list[str]]


@dataclass(frozen=True)
class Quote:
    """A piece of a page, with {} in place of each number, and the code that computes the printed numbers."""

    page: str
    words: str
    numbers: Numbers
    is_long: bool = False

    def text(self) -> str:
        """Return the piece with its numbers."""
        numbers = self.numbers()
        assert self.words.count("{}") == len(numbers), f"{self.words} has another number of numbers: {numbers}"
        return self.words.format(*numbers)


def is_on(text: str, page: str) -> bool:
    """Check whether a page has a piece of text, however its lines are broken."""
    return " ".join(text.split()) in " ".join(page.split())


def _errors_of_shares(epsilon: float) -> list[str]:
    variances = [
        DiscreteStaircase.of(epsilon, 20).variance,
        MultiScaleLaplace.of(epsilon, 20).variance,
        MultiScaleLaplace.of_nearest(epsilon, 20).variance,
        GeneralizedDiscreteLaplace.of(epsilon, 20).variance,
        *([GeneralizedDiscreteLaplace.of_theorem_15(epsilon, 20).variance] if epsilon > 5 else []),
        DiscreteLaplace.of(epsilon, 20).variance,
    ]
    return [f"{variance:#.3g}" for variance in variances]


def _spaced_variances() -> list[str]:
    """Return variances at a change of 100 and epsilon 8: by Theorem 18, by nearest multiples, of discrete Laplace."""
    laws = MultiScaleLaplace.of(8, 100), MultiScaleLaplace.of_nearest(8, 100), DiscreteLaplace.of(8, 100)
    return [f"{law.variance:.1f}" for law in laws]


def _loose_split() -> list[str]:
    return [f"{MultiScaleLaplace(3, 3, gamma_for(2.0), gamma_for(1 / 3)).epsilon(10):.2f}"]


def _replaced_price() -> list[str]:
    return [f"{ValueLaplace.of(2, (5, 10, 30, 100)).epsilon_of([5, 20, 25, 70, 90, 95]):.2f}"]


def _below_laplace() -> list[str]:
    return [f"{law.variance:.3f}" for law in (TransformedLaplace.of_theorem_21(5, 1), TransformedLaplace.of(5, 1))]


def _arete() -> list[str]:
    laws = (
        divisible.Arete.of_conjecture_30(12, 1),
        TransformedLaplace.of_theorem_21(12, 1, generalized=True),
        TransformedLaplace.of_theorem_21(12, 1),
    )
    return [f"{law.variance:.5f}" for law in laws]


def _arete_loss() -> list[str]:
    density = divisible.Arete.of_conjecture_30(11, 1).density(np.arange(-12, 12, 0.05))
    return [f"{float(np.abs(np.log(density[20:] / density[:-20])).max()):.3f}"]


def _nearest_multiples() -> list[str]:
    """Return the laws of epsilon 3 in footnote 7's row, those that cost more, their worst loss, those below Δ/r."""
    pairs = [(change, spacing) for change in range(2, 13) for spacing in range(2, change + 1)]
    losses = []
    for change, spacing in pairs:
        law = MultiScaleLaplace(spacing, change // spacing, gamma_for(2), gamma_for(1 / (spacing // 2)))
        logs = law.log_pmf(np.arange(-60 * change, 60 * change + 1))
        losses.append(max(float(np.abs(logs[move:] - logs[:-move]).max()) for move in range(1, change + 1)))
    below = sum((change + spacing // 2) // spacing * spacing < change for change, spacing in pairs)
    return [f"{len(pairs)}", f"{sum(loss > 3 for loss in losses)}", f"{max(losses):.2f}", f"{below}"]


def _residues() -> list[str]:
    parties, scale = 20, 8
    law = MultiScaleLaplace.of(6, scale)
    below_0 = float(np.exp(law.log_pmf(np.arange(-parties * scale, 0))).sum())
    return [f"{below_0 * parties**2:.1f}", f"{law.variance / scale**2 + parties / (4 * scale**2):.3f}"]


def _filters(first: float, moved: float, place: float) -> tuple[float, float, float]:
    """Return Pr[L > place], and the two parts of the delta of the counterexample in ledger.md, section 4."""
    limit, whole = math.sqrt(2 * first), 0.209774829
    start = place / limit + limit / 2
    x = np.linspace(start, start + 12, 20_001)
    density = np.exp(-0.5 * (x - limit) ** 2) / math.sqrt(2 * math.pi)
    rest = np.full_like(x, math.sqrt(2 * (whole - first)))
    bought = np.trapezoid(density * np.exp(gaussian.log_delta(3 - limit * x + first, rest)), x)
    small = 0.5 * math.erfc((limit - start) / math.sqrt(2))
    return 1 - small, moved * small, float(bought)


def _counterexample() -> list[str]:
    _, threshold, bought = _filters(0.151172, 0.99e-6, 1.5)
    return [f"{delta * 1e6:.3f}" for delta in (threshold, bought)] + [f"{(threshold + bought) * 1e6:.2f}"]


def _window(levels: int, ratio: float) -> list[str]:
    rhos = tuple(np.geomspace(0.01, 0.01 * ratio, levels).tolist())
    apart = -float(ndtri(1e-6 / levels))
    share = shown_once(rhos, (apart,) * levels) / 1e-6
    return [f"{share:.3f}", f"{apart:.3f}", f"{window_threshold(1e-6, rhos, max_groups=1):.3f}"]


def _without_window() -> list[str]:
    """Return the delta of 200 levels at the threshold of one release each, in deltas of one release."""
    rhos = np.geomspace(0.01, 1, 200).tolist()
    found = []
    for delta in (5e-9, 1e-6):
        taus = [-float(ndtri(delta)) / math.sqrt(2 * rho) for rho in rhos]
        found.append(f"{window_delta(rhos, taus, max_groups=1) / delta:.0f}")
    return found


def _thresholds(k: int, epsilon: float, delta: float) -> list[str]:
    points = [discrete_noise.best_discrete(epsilon, delta, k, route) for route in discrete_noise.ROUTES]
    points += [discrete_noise.best_continuous(epsilon, delta, k, analysis) for analysis in discrete_noise.ANALYSES]
    return [f"{number:.1f}" for sigma, tau in points for number in (tau, sigma)]


_UNIT_DAYS = (1, 3, 7, 14, 30, 60, 100, 200)


def _three_digits(number: float) -> str:
    return "1" if number == 1 else f"{number:.3f}" if number < 1 else f"{number:.2f}"


def _share_of_plain(total: FractionalSum, most: int, span: int | None = None) -> str:
    return _three_digits(totals_error(total, most, span) / totals_error(FractionalSum(365, 0), most, span))


def _square_root() -> list[str]:
    return [_share_of_plain(FractionalSum(365, SQUARE_ROOT), most) for most in _UNIT_DAYS]


def _best_powers(span: int | None = None) -> list[str]:
    totals = [best_power(365, most, span) for most in _UNIT_DAYS]
    pairs = [
        (_share_of_plain(total, most, span), f"{total.sixteenths}")
        for total, most in zip(totals, _UNIT_DAYS, strict=True)
    ]
    return list(itertools.chain.from_iterable(pairs))


def _beside_a_tree(power: int) -> list[str]:
    total = FractionalSum(365, power)
    return [
        f"{range_queries.fractional_sum(total, most, asked):.2f}"
        for asked in range_queries.questions(365).values()
        for most in range_queries.UNIT_DAYS
    ]


def _binary_tree() -> list[str]:
    levels = range_queries.widths(365, 2)
    return [
        f"{range_queries.tree(365, levels, most, asked):.2f}"
        for asked in range_queries.questions(365).values()
        for most in range_queries.UNIT_DAYS
    ]


def _tuned_tree() -> list[str]:
    return [
        f"{range_queries.tuned_binary_tree(365, most, asked):.2f}"
        for asked in range_queries.questions(365).values()
        for most in range_queries.UNIT_DAYS
    ]


def _single_days() -> list[str]:
    """Return the error of one day by the square root over plain noise, for units of one day and of seven."""
    total, plain = FractionalSum(365, SQUARE_ROOT), FractionalSum(365, 0)
    mean_square = float(np.mean(total.value_norms() ** 2))
    return [f"{total.sensitivity(most) * math.sqrt(mean_square) / plain.sensitivity(most):.2f}" for most in (1, 7)]


def _sensitivities() -> list[str]:
    total = FractionalSum(365, SQUARE_ROOT)
    return [f"{math.sqrt(7) * total.sensitivity(1):.2f}", f"{total.sensitivity(7):.2f}"]


def _noisier_top_k() -> list[str]:
    """Return how much more noise the default correlation has than the quietest one, in percent, at k 10 and 100."""
    ratios = [(k + 3 * math.sqrt(k) + 2) / (math.sqrt(k) + math.sqrt(2)) ** 2 for k in (10, 100)]
    return [f"{100 * (math.sqrt(ratio) - 1):.2g}" for ratio in ratios]


_TOP_ROWS, _EQUAL = "docs/proofs/top-rows.md", 500


def _plain_of_ten() -> list[str]:
    # the number of rank r is within 1.96 if fewer than r of all numbers are above
    return [f"{100.0 * np.mean(bdtr(np.arange(10), _EQUAL, 0.025)):.0f}"]


def _factors_of_five() -> list[str]:
    return [f"{Selection(5, candidates, 300, GAUSSIAN).wider():.2f}" for candidates in (6, 300)]


def _factor_of_equal_groups() -> list[str]:
    return [f"{Selection(10, _EQUAL, _EQUAL, GAUSSIAN).wider():.2f}"]


def _first_of_ten() -> list[str]:
    return [f"{100.0 * (1.0 - (1.0 - 0.045 * 10 / (2 * _EQUAL)) ** _EQUAL):.0f}"]


def _quantiles(confidence: float) -> list[str]:
    fixed = -float(ndtri((1 - confidence) / 2))
    return [f"{quantile:.2f}" for _, quantile in QUANTILES[confidence]] + [f"{fixed:.3f}"]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}" if share < 0.0995 else f"{100 * share:.0f}"


def _too_low(parts: int) -> list[str]:
    """Return how often numbers are said to be too low, by the part that is missing, and from where in 80 %."""
    missing = np.array([0.0, 0.02, 0.05, 0.08, 0.15, 0.2])
    least = (SURE + float(ndtri(0.8))) / parts
    chances = ndtr(missing / (1 - missing) * parts - SURE)
    return [*map(_percent, chances), f"{100 * least / (1 + least):.1f}"]


def _wrong_if_printed() -> list[str]:
    """Return how often a printed lower end is too high, by what is left out in standard deviations."""
    left_out = np.array([1.5, 2.0, 2.5, 3.0, 4.0, 5.0])
    return [*map(_percent, ndtr(-np.maximum(LOW, SURE - left_out)) / ndtr(left_out - SURE))]


def _budget(epsilon: float, settings: str) -> float:
    """Return the rho of a unit's budget of this epsilon and delta 1e-6."""
    with dpsql.connect() as session:
        session.sql(f"CALL dp_unit('reader', epsilon_budget := {epsilon}, delta_budget := 1e-6, {settings})")
        (row,) = session.sql("FROM dp_budget('reader')").df().to_dict("records")
        return float(row["rho_budget"])


def _budgets(epsilon: float, digits: int) -> list[str]:
    zcdp, gaussian, listed = (
        _budget(epsilon, settings)
        for settings in ("composition := 'zcdp'", "composition := 'gaussian'", "thresholds := false")
    )
    more = [f"{100 * (ratio - 1):.1f}" for ratio in (gaussian / zcdp, listed / gaussian)]
    return [f"{zcdp:.{digits}f}", f"{gaussian:.{digits}f}", more[0], f"{listed:.{digits}f}", more[1]]


def _printed(page: str, pattern: str) -> list[str]:
    """Return the numbers that a pattern finds in the outputs of a page, which its own test compares."""
    output = "".join(block.output or "" for block in read_page(ROOT / page).blocks)
    (found,) = set(re.findall(pattern, output))
    return [found] if isinstance(found, str) else list(found)


_SHARES, _PROOF, _ERRATA = "docs/divisible-noise.md", "docs/proofs/divisible-noise.md", "docs/errata-divisible.md"
_LEDGER, _WINDOW, _LEFT_OUT = "docs/proofs/ledger.md", "docs/proofs/window.md", "docs/proofs/left-out.md"
_TOTALS, _DISCRETE = "docs/proofs/running-totals.md", "docs/proofs/discrete-gaussian.md"
_SPENT = r"spent: ([\d.]+) of 3"
_SIX, _EIGHT_WITH_POWERS = " | ".join(["{}"] * 6), " | ".join(["{} ({})"] * 8)

QUOTES = (
    Quote("README.md", "as epsilon {}.", partial(_printed, "README.md", _SPENT)),
    Quote("README.md", "not {}.", lambda: [f"{10 * float(*_printed('README.md', _SPENT)):.2f}"]),
    Quote("docs/tutorial-sql.md", "so far: {} of 3.", partial(_printed, "docs/tutorial-sql.md", _SPENT)),
    *(
        Quote(
            "docs/sql-declarations.md",
            f"| {epsilon:g} | {{}} | {{}} ({{}} %{words[0]}) | {{}} ({{}} %{words[1]}) |",
            partial(_budgets, epsilon, digits),
        )
        for epsilon, digits, words in (
            (0.1, 6, (" more", " more again")),
            (1, 4, ("", "")),
            (3, 4, ("", "")),
            (10, 3, ("", "")),
        )
    ),
    *(
        Quote(
            _SHARES,
            f"| {epsilon} | {{}} | {{}} | {{}} | {{}} | {theorem} | {{}} |",
            partial(_errors_of_shares, epsilon),
        )
        for epsilon, theorem in ((4, ""), (6, "{}"), (8, "{}"), (10, "{}"))
    ),
    Quote(_SHARES, "At epsilon 8 the error of a sum is {}", lambda: _errors_of_shares(8)[1:2]),
    Quote(_SHARES, "alone, it is {} times the number", lambda: _errors_of_shares(8)[1:2]),
    Quote(_PROOF, "the variances are {} and {}; discrete Laplace noise has {}.", _spaced_variances),
    Quote(_PROOF, "`b = 1/3` the paper claims 3, and {} is true.", _loose_split),
    Quote(_PROOF, "at a designed epsilon of 2 leaks {} under", _replaced_price),
    Quote(_PROOF, "at `ε = 11` and a change of 1 is {}.", _arete_loss),
    Quote(
        _ERRATA,
        "there are {} laws of a designed epsilon of 3. With `⌊Δ/r⌋`, {} of them cost more, up to {}. "
        "With the other `Δ_0` none does, though it is below `Δ/r` in {}:",
        _nearest_multiples,
    ),
    Quote(_ERRATA, "the smallest epsilon is {};", _loose_split),
    Quote(_ERRATA, "Variance {} in place of {} at Δ 100, ε 8;", lambda: _spaced_variances()[1::-1]),
    Quote(_ERRATA, "{} against {} at ε 5;", _below_laplace),
    Quote(_ERRATA, "ε 12, Δ 1: {} against {}; the multi-scale form has {} |", _arete),
    Quote(_ERRATA, "a designed epsilon of 2 leaks {};", _replaced_price),
    Quote(_ERRATA, "the error is {} in place of at most {};", _residues),
    Quote(_LEDGER, "= {} · 10⁻⁶ + {} · 10⁻⁶ = {} · 10⁻⁶,", _counterexample),
    Quote(_LEDGER, "`Pr[L > 1.5] = {}`", lambda: [f"{_filters(0.151172, 0.99e-6, 1.5)[0]:.4f}"]),
    Quote(_LEDGER, "reaches `{} · 10⁻⁶`", lambda: [f"{1e6 * sum(_filters(0.19835389, 0.5e-6, 2.36)[1:]):.2f}"]),
    *(
        Quote(_WINDOW, f"| {levels}, {ratio} | {{}} | {{}} | {{}} |", partial(_window, levels, ratio))
        for levels, ratio in ((5, 16), (10, 100), (50, 100), (200, 100), (10, 1.5))
    ),
    Quote(_WINDOW, "key with {} times its delta if that is 5e-9, and {} times if it is 1e-6.", _without_window),
    *(
        Quote(
            _DISCRETE,
            f"| {k}, {epsilon:g}, 1e-{digits} |" + " {} at {} |" * 4,
            partial(_thresholds, k, epsilon, 10.0**-digits),
        )
        for k, epsilon, digits in ((10, 0.35, 5), (100, 1.0, 5), (1000, 0.35, 8))
    ),
    Quote(_TOTALS, "| square root |" + " {} |" * 8, _square_root),
    Quote(_TOTALS, f"| best power | {_EIGHT_WITH_POWERS} |", _best_powers),
    Quote(_TOTALS, f"| best power for the last 30 days | {_EIGHT_WITH_POWERS} |", partial(_best_powers, 30)),
    Quote(_TOTALS, "| plain noise | " + _SIX, partial(_beside_a_tree, 0)),
    Quote(_TOTALS, "| square root | " + _SIX, partial(_beside_a_tree, SQUARE_ROOT)),
    Quote(_TOTALS, "| binary tree | " + _SIX, _binary_tree),
    Quote(_TOTALS, "| binary tree, tuned | {} | {} | **{}** | {} | {} | {}", _tuned_tree, is_long=True),
    Quote(_TOTALS, "square root has {} times the error of plain noise on one day, with `m = 7` {} times", _single_days),
    Quote(_TOTALS, "At `n = 365`, `m = 7` it is {}, and {} is attained", _sensitivities),
    *(
        Quote(_LEFT_OUT, f"| 1/{parts} | {' | '.join(['{} %'] * 7)} |", partial(_too_low, parts))
        for parts in (30, 20, 15)
    ),
    Quote(_LEFT_OUT, f"| wrong if printed | 100 % | {' | '.join(['{} %'] * 6)} |", _wrong_if_printed),
    Quote("docs/proofs/top-k.md", "{} % more noise at `k = 10`, {} % at 100.", _noisier_top_k),
    *(
        Quote("docs/proofs/target.md", f"| {confidence} | {{}} | {{}} | {{}} | {{}} |", partial(_quantiles, confidence))
        for confidence in QUANTILES
    ),
    Quote(_TOP_ROWS, "Of 500 equal groups, {} % of the plain 95 % intervals of the first ten cover.", _plain_of_ten),
    Quote(_TOP_ROWS, "have `M = 6`, and a factor of {}. If all 300 are equal, it is {}.", _factors_of_five),
    Quote(_TOP_ROWS, "its interval misses in {} % of answers", _first_of_ten),
    Quote("docs/accuracy.md", "equal size, {} % of the plain intervals of the first ten hold", _plain_of_ten),
    Quote("docs/accuracy.md", "of 500 equal groups it is {};", _factor_of_equal_groups),
    Quote(
        "docs/proofs/target.md",
        "beside a rule of 0.9 | {} | {} | {} | |",
        lambda: [f"{quantile:.2f}" for _, quantile in INTERVALS[0.9]],
    ),
)
