"""The cells in which rows are counted whose quantiles are asked for: fine where values are small, equal elsewhere.

Between bounds that reach to 0 or near it values are often much smaller than the bounds, and of very different sizes.
So of equal parts those next to 0 are divided again, by doublings of the distance. Which cells there are follows from
the bounds alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

_PARTS = 64
"""Equal parts of bounds that reach to 0, or near it."""
_PARTS_ELSEWHERE = 256
"""Equal parts of others."""
_DOUBLINGS = 14
"""A part next to 0 is divided so often: of bounds [0, 10**6] down to 0.24."""
_PARTS_PER_DOUBLING = 16


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells between two bounds; rows beyond are in the first or the last.

    ``finer`` says whether the parts next to 0, or next to the bound that is nearest to it, are divided by doublings.
    """

    low: float
    high: float
    finer: bool

    @classmethod
    def of(cls, low: float, high: float) -> Cells:
        """The cells between bounds: finer near 0 where 0 is between them, or not further off than one part."""
        return cls(low, high, abs(_nearest_to_zero(low, high)) <= (high - low) / _PARTS)

    @property
    def edges(self) -> tuple[float, ...]:
        """Where cells begin, in ascending order, and where the last one ends."""
        return _edges(self)

    @property
    def count(self) -> int:
        """Number of cells."""
        return len(self.edges) - 1

    def widths(self, *, are_times: bool) -> str:
        """How wide the cells are, in words; of times in days, where bounds are seconds."""
        widest = (self.high - self.low) / _parts(self)
        if are_times:
            return f"each of them {widest / 86_400.0:.3g} days wide"
        if self.finer:
            return f"at most {widest:.3g} wide, and finer towards {_nearest_to_zero(self.low, self.high):.9g}"
        return f"each of them {widest:.3g} wide"


@lru_cache(maxsize=256)
def _edges(cells: Cells) -> tuple[float, ...]:
    """The edges of cells.

    >>> edges = Cells.of(0.0, 64.0).edges
    >>> len(edges), edges[:2], edges[-3:]
    (289, (0.0, 6.10351...e-05), (62.0, 63.0, 64.0))
    """
    low, high = cells.low, cells.high
    count = _parts(cells)
    parts = [low + (high - low) * (number / count) for number in range(count)] + [high]
    if not cells.finer:
        return tuple(parts)
    middle = _nearest_to_zero(low, high)
    ends = [
        part
        for part in (
            max((one for one in parts if one < middle), default=None),
            min((one for one in parts if one > middle), default=None),
        )
        if part is not None
    ]
    steps = [2.0 ** (-number / _PARTS_PER_DOUBLING) for number in range(1, _PARTS_PER_DOUBLING * _DOUBLINGS + 1)]
    finer = [middle + (end - middle) * step for end in ends for step in steps]
    return tuple(sorted({*parts, middle, *finer}))


def _parts(cells: Cells) -> int:
    return _PARTS if cells.finer else _PARTS_ELSEWHERE


def _nearest_to_zero(low: float, high: float) -> float:
    return min(max(0.0, low), high)
