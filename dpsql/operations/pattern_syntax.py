"""The regular expressions that patterns of a query may be: a part of DuckDB's, read into a small tree.

DuckDB's patterns are those of RE2. The part has literals, classes, groups, alternation, repetition and the anchors
``^`` and ``$``. All else is refused by its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

LAST = 0x10FFFF
MAX_REPEATS = 200
"""Largest number in braces."""
MAX_DEPTH = 50
"""Groups inside one another."""

Ranges = tuple[tuple[int, int], ...]
"""First and last characters of ranges, in order, without overlaps."""


class PatternError(ValueError):
    """A pattern that is not one of the known ones, with the reason."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of several."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Anchor:
    """The beginning or the end of the text."""

    at_end: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    """Parts one after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Parts of which one matches; the first that does is taken."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part several times; ``most`` is None if there is no limit."""

    part: Node
    least: int
    most: int | None
    is_greedy: bool


Node = Chars | Anchor | Sequence | Choice | Repeat


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern that was read.

    Attributes:
        root: its tree.
        groups: the number of its capturing groups.

    """

    root: Node
    groups: int


_DIGITS: Ranges = ((0x30, 0x39),)
_WORDS: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACES: Ranges = ((0x09, 0x0A), (0x0C, 0x0D), (0x20, 0x20))
_CLASSES = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_CONTROLS = {"n": 0x0A, "t": 0x09, "r": 0x0D, "f": 0x0C, "v": 0x0B}
_NAMED = {
    "alnum": ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)), "alpha": ((0x41, 0x5A), (0x61, 0x7A)), "digit": _DIGITS,
    "lower": ((0x61, 0x7A),), "space": ((0x09, 0x0D), (0x20, 0x20)), "upper": ((0x41, 0x5A),), "word": _WORDS,
    "punct": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)), "xdigit": (*_DIGITS, (0x41, 0x46), (0x61, 0x66)),
}  # fmt: skip
_OPERATORS = "*+?{"
_FOLDED = {0x4B: 0x212A, 0x6B: 0x212A, 0x53: 0x17F, 0x73: 0x17F}
"""Signs beyond ASCII that are an ASCII letter in another case."""


def parsed(text: str, flags: str = "") -> Pattern:
    """Return a pattern that was read.

    Args:
        text: the regular expression.
        flags: of ``i``, cases are alike, and ``s``, a dot is also the end of a line.

    Raises:
        PatternError: it has a part that is not known.

    """
    if text.startswith("(?i)"):
        text, flags = text[4:], f"{flags}i"
    reader = _Reader(text, is_folded="i" in flags, dot_is_all="s" in flags)
    root = reader.choice(0)
    if reader.place < len(text):
        raise PatternError("it has a ) without a (")
    return Pattern(root, reader.groups)


def joined(ranges: list[tuple[int, int]]) -> Ranges:
    """Return ranges in order, without overlaps."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return tuple(found)


