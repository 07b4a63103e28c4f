"""Points beside the numbers of a frame, which have places of their own in place of keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.cascade.reader import Reader
from dpsql.cascade.serving import Draw, Lowering
from dpsql.mechanism.measure import Measure
from dpsql.model.frame import Frame
from dpsql.model.identity import statistic_hash
from dpsql.release.exact import NOTHING_READ, Exact
from dpsql.release.offer import draw_price
from dpsql.release.points import PointSource, new_point
from dpsql.release.runtime import Runtime
from dpsql.state import Additions, Charged, MeasuredGroups, Pin, Point, SideTable, to_arrow


def release_places(
    frame: Frame,
    step: Draw | Lowering,
    read: Callable[[bytes], npt.NDArray[np.int64]],
    measure: Measure,
    runtime: Runtime,
    reader: Reader,
) -> Charged:
    """Release a histogram of units over places by itself: charge, read and draw it, or derive it for nothing; store it.

    Args:
        frame: the frame of the units.
        step: the step that makes its point.
        read: reads the exact values by the salt of the places; after the charge, if the point is drawn.
        measure: the law of its noise.
        runtime: what the steps run on.
        reader: who asks.

    Raises:
        BudgetError, ReleaseError: nothing was charged or read.
        EngineError: the charge stays and pays for asking again.

    """
    state, statistic, charged, exact = runtime.state, step.level.statistic, Charged(), NOTHING_READ
    name = statistic_hash(statistic, frame)
    if isinstance(step, Draw):
        price = (draw_price(name, step.fresh),)
        charged = state.ledger.charge(frame.rows.unit, price, reader.name, reader.planned_at)
        exact = Exact(None, {statistic: read(_salt_of_places(name, frame, state.side_table))})
    source = PointSource(statistic, name, name, measure, None, exact, state.side_table, runtime.noise_source)
    store_beside(new_point(source, step), charged, frame, state.side_table)
    return charged


def store_beside(
    point: Point,
    charged: Charged,
    frame: Frame,
    side_table: SideTable,
    *,
    pins: Sequence[Pin] = (),
    measured_groups: Sequence[MeasuredGroups] = (),
) -> None:
    """Store coverage, a histogram of AUTO, or a number of rows left out, with places in place of a frame's keys.

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
    _salt_of_places(name, frame, side_table)
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


def _salt_of_places(name: str, frame: Frame, side_table: SideTable) -> bytes:
    """Return the salt of the frame that places are; store it the first time."""
    return side_table.frame_salt(name, frame.rows.unit, [listed for listed, _ in frame.rows.table_versions])
