"""Lines exact groups up with the keys that a frame already holds.

A frame's keys form an append-only dictionary; row number = key id, and a point is a vector over key ids. Every key
that the frame holds takes part in a new draw, with exact value 0 where the data now lacks it, so that which keys
have a value never tells what the data lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Run = Callable[[str, dict[str, pa.Table]], pa.Table]


@dataclass(frozen=True)
class AlignedGroups:
    """Exact integer values over key ids; a wrapper whose text shows nothing.

    Attributes:
        new_keys: keys that the frame did not hold yet, in the order of their ids; None if there are none.
        values: per column (``units``, ``stat_1``, …) an int64 vector over all key ids, the new ones last.

    """

    new_keys: pa.Table | None
    values: Mapping[str, npt.NDArray[np.int64]]

    def __repr__(self) -> str:
        return "AlignedGroups(…)"


def align_groups(exact: pa.Table, held: pa.Table | None, key_names: tuple[str, ...], run: Run) -> AlignedGroups:
    """Match exact groups to held keys.

    Args:
        exact: columns ``key_names`` and one int64 column per statistic.
        held: the frame's dictionary, or None before its first release.
        key_names: the key columns; empty for a query without GROUP BY, whose one key has no columns.
        run: runs SQL over in-memory tables (the sandbox).

    """
    columns = [name for name in exact.column_names if name not in key_names]
    if not key_names:
        only = {name: exact.column(name).to_numpy().astype(np.int64) for name in columns}
        new = None if held is not None else pa.table({"": pa.nulls(1)}).select([])
        return AlignedGroups(new, only)
    order = ", ".join(f"e.{name} NULLS LAST" for name in key_names)
    if held is None:
        table = run(f"SELECT e.* FROM exact e ORDER BY {order}", {"exact": exact})
        return AlignedGroups(table.select(list(key_names)), _vectors(table, columns))
    numbered = held.append_column("key_id", pa.array(np.arange(held.num_rows)))
    matches = " AND ".join(f"e.{name} IS NOT DISTINCT FROM h.{name}" for name in key_names)
    values = ", ".join(f"coalesce(e.{name}, 0) AS {name}" for name in columns)
    keys = ", ".join(f"e.{name} AS {name}" for name in key_names)
    table = run(
        f"SELECT h.key_id AS key_id, {keys}, {values} FROM exact e FULL JOIN held h ON {matches} "
        f"ORDER BY h.key_id NULLS LAST, {order}",
        {"exact": exact, "held": numbered},
    )
    fresh = table.slice(held.num_rows).select(list(key_names))
    return AlignedGroups(fresh if fresh.num_rows else None, _vectors(table, columns))


def _vectors(table: pa.Table, columns: list[str]) -> dict[str, npt.NDArray[np.int64]]:
    return {name: table.column(name).to_numpy().astype(np.int64) for name in columns}
