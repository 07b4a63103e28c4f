"""Which sides of a FROM clause make more rows of a unit than either has: those that a join has to cut.

Where a side is unique on what is compared, a row of the other side meets one row of it at most, and nothing grows.
Otherwise two sides with n rows of a unit each make n * n of them, and how long the query takes, or whether it ends,
would tell of one person. The engine joins in an order of its own, by what it knows of the data. So what counts is not
the order of the text but every set of sides that some order joins first (docs/proofs/relations.md).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dpsql.model.environment import KeyPath
from dpsql.operations.comparisons import compared_type
from dpsql.sql.source.joins import FILTERING, FULL, INNER, LEFT, RIGHT, Joins
from dpsql.sql.source.relation import Owner, Relation, are_one_unit
from dpsql.sql.source.seen_columns import SeenColumn

_MOST_SETS = 16
"""Sets of unique columns of joined rows that are kept track of: fewer can only cut more."""

MOST_DEGREE = 9
"""Where more sides multiply, fewer than two rows of a unit could be kept of each: nothing useful is left."""

Pairs = dict[tuple[int, int], set[tuple[str, str]]]
Ties = Collection[tuple[int, int]]
"""Pairs of sides that are compared by their units, beside what the text compares."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Sides that multiply.

    Attributes:
        places: of these sides; none where nothing multiplies.
        degree: most of them whose rows are multiplied with each other.
        keys: of each of them the columns, beside the unit, on which rows agree that are multiplied with each other.
        ties: pairs of sides that are compared by their units too, so that no order joins rows of two units.

    """

    places: tuple[int, ...] = ()
    degree: int = 1
    keys: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    ties: tuple[tuple[int, int], ...] = ()


def is_unique(relation: Relation, compared: Collection[str]) -> bool:
    """Whether no two rows have the same values in these columns."""
    return any(columns <= set(compared) for columns in relation.unique)


def growth(joins: Joins) -> Growth:
    """What multiplies in a FROM clause."""
    graph = _Graph(joins)
    return Growth() if len(graph.private) < 2 else graph.growth()


def is_one_side(joins: Joins, place: int, ties: Ties) -> bool:
    """Return whether a side whose text has joins has to be joined before any other.

    A linked table need not be: the tables that lead it to its unit hold one row at most for each of its rows, and no
    other side is joined with them by what leaves several, or rows of others (docs/proofs/relations.md, *Links inside a
    join*).

    Args:
        joins: the sides, and how they are joined.
        place: the place of the side.
        ties: pairs of sides that are compared by their units.

    """
    relation = joins.parts[place].relation
    owner, schema = relation.owner, relation.schema
    links = owner.rules.links if owner and relation.is_table else ()
    key = schema.column(links[0].columns[0]) if links else None
    if not owner or not key or any(len(link.columns) > 1 for link in links):
        return True
    if any(step.kind not in ("", INNER) for step in joins.steps):
        return True
    ways = {path.space for path in owner.paths if path.columns == (key.name,)}
    for shared in _classes([], compared(joins, ties), range(len(joins.parts))):
        if (place, owner.unit) in shared:
            return True
        if (place, key.name) in shared and not all(
            any(path.space in ways and path.columns == (column,) for path in _paths(joins, other))
            for other, column in shared
        ):
            return True
    return False


def _paths(joins: Joins, place: int) -> tuple[KeyPath, ...]:
    owner = joins.parts[place].relation.owner
    return owner.paths if owner else ()


class _Graph:
    """Sides and what is compared between them; an arrow leads to a side of which a row meets one row at most."""

    def __init__(self, joins: Joins) -> None:
        self._parts = joins.parts
        self._nodes = [place for place, step in enumerate(joins.steps) if step.kind not in FILTERING]
        self.private = [place for place in self._nodes if joins.parts[place].relation.owner]
        self._written = compared(joins)
        self._pairs = with_derived(self._written, self._nodes)
        self._reorders = all(step.kind in ("", INNER, *FILTERING) for step in joins.steps)
        self._near = {place: {b for a, b in self._pairs if a == place} for place in self._nodes}
        self._arrows: dict[int, int] = {}

    def growth(self) -> Growth:
        ties = tuple(self._ties()) if self._reorders else ()
        # what is cut follows from the first ones alone: cuts are a part of hashes, and fewer arrows cut no less
        all_ties = tuple(sorted({*ties, *self._compared_otherwise()})) if self._reorders else ()
        for a, b in ties:
            self._near[a].add(b)
            self._near[b].add(a)
        self._arrows = {a: _mask(b for b in self._near[a] if self._leads(a, b, ties)) for a in self._nodes}
        bad = []
        for chosen in self._connected():
            roots = self._roots(chosen)
            if len(roots) > 1:
                bad.append((chosen, roots))
            if len(roots) > MOST_DEGREE:
                break
        if not bad:
            return Growth(ties=all_ties)
        places = tuple(sorted({root for _, roots in bad for root in roots}))
        return Growth(places, max(len(roots) for _, roots in bad), self._keys(places, bad), all_ties)

    def _ties(self) -> Iterator[tuple[int, int]]:
        """Yield private sides that some order joins through public sides before what makes their units equal."""
        for a, b in self._of_two_units(self._written):
            if self._meet_in_public(a, b):
                yield a, b

    def _compared_otherwise(self) -> Iterator[tuple[int, int]]:
        """Yield private sides that are compared, in the text or through others, by what leaves them of two units."""
        for a, b in self._of_two_units(self._pairs):
            if (a, b) in self._pairs:
                yield a, b

    def _of_two_units(self, pairs: Pairs) -> Iterator[tuple[int, int]]:
        """Yield private sides that the pairs do not make rows of one unit, and whose units can be compared."""
        for a, b in itertools.combinations(self.private, 2):
            types = self._parts[a].relation.unit_type, self._parts[b].relation.unit_type
            if compared_type(*types) and not self._one_unit(a, b, pairs):
                yield a, b

    def _one_unit(self, a: int, b: int, pairs: Pairs) -> bool:
        one, other = self._owner(a), self._owner(b)
        return bool(one and other and are_one_unit(one, other, pairs.get((a, b), set())))

    def _meet_in_public(self, a: int, b: int) -> bool:
        public = {place for place in self._nodes if not self._owner(place)}
        return b in reached([a], [(one, other) for one, other in self._written if one in public or one == a])

    def _owner(self, place: int) -> Owner | None:
        return self._parts[place].relation.owner

    def _leads(self, a: int, b: int, ties: Collection[tuple[int, int]]) -> bool:
        relation, owner = self._parts[b].relation, self._owner(b)
        if not owner:
            # what public rows make of one row is counted apart
            return True
        met_on = {column for _, column in self._pairs.get((a, b), ())}
        if self._one_unit(a, b, self._pairs) or tuple(sorted((a, b))) in ties:
            met_on |= owner.always
        return is_unique(relation, met_on)

    def _connected(self) -> Iterator[int]:
        """Sets of sides that compare columns with each other, two of them private: what an order may join first.

        A set is a number whose bits are places; large ones come early.
        """
        near = {place: _mask(others) for place, others in self._near.items()}
        private = _mask(self.private)
        found = [1 << place for place in self._nodes]
        seen = set(found)
        while found:
            chosen = found.pop()
            if (chosen & private).bit_count() > 1:
                yield chosen
            around = 0
            for place in _places(chosen):
                around |= near[place]
            for place in _places(around & ~chosen):
                larger = chosen | 1 << place
                if larger not in seen:
                    seen.add(larger)
                    found.append(larger)

    def _roots(self, chosen: int) -> list[int]:
        """Fewest private sides whose rows settle the rows of all others."""
        private = _mask(self.private)
        reached = {}
        for place in _places(chosen & private):
            reached[place] = self._reached(place, chosen)
            if reached[place] == chosen:
                return [place]
        roots, covered = list[int](), 0
        # who reaches a side reaches all that it reaches: so a side is a root only where none other leads to it
        for place in sorted(reached, key=lambda one: (-reached[one].bit_count(), one)):
            if not covered >> place & 1:
                roots.append(place)
                covered |= reached[place]
        return roots

    def _reached(self, place: int, chosen: int) -> int:
        seen = ahead = 1 << place
        while ahead:
            more = 0
            for one in _places(ahead):
                more |= self._arrows[one]
            ahead = more & chosen & ~seen
            seen |= ahead
        return seen

    def _keys(self, places: Sequence[int], bad: Sequence[tuple[int, Sequence[int]]]) -> dict[int, tuple[str, ...]]:
        """Columns on which all rows agree that are multiplied, in whatever order: compared from one to the next."""
        keys: dict[int, list[str]] = {place: [] for place in places}
        if not self._reorders:
            return dict.fromkeys(places, ())
        owner_names = {place: owner.names_unit for place in places if (owner := self._owner(place))}
        for shared in _classes([], self._pairs, self._nodes):
            if not set(places) <= {place for place, _ in shared}:
                continue
            if any(column in owner_names.get(place, ()) for place, column in shared):
                continue
            if all(
                any(
                    set(roots) <= {place for place, _ in part}
                    for part in _classes(shared, self._pairs, list(_places(chosen)))
                )
                for chosen, roots in bad
            ):
                for place in places:
                    keys[place].append(min(column for one, column in shared if one == place))
        return {place: tuple(sorted(set(columns))) for place, columns in keys.items()}


def reached(starts: Iterable[int], pairs: Collection[tuple[int, int]]) -> set[int]:
    """Sides to which pairs lead from some, directly or through further ones; these are among them."""
    seen = set(starts)
    ahead = list(seen)
    while ahead:
        one = ahead.pop()
        found = {b for a, b in pairs if a == one} - seen
        seen |= found
        ahead += found
    return seen


def _mask(places: Iterable[int]) -> int:
    return sum({1 << place for place in places})


def _places(mask: int) -> Iterator[int]:
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def compared(joins: Joins, ties: Ties = ()) -> Pairs:
    """Return, of each two sides, the columns that the text compares, and the units of ties, in both directions."""
    pairs: Pairs = defaultdict(set)
    stands_for: dict[str, list[tuple[int, str]]] = {}

    def ends(seen: SeenColumn) -> list[tuple[int, str]]:
        return stands_for.get(seen.output.name, [(seen.place, seen.name)])

    for step in joins.steps:
        if step.kind in FILTERING:
            continue
        for left, right in step.equal:
            for place, column in ends(left):
                pairs[place, right.place].add((column, right.name))
                pairs[right.place, place].add((right.name, column))
        for merged, (left, right) in zip(step.merged, step.equal, strict=False):
            # after FULL JOIN it is whichever of both there is
            stands_for[merged.output.name] = [*ends(left), (right.place, right.name)]
    for tie in ties:
        for a, b in (tie, tie[::-1]):
            one, other = joins.parts[a].relation.owner, joins.parts[b].relation.owner
            if one and other:
                pairs[a, b].add((one.unit, other.unit))
    return dict(pairs)


def own_columns_compared(joins: Joins, place: int) -> set[str]:
    """Return the columns of a side that the text compares with those of other sides."""
    return {own for (one, _), names in compared(joins).items() if one == place for own, _ in names}


def with_derived(pairs: Pairs, places: Collection[int]) -> Pairs:
    """Beside what the text compares, of other two sides the columns that are equal because others are.

    The engine derives such comparisons, and may join by them first.
    """
    derived: Pairs = defaultdict(set)
    for shared in _classes([], pairs, places):
        for (a, one), (b, other) in itertools.permutations(shared, 2):
            if a != b:
                derived[a, b].add((one, other))
    return {**derived, **pairs}


def _classes(
    within: Collection[tuple[int, str]], pairs: Pairs, chosen: Collection[int]
) -> list[frozenset[tuple[int, str]]]:
    """Columns of some sides that are equal where these sides alone are joined; of some of them, if any are given."""
    found: list[set[tuple[int, str]]] = []
    for (a, b), columns in pairs.items():
        if a not in chosen or b not in chosen:
            continue
        for one, other in columns:
            both = {(a, one), (b, other)}
            if within and not both <= set(within):
                continue
            touched = [known for known in found if known & both]
            found = [known for known in found if not known & both] + [both.union(*touched)]
    return [frozenset(known) for known in found]


def unique_of(joins: Joins, place: int) -> frozenset[frozenset[str]]:
    """Sets of columns that are unique in the rows of one side, under their names in joined rows."""
    outputs = {seen.name: seen.output.name for seen in joins.columns if seen.place == place}
    unique = joins.parts[place].relation.unique
    return frozenset(frozenset(outputs[name] for name in names) for names in unique if names <= set(outputs))


def meet_one(
    joins: Joins, place: int, left: frozenset[frozenset[str]], known: tuple[Collection[str], Collection[str]]
) -> tuple[bool, bool]:
    """Return whether a row of the joined side meets one row before it at most, and whether the reverse holds.

    Args:
        joins: the sides, and how they are joined.
        place: the place of the side that is joined.
        left: the sets of columns that are unique in the rows before.
        known: columns of either side that one row of the other side decides, besides those that are compared.

    """
    equal = joins.steps[place].equal
    compared_left = {one.output.name for one, _ in equal}
    one_left = any(names <= {*compared_left, *known[0]} for names in left)
    one_right = is_unique(joins.parts[place].relation, {other.name for _, other in equal} | set(known[1]))
    return one_left, one_right


def unique_after(
    joins: Joins, place: int, left: frozenset[frozenset[str]], meet: tuple[bool, bool]
) -> frozenset[frozenset[str]]:
    """Return sets of columns that are unique in joined rows.

    Args:
        joins: the sides, and how they are joined.
        place: the place of the side that is joined.
        left: the sets of columns that are unique in the rows before.
        meet: the result of `meet_one`.

    """
    step, right = joins.steps[place], unique_of(joins, place)
    one_left, one_right = meet
    found = (left if one_right else frozenset()) | (right if one_left else frozenset())
    if not found:
        found = frozenset(one | other for one in left for other in right)
    if step.kind == FULL and step.merged:
        merged = step.equal[: len(step.merged)]
        ends = [{seen.output.name for seen in side} for side in zip(*merged, strict=True)]
        if any(names <= ends[0] for names in left) and any(names <= ends[1] for names in right):
            found |= {frozenset(seen.output.name for seen in step.merged)}
    if step.kind in (LEFT, RIGHT, FULL):
        found = frozenset(names for names in found if names)
    return frozenset(sorted(found, key=sorted)[:_MOST_SETS])
