"""The noise of every Gaussian release: a continuous normal variate rounded to the integers, drawn in bulk.

Contributions are whole numbers of lattice steps, so adding this noise equals adding continuous noise and
rounding the sum: post-processing. Every analysis of the continuous mechanism holds as it stands; what the
imperfect draws add to delta is `slack_delta`. Proofs: docs/proofs/rounded-gaussian.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import CalibrationError, ReleaseError
from dpsql.mechanisms.cell_rejection import MIN_RATIO, rounded_proposals
from dpsql.mechanisms.cumulative_table import TABLE_BITS, CumulativeTable
from dpsql.mechanisms.entropy import Entropy
from dpsql.mechanisms.precise_normal import normal_cdf, working_context

_MAX_SIGMA_STEPS = 2.0**45
# Blocks keep the intermediate arrays in the cache.
_BLOCK = 1 << 15
# Final float64 results are raised by this much, more than their own rounding error.
_ROUND_UP = 1 + 2.0**-40
# Up to here the slack of a release is that of Theorem 5, as it was always charged; what is beyond matters.
_SMALL_SLACK = 2.0**-50
# A normal variate exceeds this with a probability above 2**-117; shifts up to the second number are covered.
_SCORE = 12.461963
_LARGEST_SHIFT = 12.3


@dataclass(frozen=True, slots=True)
class RoundedGaussian:
    """Draw round(sigma_steps * Z), Z standard normal, as whole lattice steps.

    *Guarantee*: draws are independent, and each is within `total_variation` of the law
    P(x) = Phi((x + 1/2) / sigma_steps) - Phi((x - 1/2) / sigma_steps) on the integers. Added to
    contributions that are whole numbers of steps, this is the continuous Gaussian mechanism, post-processed,
    for neighbours that differ in all rows of one unit (add or remove), up to `slack_delta`.
    *Source*: table inversion and rejection (von Neumann 1951); bounds in docs/proofs/rounded-gaussian.md.
    *Args*: `sigma_steps`, the standard deviation before rounding, in lattice steps, in (0, 2**45].
    *Raises*: CalibrationError for any other sigma_steps, NaN included.
    *Assumes*: words of the entropy are uniform and independent.
    *Timing*: no exact value enters, only noise is drawn. The number of rejected proposals is independent of
    the values returned; what is left are caches and branch prediction of one binary search per draw.
    """

    total_variation: ClassVar[float] = 2.0**-117
    sigma_steps: float

    def __post_init__(self) -> None:
        if not 0 < self.sigma_steps <= _MAX_SIGMA_STEPS:
            raise CalibrationError(f"the noise scale must be in (0, 2**45] lattice steps, got {self.sigma_steps!r}")

    def draw(self, count: int, entropy: Entropy) -> NDArray[np.int64]:
        """Return `count` independent draws.

        *Returns*: whole lattice steps. *Shapes*: (count,).
        *Raises*: ReleaseError for a negative count; EntropyError if the entropy fails.
        *Randomness*: one 64-bit word per draw below 32 steps, about three from there on.
        """
        if count < 0:
            raise ReleaseError(f"the number of noise draws cannot be negative, got {count}")
        drawn = np.empty(count, dtype=np.int64)
        if self.sigma_steps < MIN_RATIO:
            self._fill_from_table(drawn, entropy)
        else:
            self._fill_by_rejection(drawn, entropy)
        return drawn

    def _fill_from_table(self, drawn: NDArray[np.int64], entropy: Entropy) -> None:
        table = rounded_normal_table(self.sigma_steps)
        largest = len(table.thresholds) // 2
        for start in range(0, drawn.size, _BLOCK):
            block = drawn[start : start + _BLOCK]
            np.subtract(table.outcomes(entropy.words(block.size), entropy), largest, out=block)

    def _fill_by_rejection(self, drawn: NDArray[np.int64], entropy: Entropy) -> None:
        mantissa, exponent = math.frexp(self.sigma_steps)
        ratio, width_bits = mantissa * (2 * MIN_RATIO), exponent - (2 * MIN_RATIO).bit_length() + 1
        filled = 0
        while filled < drawn.size:
            missing = drawn.size - filled
            # Fewer than one proposal in 41 is rejected on average, so one round is nearly always enough.
            proposals = min(_BLOCK, missing + missing // 32 + 8)
            kept = rounded_proposals(ratio, width_bits, proposals, entropy)[:missing]
            drawn[filled : filled + kept.size] = kept
            filled += kept.size


@lru_cache(maxsize=64)
def rounded_normal_table(sigma_steps: float) -> CumulativeTable:
    """Return the law of largest + round(sigma_steps * Z), exactly symmetric, for sigma_steps below 32.

    *Returns*: 2 * largest thresholds, each within 0.51 * 2**-128 of the normal distribution function; the
    mass above `largest` is below 2**-128 and goes to it.
    """
    variate_scale = 2 * Fraction(sigma_steps)
    context = working_context()
    upper: list[int] = []
    while True:
        cdf = normal_cdf((2 * len(upper) + 1) / variate_scale)
        threshold = round(context.multiply(cdf, 1 << TABLE_BITS))
        if threshold >= 1 << TABLE_BITS:
            return CumulativeTable([(1 << TABLE_BITS) - above for above in reversed(upper)] + upper)
        upper.append(threshold)


def slack_delta(draws: int, epsilon: float) -> float:
    """Return what imperfect draws add to the delta of an (epsilon, delta) guarantee.

    *Guarantee*: if the mechanism with perfect noise is (epsilon, delta)-DP for neighbours that differ in all
    rows of one unit (add or remove), the real one is (epsilon, delta + slack)-DP.
    *Source*: docs/proofs/rounded-gaussian.md, Theorem 4: (1 + e^epsilon) * draws * total_variation.
    *Args*: `draws`, how many noise draws land on coordinates whose exact value the unit can change (every
    draw of the release where coordinates share a noise term); `epsilon` >= 0.
    *Returns*: a probability, rounded up, at most 1.
    *Raises*: CalibrationError for a negative, NaN or infinite argument.

    >>> slack_delta(10, 1.0) < 1e-33
    True
    """
    distance = _distance(draws)
    _require_finite("epsilon", epsilon)
    # e^700 times the smallest distance already exceeds 1.
    return min(1.0, (1 + math.exp(min(epsilon, 700.0))) * distance * _ROUND_UP)


def slack_delta_zcdp(draws: int, rho: float) -> float:
    """Return what imperfect draws add to the delta that the ledger charges for a release at rho, rho unchanged.

    *Guarantee*: in the ledger's sum, for neighbours that differ in all rows of one unit (add or remove), a release with
    these draws costs no more than one with perfect noise and this delta beside it. Up to `_SMALL_SLACK` the real
    mechanism is also (delta + slack)-approximate rho-zCDP where the one with perfect noise is delta-approximate
    rho-zCDP with delta <= 1/2.
    *Source*: docs/proofs/rounded-gaussian.md, Theorem 5 up to `_SMALL_SLACK`: u / (e^-rho / 2 - u) with
    t = 2 * draws * total_variation and u = t + exp(-(sqrt(ln 1/t) - sqrt(rho))^2); beyond it Theorem 6, which is less.
    *Args*: `draws` as in `slack_delta`, `rho` >= 0, the level of the one release that these draws belong to.
    *Returns*: a probability, rounded up, at most 1 (also where the bound says nothing).
    *Raises*: CalibrationError for a negative, NaN or infinite argument.

    >>> slack_delta_zcdp(10, 0.1) < 1e-27, slack_delta_zcdp(10, 20.0) < 1e-8
    (True, True)
    """
    distance = _distance(draws)
    _require_finite("rho", rho)
    if distance == 0:
        return 0.0
    mixed = _mixture_slack(2 * distance, rho)
    return mixed if mixed <= _SMALL_SLACK else max(_SMALL_SLACK, _ledger_slack(distance, rho))


def _mixture_slack(distance: float, rho: float) -> float:
    """Theorem 5, for draws that are within half of `distance`."""
    if distance >= 1 or -math.log(distance) <= rho:
        return 1.0
    gap = math.sqrt(-math.log(distance)) - math.sqrt(rho)
    moved = (distance + math.exp(-gap * gap)) * _ROUND_UP
    overlap = math.exp(-rho) / 2 - moved
    return min(1.0, moved / overlap * _ROUND_UP) if overlap > 0 else 1.0


def _ledger_slack(distance: float, rho: float) -> float:
    """Theorem 6, for draws that are within `distance` together, each within `total_variation`."""
    shift = math.sqrt(2 * rho)
    if shift > _LARGEST_SHIFT:
        return 1.0
    moved = _normal_tail(_SCORE - shift)
    return min(1.0, (4 * distance + moved) * _ROUND_UP)


def _normal_tail(score: float) -> float:
    return 0.5 * math.erfc(score * math.sqrt(0.5))


def _distance(draws: int) -> float:
    if draws < 0:
        raise CalibrationError(f"the number of draws cannot be negative, got {draws}")
    # Cut before the product: an integer beyond the float64 range would raise.
    return min(draws, 1 << 117) * RoundedGaussian.total_variation


def _require_finite(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise CalibrationError(f"{name} must be finite and not negative, got {value!r}")
