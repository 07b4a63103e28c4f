"""The reader and the question that the releases of a query are recorded under, with the claim of the question.

A claim is the most that a question may be charged whose charge follows from released numbers. Readers with a limit may
not see these numbers, and a charge reveals them. So for such a reader the question counts with its claim, which follows
from its text and the policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dpsql.cascade.reader import Reader
from dpsql.mechanism.calibrate import Level
from dpsql.model.frame import Frame
from dpsql.model.identity import rows_hash
from dpsql.release.left_out import SHARE
from dpsql.state import Charged


@dataclass(frozen=True, slots=True)
class Claim:
    """The most that a question may be charged.

    Attributes:
        question: its text, options and reader; empty if its statistics follow from its text, and only their levels
            from released numbers: then each statistic is recorded at its cap.
        rho_nano, delta_units: the amounts, if it has a text.

    """

    question: str = ""
    rho_nano: int = 0
    delta_units: int = 0

    def of(self, frame: Frame) -> tuple[object, ...]:
        """Return the claim as it is recorded with a release of a frame."""
        if not self.question:
            return (rows_hash(frame),)
        return (rows_hash(frame), self.question, self.rho_nano, self.delta_units)


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
