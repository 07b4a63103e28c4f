"""Deterministic automata of patterns, as RE2 builds them: their size bounds the time of a search on any text.

*Guarantee*: RE2 reads a text once for each automaton. It takes a constant time for each byte while the states that it
has built fit into its memory. A pattern whose automata have at most ``MAX_STATES`` states and ``MAX_MEMORY`` each needs
no more. A pattern with more of them may go back to a search whose time depends on the text, up to several hundred times
as long.

RE2 reads bytes of UTF-8 (``pattern_bytes``). It has three automata. One says if there is a match: a state is a list of
sets of places, one set for each beginning of a match. Another finds the end of the match: a state is a list of places
in the order in which they are preferred. Both are cut behind a match. The third reads backwards and finds the
beginning: a state is a set. Each state also says if a match ends before the last byte. Since the search is written
beside a border of a word (``cut_patterns.NEVER``), it also says if the last byte belongs to a word.

What a group holds is read once more, at a constant time for each byte only if the pattern is *one-pass*: after each
character it is certain which part of the pattern the next one belongs to. RE2 keeps a table for this. It goes back to
a slow search if the table is too large.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from dpsql.operations.pattern_bytes import byte_sequences
from dpsql.operations.pattern_syntax import Anchor, Chars, Choice, Node, Pattern, PatternError, Ranges, Sequence

MAX_STATES = 1_000
MAX_MEMORY = 2_000_000
"""Bytes of the states of one automaton. RE2 has 2.7 MB for each, less what the pattern takes."""
MAX_TABLE = 250_000
"""Bytes of the table for groups. RE2 takes up to 1.3 MB."""
MAX_PLACES = 4_000
"""Most bytes, anchors, choices and repetitions of a pattern whose repetitions are written out."""
MAX_STEPS = 250_000
"""Places that are looked at while states are built."""
_WORD_BORDERS = (0x30, 0x3A, 0x41, 0x5B, 0x5F, 0x60, 0x61, 0x7B)
_NEVER_PLACES = 12
"""Places of the pattern that never matches, rounded up."""


@dataclass(slots=True)
class _Program:
    """Places of a pattern, each with the places that follow it in the order in which they are preferred.

    Attributes:
        is_wide: a place reads a character, not a byte.
        chars: for each place the characters or bytes that it reads; None if it reads none.
        follows: for each place the places after it. The place of a match has none.
        is_end: places that are the end of the text.
        is_start: places that are its beginning.
        steps: places that were looked at so far.

    """

    is_wide: bool = False
    chars: list[Ranges | None] = field(default_factory=list)
    follows: list[list[int]] = field(default_factory=list)
    is_end: list[bool] = field(default_factory=list)
    is_start: list[bool] = field(default_factory=list)
    steps: int = 0

    def add(self, *follows: int, chars: Ranges | None = None, anchor: str = "") -> int:
        if len(self.chars) > MAX_PLACES:
            raise PatternError(
                f"it has more than {MAX_PLACES:,} parts, its repetitions written out and its characters as bytes"
            )
        self.chars.append(chars)
        self.follows.append(list(follows))
        self.is_end.append(anchor == "end")
        self.is_start.append(anchor == "start")
        return len(self.chars) - 1

    def build(self, node: Node, after: int, *, backwards: bool) -> int:
        """Return the first place of a part that is followed by a place."""
        if isinstance(node, Chars):
            if self.is_wide:
                return self.add(after, chars=node.ranges)
            return self._add_bytes(node.ranges, after, backwards=backwards)
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

    def _add_bytes(self, ranges: Ranges, after: int, *, backwards: bool) -> int:
        known: dict[tuple[int, int, int], int] = {}
        firsts = []
        for sequence in (one for low, high in ranges for one in byte_sequences(low, high)):
            place = after
            for number, (low, high) in enumerate(sequence if backwards else sequence[::-1], 1):
                # RE2 has a place once that is read last, or that is a range, or backwards a single byte
                is_shared = number < len(sequence) and (number == 1 or (low < high) != backwards)
                key = low, high, place
                if not is_shared or key not in known:
                    known[key] = self.add(place, chars=((low, high),))
                place = known[key]
            firsts.append(place)
        return firsts[0] if len(firsts) == 1 else self.add(*firsts)

    def look(self, places: int) -> None:
        """Count places that are looked at.

        Raises:
            _TooManyStepsError: they are too many.

        """
        self.steps += places
        if self.steps > MAX_STEPS:
            raise _TooManyStepsError


class _TooManyStepsError(Exception):
    """An automaton that takes too long to build."""


@dataclass(frozen=True, slots=True)
class Size:
    """States of the three automata of a pattern, and how long they took to count.

    Attributes:
        states: those of all three.
        is_small: each automaton has at most ``MAX_STATES`` states and ``MAX_MEMORY``.
        steps: places that were looked at.

    """

    states: int
    is_small: bool
    steps: int


def size_of(pattern: Pattern) -> Size:
    """Return the size of a pattern's automata, which are counted up to the first one that is too large.

    Raises:
        PatternError: the pattern is too long.

    """
    states = steps = 0
    for kind in ("backwards", "ordered", "sets"):
        automaton = _Automaton(pattern.root, kind, steps)
        try:
            is_small = automaton.is_small()
        except _TooManyStepsError:
            is_small = False
        states, steps = states + len(automaton.found), automaton.program.steps
        if not is_small:
            return Size(states, is_small=False, steps=steps)
    return Size(states, is_small=True, steps=steps)


_Sections = tuple[tuple[int, ...], ...]


class _Automaton:
    """States of one automaton. Each is sections of places, with what is known of the last byte."""

    def __init__(self, root: Node, kind: str, steps: int) -> None:
        self._backwards, self._is_ordered = kind == "backwards", kind == "ordered"
        self.program = _Program(steps=steps)
        self._match = self.program.add()
        self._first = self.program.build(root, self._match, backwards=self._backwards)
        self._kinds = _kinds(self.program)
        self._reads = [list(_read(chars, self._kinds)) if chars else [] for chars in self.program.chars]
        self._is_word = [chr(code).isalnum() or code == ord("_") if code < 0x80 else False for code in self._kinds]
        self._leaves: dict[int, tuple[int, ...]] = {}
        self.found: set[tuple[_Sections, bool, bool]] = set()

    def is_small(self) -> bool:
        """Return whether states and memory are within their limits; ends at the first state that is too many."""
        again = () if self._backwards else _leaves(self.program, [self._first], at_start=False)
        begun = self._state([_leaves(self.program, [self._first], at_start=True)])
        ahead, memory = [begun], self._memory(begun)
        self.found.add((begun, False, False))
        seen = {begun}
        while ahead:
            sections = ahead.pop()
            is_match = any(self._match in section for section in sections)
            for kind, moved in enumerate(self._moved(sections)):
                # an unanchored search begins anew at every byte, unless something is matched
                reached = self._state([*moved, again] if again and not is_match else moved)
                state = reached, is_match, self._is_word[kind] and self._asks_for_words(reached)
                if state in self.found:
                    continue
                self.found.add(state)
                memory += self._memory(reached)
                if len(self.found) > MAX_STATES or memory > MAX_MEMORY:
                    return False
                if reached not in seen:
                    seen.add(reached)
                    ahead.append(reached)
        return True

    def _moved(self, sections: _Sections) -> list[list[tuple[int, ...]]]:
        """Return the places after each kind of byte, in as many sections."""
        moved: list[list[tuple[int, ...]]] = [[] for _ in self._kinds]
        for section in sections:
            lists: dict[int, list[int]] = {}
            for place in section:
                if not self._reads[place]:
                    continue
                after = self.program.follows[place][0]
                if after not in self._leaves:
                    self._leaves[after] = _leaves(self.program, [after], at_start=False)
                self.program.look(len(self._reads[place]) * len(self._leaves[after]))
                for kind in self._reads[place]:
                    lists.setdefault(kind, []).extend(self._leaves[after])
            for kind, reached in lists.items():
                moved[kind].append(tuple(reached))
        self.program.look(len(self._kinds))
        return moved

    def _state(self, lists: list[tuple[int, ...]]) -> _Sections:
        known: set[int] = set()
        sections = []
        for places in [tuple(chain(*lists))] if self._is_ordered else lists:
            unique = tuple(place for place in dict.fromkeys(places) if place not in known)
            is_match = self._match in unique and not self._backwards
            if self._is_ordered:
                unique = unique[: unique.index(self._match) + 1] if is_match else unique
            else:
                unique = tuple(sorted(unique))
            known.update(unique)
            if unique:
                sections.append(unique)
            if is_match:
                break
        return tuple(sections)

    def _asks_for_words(self, sections: _Sections) -> bool:
        """Return whether a border of a word, or another place between two bytes, is among the places of a state."""
        if not self._backwards and not any(self._match in section for section in sections):
            return True
        return any(self.program.is_end[place] for section in sections for place in section)

    def _memory(self, sections: _Sections) -> int:
        # a state, its entry in a table, a step for each kind of byte, and its places
        return 56 + 8 * (len(self._kinds) + 2) + 4 * (4 + sum(len(section) + 1 for section in sections))


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
    """Return the first bytes of the classes that no place tells apart, and no border of a word."""
    borders = {0, *_WORD_BORDERS}
    for ranges in program.chars:
        for low, high in ranges or ():
            borders |= {low, high + 1}
    return sorted(border for border in borders if border <= 0xFF)


def _read(ranges: Ranges, kinds: list[int]) -> Iterator[int]:
    for place, code in enumerate(kinds):
        if any(low <= code <= high for low, high in ranges):
            yield place


def is_one_pass(pattern: Pattern) -> bool:
    """Return whether each character decides to which part of the pattern it belongs, by its first byte.

    The table of this is also small enough for RE2.
    """
    narrow = _Program()
    narrow.build(pattern.root, narrow.add(), backwards=False)
    if (len(narrow.chars) + _NEVER_PLACES) * 4 * (len(_kinds(narrow)) + 2) > MAX_TABLE:
        return False
    program = _Program(is_wide=True)
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
