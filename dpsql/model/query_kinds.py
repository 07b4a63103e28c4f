"""The kinds of a private query, by which groups its answer has.

Everything here is a noun: a function of policy, query text and schema. How queries of a kind are priced, released and
explained is a file of `features`, which `features/kinds.py` names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from dpsql.model.private_query import ChangeFrame, FrameQuery, PrivateQuery, Request
from dpsql.model.rows import Key


@dataclass(frozen=True, slots=True)
class OneSet(PrivateQuery):
    """A query whose groups are those of one set of keys, its only part."""


@dataclass(frozen=True, slots=True)
class AutoHalfWidths(PrivateQuery):
    """A query by half widths whose bounds AUTO finds, so that its level follows from these bounds, up to a cap.

    Its only part is the query at the cap until AUTO has chosen, and then at its level.

    Attributes:
        most_nano: the cap in nano-rho, for the statistics and the share of AUTO together; 0 before it is known.

    """

    most_nano: int = 0


@dataclass(frozen=True, slots=True)
class RelativeError:
    """The relative error that a query asks for in place of a level.

    Attributes:
        error: the largest half width of a number, over its size.
        at_least: the share of the groups whose numbers meet it, of each column.
        confidence: the probability with which a number lies within its half width: 0.9, 0.95 or 0.99.

    """

    error: float
    at_least: float
    confidence: float


@dataclass(frozen=True, slots=True)
class WithinTarget(PrivateQuery):
    """A query by one set of keys whose level rises in steps until its numbers are within a relative error.

    Its only part is the query at the highest level, by rho or by epsilon.

    Attributes:
        target: the relative error.
        cap: the option that says the highest level, ``max_rho`` or ``max_epsilon``, and its value.

    """

    target: RelativeError
    cap: tuple[str, float]


@dataclass(frozen=True, slots=True)
class LargestWithin(PrivateQuery):
    """A query for the largest counts of public keys within a relative error, as many as its level pays for.

    Its only part is the query for the counts of all keys, at the whole level. Its frame says what is counted, and each
    unit counts in all of its groups.

    Attributes:
        target: the relative error of a count, and its confidence.
        cap: the option that says the level, ``max_rho`` or ``max_epsilon``, and its value.

    """

    target: RelativeError
    cap: tuple[str, float]

    @property
    def limit(self) -> int | None:
        """The largest number of rows, if it is smaller than that of all keys. None otherwise."""
        limit, keys = self.first.finish.limit, self.first.frame.key_count
        return limit if limit is not None and (keys is None or limit < keys) else None

    @property
    def beside(self) -> tuple[str, ...]:  # type: ignore[override]
        """Terms of the identity: the relative error, the number of rows, and the level."""
        request = self.first.request
        terms = (self.target.error, self.target.confidence, self.limit, request.rho, request.epsilon)
        return ("largest", *map(repr, terms))


@dataclass(frozen=True, slots=True)
class KeysAlone(PrivateQuery):
    """A query for the keys of its groups and no number, of units with several keys: they are selected in rounds.

    Its only part is the first round, with the request of all rounds together. The others are of the same rows without
    those of keys that were selected before, so that which they are is known when these are.
    """


@dataclass(frozen=True, slots=True)
class KeysFirst(PrivateQuery):
    """A query for numbers on keys that are selected first.

    Its parts are the query for the numbers and that for the keys alone, as the query of the first round; both have the
    request of all together.

    Attributes:
        may_hide: whether one threshold on the numbers may take the place of later rounds, as nobody names a mechanism.

    """

    may_hide: bool = False


@dataclass(frozen=True, slots=True)
class WithOtherGroup(PrivateQuery):
    """One more row stands under the groups of one set of keys, for the rows of all groups that are not shown.

    Attributes:
        name: what the text keys of the row read.
        row: the query of these rows, without keys; what it measures makes the same estimates.

    """

    beside: ClassVar[tuple[str, ...]] = ("other group",)

    name: str
    row: FrameQuery


@dataclass(frozen=True, slots=True)
class GroupingSets(PrivateQuery):
    """A query whose groups are those of several sets of keys, each a query by its own keys.

    Attributes:
        parts: the queries by the keys of each distinct set with its share of the request, those with most keys first.
        all_keys: those of all sets, and flags: columns that are 1 in the rows of sets which leave a key out, else 0.
        flagged: of each flag, which of the keys it is about.
        request: of all sets together.
        sets: of each grouping set in the order of the text, which part it is.
        adds_up: whether the first part has all keys, all of them public, and the others are sums of its groups.

    """

    all_keys: tuple[Key, ...]
    flagged: tuple[int, ...]
    request: Request
    sets: tuple[int, ...]
    adds_up: bool

    @property
    def whole_request(self) -> Request:
        """The request of all sets together."""
        return self.request

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of all sets, and the flags."""
        return self.all_keys

    def places(self, part: FrameQuery) -> tuple[int, ...]:
        """Return the place of each key of a part among the keys of all sets."""
        return tuple(self.all_keys.index(key) for key in part.frame.keys)

    def mapped(self, change: ChangeFrame) -> Self:
        """The query with a change of each part, the finest first; where sets add up, others are sums of its groups."""
        first, *others = self.parts
        first = change(first)
        if self.adds_up:
            # the finest groups bound a unit, so that no weight of their own is left to the others
            others = [
                replace(
                    part,
                    frame=replace(
                        part.frame, bounding=replace(part.frame.bounding, finer=first.frame, counted_groups=None)
                    ),
                )
                for part in others
            ]
        return replace(self, parts=(first, *map(change, others)))
