"""Keys of frames whose numbers are on selected keys: those that a round selects, and those that come later.

A round of key selection says which keys pass its threshold, and their weight.

Any key may be selected later, one too that nobody had when the numbers were frozen, or one person alone. Were it left
out of the answer then, its absence would tell that. So every draw takes the value of every key that the rows have at
its moment, and what the frame does not hold yet is added: the exact values of earlier draws are 0 on it, and each point
gets noise on it as if it had been there from the start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.errors import StateError
from dpsql.mechanism.measure import Grid, Measure, NoisyHistogram, Placed
from dpsql.mechanism.registry import histogram_of
from dpsql.model.frame import PRESENCE, Frame
from dpsql.model.identity import frame_hash, statistic_hash
from dpsql.release.exact import matches_of
from dpsql.release.points import shown_keys, stored_keys
from dpsql.release.runtime import Runtime
from dpsql.state import Level, Point, SideTable, Tail, to_arrow, to_numpy


def selected_keys(frame: Frame, stored: Level, side_table: SideTable) -> pa.Table:
    """Keys of a frame that pass the threshold of one stored point, which is its own."""
    _, places = _selected(frame, stored, side_table)
    return stored_keys(frame, side_table).take(to_arrow(places))


@dataclass(frozen=True, slots=True)
class Found:
    """The keys that a round selected.

    Attributes:
        weight: the noisy sum of the weights of its keys.
        sigma: the noise in it.
        keys: their number.
        logarithms: the sum of the logarithms of their weights over the threshold.

    """

    weight: float
    sigma: float
    keys: int
    logarithms: float


def found_by(frame: Frame, stored: Level, side_table: SideTable) -> Found:
    """Return what a round found, by its stored point and the threshold of that."""
    point, places = _selected(frame, stored, side_table)
    weights, threshold = point.noisy_values[places], 1.0 + (stored.tau or 0.0)
    noise, logarithms = point.sigma * math.sqrt(len(places)), float(np.log(weights / threshold).sum())
    return Found(float(weights.sum()), noise, len(places), logarithms)


def selected_ids(frame: Frame, keys: pa.Table, runtime: Runtime) -> npt.NDArray[np.intp]:
    """Return the ids of selected keys in the frame of their numbers.

    They are in the order of the keys: that of the ids tells which of them were there first.
    """
    order = ", ".join(f"keys.{column} NULLS LAST" for column in frame.key_columns)
    held = stored_keys(frame, runtime.state.side_table)
    ids = runtime.sandbox.run(
        f"SELECT key_id FROM keys JOIN held ON {matches_of(frame, 'keys', 'held')} ORDER BY {order}",
        {"keys": keys, "held": held.append_column("key_id", to_arrow(np.arange(held.num_rows)))},
    )
    return to_numpy(ids.column("key_id"))


def _selected(frame: Frame, stored: Level, side_table: SideTable) -> tuple[Point, npt.NDArray[np.intp]]:
    """A stored point of a round of key selection, and the places of the keys that pass its own threshold."""
    point = side_table.point(statistic_hash(PRESENCE, frame), stored.rho_nano, stored.release_rho_nano)
    if not point or stored.tau is None:
        raise StateError("a round of key selection is stored without its threshold; declare a new version of the table")
    return point, shown_keys(point.noisy_values, stored.tau, 1)


def add_keys(frame: Frame, keys: pa.Table, runtime: Runtime) -> None:
    """Give a frame that was released the keys that it lacks; for nothing.

    *Guarantee*: the points are those of a frame that had these keys with the value 0 from its first release on. Noise
    of keys is independent, so when that of a key is drawn changes no law (docs/proofs/key-rounds.md, Theorem 4).
    *Assumes*: every point is drawn, risen or lowered with noise of its own on each key, and has one value a key.

    Args:
        frame: of numbers on selected keys, on its current generation.
        keys: those that are to be shown, or that the rows have.
        runtime: where keys are matched, noise is drawn and points are stored.

    Raises:
        ReleaseError: another process released the frame meanwhile.

    """
    side_table, name = runtime.state.side_table, frame_hash(frame)
    held = side_table.frame_keys(name)
    if held is None:
        return
    names, order = ", ".join(frame.key_columns), ", ".join(f"{name} NULLS LAST" for name in frame.key_columns)
    new = runtime.sandbox.run(
        f"SELECT {names} FROM keys ANTI JOIN held ON {matches_of(frame, 'keys', 'held')} ORDER BY {order}",
        {"keys": keys, "held": held},
    )
    if not new.num_rows:
        return
    tails, of_statistic, measure = [], dict[str, dict[int, Placed]](), histogram_of(frame).measure
    for statistic, rho_nano in side_table.points_made(name):
        point = side_table.point(statistic, rho_nano)
        if not point:
            raise StateError("the state is damaged: a point is listed and not there")
        made = of_statistic.setdefault(statistic, {})
        made[rho_nano] = _made(point, new.num_rows, made, measure, runtime)
        tails.append(Tail(statistic, rho_nano, made[rho_nano].noisy.values))
    side_table.add_keys(name, held.num_rows, new, tails)


def _made(point: Point, count: int, earlier: dict[int, Placed], measure: Measure, runtime: Runtime) -> Placed:
    """A point's noise on later keys, made as the point was made: from those of its statistic that were there then."""
    grid, level, source = Grid(point.lattice_exponent, point.lattice_exponent), point.rho_nano, runtime.noise_source
    above, below = [one for one in sorted(earlier) if one > level], [one for one in sorted(earlier) if one < level]
    if above:
        low = earlier[below[-1]] if below else None
        noisy = measure.lowered(grid, earlier[above[0]], low, level, point.sigma, source)
    elif below:
        fresh_nano = level - below[-1]
        sigma = point.sigma * math.sqrt(level / fresh_nano)
        fresh = measure.draw(grid, sigma, count, source)
        noisy = measure.risen(earlier[below[-1]], Placed(fresh_nano, sigma, fresh))
    else:
        noisy = measure.draw(grid, point.sigma, count, source)
    return Placed(level, point.sigma, NoisyHistogram(noisy.values, 0))
