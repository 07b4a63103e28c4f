"""Several private queries of one text: how a level is divided among them, what they guarantee and cost together.

*Guarantee*: all queries together are one adaptive history of releases of each unit. Levels and the deltas of thresholds
add up (docs/proofs/ledger.md, Theorem 2). What is computed of the answers is post-processing. Neighbours: all rows of
one unit are added or removed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dpsql.cascade.reader import Reader
from dpsql.cascade.serving import Serving
from dpsql.features.auto_price import open_price
from dpsql.features.joint_release import shown_frame_of
from dpsql.features.kinds import kind_of
from dpsql.features.query_kind import QueryKind
from dpsql.mechanism.calibrate import calibrate
from dpsql.mechanism.joint import ShownFrame, equal_requests, joint_guarantee
from dpsql.mechanism.registry import histogram_of
from dpsql.model.frame import NANO
from dpsql.model.private_query import PrivateQuery, Request
from dpsql.model.query_kinds import WithOtherGroup
from dpsql.release.offer import Offer, current, price_of
from dpsql.release.runtime import Runtime
from dpsql.state import ChargeItem, State

_DELTA_SLACK = 1e-9
"""Share of delta by which sums of it may be off."""


@dataclass(frozen=True, slots=True)
class OfferedPart:
    """A private query of a text, with the way it will be served; nothing is charged yet.

    Attributes:
        query: the plan, its parts on current generations.
        offers: how its frames are served.
        items: the most that it costs now.
        is_single: whether one charge pays for all of it, so that it can be charged together with others.

    """

    query: PrivateQuery
    offers: tuple[Offer, ...]
    items: tuple[ChargeItem, ...]
    is_single: bool

    @property
    def has_fixed_groups(self) -> bool:
        """Return whether it shows the same groups whatever is released."""
        is_open = bool(self.query.first.auto) or self.query.whole_request.target is not None
        return bool(self.offers) and not is_open and not any(offer.histogram.hides for offer in self.offers)

    @property
    def unit(self) -> str:
        """The privacy unit whose budget pays."""
        return self.query.first.frame.rows.unit


def offered(query: PrivateQuery, state: State, reader: Reader, after_auto: ChargeItem | None = None) -> OfferedPart:
    """Return how a private query of a text is served now, and the most that it costs.

    Args:
        query: the plan.
        state: the state file.
        reader: who asks.
        after_auto: the most that it costs after AUTO has chosen; None if nothing is left to AUTO.

    Raises:
        AccessError, CalibrationError: it cannot be answered for the reader.

    """
    if after_auto is not None:
        return OfferedPart(query, (), (*open_price(query.first), after_auto), is_single=False)
    query = query.mapped(lambda part: current(part, state, reader))
    kind = kind_of(query)
    offers = kind.offers(query, state, reader)
    walks_by_itself = type(kind).release is not QueryKind.release
    stages = 1 if walks_by_itself else max(len(list(way)) for way in kind.ways(query, state, reader))
    return OfferedPart(query, offers, price_of(offers), is_single=stages == 1 and not walks_by_itself)


def served_now(query: PrivateQuery, state: State, reader: Reader) -> OfferedPart:
    """Return how a private query is served now; without offers if something is left to AUTO.

    Raises:
        AccessError, CalibrationError: it cannot be answered for the reader.

    """
    return OfferedPart(query, (), (), is_single=False) if query.first.is_open else offered(query, state, reader)


def release_order(parts: Sequence[OfferedPart], waited_for: Sequence[bool]) -> list[int]:
    """Return the places of private queries that wait for no number, in the order in which they are released.

    Numbers that rows wait for come first, the lowest level first, so that each is served by a point of its own level.
    Of the others a statistic that two of them need is drawn at its higher level first, and those whose levels follow
    from released numbers come last.

    Args:
        parts: the queries.
        waited_for: of each, whether rows wait for it.

    """

    def key(place: int) -> tuple[bool, bool, int]:
        part, waits = parts[place], waited_for[place]
        level = part.offers[0].presence.level.rho_nano if part.offers else 0
        return not waits, not part.is_single, level if waits else -level

    return sorted(range(len(parts)), key=key)


def has_own_points(parts: Sequence[OfferedPart]) -> bool:
    """Check that no query shows a statistic that one before it has released at a higher level, which could serve it."""
    released: dict[str, int] = {}
    for one in (serving for part in parts for offer in part.offers for serving in offer.servings):
        if released.get(one.pin.statistic_hash, 0) > one.disclosed.rho_nano:
            return False
        released[one.pin.statistic_hash] = one.disclosed.rho_nano
    return True


def require_part(part: OfferedPart, runtime: Runtime, reader: Reader) -> None:
    """Refuse what the database cannot run; charges nothing.

    Raises:
        DpsqlError: as `QueryKind.require_runs`.

    """
    if part.offers:
        kind_of(part.query).require_runs(part.query, runtime, reader)


def divided(request: Request, queries: Sequence[PrivateQuery]) -> tuple[Request, ...]:
    """Return the request of each private query of one unit. All cost the same level.

    Args:
        request: of all of them together.
        queries: their plans, at any level.

    Raises:
        CalibrationError: the level or delta is too small.

    """
    frames = [
        [
            ShownFrame(histogram_of(part.frame), 0, 0.0, part.statistics, 1, auto_nano=len(part.auto))
            for part in query.parts
        ]
        for query in queries
    ]
    shares = equal_requests(request, frames)
    return tuple(
        share.at((share.rho or 0.0) / _times(query)) if _times(query) > 1 else share
        for share, query in zip(shares, queries, strict=True)
    )


def _times(query: PrivateQuery) -> int:
    """Return how often a query costs its level: the group of all others costs as much again."""
    return 2 if isinstance(query, WithOtherGroup) else 1


def hides_keys(query: PrivateQuery) -> bool:
    """Check that keys of a query pass a threshold."""
    return any(histogram_of(part.frame).hides for part in query.parts)


@dataclass(frozen=True, slots=True)
class LeftBeside:
    """The part of a request that private queries with levels of their own leave to the others of one unit.

    Attributes:
        request: of all queries together.
        queries: the plans of those that name no level.
        rho, delta: level and thresholds' delta of all queries together.
        taken_rho, taken_delta: those of the queries that name levels.

    """

    request: Request
    queries: tuple[PrivateQuery, ...]
    rho: float
    delta: float
    taken_rho: float
    taken_delta: float

    @property
    def is_rho_spent(self) -> bool:
        """Return whether no level is left, or less than none if nobody needs it."""
        left_nano = round((self.rho - self.taken_rho) * NANO)
        return left_nano <= 0 if self.queries else left_nano < 0

    @property
    def is_delta_spent(self) -> bool:
        """Return whether no delta is left for thresholds, or less than none if nobody needs it."""
        left = self.delta - self.taken_delta
        slack = _DELTA_SLACK * self.delta
        return left <= slack if any(map(hides_keys, self.queries)) else left < -slack

    def shares(self) -> tuple[Request, ...]:
        """Return the request of each query that names no level.

        Raises:
            CalibrationError: the level is too small.

        """
        if not self.queries:
            return ()
        hidden = [hides_keys(query) for query in self.queries]
        equal = divided(self.request.at(self.rho - self.taken_rho), self.queries)
        delta = (self.delta - self.taken_delta) / max(1, sum(hidden))
        return tuple(replace(one, delta=delta) if hides else one for one, hides in zip(equal, hidden, strict=True))


def left_beside(request: Request, queries: Sequence[PrivateQuery], own: Sequence[PrivateQuery]) -> LeftBeside:
    """Return what queries with levels of their own leave of a request of all queries of one unit.

    Args:
        request: of all queries together.
        queries: the plans of those that name no level.
        own: the plans of those that name one.

    Raises:
        CalibrationError: a level is too small.

    """
    together = [*queries, *own]
    equal = divided(request, together)
    hidden = [share.delta for share, query in zip(equal, together, strict=True) if hides_keys(query)]
    total = math.fsum((share.rho or 0.0) * _times(query) for share, query in zip(equal, together, strict=True))
    return LeftBeside(
        request=request,
        queries=tuple(queries),
        rho=total if request.rho is None else request.rho,
        delta=math.fsum(hidden),
        taken_rho=sum(map(_level_asked, own)),
        taken_delta=math.fsum(query.whole_request.delta for query in own if hides_keys(query)),
    )


def _level_asked(query: PrivateQuery) -> float:
    """Return the level in rho that a query asks for, all its frames together.

    Raises:
        CalibrationError: the level is too small.

    """
    if query.whole_request.rho is not None:
        return query.whole_request.rho * _times(query)
    return sum(calibrate(part, histogram_of(part.frame)).rho_nano for part in query.parts) / NANO * _times(query)


def price_together(parts: Sequence[OfferedPart]) -> tuple[ChargeItem, ...]:
    """Return the price of private queries of one unit, released one after the other.

    A statistic that was released at a higher level before serves a later query at no price.
    """
    found: dict[str, list[ChargeItem]] = {}
    for part in parts:
        for item in part.items:
            known = found.setdefault(item.statistic_hash, [])
            if not known or item.rho_nano > known[-1].rho_nano:
                known.append(item)
    return tuple(replace(items[-1], delta_units=sum(one.delta_units for one in items)) for items in found.values())


def first_items(parts: Sequence[OfferedPart]) -> dict[int, tuple[ChargeItem, ...]]:
    """Return the items that are charged together, by the place of the query that they are charged for.

    A statistic that a later query raises is charged for that rise when the query is released.
    """
    seen: set[str] = set()
    found: dict[int, tuple[ChargeItem, ...]] = {}
    for place, part in enumerate(parts):
        if part.is_single:
            items = tuple(item for item in part.items if item.statistic_hash not in seen)
            found[place] = items
        seen |= {item.statistic_hash for item in part.items}
    return found


def guarantee_together(
    request: Request, parts: Sequence[Sequence[Offer]], caps: Mapping[int, float]
) -> tuple[float, float]:
    """Return (epsilon, delta) of private queries of one unit together, both rounded up.

    Args:
        request: of all of them together.
        parts: how the frames of each query are served.
        caps: levels in rho that queries cover whose level was chosen by what was released, by their places.

    """
    shown, told = list[ShownFrame](), dict[tuple[str, int], int]()
    for place, offers in enumerate(parts):
        for number, offer in enumerate(offers):
            frame = shown_frame_of(offer)
            levels = {_release_of(one): one.guaranteed_nano for one in offer.servings}
            # a point that two queries show is one release
            rho_nano = sum(max(0, level - told.get(name, 0)) for name, level in levels.items())
            told |= {name: max(level, told.get(name, 0)) for name, level in levels.items()}
            if place in caps and not number:
                rho_nano = max(rho_nano, math.ceil(caps[place] * NANO))
            shown.append(replace(frame, rho_nano=rho_nano))
    return joint_guarantee(shown, request)


def _release_of(serving: Serving) -> tuple[str, int]:
    """Return the chain of points of a served number: its statistic, and its release if levels are releases apart.

    Private keys of several releases are told of together.
    """
    return serving.pin.statistic_hash, 0 if serving.keys_from else serving.release_nano


def rho_counted_twice(parts: Sequence[Sequence[Offer]]) -> float:
    """Return the rho that the levels of private queries have in common: a point that several show is one release.

    Args:
        parts: how the frames of each query are served.

    """
    levels: dict[tuple[str, int], list[int]] = {}
    for offers in parts:
        own = {_release_of(one): one.level.rho_nano for offer in offers for one in offer.servings}
        for name, rho_nano in own.items():
            levels.setdefault(name, []).append(rho_nano)
    return sum(sum(found) - max(found) for found in levels.values()) / NANO
