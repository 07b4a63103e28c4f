"""Keys that a frame of numbers on selected keys gets after its first release.

Any key may be selected later, one too that nobody had when the numbers were frozen, or one person alone. Were it left
out of the answer then, its absence would tell that. So every draw takes the value of every key that the rows have at
its moment, and what the frame does not hold yet is added: the exact values of earlier draws are 0 on it, and each point
gets noise on it as if it had been there from the start.
"""

from __future__ import annotations

import math

import pyarrow as pa

from dpsql.cascade.cascade import Placed, lowered, own_noise, risen
from dpsql.errors import StateError
from dpsql.mechanism.histogram import NoisyHistogram
from dpsql.model.frame import Frame
from dpsql.model.identity import frame_hash
from dpsql.release.exact import Runtime, matches_of
from dpsql.state import Point, Tail


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
    tails, of_statistic = [], dict[str, dict[int, Placed]]()
    for statistic, rho_nano in side_table.points_made(name):
        point = side_table.point(statistic, rho_nano)
        if not point:
            raise StateError("the state is damaged: a point is listed and not there")
        made = of_statistic.setdefault(statistic, {})
        made[rho_nano] = _made(point, new.num_rows, made, runtime)
        tails.append(Tail(statistic, rho_nano, made[rho_nano].noisy.values))
    side_table.add_keys(name, held.num_rows, new, tails)


def _made(point: Point, count: int, earlier: dict[int, Placed], runtime: Runtime) -> Placed:
    """A point's noise on later keys, made as the point was made: from those of its statistic that were there then."""
    noise, level = own_noise(point.lattice_exponent, runtime.noise_source), point.rho_nano
    above, below = [one for one in sorted(earlier) if one > level], [one for one in sorted(earlier) if one < level]
    if above:
        noisy = lowered(earlier[above[0]], earlier[below[-1]] if below else None, level, noise)
    elif below:
        fresh_nano = level - below[-1]
        sigma = point.sigma * math.sqrt(level / fresh_nano)
        noisy = risen(earlier[below[-1]], Placed(fresh_nano, sigma, noise(count, sigma)))
    else:
        noisy = noise(count, point.sigma)
    return Placed(level, point.sigma, NoisyHistogram(noisy.values, 0))
