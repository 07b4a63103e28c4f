"""Who asks, and how much of it they may be shown."""

from __future__ import annotations

from dataclasses import dataclass

from dpsql.errors import AccessError
from dpsql.query.dialect import text_literal
from dpsql.query.frame import NANO
from dpsql.state import Policy

CURATOR = "curator"


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader with their clearance.

    Attributes:
        name: in the books.
        rho_limit: highest level in nano-rho of anything that they are shown, keys included; None for any level.

    """

    name: str
    rho_limit: int | None = None

    @classmethod
    def of(cls, name: str, policy: Policy) -> Reader:
        """The reader of this name; without any declared analyst, everybody may be shown any level.

        Raises:
            AccessError: analysts are declared, and nobody of this name is.

        """
        declared = policy.analyst(name)
        if declared is not None:
            return cls(declared.name, declared.rho_limit)
        if policy.analysts and name != CURATOR:
            raise AccessError(
                f"{name!r} is not among the analysts whom the curator has declared; the curator declares one: CALL "
                f"dp_analyst({text_literal(name)}, rho_limit := 0.05)"
            )
        return cls(name)

    def may_see(self, rho_nano: int) -> bool:
        """Whether a point at this level may be shown."""
        return self.rho_limit is None or rho_nano <= self.rho_limit

    def at_most(self, rho_nano: int) -> int:
        """The level, or the limit where that is lower."""
        return rho_nano if self.rho_limit is None else min(rho_nano, self.rho_limit)

    def require(self, rho_nano: int) -> None:
        """Refuse a query above the limit.

        Raises:
            AccessError: it is.

        """
        if self.rho_limit is not None and rho_nano > self.rho_limit:
            raise AccessError(
                f"{self.name!r} may be shown answers up to rho = {self.rho_limit / NANO:.9g}, and this query asks for "
                f"rho = {rho_nano / NANO:.9g}; ask for less"
            )
