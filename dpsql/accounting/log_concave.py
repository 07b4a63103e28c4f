"""Integrals of log-concave functions, enclosed between bounds that hold whatever the spacing of the nodes.

A function is log-concave if its logarithm u is concave. Between two neighbouring nodes u lies above the chord
through them, and below the extension of the chord on their left and of the chord on their right. The
exponential of a line has a closed integral, so both bounds need the values of u at the nodes and nothing
else: no derivative, no guess of a remainder. For a bell of curvature c the upper bound is too large by a
factor of about 1 + c step^2 / 6.

Every value is given as a pair, one number below and one above it, so that rounding and any error made in
computing the value are part of the bound. Values are natural logarithms; -inf stands for 0. A bound that
cannot be given is infinite.
"""

from __future__ import annotations

import numpy as np

from dpsql.accounting.gaussian import Floats

# Raises every upper bound, and lowers every lower one, by more than the rounding errors of this module.
_UP, _DOWN = 1.0 + 2.0**-40, 1.0 - 2.0**-40


def cells_above(far_left: Floats, left: Floats, right: Floats, far_right: Floats, step: Floats | float) -> Floats:
    """Upper bound on the integral over each cell [x, x + step] of a function that is log-concave around it.

    Args:
        far_left: logarithms no larger than those of the values at x - step.
        left: logarithms no smaller than those of the values at x.
        right: logarithms no smaller than those of the values at x + step.
        far_right: logarithms no larger than those of the values at x + 2 step.
        step: above 0.
    Shapes: broadcast against each other.
    Returns: one number per cell, infinite where no line bounds the function. A cell with a 0 at both ends counts
        0; so some node of the grid, or none of the line, must hold a positive value.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        rise = np.where(np.isneginf(left), np.inf, left - far_left)
        fall = np.where(np.isneginf(right), -np.inf, far_right - right)
        meet = np.clip((right - left - fall) / (rise - fall), 0.0, 1.0)
        # Either line may be used on any part, so a wrong meeting point would cost accuracy only.
        meet = np.where(np.isposinf(rise), 0.0, np.where(np.isneginf(fall), 1.0, np.nan_to_num(meet, nan=0.5)))
        rest = 1.0 - meet
        first = meet * np.exp(left + _log_mean_exp(np.where(meet > 0.0, rise * meet, 0.0)))
        last = rest * np.exp(right + _log_mean_exp(np.where(rest > 0.0, -fall * rest, 0.0)))
        area = step * (first + last) * _UP
    unbounded = np.isnan(area) | (np.isposinf(rise) & np.isneginf(fall))
    nothing = np.isneginf(left) & np.isneginf(right)
    return np.where(nothing, 0.0, np.where(unbounded, np.inf, area))


def integral_above(low: Floats, high: Floats, step: Floats) -> Floats:
    """Upper bound on the integral over the whole line of a log-concave function known at equidistant nodes.

    Args:
        low: logarithms no larger than those of the values.
        high: logarithms no smaller than those of the values.
        step: distance of the nodes, one per row.
    Shapes: low and high (rows, nodes) with at least four nodes, step (rows,).
    Returns: one number per row, infinite unless the values fall at both ends of the row.
    """
    wide = step[:, None]
    inner = cells_above(low[:, :-3], high[:, 1:-2], high[:, 2:-1], low[:, 3:], wide)
    # The cells at both ends have a line on one side only; beyond them the same line bounds the tail.
    tails = _tail(high[:, 1], low[:, 2], step) + _tail(high[:, -2], low[:, -3], step)
    return np.asarray(inner.sum(axis=1) * _UP + tails)


def integral_below(low: Floats, step: Floats) -> Floats:
    """Lower bound on the integral of a log-concave function known at equidistant nodes.

    Args, Shapes: as `integral_above`.
    Returns: one number per row.
    """
    left, right = low[:, :-1], low[:, 1:]
    with np.errstate(under="ignore", invalid="ignore"):
        rise = np.where(np.isneginf(left) | np.isneginf(right), -np.inf, right - left)
        cells = np.exp(left + _log_mean_exp(rise))
    return np.asarray(step * np.where(np.isneginf(rise), 0.0, cells).sum(axis=1) * _DOWN)


def _tail(end: Floats, inner: Floats, step: Floats) -> Floats:
    """Bound on the integral beyond the node ``end``, from the line through it and its inner neighbour."""
    with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
        area = np.where(np.isneginf(end), 0.0, step * np.exp(end) / (inner - end) * _UP)
    return np.asarray(np.where((inner > end) | np.isneginf(end), area, np.inf))


def _log_mean_exp(slope: Floats) -> Floats:
    """Logarithm of the mean of exp(slope x) for x between 0 and 1."""
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        steep = np.abs(slope) > 30.0
        # exp(-30) is within the rounding that the callers allow for.
        result = np.where(slope > 0.0, slope, 0.0) - np.log(np.abs(slope))
        gentle = np.where(steep | (slope == 0.0), 1.0, slope)
        return np.where(steep, result, np.where(slope == 0.0, 0.0, np.log(np.expm1(gentle) / gentle)))
