"""Characters as the bytes of UTF-8: RE2 reads bytes, so a range of characters becomes several sequences of byte ranges.

They are cut as RE2 cuts them, so that an automaton of bytes has the states of RE2's.
"""

from __future__ import annotations

from collections.abc import Iterator

from dpsql.operations.pattern_syntax import LAST

Bytes = tuple[tuple[int, int], ...]
"""First and last byte at each place of a sequence."""

_ENDS = (0x7F, 0x7FF, 0xFFFF)
"""Last characters of one, two and three bytes."""
_ALL_LONG: tuple[Bytes, ...] = (
    ((0xC2, 0xDF), (0x80, 0xBF)),
    ((0xE0, 0xEF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF0, 0xF4), (0x80, 0xBF), (0x80, 0xBF), (0x80, 0xBF)),
)
"""All characters beyond ASCII, which RE2 writes in this short way."""


def byte_sequences(low: int, high: int) -> Iterator[Bytes]:
    """Yield the sequences of bytes of a range of characters."""
    ahead = [(low, high)]
    while ahead:
        low, high = ahead.pop()
        if (low, high) == (0x80, LAST):
            yield from _ALL_LONG
            continue
        border = _border(low, high)
        if border is None:
            yield tuple(zip(_encoded(low), _encoded(high), strict=True))
        else:
            ahead += [(border + 1, high), (low, border)]


def _border(low: int, high: int) -> int | None:
    """Return where a range is cut in two; None if its sequences differ in whole last bytes only."""
    for end in _ENDS:
        if low <= end < high:
            return end
    if high <= _ENDS[0]:
        return None
    for tail in (0x3F, 0xFFF, 0x3FFFF):
        if low & ~tail != high & ~tail:
            if low & tail:
                return low | tail
            if high & tail != tail:
                return (high & ~tail) - 1
    return None


def _encoded(code: int) -> bytes:
    return chr(code).encode("utf-8", "surrogatepass")
