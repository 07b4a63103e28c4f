"""Who asks, and how much of it they may be shown."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpsql.errors import AccessError
from dpsql.model.frame import NANO
from dpsql.operations import blanks
from dpsql.operations.dialect import text_literal
from dpsql.state import Policy

CURATOR = "curator"


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader with their clearance, at the moment of a plan.

    Attributes:
        name: in the state file.
        rho_limit: highest level in nano-rho of anything that they are shown, keys included; None for any level.
        planned_at: the `Policy.undone` that plans of theirs rest on; None without a policy.

    """

    name: str
    rho_limit: int | None = None
    planned_at: int | None = None

    @classmethod
    def of(cls, name: str, policy: Policy) -> Reader:
        """The reader of this name; without any declared analyst, everybody may be shown any level.

        Raises:
            AccessError: analysts are declared, and nobody of this name is.

        """
        declared = policy.analyst(name)
        if declared:
            return cls(declared.name, declared.rho_limit, policy.undone)
        if policy.analysts and name != CURATOR:
            reason = f"{name!r} is not among the analysts whom the curator has declared."
            raise AccessError(
                f"{reason} The curator declares one: CALL dp_analyst({text_literal(name)}, "
                f"rho_limit := {blanks.HIGHEST_RHO})",
                analyst_message=f"{reason} Ask the curator to declare you as an analyst.",
            )
        return cls(name, None, policy.undone)

    @property
    def most_nano(self) -> float:
        """The limit; infinite where there is none."""
        return math.inf if self.rho_limit is None else self.rho_limit

    @property
    def has_limit(self) -> bool:
        """Whether there are levels that they may not be shown."""
        return self.most_nano < math.inf

    def may_see(self, rho_nano: int) -> bool:
        """Whether a point at this level may be shown."""
        return self.rho_limit is None or rho_nano <= self.rho_limit

    def require(self, rho_nano: int) -> None:
        """Refuse a query above the limit.

        Raises:
            AccessError: it is.

        """
        if not self.may_see(rho_nano):
            raise AccessError.above_limit(self.name, requested_rho=rho_nano / NANO, limit_rho=self.most_nano / NANO)
