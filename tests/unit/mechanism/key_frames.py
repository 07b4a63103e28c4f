"""Frames with one key, for the planner's choice among mechanisms."""

from __future__ import annotations

from dpsql.model.frame import Bounding, Frame, Sparsity
from dpsql.model.rows import Key, PublicKeys, Rows, RowsSql


def frame(
    mechanism: str = "gshm",
    *,
    listed: int | None = None,
    max_groups: int | None = None,
    sparsity: Sparsity | None = None,
) -> Frame:
    return Frame(
        Rows(unit="person", table="main.t", version="1", unit_column=Key('"unit"', "INTEGER")),
        RowsSql('"t"'),
        keys=(Key('"key"', "INTEGER"),),
        public_keys=None if listed is None else PublicKeys((("main.t", "key"),), (listed,), "digest", (False,)),
        bounding=Bounding(max_groups, sparsity=sparsity),
        mechanism=mechanism,
    )


def top_k(mechanism: str, k: int, max_groups: int | None = None) -> Frame:
    return frame(mechanism, max_groups=max_groups, sparsity=Sparsity("top_k", k))
