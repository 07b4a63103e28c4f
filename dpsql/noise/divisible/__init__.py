"""Noise that is a sum of shares: laws that many parties draw together, and their exact samplers.

No query of dpsql draws this noise. It is a library by itself: docs/divisible-noise.md.

>>> choice = choose_law(10, 100, values=[5, 10, 30, 100])
>>> choice.name, round(choice.law.variance, 3)
('Laplace of known values', 1.001)
>>> share = choice.law.share(3)
>>> round(share.variance, 3)
0.334
"""

from __future__ import annotations

from dpsql.noise.divisible.baselines import Arete, DiscreteStaircase, continuous_staircase_variance
from dpsql.noise.divisible.choice import Choice, choose_law
from dpsql.noise.divisible.continuous import TransformedLaplace
from dpsql.noise.divisible.discrete_laplace import DiscreteLaplace
from dpsql.noise.divisible.gdl import GeneralizedDiscreteLaplace
from dpsql.noise.divisible.law import DivisibleLaw, Share
from dpsql.noise.divisible.msd_laplace import MultiScaleLaplace, ValueLaplace

__all__ = [
    "Arete",
    "Choice",
    "DiscreteLaplace",
    "DiscreteStaircase",
    "DivisibleLaw",
    "GeneralizedDiscreteLaplace",
    "MultiScaleLaplace",
    "Share",
    "TransformedLaplace",
    "ValueLaplace",
    "choose_law",
    "continuous_staircase_variance",
]
