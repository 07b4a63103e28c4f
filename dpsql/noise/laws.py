"""The laws of lossless multiple release, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from dpsql.noise.gaussian_laws import CorrelatedGaussianLaw, GaussianLaw
from dpsql.noise.laplace_laws import DiscreteLaplaceLaw, ExponentialLaw, LaplaceLaw
from dpsql.noise.law import Law
from dpsql.noise.poisson_laws import PoissonLaw, SkellamLaw

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
