"""The reader and the question that the releases of a query are recorded under."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpsql.cascade.reader import Reader
from dpsql.mechanism.calibrate import Level
from dpsql.release.claims import Claim
from dpsql.release.left_out import SHARE
from dpsql.state import Charged


@dataclass(frozen=True, slots=True)
class Inquiry:
    """The reader and the question that the releases of a query are recorded under.

    Attributes:
        reader: who asks, with their clearance; who is charged for in the state file.
        query_hash: of the whole query.
        timeout_seconds: limit on reading raw data, for each frame.
        auto_charge: what was charged for the histograms that AUTO chose by.
        first_charge: what was charged for a first round of key selection that the plan rests on.
        drawn_once: whether each frame is drawn a single time, as a round of key selection is.
        is_shown: whether the releases are shown, and recorded. A first round that is drawn before the plan is known is
            recorded with the answer.
        claim: the most that the query may be charged, if its charge follows from released numbers.
        left_out_share: aim for the noise of a number of rows left out, as a part of the shown numbers together.
        later: identities of statistics that the query may be charged for after its steps, each at its highest level.

    """

    reader: Reader
    query_hash: str
    timeout_seconds: float | None
    auto_charge: Charged
    first_charge: Charged = field(default_factory=Charged)
    drawn_once: bool = False
    is_shown: bool = True
    claim: Claim | None = None
    left_out_share: float = SHARE
    later: tuple[tuple[str, Level], ...] = ()
