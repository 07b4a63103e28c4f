"""The laws of lossless multiple release, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from dpsql.mechanisms.laws.exponential import ExponentialLaw
from dpsql.mechanisms.laws.gaussian import CorrelatedGaussianLaw, GaussianLaw
from dpsql.mechanisms.laws.laplace import DiscreteLaplaceLaw, LaplaceLaw
from dpsql.mechanisms.laws.law import Law
from dpsql.mechanisms.laws.poisson import PoissonLaw
from dpsql.mechanisms.laws.skellam import SkellamLaw

# Every law there is; tests/statistical/test_laws.py holds each to the same checks.
LAWS: Mapping[str, Callable[..., Law]] = MappingProxyType(
    {
        "gaussian": GaussianLaw,
        "correlated gaussian": CorrelatedGaussianLaw,
        "laplace": LaplaceLaw,
        "discrete laplace": DiscreteLaplaceLaw,
        "exponential": ExponentialLaw,
        "poisson": PoissonLaw,
        "skellam": SkellamLaw,
    }
)
