"""A sparse histogram over a huge public domain, released round after round at rising rho.

The domain is a rule: the keys 0 .. domain_size - 1, of which a few are listed with their counts. In every round the
keys whose noisy count exceeds the threshold are shown. Noise is drawn for listed keys and for those shown before;
of all others, whose counts are 0, only the ones that now exceed for the first time are drawn, with exactly the noise
that they would have had. Work and memory grow with what is listed and shown, not with the domain. Everything that
decides is an integer. Proofs: docs/proofs/sparse-gradual.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpsql.accounting.profile import require_max_groups
from dpsql.errors import CalibrationError, ReleaseError
from dpsql.noise.discrete_gaussian import DiscreteGaussian, bernoulli_exp_of_sum, uniform_below
from dpsql.noise.entropy import Entropy, Integers
from dpsql.noise.rounded_gaussian import CumulativeTable, table_of_weights, working_context

NANO = 10**9
# A larger mean would ask for a table of more than 2**17 outcomes.
MOST_EXPECTED = 1 << 24
# Keys, counts, and rho_nano times a threshold, stay below.
_LARGEST = 1 << 60
_HIGHEST_LEVEL = 1000 * NANO
_MOST_ROUNDS = 1 << 8
# 40 standard deviations of the widest weighted noise; the sum over all rounds stays below 2**59.
_WIDEST_NOISE = 1 << 51
# Candidates of all rounds together take up at most this share of a zero key's chances.
_MOST_CHANCE = Decimal("0.99")
# Outcomes of trials less likely than this, against the likeliest, are left out.
_LEAST_WEIGHT = Decimal("1e-48")
_MOST_TRIALS = 1 << 62
_BLOCK = 1 << 16
_OUT_OF_RANGE = "a noise draw left the range of 64-bit integers; nothing was shown"


@dataclass(frozen=True, slots=True, eq=False)
class SparseRound:
    """What one round shows: safe to publish as a whole.

    Attributes:
        keys: the keys whose noisy count exceeds the threshold, ascending, (shown,).
        values: their noisy counts, (shown,).
    """

    keys: Integers
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SparseGradual:
    """All that the next round needs; secret, for it holds the true counts. Begin with `over`.

    *Guarantee*: the rounds up to level rho_nano together are (rho_nano / 1e9)-zCDP for counts of whole numbers of
    which one unit moves at most max_groups, by 1 each, under a domain that is public; neighbours differ in all rows
    of one unit (add or remove). What the simulation adds to delta: `slack_delta` (of rounded_gaussian) of
    `slack_draws`.
    *Source*: Andersson, Retschmeier, Nelson and Pagh 2025, Algorithms 3 and 6. Algorithm 6 is made right here: as
    printed it has the wrong law from round 2 on and does not divide by rho (docs/proofs/sparse-gradual.md).
    *Symbols*: domain_size is d, max_groups is l = Delta_2^2, noise is 1e9 rho_r Z^(r), bars are floor(1e9 rho_r
    tau_r), keys is S^(r).
    *Assumes*: words of the entropy are uniform and independent; thresholds and levels come from public knowledge
    and from what was shown before.
    *Timing*: grows with the number of listed keys and of proposed ones, and as `DiscreteGaussian`.

    Attributes:
        domain_size: how many keys there are, 0 .. domain_size - 1.
        max_groups: most keys that one unit moves.
        keys: those that noise is kept for, ascending: listed at the start, or shown once.
        counts: their exact counts.
        noise: for each, the sum over rounds of the rise of rho_nano times that round's noise.
        levels: rho_nano of the rounds so far, rising.
        bars: for each round, a key was shown if rho_nano times its noisy count exceeded this.
        undecided: how many other keys were not yet proposed in any round.
        simulated: whether keys of count 0 may be missing from `keys`.
    """

    slack_draws_per_round: ClassVar[int] = 1 << 7

    domain_size: int
    max_groups: int
    keys: Integers
    counts: Integers
    noise: Integers
    levels: tuple[int, ...]
    bars: tuple[int, ...]
    undecided: int
    simulated: bool

    @classmethod
    def over(cls, domain_size: int, keys: Integers, counts: Integers, *, max_groups: int) -> SparseGradual:
        """Return the state before the first round.

        *Args*: `domain_size` from 1 to 2**60; `keys`, ascending and different, with `counts` from 0 to 2**60, hold
        every key with a count other than 0.
        *Shapes*: (listed,) both. *Randomness*: none.
        *Raises*: CalibrationError for a domain_size or max_groups out of range, ReleaseError for bad arrays.
        """
        if isinstance(domain_size, bool) or not isinstance(domain_size, int) or not 1 <= domain_size <= _LARGEST:
            raise CalibrationError(f"the domain must hold from 1 to 2**60 keys, got {domain_size!r}")
        if keys.ndim != 1 or keys.shape != counts.shape or keys.dtype != np.int64 or counts.dtype != np.int64:
            raise ReleaseError("keys and counts must be two arrays of 64-bit integers of one length")
        if keys.size and (keys[0] < 0 or keys[-1] >= domain_size or not (keys[1:] > keys[:-1]).all()):
            raise ReleaseError("keys must ascend, differ and lie in the domain")
        if counts.size and (counts.min() < 0 or counts.max() > _LARGEST):
            raise ReleaseError("counts must lie between 0 and 2**60")
        return cls(
            domain_size=domain_size,
            max_groups=require_max_groups(max_groups),
            keys=keys.copy(),
            counts=counts.copy(),
            noise=np.zeros(keys.size, dtype=np.int64),
            levels=(),
            bars=(),
            undecided=domain_size - keys.size,
            simulated=True,
        )

    @classmethod
    def over_every_key(cls, counts: Integers, *, max_groups: int) -> SparseGradual:
        """Return the state before the first round of Algorithm 3: noise for every key, whatever the thresholds.

        *Args*: `counts` from 0 to 2**60 of the keys 0, 1, ... in order.
        *Shapes*: (domain_size,). *Randomness*: none. *Raises*: as `over`.
        """
        return replace(cls.over(counts.size, np.arange(counts.size), counts, max_groups=max_groups), simulated=False)

    @property
    def slack_draws(self) -> int:
        """How many draws of RoundedGaussian the simulation of the rounds so far counts as."""
        return self.slack_draws_per_round * len(self.levels) if self.simulated else 0

    def release(self, rho_nano: int, tau: float | Fraction, entropy: Entropy) -> tuple[SparseRound, SparseGradual]:
        """Draw the next round: what it shows, and the state to keep, which must be durable before that is shown.

        *Guarantee*: the cost of the round is the rise of rho_nano; with it the state is at the level rho_nano.
        *Args*: `rho_nano`, above all earlier levels, in nano-rho; `tau`, at least 0, in counts: a key is shown if
        its noisy count exceeds tau, strictly.
        *Returns*: noisy counts whose noise is at most as wide as N(0, max_groups / (2 rho)).
        *Raises*: CalibrationError, before anything is drawn, for other levels and thresholds and where the
        thresholds are so low that simulating zero counts does not pay (see `over_every_key`). EntropyError, and
        ReleaseError if noise leaves the range of 64-bit integers.
        *Randomness*: a draw of DiscreteGaussian per kept key; about 3 + 3 tau/sigma proposals of one draw per round
        so far for each zero key that is shown.
        """
        following = self._at(rho_nano, tau)
        chance = _chance(following) if self.simulated else Decimal(0)
        rise = rho_nano - (self.levels[-1] if self.levels else 0)
        noise = self.noise + _weighted(rise, self.max_groups, self.keys.size, 0, entropy)
        proposed = draw_binomial(self.undecided, chance, entropy) if self.simulated else 0
        blocks = [following._kept_noise(min(_BLOCK, proposed - start), entropy) for start in range(0, proposed, _BLOCK)]
        new_noise = np.concatenate([np.empty(0, dtype=np.int64), *blocks])
        new_keys = _untouched_keys(self.domain_size, self.keys, new_noise.size, entropy)
        keys = np.concatenate([self.keys, new_keys])
        order = np.argsort(keys, kind="stable")
        state = replace(
            following,
            keys=keys[order],
            counts=np.concatenate([self.counts, np.zeros_like(new_keys)])[order],
            noise=np.concatenate([noise, new_noise])[order],
            undecided=self.undecided - proposed,
        )
        return state._shown(), state

    def _at(self, rho_nano: int, tau: float | Fraction) -> SparseGradual:
        """Return the state with one more level and bar, both checked."""
        lowest = self.levels[-1] if self.levels else 0
        if isinstance(rho_nano, bool) or not isinstance(rho_nano, int) or not lowest < rho_nano <= _HIGHEST_LEVEL:
            raise CalibrationError(
                f"the next level must be a whole number of nano-rho above {lowest}, got {rho_nano!r}"
            )
        if len(self.levels) == _MOST_ROUNDS:
            raise CalibrationError(f"a gradual release has at most {_MOST_ROUNDS} rounds")
        if not 0 <= tau < math.inf or (bar := math.floor(Fraction(tau) * rho_nano)) > _LARGEST:
            raise CalibrationError(f"the threshold must be at least 0 and rho times it at most 2**60e-9, got {tau!r}")
        return replace(self, levels=(*self.levels, rho_nano), bars=(*self.bars, bar))

    def _shown(self) -> SparseRound:
        level, bar = self.levels[-1], self.bars[-1]
        # Any count beyond the cap exceeds the bar whatever its noise; without the cap the product might overflow.
        capped = np.minimum(self.counts, 2 * _LARGEST // level)
        chosen = np.flatnonzero(self.noise > bar - level * capped)
        # Whole part and remainder depend on the noisy count alone; a sum of floats would betray the exact one.
        whole, rest = np.divmod(self.noise[chosen], level)
        return SparseRound(self.keys[chosen], (self.counts[chosen] + whole) + rest / level)

    def _kept_noise(self, count: int, entropy: Entropy) -> Integers:
        """Propose zero keys that may exceed the last bar, and none before; return the noise of those that are kept.

        A proposal is drawn as if its count were `shift`, near the threshold: too often, so it is kept with the ratio of
        the two laws, exp(-2 shift excess / (max_groups NANO)), by an exact coin.
        """
        least, shift = _least_exceeding(self.levels, self.bars[-1])
        noise, lowest = np.zeros(count, dtype=np.int64), 0
        for level, bar in zip(self.levels, self.bars, strict=True):
            rise, lowest = level - lowest, level
            noise += _weighted(rise, self.max_groups, noise.size, shift, entropy)
            exceeds = noise > bar
            noise = noise[exceeds if level == self.levels[-1] else ~exceeds]
        excess = noise - least
        if excess.size and int(excess.max()) * 2 * shift >= 1 << 63:
            raise ReleaseError(_OUT_OF_RANGE)
        denominator = self.max_groups * NANO
        whole, rest = np.divmod(excess * (2 * shift), denominator)
        products = ((np.ones_like(whole), ((denominator, rest.astype(np.uint64)),)), (whole, ()))
        return noise[bernoulli_exp_of_sum(excess.size, products, entropy)]


def _chance(state: SparseGradual) -> Decimal:
    """Return with which probability an undecided key is proposed for the last bar.

    A refusal depends on domain, levels and thresholds only: how many keys are listed is private.
    """
    with localcontext(working_context()):
        rounds = range(1, len(state.levels) + 1)
        *earlier, last = (_envelope(state.max_groups, state.levels[:n], state.bars[n - 1]) for n in rounds)
        undecided = 1 - sum(earlier, Decimal(0))
        if undecided - last < 1 - _MOST_CHANCE or last * state.domain_size > MOST_EXPECTED * undecided:
            raise CalibrationError("the thresholds are too low to simulate the zero counts of the domain's keys")
        return last / undecided


def _least_exceeding(levels: tuple[int, ...], bar: int) -> tuple[int, int]:
    """Return the least sum above the bar that rises of these levels, times whole numbers, can have.

    With it goes the whole count nearest to where the noisy count just exceeds.
    """
    step = math.gcd(*levels)
    least = (bar // step + 1) * step
    return least, (2 * least + levels[-1]) // (2 * levels[-1])


def _envelope(max_groups: int, levels: tuple[int, ...], bar: int) -> Decimal:
    """Return the largest ratio of the law of zero counts, where they exceed, to that of proposals."""
    least, shift = _least_exceeding(levels, bar)
    # At least 0, for shift <= least / level + 1/2.
    exponent = Decimal(2 * shift * least - shift * shift * levels[-1]) / (max_groups * NANO)
    return (-exponent).exp()


def _weighted(rise: int, max_groups: int, count: int, shift: int, entropy: Entropy) -> Integers:
    """Return `rise` times fresh noise around `shift` that costs a rise of rho_nano."""
    drawn = shift + DiscreteGaussian(Fraction(max_groups * NANO, 2 * rise)).draw(count, entropy)
    if count and max(int(drawn.max()), -int(drawn.min())) * rise > _WIDEST_NOISE:
        raise ReleaseError(_OUT_OF_RANGE)
    return np.asarray(rise * drawn, dtype=np.int64)


def _untouched_keys(domain_size: int, taken: Integers, count: int, entropy: Entropy) -> Integers:
    """Return `count` different keys of the domain, all sets of keys outside the ascending `taken` equally likely."""
    left = domain_size - taken.size
    if count > left - count:
        # The few that are not chosen are chosen instead; `left` is then below twice the result.
        ranks = np.setdiff1d(np.arange(left), _distinct_below(left, left - count, entropy), assume_unique=True)
    else:
        ranks = _distinct_below(left, count, entropy)
    return np.asarray(ranks + np.searchsorted(taken - np.arange(taken.size), ranks, side="right"), dtype=np.int64)


def _distinct_below(limit: int, count: int, entropy: Entropy) -> Integers:
    """Return `count` different integers below `limit`, ascending; at most half of them may be asked for."""
    chosen = np.empty(0, dtype=np.int64)
    while chosen.size < count:
        chosen = np.union1d(chosen, uniform_below(limit, count - chosen.size, entropy).astype(np.int64))
    return chosen


def draw_binomial(trials: int, chance: Decimal, entropy: Entropy) -> int:
    """Return how many of `trials` independent trials succeed, each with probability `chance`.

    The work grows with the standard deviation, never with the number of trials.

    *Law*: within 2**-110 of the binomial law in total variation, for a `chance` that is right to 50 digits.
    *Source*: table inversion around the mode; docs/proofs/sparse-gradual.md, Lemma 3.
    *Args*: `trials` in 0..2**62; `chance` from 0 to 0.99, with at most 2**24 successes expected.
    *Raises*: CalibrationError for any other, NaN included; EntropyError if the entropy fails.
    *Randomness*: one 64-bit word, rarely two.
    """
    lowest, table = _table_around_the_mode(trials, chance)
    return lowest + int(table.outcomes(entropy.words(1), entropy)[0])


def _table_around_the_mode(trials: int, chance: Decimal) -> tuple[int, CumulativeTable]:
    """Return the least outcome that can be drawn, and the law of what is drawn beyond it."""
    if not 0 <= trials <= _MOST_TRIALS:
        raise CalibrationError(f"the number of trials must be from 0 to 2**62, got {trials}")
    with localcontext(working_context()):
        # A comparison with a decimal NaN raises on its own, so it is asked for first.
        if chance.is_nan() or not 0 <= chance <= Decimal("0.99") or trials * chance > MOST_EXPECTED:
            raise CalibrationError(f"no table holds the successes of {trials} trials of chance {chance:.6g}")
        odds = chance / (1 - chance)
        mode = min(trials, int((trials + 1) * chance))
        # Weights by ratios of neighbours, outwards from the mode.
        above, weight, outcome = [Decimal(1)], Decimal(1), mode
        while outcome < trials and weight > _LEAST_WEIGHT:
            outcome += 1
            weight = weight * (trials - outcome + 1) / outcome * odds
            above.append(weight)
        below, weight, lowest = [], Decimal(1), mode
        while lowest > 0 and weight > _LEAST_WEIGHT:
            weight = weight * lowest / (trials - lowest + 1) / odds
            below.append(weight)
            lowest -= 1
        skipped, table = table_of_weights(below[::-1] + above)
    return lowest + skipped, table
