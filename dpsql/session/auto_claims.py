"""The claim of a question with AUTO: the most that it may be charged, by its text and the policy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from fractions import Fraction

from dpsql.features.auto_histograms import MEASURE
from dpsql.mechanism.calibrate import total_nano
from dpsql.model.frame import NANO
from dpsql.model.private_query import PrivateQuery
from dpsql.model.query_kinds import AutoHalfWidths
from dpsql.release.runtime import Claim
from dpsql.sql.statements import SelectStatement
from dpsql.state import delta_units_up

_MOST_DRAWS = 1 << 24
"""More draws than a question with AUTO has."""


def claim_of_auto(query: PrivateQuery, statement: SelectStatement, options: Mapping[str, object], reader: str) -> Claim:
    """Return the claim of a question with AUTO, whose bounds are part of its statistics.

    Args:
        query: the plan, at any stage.
        statement: its text.
        options: those beside the text.
        reader: who asks.

    """
    content = [statement.text, statement.parameters, repr(sorted(options.items())), reader]
    versions = sorted({one for part in query.parts for one in part.frame.rows.table_versions})
    text = json.dumps([*content, versions])
    rho_nano = _most_nano(query)
    return Claim(hashlib.sha256(text.encode()).hexdigest(), rho_nano, _most_delta_units(query, rho_nano))


def _most_nano(query: PrivateQuery) -> int:
    """Return the most that a question with AUTO costs, in nano-rho."""
    request, ceilings = query.whole_request, [part.frame.ceiling for part in query.parts if part.frame.ceiling]
    if ceilings:
        # each statistic is drawn at the ceiling, and a result column has up to three
        return sum(ceilings) * (1 + 3 * sum(len(part.estimates) + len(part.auto) for part in query.parts))
    if isinstance(query, AutoHalfWidths):
        return query.most_nano
    if request.rho is not None:
        return total_nano(request, request.rho or 0.0)
    # thresholds, and AUTO, leave less of an epsilon for noise
    return 2 + int(Fraction(MEASURE.budget_rho(request.asked_epsilon, request.delta)) * NANO)


def _most_delta_units(query: PrivateQuery, rho_nano: int) -> int:
    """Return the most delta units that a question with AUTO costs: its thresholds, and the precision of its noise."""
    units = delta_units_up(MEASURE.imprecision(_MOST_DRAWS, rho_nano / NANO))
    for part in query.parts:
        if part.frame.has_private_keys:
            window = part.frame.window.delta if part.frame.window else 0.0
            units += delta_units_up(part.request.delta) + delta_units_up(window)
    return units
