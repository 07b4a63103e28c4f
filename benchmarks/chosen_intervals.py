"""Coverage of the intervals of counts that a first release chose: the table of `docs/proofs/weighted-correlated.md`.

    python -m benchmarks.chosen_intervals                   # two and a half minutes of one core
    python -m benchmarks.chosen_intervals --plain           # both releases in all estimates, and 1.96 deviations
    python -m benchmarks.chosen_intervals --bound           # the largest share of missed intervals without clear keys

Each repetition draws a table, noises it twice as `dpsql/mechanism/chosen_counts.py` does, and returns the rows that are
within 10 % by its step-up rule. Noise is drawn in floating-point numbers. The script prints the number of returned
rows, the share of them whose interval covers the truth, and the share that is within 10 % of the truth.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from dpsql.accounting.weighted_gaussian import Variances, with_best_common
from dpsql.mechanism.chosen_counts import FIRST_PART, Goal, choose_keys, estimated, rows_within

Floats = npt.NDArray[np.float64]
Table = Callable[[np.random.Generator], Floats]

KEYS = 300
RHO = 1.3525
ERROR = 0.1
MISS = 0.05


def quantile_of(miss: float) -> float:
    """Return the number of deviations that normal noise exceeds on one side with a probability."""
    return -NormalDist().inv_cdf(miss)


PLAIN = quantile_of(MISS / 2.0)
LIMITS = (None, 20)


@dataclass(frozen=True, slots=True, eq=False)
class Returned:
    """Returned rows, of one repetition or of many.

    Attributes:
        estimates: of the counts.
        half_widths: of their intervals.
        truths: the exact counts.

    """

    estimates: Floats
    half_widths: Floats
    truths: Floats

    @property
    def is_covered(self) -> npt.NDArray[np.bool_]:
        """Return which intervals cover the truth."""
        return np.asarray(np.abs(self.estimates - self.truths) <= self.half_widths)

    @property
    def is_within(self) -> npt.NDArray[np.bool_]:
        """Return which estimates are within the relative error of the truth."""
        return np.asarray(np.abs(self.estimates - self.truths) <= ERROR * self.truths)


NO_ROWS = Returned(np.zeros(0), np.zeros(0), np.zeros(0))


@dataclass(frozen=True, slots=True)
class Setting:
    """Tables of one law, and the level that their counts are released at."""

    table: Table
    rho: float = RHO


def by_zipf(total: int, exponent: float = 0.75, keys: int = KEYS) -> Table:
    """Return a table of `total` draws by Zipf's law."""
    shares = np.arange(1.0, keys + 1.0) ** -exponent
    return lambda rng: rng.multinomial(total, shares / shares.sum()).astype(np.float64)


def fixed(*groups: tuple[int, float]) -> Table:
    """Return a table that has `number` times the count `size`, for each pair (number, size)."""
    counts = np.concatenate([np.full(number, size) for number, size in groups])
    return lambda _: counts


SETTINGS: dict[str, Setting] = {
    **{f"Zipf 0.75, n = {n:,}": Setting(by_zipf(n)) for n in (8_000, 16_000, 32_000, 64_000, 128_000)},
    **{f"300 counts of {size}": Setting(fixed((KEYS, size))) for size in (35, 50, 75, 150, 300)},
    "20 of 100, 280 of 0": Setting(fixed((20, 100.0), (280, 0.0))),
    "5 of 1000, 295 of 0": Setting(fixed((5, 1000.0), (295, 0.0))),
    "20 of 1000, 280 of 35": Setting(fixed((20, 1000.0), (280, 35.0))),
    "100 of 60, 200 of 40": Setting(fixed((100, 60.0), (200, 40.0))),
    "3,000 keys by Zipf 0.75, n = 100,000, R = 0.1": Setting(by_zipf(100_000, keys=3_000), 0.1),
}


def noised(counts: Floats, variances: Variances, rng: np.random.Generator) -> Floats:
    """Return counts with correlated noise. *Shapes*: (trials, keys) or (keys,), twice."""
    own = rng.standard_normal(counts.shape) * np.sqrt(variances.own)
    return np.asarray(counts + own + rng.standard_normal((*counts.shape[:-1], 1)) * np.sqrt(variances.common))


