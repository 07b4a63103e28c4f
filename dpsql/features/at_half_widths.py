"""The step of the runner that finds the level of a question by half widths."""

from __future__ import annotations

from dpsql.features.half_width import TargetQuery
from dpsql.features.kinds import kind_of
from dpsql.mechanism.calibrate import whole_nano
from dpsql.model.frame import NANO
from dpsql.model.private_query import PrivateQuery
from dpsql.model.query_kinds import AutoHalfWidths
from dpsql.receipts import level_words


def at_target(query: PrivateQuery) -> PrivateQuery:
    """Return a query by half widths at its level, or at its cap if AUTO is yet to choose what the level follows from.

    Raises:
        CalibrationError: no level has these half widths, or the level is above max_rho or max_epsilon.

    """
    target = query.whole_request.target
    if target is None:
        return query
    asked = TargetQuery(kind_of(query), query, target)
    if isinstance(query, AutoHalfWidths):
        # what AUTO is yet to choose decides the level
        return query if query.first.is_open else asked.up_to(query.most_nano)
    nano = asked.smallest_nano()
    if target.max_rho is not None and nano > whole_nano(target.max_rho):
        most = level_words.option("max_rho", target.max_rho)
        raise asked.too_much("rho", nano / NANO, most, whole_nano(target.max_rho))
    if target.max_epsilon is not None and (epsilon := asked.epsilon(nano)) > target.max_epsilon:
        most = level_words.option("max_epsilon", target.max_epsilon)
        raise asked.too_much("epsilon", epsilon, most, asked.nano_within(target.max_epsilon, nano))
    return asked.at(nano)
