"""One binomial draw for any number of trials, by inverting its cumulative table around the mode.

The work grows with the standard deviation, never with the number of trials. Proof: docs/proofs/sparse-gradual.md.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from itertools import accumulate

from dpsql.errors import CalibrationError
from dpsql.mechanisms.cumulative_table import TABLE_BITS, CumulativeTable
from dpsql.mechanisms.entropy import Entropy
from dpsql.mechanisms.precise_normal import working_context

# A larger mean would ask for a table of more than 2**17 outcomes.
MOST_EXPECTED = 1 << 24
_MOST_TRIALS = 1 << 62
# Outcomes less likely than this, against the likeliest, are left out.
_NEGLIGIBLE = Decimal("1e-48")


def draw_binomial(trials: int, chance: Decimal, entropy: Entropy) -> int:
    """Return how many of `trials` independent trials succeed, each with probability `chance`.

    *Law*: within 2**-110 of the binomial law in total variation, for a `chance` that is right to 50 digits.
    *Source*: table inversion; docs/proofs/sparse-gradual.md, Lemma 3.
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
    # A comparison with a decimal NaN raises on its own, so it is asked for first.
    with localcontext(working_context()):
        if chance.is_nan() or not 0 <= chance <= Decimal("0.99") or trials * chance > MOST_EXPECTED:
            raise CalibrationError(f"no table holds the successes of {trials} trials of chance {chance:.6g}")
        lowest, weights = _weights(trials, chance)
        sums = list(accumulate(weights))
        thresholds = [round(below / sums[-1] * (1 << TABLE_BITS)) for below in sums]
    # Outcomes that would round to nothing at either end cannot be drawn at all.
    skipped = sum(threshold == 0 for threshold in thresholds)
    inside = [threshold for threshold in thresholds if 0 < threshold < 1 << TABLE_BITS]
    return lowest + skipped, CumulativeTable(inside)


def _weights(trials: int, chance: Decimal) -> tuple[int, list[Decimal]]:
    """Return the least outcome kept and the weights from there on, by ratios of neighbours outwards from the mode."""
    odds = chance / (1 - chance)
    mode = min(trials, int((trials + 1) * chance))
    above, weight, outcome = [Decimal(1)], Decimal(1), mode
    while outcome < trials and weight > _NEGLIGIBLE:
        outcome += 1
        weight = weight * (trials - outcome + 1) / outcome * odds
        above.append(weight)
    below, weight, outcome = [], Decimal(1), mode
    while outcome > 0 and weight > _NEGLIGIBLE:
        weight = weight * outcome / (trials - outcome + 1) / odds
        below.append(weight)
        outcome -= 1
    return outcome, below[::-1] + above
