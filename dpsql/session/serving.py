"""How one statistic is served: the point, what has to be drawn and paid for it, and whose keys are shown."""

from __future__ import annotations

from dataclasses import dataclass

from dpsql.query.frame import Statistic
from dpsql.release.calibrate import Cut, Level
from dpsql.state import Level as StoredLevel
from dpsql.state import Pin


@dataclass(frozen=True, slots=True)
class Serving:
    """How one statistic is served.

    Attributes:
        level: what is served: its level and the noise it has there.
        stored: levels of the statistic's cascade, highest first, with the one at the ceiling if it is drawn now.
        pin: that this point is what the reader is shown wherever they ask the same again.
        found: the stored point that is served; None where it is drawn or made.
        rise: what has to be drawn and paid for the served point; None where nothing is.
        ceiling: what has to be drawn and paid first, for the served point to be made of; None where nothing is.
        cut: threshold of the served point, and what is paid for it now; None where it has none of its own.
        ceiling_cut: the same of the point at the ceiling.
        release_nano: level of the release that the numbers stem from where charged points are independent releases,
            each drawn and paid in full; 0 where they are one cascade. Where hidden keys share noise with shown ones,
            what was shown tells of it; a next level chosen by that, outside a window, would not be covered by the sum
            of what the levels' thresholds cost one by one.
        keys_from: charged levels that show the keys which the reader sees, highest first; empty with public keys.
        tells_of: the level that numbers below it tell of, where its noise is discrete; None where they do not.

    """

    level: Level
    stored: tuple[StoredLevel, ...]
    pin: Pin
    found: StoredLevel | None = None
    rise: Level | None = None
    ceiling: Level | None = None
    cut: Cut | None = None
    ceiling_cut: Cut | None = None
    release_nano: int = 0
    keys_from: tuple[StoredLevel, ...] = ()
    tells_of: StoredLevel | None = None

    @property
    def statistic(self) -> Statistic:
        """What is served."""
        return self.level.statistic

    @property
    def tau(self) -> float | None:
        """Threshold of the served point."""
        return None if self.cut is None else self.cut.tau

    @property
    def draws(self) -> tuple[tuple[Level, Cut | None], ...]:
        """What is drawn from exact values, and paid: levels as differences to what is stored, thresholds as due."""
        ceiling = () if self.ceiling is None else ((self.ceiling, self.ceiling_cut),)
        return ceiling if self.rise is None else (*ceiling, (self.rise, self.cut))

    @property
    def is_stored(self) -> bool:
        """Whether the point is there as it is, or is the one at the ceiling."""
        return self.found is not None

    @property
    def stored_tau(self) -> float | None:
        """Threshold that the served point is stored with; None where it has none, or is not stored."""
        return None if self.found is None else self.found.tau

    @property
    def is_paid(self) -> bool:
        """Whether nothing is to be paid."""
        return not self.draws and (self.cut is None or not self.cut.delta)

    @property
    def stands_alone(self) -> bool:
        """Whether charged points are independent releases."""
        return self.release_nano > 0

    @property
    def is_single_draw(self) -> bool:
        """Whether the served point is one draw: what that guarantees, an average of several need not."""
        return self.stands_alone or len(self.stored) <= self.is_stored

    @property
    def told_nano(self) -> int:
        """The highest level that numbers and keys tell of; of independent releases, that of the one which is served."""
        if self.stands_alone:
            return self.release_nano
        beyond = self.keys_from if self.tells_of is None else (*self.keys_from, self.tells_of)
        return max([self.level.rho_nano, *(level.rho_nano for level in beyond)])

    @property
    def guaranteed_nano(self) -> int:
        """The level that all of the answer tells of: independent releases that show its keys add up."""
        return sum(level.rho_nano for level in self.keys_from) if self.stands_alone else self.told_nano

    @property
    def source_nano(self) -> int | None:
        """Level of the point that the served one is made of; None where it is drawn."""
        if self.rise is not None:
            return None
        return self.release_nano or self.neighbours()[0].rho_nano

    @property
    def place_nano(self) -> int:
        """The independent release that the served point is made of, beside others at its level; else 0."""
        if self.found is not None:
            return self.found.release_rho_nano
        return 0 if self.rise is not None else self.release_nano

    def neighbours(self) -> tuple[StoredLevel, StoredLevel | None]:
        """The stored levels next above and next below the one that is served; of a release, what was made of it."""
        above = [stored for stored in self.stored if stored.rho_nano > self.level.rho_nano]
        if self.stands_alone:
            return [stored for stored in above if stored.release == self.release_nano][-1], None
        below = [stored for stored in self.stored if stored.rho_nano < self.level.rho_nano]
        return above[-1], (below[0] if below else None)
