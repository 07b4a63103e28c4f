"""Claims: the most that a question may be charged whose charge follows from released numbers.

Readers with a limit may not see these numbers, and a charge reveals them. So for such a reader the question counts with
its claim, which follows from its text and the policy.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpsql.model.frame import Frame
from dpsql.model.identity import rows_hash


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