def negated(ranges: Ranges) -> Ranges:
    """Return the ranges of all other characters."""
    found, after = [], 0
    for low, high in ranges:
        if after < low:
            found.append((after, low - 1))
        after = high + 1
    return (*found, (after, LAST)) if after <= LAST else tuple(found)


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, text: str, *, is_folded: bool, dot_is_all: bool) -> None:
        self._text, self._is_folded, self._dot_is_all = text, is_folded, dot_is_all
        self.place = self.groups = 0

    def choice(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise PatternError(f"more than {MAX_DEPTH} groups stand inside one another")
        parts = [self._sequence(depth)]
        while self._take("|"):
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self._next() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom(depth)))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self, part: Node) -> Node:
        operator = self._next()
        if operator not in _OPERATORS or not operator:
            return part
        self.place += 1
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(operator) or self._braces()
        is_greedy = not self._take("?")
        if self._next() and self._next() in _OPERATORS:
            self._refuse(f"{operator}{self._next()} repeats a repetition")
        if isinstance(part, Anchor):
            self._refuse("it repeats an anchor")
        return Repeat(part, least, most, is_greedy)

    def _braces(self) -> tuple[int, int | None]:
        end = self._text.find("}", self.place)
        numbers = self._text[self.place : end].split(",") if end >= 0 else []
        is_known = (
            numbers
            and len(numbers) <= 2
            and numbers[0].isdecimal()
            and numbers[-1].isdecimal() | (len(numbers) == 2 and not numbers[-1])
        )
        if not is_known or any(not one.isascii() or len(one) > 4 for one in numbers):
            self._refuse("a { that opens no number of repetitions is written \\{")
        self.place = end + 1
        least, most = int(numbers[0]), int(numbers[-1]) if numbers[-1] else None
        if max(least, most or 0) > MAX_REPEATS or (most is not None and most < least):
            self._refuse(f"numbers in braces are in order, and at most {MAX_REPEATS}")
        return least, most

    def _atom(self, depth: int) -> Node:
        sign = self._text[self.place]
        self.place += 1
        if sign == "(":
            return self._group(depth)
        if sign == "[":
            return Chars(self._class())
        if sign == ".":
            return Chars(((0, LAST),) if self._dot_is_all else negated(((0x0A, 0x0A),)))
        if sign in "^$":
            return Anchor(sign == "$")
        if sign == "\\":
            return Chars(self._escape())
        if sign in _OPERATORS:
            self._refuse(f"{sign} has nothing to repeat")
        return Chars(self._folded([(ord(sign), ord(sign))]))

    def _group(self, depth: int) -> Node:
        if self._take("?"):
            if not self._take(":"):
                self._refuse(f"(?{self._next()} opens no known group")
        else:
            self.groups += 1
        inner = self.choice(depth + 1)
        if not self._take(")"):
            self._refuse("it has a ( without a )")
        return inner

    def _escape(self) -> Ranges:
        sign = self._next()
        if not sign:
            self._refuse("it ends in a backslash")
        self.place += 1
        if sign.lower() in _CLASSES:
            ranges = _CLASSES[sign.lower()]
            return ranges if sign.islower() else negated(ranges)
        if sign in _CONTROLS:
            return ((_CONTROLS[sign], _CONTROLS[sign]),)
        if sign.isalnum() or not sign.isascii():
            self._refuse(f"\\{sign} is not known here")
        return ((ord(sign), ord(sign)),)

    def _class(self) -> Ranges:
        is_negated = self._take("^")
        found: list[tuple[int, int]] = []
        is_first = True
        while self._next() != "]" or is_first:
            if not self._next():
                self._refuse("it has a [ without a ]")
            is_first = False
            if self._text.startswith("[:", self.place):
                found += self._named()
                continue
            low = self._member()
            is_range = self._next() == "-" and self._text[self.place + 1 : self.place + 2] not in ("]", "")
            if is_range and len(low) == 1 and low[0][0] == low[0][1]:
                self.place += 1
                high = self._member()
                if len(high) != 1 or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                    self._refuse("the ends of a range are in order")
                low = ((low[0][0], high[0][0]),)
            elif is_range:
                self._refuse("a class is no end of a range")
            found += low
        self.place += 1
        ranges = self._folded(found)
        return negated(ranges) if is_negated else ranges

    def _member(self) -> Ranges:
        sign = self._text[self.place]
        self.place += 1
        return self._escape() if sign == "\\" else ((ord(sign), ord(sign)),)

    def _named(self) -> Ranges:
        end = self._text.find(":]", self.place)
        name = self._text[self.place + 2 : end] if end >= 0 else ""
        if name not in _NAMED:
            self._refuse(f"[:{name}:] is not known here")
        self.place = end + 2
        return _NAMED[name]

    def _folded(self, ranges: list[tuple[int, int]]) -> Ranges:
        if not self._is_folded:
            return joined(ranges)
        if any(high > 0x7F and (high - low) for low, high in ranges):
            self._refuse("ranges beyond ASCII have no known cases")
        found = list(ranges)
        for low, high in ranges:
            for code in range(low, high + 1):
                other = ord(chr(code).swapcase()) if len(chr(code).swapcase()) == 1 else code
                found += [(one, one) for one in (other, _FOLDED.get(code, code))]
        return joined(found)

    def _next(self) -> str:
        return self._text[self.place : self.place + 1]

    def _take(self, sign: str) -> bool:
        is_there = self._next() == sign
        self.place += is_there
        return is_there

    def _refuse(self, reason: str) -> NoReturn:
        raise PatternError(reason)
