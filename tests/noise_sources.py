"""Sources of noise for tests only: one that can be repeated, and one without noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

import dpsql
from dpsql.noise.correlated_gaussian import CorrelatedNoise
from dpsql.noise.entropy import Distribution, Drawn, Entropy, NoiseSource
from tests.deterministic_entropy import SeededEntropy

Law = TypeVar("Law")


Fault = Callable[[Law, int, Entropy], Any]
"""A wrong way to draw noise of a law."""


def seeded_noise(seed: int) -> NoiseSource:
    """Noise that is the same for the same seed."""
    return NoiseSource(SeededEntropy(seed))


@dataclass(frozen=True)
class FaultyNoise(NoiseSource):
    """Noise of which some laws are drawn wrongly: faults that a check has to catch."""

    faults: Mapping[type, Fault[Any]]

    def draw(self, distribution: Distribution[Drawn], count: int) -> Drawn:
        fault: Fault[Any] = self.faults.get(type(distribution), type(distribution).draw)
        drawn: Drawn = fault(distribution, count, self.entropy)
        return drawn


@dataclass(frozen=True)
class NoNoise(NoiseSource):
    """A source whose noise is 0: what is stored and shown is then exact, and differences are a unit's alone."""

    entropy: Entropy = field(default_factory=lambda: SeededEntropy(0))

    def draw(self, distribution: Distribution[Drawn], count: int) -> Drawn:
        """Draw, so that what is refused is refused, and return 0 in its place."""
        drawn = super().draw(distribution, count)
        if isinstance(drawn, CorrelatedNoise):
            return type(drawn)(np.zeros_like(drawn.values), 0, 0)
        assert isinstance(drawn, np.ndarray)
        return np.zeros_like(drawn)


def silence(session: dpsql.Session) -> None:
    """Let a session answer without noise from now on."""
    session._runner.noise_source = NoNoise()
