"""Keys alone: the frames of the rounds in which they are selected.

In each round a unit spreads a weight of norm 1 over all its keys that were not selected before, and a key is selected
where the noisy sum of weights passes a threshold. A unit whose frequent keys were selected in the first round has all
its weight left for its rare ones in the next.

*Source*: two rounds are those of Swanberg, Desfontaines and Haney 2023 ("DP-SIPS"), with weights whose l2 norm is
bounded and rho in place of epsilon shared among the rounds; docs/proofs/key-rounds.md.
"""

from __future__ import annotations

from dataclasses import replace

from dpsql.model.frame import Bounding, Frame
from dpsql.model.identity import frame_hash
from dpsql.plan.features.other_group import rows_outside

COUNTED_KEYS = 64
"""Most keys over which a unit spreads its weight, where the text names no max_groups; of more some are chosen by hash.
Between 16 and 256 it changes little: fewer lower the threshold, more lose less of units with many keys."""
_NONE_SELECTED = "key selection"
"""In place of the selected keys, of which there are none in the first round: no other query has this frame."""


def first_round(frame: Frame, most_keys: int) -> Frame:
    """The frame of the first round, from that of a query by the same keys.

    Args:
        frame: by the bounds of policy and text.
        most_keys: over how many keys a unit spreads its weight, at least 2.

    """
    bounding = Bounding(1, most_keys, frame.bounding.minimum_units)
    return replace(frame, rows=replace(frame.rows, outside=_NONE_SELECTED), bounding=bounding, window=None)


def numbers_frame(frame: Frame) -> Frame:
    """The frame of numbers on keys that are selected first, from that of a query by the same keys.

    No key is left out for having few units: without a threshold behind it, a sum that appears with one more unit would
    move by more than what that unit adds. The rounds leave such keys out.
    """
    return replace(frame, bounding=replace(frame.bounding, minimum_units=1), window=None)


def next_round(first: Frame, number: int, selected: str) -> Frame:
    """The frame of a later round, on the rows whose key is not listed.

    Args:
        first: that of the first round, on its current generation.
        number: how many rounds came before; where the last of these selected no key, nothing else tells them apart.
        selected: a digest of the keys that were selected before; another one makes another frame.

    """
    rows = replace(first.rows, outside=f"{_NONE_SELECTED} {number} {frame_hash(first)} {selected}")
    rows_sql = replace(first.rows_sql, relation=rows_outside(first), all_rows=first.rows_sql.relation)
    return replace(first, rows=rows, rows_sql=rows_sql, generation=0)


def next_series(first: Frame, number: int) -> Frame:
    """The frame of the first round of a later series, on all rows again.

    Args:
        first: that of the first series, on its current generation.
        number: how many series came before.

    """
    rows = replace(first.rows, outside=f"{_NONE_SELECTED} series {number} {frame_hash(first)}")
    return replace(first, rows=rows, generation=0)
