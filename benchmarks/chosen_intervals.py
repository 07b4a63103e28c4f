"""Coverage of the intervals of counts that a first release chose: the table of `docs/proofs/weighted-correlated.md`.

    python -m benchmarks.chosen_intervals                   # two minutes of one core

Each repetition draws a table of 300 counts, noises it twice as `dpsql/mechanism/chosen_counts.py` does, and returns the
rows whose half width is within 10 % of the estimate. Noise is drawn in floating-point numbers. The script prints the
share of returned rows whose interval covers the truth, the quantile that covers 95 % of them, and the share of returned
rows that are within 10 % of the truth.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsql.accounting.weighted_gaussian import Variances, equal_variance, with_best_common
from dpsql.mechanism.chosen_counts import FIRST_PART, Goal, choose_keys, estimated

Floats = npt.NDArray[np.float64]
Table = Callable[[np.random.Generator], Floats]

KEYS = 300
RHO = 1.3525
ERROR = 0.1
QUANTILE = 1.959963984540054
LIMITS = (None, 20)


@dataclass(frozen=True, slots=True, eq=False)
class Returned:
    """Returned rows of many repetitions.

    Attributes:
        estimates: of the counts.
        deviations: standard deviations of the estimates.
        truths: the exact counts.
        per_repetition: the mean number of returned rows.

    """

    estimates: Floats
    deviations: Floats
    truths: Floats
    per_repetition: float

    @property
    def scores(self) -> Floats:
        """Return errors in standard deviations."""
        return (self.estimates - self.truths) / self.deviations

    def coverage(self, quantile: float = QUANTILE) -> float:
        """Return the share of rows whose interval with this quantile covers the truth."""
        return float((np.abs(self.scores) <= quantile).mean())

    def quantile(self, share: float = 0.95) -> float:
        """Return the quantile with which a share of the intervals cover."""
        return float(np.quantile(np.abs(self.scores), share))

    def within(self) -> float:
        """Return the share of rows whose estimate is within the relative error of the truth."""
        return float((np.abs(self.estimates - self.truths) <= ERROR * self.truths).mean())


def by_zipf(total: int, exponent: float = 0.75) -> Table:
    """Return a table of `total` draws by Zipf's law."""
    shares = np.arange(1.0, KEYS + 1.0) ** -exponent
    return lambda rng: rng.multinomial(total, shares / shares.sum()).astype(np.float64)


def fixed(*groups: tuple[int, float]) -> Table:
    """Return a table that has `number` times the count `size`, for each pair (number, size)."""
    counts = np.concatenate([np.full(number, size) for number, size in groups])
    return lambda _: counts


TABLES: dict[str, Table] = {
    **{f"Zipf 0.75, n = {n:,}": by_zipf(n) for n in (8_000, 16_000, 32_000, 64_000, 128_000)},
    **{f"300 counts of {size}": fixed((KEYS, size)) for size in (35, 50, 75, 150, 300)},
    "20 of 100, 280 of 0": fixed((20, 100.0), (280, 0.0)),
    "5 of 1000, 295 of 0": fixed((5, 1000.0), (295, 0.0)),
}


def noisy(counts: Floats, variances: Variances, rng: np.random.Generator) -> Floats:
    """Return counts with correlated noise of these variances."""
    own = rng.normal(0.0, np.sqrt(variances.own))
    return np.asarray(counts + own + rng.normal(0.0, np.sqrt(variances.common)))


def answers(
    table: Table, limit: int | None, repetitions: int, rng: np.random.Generator
) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Draw the estimates, deviations and truths of the returned rows of each repetition."""
    goal = Goal(QUANTILE / ERROR, limit)
    variances = with_best_common(np.full(KEYS, equal_variance(KEYS, RHO / FIRST_PART))).at(RHO / FIRST_PART)
    for _ in range(repetitions):
        counts = table(rng)
        first = noisy(counts, variances, rng)
        choice = choose_keys(first, variances, goal, RHO - RHO / FIRST_PART)
        if choice is None:
            continue
        keys = choice.keys
        second = noisy(counts[keys], choice.variances, rng)
        of_keys = Variances(variances.own[keys], variances.common)
        estimates, deviations = estimated(first[keys], of_keys, second, choice.variances)
        shown = QUANTILE * deviations <= ERROR * np.abs(estimates)
        yield estimates[shown], deviations[shown], counts[keys][shown]


def returned(table: Table, limit: int | None, repetitions: int, seed: int = 57) -> Returned:
    """Return the returned rows of all repetitions together."""
    parts = list(answers(table, limit, repetitions, np.random.default_rng(seed)))
    estimates, deviations, truths = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Returned(estimates, deviations, truths, len(estimates) / repetitions)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repetitions", type=int, default=3_000)
    repetitions = parser.parse_args().repetitions
    print("| table | LIMIT | rows | 1.96 covers | 95 % quantile | within 10 % |\n| --- | --- | --- | --- | --- | --- |")
    for name, table in TABLES.items():
        for limit in LIMITS:
            rows = returned(table, limit, repetitions)
            shares = f"{rows.coverage():.2%} | {rows.quantile():.2f} | {rows.within():.2%}".replace("%", " %")
            print(f"| {name} | {limit or 'none'} | {rows.per_repetition:.1f} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
