"""Keys first, numbers second: noise on the groups of private keys that were selected by releases before.

Which keys are shown does not hang on these numbers, so they need no threshold, and do not lean upwards where they are
small. In the state file every key of the rows has a number, shown or hidden, so that the frame stays one frame however
many keys are selected later.

*Guarantee*: with the rounds of key selection one history of the ledger, at the sum of their levels and of the rounds'
thresholds, for adding or removing all rows of one unit. *Source*: docs/proofs/key-rounds.md, Theorem 4.
"""

from __future__ import annotations

from dpsql.mechanism.histogram import HistogramMechanism
from dpsql.mechanism.independent_gaussian import own_noise
from dpsql.model.frame import KEYS_FIRST as NAME

KEYS_FIRST = HistogramMechanism(
    name=NAME,
    word="KEYS_FIRST",
    sentence="Gaussian noise on every selected key",
    without=frozenset(
        {"public keys", "sketch", "GROUPING SETS", "running totals or buckets", "quantiles", "composition = pure"}
    ),
    is_offered=False,
    histogram=own_noise,
)
