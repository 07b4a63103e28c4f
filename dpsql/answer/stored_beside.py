"""Points beside the numbers of a frame, which have places of their own in place of keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dpsql.model.frame import Frame
from dpsql.state import Additions, Charged, MeasuredGroups, Pin, Point, SideTable, to_arrow


def store_beside(
    point: Point,
    charged: Charged,
    frame: Frame,
    side_table: SideTable,
    *,
    pins: Sequence[Pin] = (),
    measured_groups: Sequence[MeasuredGroups] = (),
) -> None:
    """Store coverage, or a number of rows left out, by itself; its places stand in place of a frame's keys.

    Where a process ends before the rest of its query is stored, it is there, was shown to nobody, and costs nothing
    when it is asked for again.

    Args:
        point: what is stored.
        charged: what was charged for its query.
        frame: the frame of the query.
        side_table: where points are stored.
        pins: who is shown the point from now on.
        measured_groups: groups of a number of rows left out.

    """
    name = point.statistic_hash
    side_table.frame_salt(name, frame.rows.unit, [listed for listed, _ in frame.rows.table_versions])
    is_first = side_table.frame_keys(name) is None
    places = pa.table({"place": to_arrow(np.arange(len(point.values)))}) if is_first else None
    additions = Additions(
        new_keys=places,
        points=(point,),
        charge_ids=charged.by_statistic.get(name, Charged()).charge_ids,
        pins=pins,
        measured_groups=measured_groups,
    )
    side_table.store(name, additions)
