"""Intervals of counts of units that are shown because they are above a threshold.

Of many counts below a threshold those with large noise exceed it. So a shown count near the threshold is too large, by
how much depends on the number of hidden groups, which nobody is told. The lower ends here hold for each shown count,
given that it is shown, whatever that number is.

*Guarantee*: at one level, the interval of a shown count of units misses with at most the probability of the quantile
that it has without a threshold, given all groups that are shown. *Source*: docs/proofs/top-rows.md, Theorem 5.
*Assumes*: Gaussian noise that is independent between groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpsql.mechanism.measure import Measure
from dpsql.model.estimates import UNITS
from dpsql.model.frame import PRESENCE
from dpsql.release.estimates import Floats, NoisyFrame, added_up, norms_of

_FARTHEST = 30.0
"""Lower ends further than so many standard deviations below a count are not looked for."""
_PLACES = np.linspace(-9.0, _FARTHEST + 1.0, 4_001)
"""Standard deviations at which tails of the noise are computed."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """Noisy counts of units of groups, each above the threshold that hides others.

    A count that is shown because it is above a threshold is too large, whatever the number of hidden groups is.

    Attributes:
        above: how far they are above the threshold, over their standard deviation.
        counts: themselves, over their standard deviation.
        measure: the law of their noise.
        ratio: their standard deviation over that of the counts that had to exceed the threshold: above 1 if those are
            of a higher level.

    """

    above: Floats
    counts: Floats
    measure: Measure
    ratio: float = 1.0

    def wider(self, factor: float, chance: float = 0.05) -> Floats:
        """Return the widths of intervals of counts over that of intervals of a group that is named beforehand.

        Their lower ends are those of counts that had to exceed the threshold, or 0 if these are below 0.

        Args:
            factor: the width without a threshold, likewise.
            chance: probability with which an interval of a group that is named beforehand misses.

        """
        plain = self.measure.quantile(chance / 2.0)
        excesses, quantiles = _after_threshold(self.measure, factor * plain, self.ratio)
        needed = np.interp(self.above, excesses, quantiles, left=np.inf, right=factor * plain)
        return np.minimum(needed, np.maximum(self.counts, factor * plain)) / plain


def _after_threshold(measure: Measure, quantile: float, ratio: float) -> tuple[Floats, Floats]:
    """Return excesses over a threshold, rising, and the quantiles that give counts so far above it their lower ends.

    What was computed for one question is not kept, as its time would tell another reader of it.

    *Guarantee*: a number with Gaussian noise Z that is a quantile d above its mean, and u above a threshold that it
    exceeds, has the least mean for which so large a number has the probability P(Z > quantile), given that it exceeds
    the threshold: P(Z > d) = P(Z > quantile) P(Z > d - u). If another number with the same mean and less noise, by a
    ratio, had to exceed it, P(Z > ratio (d - u)) is in its place, and that probability is no larger.
    """
    needed = quantile + np.geomspace(_FARTHEST - quantile, 1e-4, 100)
    # of small tails the logarithms alone are exact
    log_tails = np.log(measure.tail(_PLACES))
    odds = np.interp(needed, _PLACES, log_tails) - np.interp(quantile, _PLACES, log_tails)
    excesses = needed - np.interp(odds, log_tails[::-1], _PLACES[::-1]) / ratio
    # far below a threshold of less noise the product is small again, and no lower end is known
    first = int(np.argmin(excesses))
    return excesses[first:], needed[first:]


def hidden_counts(frame: NoisyFrame, threshold: float, ratio: float = 1.0) -> Hidden:
    """Return the noisy counts of units of a frame, each of which had to exceed a threshold, or one of less noise."""
    counts = added_up(UNITS, frame.groups, frame.values[PRESENCE].value)
    sigmas = frame.noise[PRESENCE] * norms_of(UNITS, frame.groups, frame.histogram)
    return Hidden((counts - threshold) / sigmas, counts / sigmas, frame.histogram.measure, ratio)
