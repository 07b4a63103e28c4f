"""Deterministic automata of patterns, as RE2 builds them: their size bounds the time of a search on any text.

*Guarantee*: RE2 reads a text once for each automaton. It takes a constant time for each character while the states that
it has built fit into its memory. A pattern with at most ``MAX_STATES`` states in both directions needs no more: its
states, with the steps inside long characters, fit. A pattern with more of them may go back to a search whose time
depends on the text, up to several hundred times as long.

RE2 finds the end of a match forwards, and its beginning backwards. Forwards a state is a list of places in the order in
which they are preferred, cut behind a match. Backwards it is a set.

What a group holds is read a third time, at a constant time for each character only if the pattern is *one-pass*: after
each character it is certain which part of the pattern the next one belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dpsql.operations.pattern_syntax import LAST, Anchor, Chars, Choice, Node, Pattern, PatternError, Ranges, Sequence

MAX_STATES = 1_000
MAX_PLACES = 2_000
"""Most characters, anchors, choices and repetitions of a pattern whose repetitions are written out."""
_MOST_STEPS = 400_000
"""Places that are looked at while states are built."""


@dataclass(slots=True)
class _Program:
    """Places of a pattern, each with the places that follow it in the order in which they are preferred.

    Attributes:
        chars: for each place the characters that it reads; None if it reads none.
        follows: for each place the places after it. The place of a match has none.
        is_end: places that are the end of the text.
        is_start: places that are its beginning.
        steps: places that were looked at so far.

    """

    chars: list[Ranges | None] = field(default_factory=list)
    follows: list[list[int]] = field(default_factory=list)
    is_end: list[bool] = field(default_factory=list)
    is_start: list[bool] = field(default_factory=list)
    steps: int = 0

    def add(self, *follows: int, chars: Ranges | None = None, anchor: str = "") -> int:
        if len(self.chars) > MAX_PLACES:
            raise PatternError(f"it has more than {MAX_PLACES:,} parts, its repetitions written out")
        self.chars.append(chars)
        self.follows.append(list(follows))
        self.is_end.append(anchor == "end")
        self.is_start.append(anchor == "start")
        return len(self.chars) - 1

    def build(self, node: Node, after: int, *, backwards: bool) -> int:
        """Return the first place of a part that is followed by a place."""
        if isinstance(node, Chars):
            return self.add(after, chars=node.ranges)
        if isinstance(node, Anchor):
            return self.add(after, anchor="end" if node.at_end != backwards else "start")
        if isinstance(node, Choice):
            return self.add(*(self.build(part, after, backwards=backwards) for part in node.parts))
        if isinstance(node, Sequence):
            for part in node.parts if backwards else reversed(node.parts):
                after = self.build(part, after, backwards=backwards)
            return after
        order = 1 if node.is_greedy else -1
        if node.most is None:
            loop = self.add()
            self.follows[loop] = [self.build(node.part, loop, backwards=backwards), after][::order]
            first = loop
        else:
            first = after
            for _ in range(node.most - node.least):
                first = self.add(*[self.build(node.part, first, backwards=backwards), after][::order])
        for _ in range(node.least):
            first = self.build(node.part, first, backwards=backwards)
        return first

    def look(self, places: int) -> None:
        """Count places that are looked at.

        Raises:
            _TooManyStepsError: they are too many.

        """
        self.steps += places
        if self.steps > _MOST_STEPS:
            raise _TooManyStepsError


class _TooManyStepsError(Exception):
    """An automaton that takes too long to build."""


def state_count(pattern: Pattern) -> int:
    """Return the states of the larger automaton, or more than ``MAX_STATES`` if it has more.

    Raises:
        PatternError: the pattern is too long.

    """
    try:
        return max(_states(pattern.root, backwards=False), _states(pattern.root, backwards=True))
    except _TooManyStepsError:
        return MAX_STATES + 1


def _states(root: Node, *, backwards: bool) -> int:
    program = _Program()
    match = program.add()
    first = program.build(root, match, backwards=backwards)
    kinds = _kinds(program)
    reads = [set(_read(chars, kinds)) if chars else set[int]() for chars in program.chars]
    leaves: dict[int, tuple[int, ...]] = {}
    at_start = _leaves(program, [first], at_start=True)
    again = () if backwards else _leaves(program, [first], at_start=False)
    begun = _state(at_start, match, backwards=backwards)
    found, ahead = {begun}, [begun]
    while ahead and len(found) <= MAX_STATES:
        state = ahead.pop()
        for kind in range(len(kinds)):
            places: list[int] = []
            for place in state:
                if kind in reads[place]:
                    after = program.follows[place][0]
                    if after not in leaves:
                        leaves[after] = _leaves(program, [after], at_start=False)
                    places += leaves[after]
            # an unanchored search begins anew at every character, unless something is matched
            if match not in state:
                places += again
            reached = _state(places, match, backwards=backwards)
            program.look(len(state) + len(places))
            if reached not in found:
                found.add(reached)
                ahead.append(reached)
    return len(found)


def _state(places: list[int] | tuple[int, ...], match: int, *, backwards: bool) -> tuple[int, ...]:
    unique = tuple(dict.fromkeys(places))
    if backwards:
        return tuple(sorted(unique))
    return unique[: unique.index(match) + 1] if match in unique else unique


def _leaves(program: _Program, places: list[int], *, at_start: bool) -> tuple[int, ...]:
    """Return the places that read or match and are reached without a character, in their order."""
    seen, found = set[int](), []
    ahead = places[::-1]
    while ahead:
        place = ahead.pop()
        if place in seen or (program.is_start[place] and not at_start):
            continue
        seen.add(place)
        if program.chars[place] is not None or program.is_end[place] or not program.follows[place]:
            found.append(place)
        else:
            ahead += program.follows[place][::-1]
    program.look(len(seen))
    return tuple(found)


def _kinds(program: _Program) -> list[int]:
    """Return the first characters of the classes that no place tells apart."""
    borders = {0}
    for ranges in program.chars:
        for low, high in ranges or ():
            borders |= {low, high + 1}
    return sorted(border for border in borders if border <= LAST)


def _read(ranges: Ranges, kinds: list[int]) -> Iterator[int]:
    for place, code in enumerate(kinds):
        if any(low <= code <= high for low, high in ranges):
            yield place


def is_one_pass(pattern: Pattern) -> bool:
    """Return whether each character decides to which part of the pattern it belongs, by its first byte."""
    program = _Program()
    first = program.build(pattern.root, program.add(), backwards=False)
    after = [places[0] for chars, places in zip(program.chars, program.follows, strict=True) if chars is not None]
    return all(_decides(program, place) for place in dict.fromkeys([first, *after]))


def _decides(program: _Program, place: int) -> bool:
    """Return whether one way leads from a place to each other one, and one of these for each byte."""
    seen, leads = set[int](), list[tuple[int, int]]()
    ahead = [place]
    while ahead:
        place = ahead.pop()
        if place in seen:
            return False
        seen.add(place)
        own = list(_leads(program.chars[place]))
        if _overlap(leads, own):
            return False
        leads += own
        if program.chars[place] is None:
            ahead += program.follows[place]
    return True


def _leads(ranges: Ranges | None) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the first bytes of characters."""
    for low, high in ranges or ():
        yield chr(low).encode("utf-8", "surrogatepass")[0], chr(high).encode("utf-8", "surrogatepass")[0]


def _overlap(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> bool:
    return any(low <= end and start <= high for start, end in other for low, high in one)
