"""How one statistic is served: the point, what is stored for it first and at what price, and whose keys are shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from dpsql.mechanism.measure import Level
from dpsql.state import Level as StoredLevel
from dpsql.state import Pin


@dataclass(frozen=True, slots=True)
class Draw:
    """A point drawn from exact values and paid for, averaged with the top of its cascade where that has one.

    Attributes:
        level: of the point.
        tau: its threshold; None where it has none of its own.
        delta: what is paid for that.
        fresh: what is drawn and paid for: the level itself, or how far it is above the top.

    """

    level: Level
    tau: float | None
    delta: float
    fresh: Level


@dataclass(frozen=True, slots=True)
class Lowering:
    """A point made of its neighbours for nothing, by a bridge or a step down.

    Attributes:
        level: of the point.
        tau: its threshold; None where it has none of its own.
        delta: what is paid for that.
        neighbours: the next stored level above it and, of a cascade that has one, the next below.

    """

    level: Level
    tau: float | None
    delta: float
    neighbours: tuple[StoredLevel, ...]

    @classmethod
    def among(cls, stored: Sequence[StoredLevel], level: Level, tau: float | None = None, delta: float = 0.0) -> Self:
        """Return the step that derives a level from the stored points next to it; these are in order, highest first."""
        above = [one for one in stored if one.rho_nano > level.rho_nano][-1:]
        below = [one for one in stored if one.rho_nano < level.rho_nano][:1]
        return cls(level, tau, delta, (*above, *below))


@dataclass(frozen=True, slots=True)
class KeySelection:
    """A threshold by which keys are shown, with the level and noise of its point.

    Attributes:
        tau: a key is shown if its noisy presence count, less the floor, exceeds 1 + tau.
        delta: what was paid for it, or is due.

    """

    rho_nano: int
    sigma: float
    tau: float
    delta: float


Step = Draw | Lowering | KeySelection
"""What is stored before a statistic is shown: a point, or a threshold for a stored one that has none."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How one statistic is served.

    Attributes:
        level: what is served: the statistic, its level and the noise it has there.
        disclosed: the highest level that numbers and keys tell of, with its noise: the served one, that of the shown
            keys, or the one whose lattice discrete noise lets through; of independent releases that of the one which
            is served.
        tau: threshold of the served point; None where it has none of its own.
        steps: what is stored before the point is shown; none where it is stored as it is.
        keys_from: thresholds by which the keys are shown that the reader sees, that of the served release first and
            then by level, highest first; empty with public keys.
        release_nano: level of the release that the numbers stem from where charged points are independent releases,
            each drawn and paid in full; 0 where they are one cascade. Where hidden keys share noise with shown ones,
            what was shown tells of it; a next level chosen by that, outside a window, would not be covered by the sum
            of what the levels' thresholds cost one by one.
        is_single_draw: whether the served point is one draw: what that guarantees, an average of several need not.
        pin: that this point is what the reader is shown wherever they ask the same again.
        shown_steps: steps by which the reader is shown a price, if others than the steps that are needed: of a reader
            with a limit, as if nothing were stored of questions whose charges follow from numbers of others.

    """

    level: Level
    disclosed: Level
    tau: float | None
    steps: tuple[Step, ...]
    keys_from: tuple[KeySelection, ...]
    release_nano: int
    is_single_draw: bool
    pin: Pin
    shown_steps: tuple[Step, ...] | None = None

    @property
    def priced_steps(self) -> tuple[Step, ...]:
        """The steps by which the reader is shown a price."""
        return self.steps if self.shown_steps is None else self.shown_steps

    @property
    def is_drawn(self) -> bool:
        """Return whether a point is drawn from exact values."""
        return any(isinstance(step, Draw) for step in self.steps)

    @property
    def stands_alone(self) -> bool:
        """Whether charged points are independent releases."""
        return self.release_nano > 0

    @property
    def guaranteed_nano(self) -> int:
        """The level that all of the answer tells of: independent releases that show its keys add up."""
        if self.stands_alone and self.keys_from:
            return sum(keys.rho_nano for keys in self.keys_from)
        return self.disclosed.rho_nano

    @property
    def keys_delta(self) -> float:
        """What the thresholds cost by which the keys are shown."""
        return math.fsum(keys.delta for keys in self.keys_from)
