"""The choice of a law: the least exact variance of all that parties can draw in shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dpsql.errors import CalibrationError
from dpsql.noise.divisible.baselines import DiscreteStaircase
from dpsql.noise.divisible.discrete_laplace import DiscreteLaplace
from dpsql.noise.divisible.gdl import GeneralizedDiscreteLaplace
from dpsql.noise.divisible.law import DivisibleLaw, require_change, require_epsilon, require_parties
from dpsql.noise.divisible.msd_laplace import MultiScaleLaplace, ValueLaplace


@dataclass(frozen=True, slots=True)
class Choice:
    """The law of least variance, with the variances of the others.

    Attributes:
        name: name of the law, as in `variances`.
        law: the law, for one curator and for all parties together.
        variances: variance of each law by its name, from the least on.
        staircase: the least variance of any noise with this epsilon and largest change, which parties cannot share.

    """

    name: str
    law: DivisibleLaw
    variances: Mapping[str, float]
    staircase: float


def choose_law(epsilon: float, max_change: int, values: Iterable[int] | None = None, *, parties: int = 1) -> Choice:
    """Return the law of least exact variance that costs at most epsilon and that `parties` parties can share.

    Without `values`, it is discrete Laplace noise below an epsilon of 5, or of 1.2 + log(max_change) if that is less.
    The noise of all parties together has the variance of one curator's noise. The number of parties only limits the
    shapes of generalized discrete Laplace noise.

    *Args*: `epsilon` from 1e-6 to 34. `max_change`, the most that one unit changes the exact number by: a whole number
    from 1 to 10,000. `values`, if one unit can add or remove exactly one of these amounts: 1 to 1,000 whole numbers up
    to max_change. `parties`, 1 to 10**6.
    *Raises*: CalibrationError for any other.

    >>> choose_law(8, 20).name
    'multi-scale Laplace'
    >>> choose_law(10, 100, values=[5, 10, 30, 100]).name
    'Laplace of known values'
    >>> choose_law(1, 20).name
    'discrete Laplace'
    """
    wanted, change, shared = require_epsilon(epsilon), require_change(max_change), require_parties(parties)
    # Of equal variances the first is chosen, which is the simplest law.
    laws: dict[str, DivisibleLaw] = {"discrete Laplace": DiscreteLaplace.of(wanted, change)}
    if values is not None:
        known = ValueLaplace.of(wanted, values)
        if known.values[-1] > change:
            raise CalibrationError(f"max_change is {change:,}, but one of the values is {known.values[-1]:,}")
        laws["Laplace of known values"] = known
    laws["multi-scale Laplace"] = MultiScaleLaplace.of(wanted, change)
    laws["multi-scale Laplace by nearest multiples"] = MultiScaleLaplace.of_nearest(wanted, change)
    laws["generalized discrete Laplace"] = GeneralizedDiscreteLaplace.of(wanted, change, shared)
    variances = {name: law.variance for name, law in laws.items()}
    ranked = sorted(variances, key=lambda name: variances[name])
    return Choice(
        ranked[0],
        laws[ranked[0]],
        {name: variances[name] for name in ranked},
        DiscreteStaircase.of(wanted, change).variance,
    )
