"""Questions on rows that are gone: what bounds keep and leave out of them is served as far as it is stored."""

from __future__ import annotations

from dataclasses import replace

from dpsql.cascade.left_out import chain_hash
from dpsql.cascade.reader import Reader
from dpsql.mechanism.calibrate import Calibration, level_of
from dpsql.model.identity import in_question, statistic_hash
from dpsql.model.private_query import FrameQuery
from dpsql.model.statistic_kinds import BESIDE_KINDS
from dpsql.state import State


def measurable(query: FrameQuery, calibration: Calibration, state: State, reader: Reader) -> Calibration:
    """Return the calibration with what is stored of bounds, if the rows are gone that it would be measured on."""
    if query.frame.rows_sql.relation:
        return calibration
    found, levels_of_name = [], state.side_table.levels
    for level in calibration.levels:
        statistic = level.statistic
        if statistic.kind not in BESIDE_KINDS:
            found.append(level)
            continue
        stored = levels_of_name(chain_hash(statistic, query.frame, reader))
        if not stored:
            # coverage of before there were numbers of rows left out
            statistic = in_question(statistic)
            stored = levels_of_name(statistic_hash(statistic, query.frame))
        if stored:
            # as high as it was ever measured
            most = min(level.rho_nano, stored[0].rho_nano)
            found.append(level_of(statistic, most, calibration.histogram))
    return replace(calibration, levels=tuple(found))
