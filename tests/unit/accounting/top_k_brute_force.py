"""Top-k pre-processing on data themselves, and the mechanism with its floor: oracles without the product's formulas."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from tests.unit.accounting.csh_brute_force import COMMON, Floats, output_law

Histogram = tuple[int, ...]


def top_k(counts: Sequence[int], k: int, least: int = 0) -> tuple[Histogram, int]:
    """What is left above the floor, and the floor: the (k+1)-th largest count or 0, at least ``least``."""
    ranked = sorted(counts, reverse=True)
    floor = max(ranked[k] if len(ranked) > k else 0, least)
    return tuple(max(count - floor, 0) for count in counts), floor


@dataclass(frozen=True)
class Neighbours:
    """What is left of two data sets that differ in one unit, and which keys the unit has."""

    before: Histogram
    after: Histogram
    floor_before: int
    floor_after: int
    unit: tuple[bool, ...]

    @property
    def rises(self) -> bool:
        return self.floor_after > self.floor_before

    @property
    def common(self) -> list[int]:
        return [i for i, counts in enumerate(zip(self.before, self.after, strict=True)) if min(counts) > 0]

    @property
    def lost(self) -> int:
        """Keys that only the larger histogram has."""
        return sum((a > 0) != (b > 0) for a, b in zip(self.before, self.after, strict=True))

    @property
    def own(self) -> int:
        """Common keys that the unit has."""
        return sum(self.unit[i] for i in self.common)


def all_neighbours(k: int, keys: int, values: Sequence[int], least: int = 0) -> Iterator[Neighbours]:
    """All data sets with these counts on this many keys, and one unit more, with any keys; keys' order is free."""
    for chosen in itertools.combinations_with_replacement(itertools.product(values, (False, True)), keys):
        counts, unit = [count for count, _ in chosen], tuple(has for _, has in chosen)
        if not any(unit):
            continue
        before, floor_before = top_k(counts, k, least)
        after, floor_after = top_k([count + has for count, has in chosen], k, least)
        yield Neighbours(before, after, floor_before, floor_after, unit)


def squared_distance(
    pair: Neighbours,
    *,
    correlation: float,
    floor_correlation: float,
    aggregate_precision: float = 0.0,
    floor_sign: float = -1.0,
) -> float:
    """Mahalanobis distance, squared, of everything shown if all common keys are, at sigma = 1: no closed form."""
    j = len(pair.common)
    # Rows: common counts, the floor, sums. Columns: independent noises Z, F, C, of the sums.
    loading = np.zeros((2 * j + 1, 2 * j + 2))
    loading[:j, :j] = np.eye(j)
    loading[:j, j] = math.sqrt(correlation)
    loading[j, j] = floor_sign * math.sqrt(correlation)
    loading[j, j + 1] = math.sqrt(floor_correlation)
    loading[j + 1 :, j + 2 :] = np.eye(j)
    shift = [float(pair.after[i] - pair.before[i]) for i in pair.common]
    shift.append(float(pair.floor_after - pair.floor_before))
    shift += [math.sqrt(aggregate_precision) * pair.unit[i] for i in pair.common]
    moved = np.array(shift, dtype=float)
    return float(moved @ np.linalg.solve(loading @ loading.T, moved))


def floor_law(floor: int, *, sigma: float, correlation: float, floor_correlation: float, edges: Floats) -> Floats:
    """Law of the noisy floor's cell for each value of the common noise, which it takes away."""
    centre = floor - sigma * math.sqrt(correlation) * COMMON[:, None]
    bounds = np.concatenate([[-np.inf], edges, [np.inf]])
    scaled = (bounds - centre) / (sigma * math.sqrt(floor_correlation))
    # From the nearer tail, so that even tiny cells keep their digits.
    return np.where(scaled[:, :-1] > 0.0, -np.diff(norm.sf(scaled), axis=1), np.diff(norm.cdf(scaled), axis=1))


@dataclass(frozen=True)
class Mechanism:
    """One release with a floor, on a partition of its outputs."""

    sigma: float
    tau: float
    correlation: float
    floor_correlation: float
    cells: int

    def law(self, histogram: Histogram, floor: int, largest: int, hidden_weight: Floats | None = None) -> Floats:
        """Law of what is shown: the cell of the floor, and of every key with a count."""
        span = 7.0 * self.sigma * (1.0 + math.sqrt(self.correlation))
        low = max(1.0 + self.tau, largest - span)
        key = np.append(1.0 + self.tau, np.linspace(low, largest + span, self.cells)[1:])
        reach = 6.0 * self.sigma * math.sqrt(self.correlation + self.floor_correlation)
        table = floor_law(
            floor,
            sigma=self.sigma,
            correlation=self.correlation,
            floor_correlation=self.floor_correlation,
            # The same cells whichever of two neighbouring floors it is: floors are counted from the lower one.
            edges=np.linspace(-reach, 1.0 + reach, self.cells),
        )
        return output_law(
            histogram,
            sigma=self.sigma,
            tau=self.tau,
            correlation=self.correlation,
            edges=[key] * len(histogram),
            hidden_weight=hidden_weight,
            beside=[table],
        )
