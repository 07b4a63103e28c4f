"""The number of private keys, as far as a first round of key selection says it, for the norms that AUTO chooses.

What noise costs a table grows with its number of keys. So a query for numbers on keys that are selected first, whose
norms AUTO chooses, has its first round drawn before its norms are known. If that round found nearly all keys, their
number chooses the norms (`auto_few_keys`). It follows from stored points that never change, and the reader may see
them, so every later plan finds the same number (docs/proofs/auto.md, "Few keys").
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from dpsql.answer.exact import Runtime
from dpsql.answer.held_pairs import hold_shared_pairs
from dpsql.answer.offer import current
from dpsql.answer.round_keys import selected_weight
from dpsql.answer.stage import Inquiry, prepare_stage, release_stage
from dpsql.cascade.reader import Reader
from dpsql.errors import AccessError, CalibrationError
from dpsql.features.first_round import Found
from dpsql.features.keys_first import KeysAndNumbers, require_all_run
from dpsql.model.frame import PRESENCE
from dpsql.model.identity import statistic_hash
from dpsql.model.private_query import AutoBounds, PrivateQuery
from dpsql.model.query_kinds import KeysFirst
from dpsql.state import Charged, ChargeItem, State

Choose = Callable[[int], PrivateQuery]
"""Binds a plan again with a number of keys."""


def key_count_of(query: KeysFirst, state: State, reader: Reader) -> int | None:
    """Return how many keys the first round of a query selected. Return None if it found too few, or is not stored.

    Args:
        query: the plan, with nothing left open that AUTO is to choose.
        state: the state file.
        reader: who asks. The number is not used for a reader who may not see the point of the round.

    """
    parts = _parts_of(query, state, reader)
    if parts is None or not parts.rounds.after_first or not parts.rounds.has_first(state):
        return None
    frame = next(parts.rounds.known(state)).query.frame
    stored = state.side_table.levels(statistic_hash(PRESENCE, frame))[0]
    found = Found(*selected_weight(frame, stored, state.side_table))
    is_known = parts.rounds.reader.may_see(stored.rho_nano) and parts.rounds.after_first.finds_nearly_all(found)
    return found.keys if is_known else None


def awaits_keys(query: KeysFirst, state: State, reader: Reader) -> bool:
    """Check whether the first round of a query is to be drawn before AUTO chooses its norms."""
    parts = _parts_of(query, state, reader)
    return parts is not None and parts.rounds.after_first is not None and not parts.rounds.has_first(state)


def with_key_count(
    query: KeysFirst, choose: Choose, state: State, reader: Reader, *, has_first_round: bool
) -> PrivateQuery:
    """Return the plan of a query by the norms that its number of keys chooses, if a first round says it.

    Args:
        query: the plan, bound to the reader without the number.
        choose: binds the plan again with a number of keys.
        state: the state file.
        reader: who asks.
        has_first_round: whether the first round was drawn for this question, so that a refresh draws no further one.

    """
    asked = _with_first_round(query) if has_first_round else query
    keys = key_count_of(asked, state, reader)
    found = choose(keys) if keys else query
    return _with_first_round(found) if has_first_round and isinstance(found, KeysFirst) else found


def _with_first_round(query: KeysFirst) -> KeysFirst:
    """Return a query whose first round is not refreshed."""
    numbers, selection = query.parts
    return replace(query, parts=(numbers, replace(selection, request=replace(selection.request, refresh=False))))


def draw_first_round(query: KeysFirst, runtime: Runtime, inquiry: Inquiry) -> Charged:
    """Charge, draw and store the first round of a query, which is recorded when the answer is released.

    Args:
        query: the plan, with the norms that AUTO chooses without the number of keys.
        runtime: what the steps run on.
        inquiry: who asks.

    Raises:
        DpsqlError: as `prepare_stage` and `release_stage`; what could keep the answer from being made is found before
            the first charge.

    """
    state, reader = runtime.state, inquiry.reader
    asked = query.mapped(lambda part: current(part, state, reader))
    parts = KeysAndNumbers.of(asked, state, reader)
    planned = require_all_run(asked, parts, runtime, inquiry)
    # numbers by the norm to come cost their whole level, also where those of the plan are stored
    most = ChargeItem(inquiry.query_hash, planned[-1].asked_nano, 0)
    rounds = [item for offer in planned[:-1] for item in offer.items]
    state.ledger.require(parts.numbers.frame.rows.unit, [*rounds, most], reader.name)
    hold_shared_pairs(parts.numbers.frame, planned, runtime)
    first = next(parts.rounds.known(state))
    stage = prepare_stage([first.query], runtime, first.reader, first.selected)
    of_round = replace(inquiry, reader=first.reader, auto_charge=Charged(), drawn_once=True, is_shown=False)
    return release_stage(stage, runtime, of_round)


def _parts_of(query: KeysFirst, state: State, reader: Reader) -> KeysAndNumbers | None:
    """Return the parts of a query if AUTO chooses a norm of it; None if it does not, or the level is not allowed."""
    numbers = query.first
    if numbers.is_open or not any(isinstance(one, AutoBounds) and one.is_norm for one in numbers.auto):
        return None
    if not numbers.frame.bounding.by_norm:
        return None
    # whoever asks for too much is refused by the steps that follow
    with contextlib.suppress(AccessError, CalibrationError):
        return KeysAndNumbers.of(query.mapped(lambda part: current(part, state, reader)), state, reader)
    return None
