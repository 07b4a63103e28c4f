"""Sessions whose draws are all 0: what is stored and shown is then exact, and differences are a unit's alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dpsql
from dpsql.mechanisms.correlated_gaussian import CorrelatedGaussian
from dpsql.mechanisms.rounded_gaussian import RoundedGaussian


def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draw is 0."""
    drawn = CorrelatedGaussian.draw

    def silent(self: CorrelatedGaussian, count: int, entropy: Any) -> Any:
        noise = drawn(self, count, entropy)
        return type(noise)(*(np.zeros_like(getattr(noise, name)) for name in noise.__dataclass_fields__))

    monkeypatch.setattr(CorrelatedGaussian, "draw", silent)
    monkeypatch.setattr(RoundedGaussian, "draw", lambda self, count, _: np.zeros(count, np.int64))


def receipt_of(answer: dpsql.Result) -> dpsql.Receipt:
    """The receipt that a private answer has."""
    assert answer.receipt is not None
    return answer.receipt
