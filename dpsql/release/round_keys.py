"""What a round of key selection says: the keys that pass its threshold, and their weight."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.errors import StateError
from dpsql.model.frame import PRESENCE, Frame
from dpsql.model.identity import statistic_hash
from dpsql.release.exact import Runtime, matches_of
from dpsql.release.points import shown_keys, stored_keys
from dpsql.state import Level, Point, SideTable, to_arrow, to_numpy


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