@dataclass(frozen=True, slots=True, eq=False)
class FirstRelease:
    """Counts of one table, and their first release.

    Attributes:
        counts: exact ones. *Shape*: (keys,).
        released: with noise. *Shape*: (keys,).
        variances: of this noise.

    """

    counts: Floats
    released: Floats
    variances: Variances

    def rows(self, goal: Goal, rho: float, rng: np.random.Generator, *, plain: bool = False) -> Returned:
        """Draw the second release at rho, and return the rows that are within the error.

        Args:
            goal: what is asked for.
            rho: the level of the second release.
            rng: of its noise.
            plain: read both releases for all keys, and return rows whose interval of 1.96 deviations is within the
                error; intervals are then too short.

        """
        choice = choose_keys(self.released, self.variances, goal, rho)
        if choice is None:
            return NO_ROWS
        if plain:
            choice = replace(choice, is_clear=np.ones(len(choice.keys), dtype=np.bool_))
        keys = choice.keys
        second = noised(self.counts[keys], choice.variances, rng)
        of_first = Variances(self.variances.own[keys], self.variances.common)
        estimates, deviations = estimated(self.released[keys], of_first, second, choice)
        allowed = ERROR * estimates / deviations
        rows = int((allowed >= PLAIN).sum()) if plain else rows_within(allowed, MISS, quantile_of)
        quantile = PLAIN if plain or not rows else quantile_of(MISS / 2.0 * rows / len(keys))
        shown = np.argsort(-allowed, kind="stable")[:rows]
        return Returned(estimates[shown], quantile * deviations[shown], self.counts[keys][shown])


def repetitions_of(
    setting: Setting, limit: int | None, number: int, *, plain: bool = False, seed: int = 57
) -> Iterator[Returned]:
    """Draw the returned rows of each of a number of repetitions. See `FirstRelease.rows`."""
    rng, goal, of_first = np.random.default_rng(seed), Goal(PLAIN / ERROR, limit), setting.rho / FIRST_PART
    variances: Variances | None = None
    for _ in range(number):
        counts = setting.table(rng)
        variances = variances or with_best_common(np.ones(len(counts))).at(of_first)
        first = FirstRelease(counts, noised(counts, variances, rng), variances)
        yield first.rows(goal, setting.rho - of_first, rng, plain=plain)


def returned(setting: Setting, limit: int | None, number: int, *, plain: bool = False) -> Returned:
    """Return the rows of all repetitions together."""
    parts = list(repetitions_of(setting, limit, number, plain=plain))
    return Returned(
        np.concatenate([one.estimates for one in parts]),
        np.concatenate([one.half_widths for one in parts]),
        np.concatenate([one.truths for one in parts]),
    )


def low_misses(keys: int, share: float) -> float:
    """Return the largest part of rows whose truth is above its interval, over that of independent noise.

    It is the most that any way to pick rows by the other keys' numbers can do. *Source*: Theorem 4 (c) of the page.

    Args:
        keys: the number of chosen keys.
        share: common variance over the whole variance of each key, below 1.

    """
    rows = np.unique(np.concatenate([np.arange(1, min(keys, 100) + 1), np.geomspace(1, keys, 400).astype(int)]))
    quantiles, common = -ndtri(MISS * rows / (2.0 * keys)), np.linspace(-10.0, 10.0, 1_001)
    weights = np.exp(-(common**2) / 2.0)
    lacking = -quantiles[:, None] - np.sqrt(share) * common
    largest = (ndtr(lacking / np.sqrt(1.0 - share)) / rows[:, None]).max(axis=0)
    return float(keys * (largest * weights).sum() / weights.sum() / (MISS / 2.0))


def most_missed(keys: int) -> float:
    """Return a bound on the part of missed rows for any variances with the best common term, and no clear key.

    A key has t = (c/s^2)^2. All t together are 1, or at most 1.1 if own deviations are rounded. `low_misses` rises with
    t. Its mean over keys is at most that of a line above it, at the mean of t, for each slope of the line.
    """
    ends = np.concatenate([[0.0], np.geomspace(1e-6, 1.1, 100)])
    above = np.array([low_misses(keys, root / (1.0 + root)) for root in np.sqrt(ends[1:])])
    slopes = np.linspace(0.0, 40.0 * np.sqrt(keys), 200)[:, None]
    lines = (above - slopes * ends[:-1]).max(axis=1, keepdims=True) + slopes * 1.1 / keys
    return MISS / 2.0 * (1.0 + float(lines.min()))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repetitions", type=int, default=3_000)
    parser.add_argument("--plain", action="store_true", help="both releases in all estimates, and 1.96 deviations")
    parser.add_argument("--bound", action="store_true", help="the largest share of missed intervals, by number of keys")
    arguments = parser.parse_args()
    if arguments.bound:
        for keys in (1, 2, 3, 5, 10, 20, 30, 40, 50, 100, 300, 1_000, 10_000):
            print(f"{keys:,} keys: at most {most_missed(keys):.2%} of the rows are missed")
        return
    print("| table | LIMIT | rows | covered | within 10 % |\n| --- | --- | --- | --- | --- |")
    for name, setting in SETTINGS.items():
        for limit in LIMITS:
            rows = returned(setting, limit, arguments.repetitions, plain=arguments.plain)
            shares = f"{rows.is_covered.mean():.2%} | {rows.is_within.mean():.2%}".replace("%", " %")
            print(
                f"| {name} | {limit or 'none'} | {len(rows.truths) / arguments.repetitions:.1f} | {shares} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
