"""The cells in which rows are counted whose quantiles are asked for: fine where values are small, equal elsewhere.

Between bounds that reach to 0 or near it values are often much smaller than the bounds, and of very different sizes.
So of equal parts those next to 0 are divided again, by doublings of the distance. Which cells there are follows from
the bounds alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

_PARTS = 64
"""Equal parts of the bounds."""
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

    @property
    def widths(self) -> str:
        """How wide the cells are, in words."""
        widest = f"{(self.high - self.low) / _PARTS:.3g} wide"
        return (
            f"at most {widest}, and finer towards {_nearest_to_zero(self.low, self.high):.9g}"
            if self.finer
            else (f"each of them {widest}")
        )


@lru_cache(maxsize=256)
def _edges(cells: Cells) -> tuple[float, ...]:
    """The edges of cells.

    >>> edges = Cells.of(0.0, 64.0).edges
    >>> len(edges), edges[:2], edges[-3:]
    (289, (0.0, 6.10351...e-05), (62.0, 63.0, 64.0))
    """
    low, high = cells.low, cells.high
    parts = [low + (high - low) * (number / _PARTS) for number in range(_PARTS)] + [high]
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


def _nearest_to_zero(low: float, high: float) -> float:
    return min(max(0.0, low), high)
