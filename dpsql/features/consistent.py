"""Sums of one table over some of its keys, each noised by itself, brought to agree: generalised least squares.

*Guarantee*: post-processing of noisy values by numbers that depend on the plan alone. Of all estimates that are linear
in the values and unbiased, each value that comes out has the least variance (Aitken 1935, the Gauss-Markov theorem).

*Source*: a table is the sum of its effects, one for each subset of its keys, and every marginal that has these keys
gives an estimate of that effect whose noise is independent of that of all others; so least squares is a weighted mean
for each effect (the residual basis of Xiao, He, Zhang and Kifer, An Optimal and Scalable Matrix Mechanism for Noisy
Marginals, NeurIPS 2023). docs/proofs/grouping-sets.md, Theorem 3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Axes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Marginal:
    """A table added up over all axes but some, and noised.

    Attributes:
        axes: those that are left, ascending.
        own: variance of the noise that each cell has of its own.
        shared: variance of the noise that all cells share.

    """

    axes: Axes
    own: float
    shared: float = 0.0


def consistent_values(
    lengths: tuple[int, ...], marginals: Sequence[Marginal], values: Sequence[Floats]
) -> tuple[Floats, ...]:
    """The marginals of the table that fits all noisy ones best.

    Args:
        lengths: of the table along each axis, none of them 0.
        marginals: what is known of it.
        values: the cells of each, the last axis changing fastest.

    Returns:
        Cells in the same order; each marginal is the sum of every one that has its axes and more.

    """
    shaped = [
        cells.reshape([length if axis in marginal.axes else 1 for axis, length in enumerate(lengths)])
        for marginal, cells in zip(marginals, values, strict=True)
    ]
    effects = {axes: _effect(axes, lengths, marginals, shaped) for axes in _effects(marginals)}
    return tuple(
        _added(marginal, effects, lengths, cells.shape).ravel()
        for marginal, cells in zip(marginals, shaped, strict=True)
    )


def _added(
    marginal: Marginal, effects: Mapping[Axes, Floats], lengths: tuple[int, ...], shape: tuple[int, ...]
) -> Floats:
    """A marginal from its effects, each spread over the axes that it lacks."""
    total = np.zeros(shape)
    for axes, effect in effects.items():
        if set(axes) <= set(marginal.axes):
            total += effect / _count(lengths, _without(marginal.axes, axes))
    return total


def consistent_variances(lengths: tuple[int, ...], marginals: Sequence[Marginal]) -> tuple[float, ...]:
    """Variance of every cell of each of the `consistent_values`."""
    variances = {axes: 1.0 / math.fsum(_precisions(axes, lengths, marginals)) for axes in _effects(marginals)}
    return tuple(
        math.fsum(
            variance
            * math.prod(1.0 - 1.0 / lengths[axis] for axis in axes)
            / _count(lengths, _without(marginal.axes, axes)) ** 2
            for axes, variance in variances.items()
            if set(axes) <= set(marginal.axes)
        )
        for marginal in marginals
    )


def whole_marginals(
    lengths: tuple[int, ...], marginals: Sequence[Marginal], finest: Floats, step: float
) -> tuple[Floats, ...]:
    """Marginals of the whole multiples of a step that are near a table, and so agree as they are shown.

    Sums from the first value of each axis up to every value are rounded, and cells are their differences: a marginal is
    then a difference of as few rounded sums as `roundings` says, however many cells it adds up.
    """
    axes = _added_axes(lengths, marginals)
    sums = finest.reshape(lengths) / step
    for axis in axes:
        sums = np.cumsum(sums, axis=axis)
    cells = np.rint(sums)
    for axis in axes:
        cells = np.diff(cells, axis=axis, prepend=0.0)
    every = tuple(range(len(lengths)))
    return tuple(step * cells.sum(axis=_without(every, marginal.axes)).ravel() for marginal in marginals)


def roundings(lengths: tuple[int, ...], marginals: Sequence[Marginal]) -> tuple[int, ...]:
    """Of each marginal, how many roundings are in a cell of its `whole_marginals`."""
    added = _added_axes(lengths, marginals)
    return tuple(2 ** len([axis for axis in marginal.axes if axis in added]) for marginal in marginals)


def _added_axes(lengths: tuple[int, ...], marginals: Sequence[Marginal]) -> Axes:
    """The axes that some marginal lacks."""
    return tuple(axis for axis in range(len(lengths)) if any(axis not in marginal.axes for marginal in marginals))


def _effects(marginals: Sequence[Marginal]) -> list[Axes]:
    """Every subset of the axes of some marginal."""
    subsets = (
        itertools.combinations(marginal.axes, count)
        for marginal in marginals
        for count in range(len(marginal.axes) + 1)
    )
    return list(dict.fromkeys(itertools.chain.from_iterable(subsets)))


def _effect(axes: Axes, lengths: tuple[int, ...], marginals: Sequence[Marginal], shaped: Sequence[Floats]) -> Floats:
    """The mean of what the marginals say of one effect, weighted by precision."""
    precisions = _precisions(axes, lengths, marginals)
    total = math.fsum(precisions)
    effect = np.zeros([length if axis in axes else 1 for axis, length in enumerate(lengths)])
    for marginal, cells, precision in zip(marginals, shaped, precisions, strict=True):
        if precision:
            effect += precision / total * cells.sum(axis=_without(marginal.axes, axes), keepdims=True)
    for axis in axes:
        effect -= effect.mean(axis=axis, keepdims=True)
    return effect


def _precisions(axes: Axes, lengths: tuple[int, ...], marginals: Sequence[Marginal]) -> list[float]:
    """Of each marginal, one over the variance that an effect has in it; 0 where it does not have it."""
    precisions = []
    for marginal in marginals:
        variance = marginal.own * _count(lengths, _without(marginal.axes, axes))
        if not axes:
            # shared noise is the same in all cells, hence no part of what tells them apart
            variance += marginal.shared * _count(lengths, marginal.axes) ** 2
        precisions.append(1.0 / variance if set(axes) <= set(marginal.axes) else 0.0)
    return precisions


def _without(axes: Axes, others: Axes) -> Axes:
    return tuple(axis for axis in axes if axis not in others)


def _count(lengths: tuple[int, ...], axes: Axes) -> int:
    return math.prod(lengths[axis] for axis in axes)
