"""Plans of a query with AUTO: what they rest on is drawn before the last of them is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dpsql.cascade.reader import Reader
from dpsql.engine import Definitions, redefined
from dpsql.errors import StateError
from dpsql.features.auto import PlanAgain, release_histograms
from dpsql.features.auto_outcomes import price_of_outcomes
from dpsql.features.kinds import kind_of
from dpsql.features.known_keys import awaits_keys, draw_first_round
from dpsql.model.identity import base_hash, query_hash
from dpsql.model.private_query import PrivateQuery
from dpsql.release.runtime import Inquiry, Runtime
from dpsql.session.chosen import Chosen
from dpsql.state import Charged, State

_MOST_PLANS = 8
"""A query with AUTO is planned once more for each histogram; others may store the same ones at the same moment."""


@dataclass(frozen=True, slots=True)
class Replan:
    """Plans a text again, after something that its plan rests on was drawn.

    Attributes:
        plan: plans it as it would be answered now. Its argument has_first_round says whether a first round of key
            selection was drawn for this question.
        defined: definitions of its tables when it was planned first.

    """

    plan: Callable[..., tuple[PrivateQuery, State, Reader, Definitions]]
    defined: Definitions

    def __call__(self, chosen: Chosen) -> Chosen:
        """Return the plan as it is now.

        Raises:
            EngineError: the tables were defined anew meanwhile.

        """
        query, _, reader, defined = self.plan(has_first_round=chosen.has_first_round)
        if defined != self.defined:
            raise redefined()
        return replace(chosen, query=query, reader=reader)


def chosen_plan(
    chosen: Chosen,
    again: PlanAgain,
    replan: Replan,
    runtime: Runtime,
    timeout_seconds: float | None,
) -> Chosen:
    """Return the plan once AUTO has chosen, after a charge for each thing that it chooses by.

    Args:
        chosen: the first plan.
        again: plans the text by bounds that AUTO finds.
        replan: plans it as it would be answered now.
        runtime: what the steps run on.
        timeout_seconds: limit on reading raw data, for each thing that is drawn.

    Raises:
        DpsqlError: as `release_histograms` and `draw_first_round`; charges stay and pay for asking again.

    """
    for _ in range(_MOST_PLANS):
        query, reader = chosen.query, chosen.reader
        if query.first.is_open:
            # what comes after AUTO fails before it is charged
            kind_of(query).require_open_runs(query, runtime, reader)
            later = price_of_outcomes(query, again, runtime.state, reader)
            charge = release_histograms(query.first, runtime, reader, timeout_seconds, later)
            chosen = replace(chosen, auto_charge=chosen.auto_charge + charge)
        elif awaits_keys(query, runtime.state, reader):
            inquiry = Inquiry(reader, query_hash(query), timeout_seconds, Charged())
            with runtime.state.locks.exclusive(*(base_hash(part.frame) for part in query.parts)):
                charge = draw_first_round(query, runtime, inquiry)
            chosen = replace(chosen, first_charge=chosen.first_charge + charge, has_first_round=True)
        else:
            return chosen
        chosen = replan(chosen)
    raise StateError("others change what AUTO chooses by at this moment; ask again")
