"""The laws of lossless multiple release, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from dpsql.noise.laws.gaussian import CorrelatedGaussianLaw, GaussianLaw
from dpsql.noise.laws.laplace import DiscreteLaplaceLaw, ExponentialLaw, LaplaceLaw
from dpsql.noise.laws.law import Law
from dpsql.noise.laws.poisson import PoissonLaw, SkellamLaw

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
