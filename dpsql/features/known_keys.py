"""The number of private keys, as far as a first round of key selection says it, for the bounds that AUTO chooses.

What noise costs a table grows with its number of keys. So a query for numbers on keys that are selected first, whose
bounds AUTO chooses, has its first round drawn before they are known. If that round found nearly all keys, their number
chooses the norms (`auto_few_keys`), and of few keys the number of groups of a unit. It follows from stored points that
never change, and the reader may see them, so every later plan finds the same number (docs/proofs/auto.md, "Few keys").
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace

from dpsql.cascade.reader import Reader
from dpsql.errors import AccessError, CalibrationError
from dpsql.features.key_rounds import KeyRounds
from dpsql.features.kinds import kind_of
from dpsql.model.private_query import PrivateQuery
from dpsql.release.offer import current, price_of
from dpsql.release.runtime import Inquiry, Runtime
from dpsql.release.stages import offers_of_way, release_stages
from dpsql.state import Charged, ChargeItem, State


def with_key_count(
    query: PrivateQuery, choose: Callable[..., PrivateQuery], state: State, reader: Reader, *, has_first_round: bool
) -> PrivateQuery:
    """Return the plan of a query by the norms that its number of keys chooses, if a first round says it.

    Args:
        query: the plan, bound to the reader without the number, with nothing left open.
        choose: binds the plan again, by its argument key_count.
        state: the state file.
        reader: who asks. The number is not used for a reader who may not see the point of the round.
        has_first_round: whether the first round was drawn for this question, so that a refresh draws no further one.

    """
    asked = _with_first_round(query) if has_first_round else query
    rounds = _rounds_of(asked, state, reader)
    keys = rounds.key_count(state) if rounds else None
    if not keys:
        return asked
    found = choose(key_count=keys)
    return _with_first_round(found) if has_first_round else found


def awaits_keys(query: PrivateQuery, state: State, reader: Reader) -> bool:
    """Check whether the first round of a query is to be drawn before AUTO chooses its norms."""
    rounds = _rounds_of(query, state, reader)
    return rounds is not None and rounds.after_first is not None and not rounds.has_first(state)


def draw_first_round(query: PrivateQuery, runtime: Runtime, inquiry: Inquiry) -> Charged:
    """Charge, draw and store the first round of a query, which is recorded when the answer is released.

    Args:
        query: the plan, with the norms that AUTO chooses without the number of keys.
        runtime: what the steps run on.
        inquiry: who asks.

    Raises:
        DpsqlError: as `QueryKind.require_all` and `release_stages`; what could keep the answer from being made is
            found before the first charge.

    """
    state, reader, kind = runtime.state, inquiry.reader, kind_of(query)
    query = query.mapped(lambda part: current(part, state, reader))
    ways, _ = kind.require_all(query, runtime, inquiry)
    *rounds, numbers = offers_of_way(ways[0])
    # numbers by the norm to come cost their whole level, also where those of the plan are stored
    most = ChargeItem(inquiry.query_hash, numbers.asked_nano, 0)
    state.ledger.require(query.first.frame.rows.unit, [*price_of(rounds), most], reader.name)
    first = itertools.islice(kind.stages(query, state, reader), 1)
    (released,) = release_stages(first, runtime, replace(inquiry, is_shown=False))
    return released.charged


def _rounds_of(query: PrivateQuery, state: State, reader: Reader) -> KeyRounds | None:
    """Return the rounds of a query of which AUTO chooses bounds; None if it does not, or the level is not allowed."""
    if query.first.is_open or not query.first.auto:
        return None
    # whoever asks for too much is refused by the steps that follow
    with contextlib.suppress(AccessError, CalibrationError):
        return kind_of(query).rounds(query.mapped(lambda part: current(part, state, reader)), state, reader)
    return None


def _with_first_round(query: PrivateQuery) -> PrivateQuery:
    """Return a query whose first round is not refreshed."""
    numbers, *others = query.parts
    return replace(
        query, parts=(numbers, *(replace(one, request=replace(one.request, refresh=False)) for one in others))
    )
