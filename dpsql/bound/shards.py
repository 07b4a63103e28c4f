"""Presence counts of one shard of units after the other, as one DuckDB query: the rows that a sketch is made of.

    source, rows, kept   as in `aggregation`
    result               per shard of units, one row per group: the number of its units

A shard is a part of the units. Its counts are whole numbers, and those of all units are the sums over the shards.
"""

from __future__ import annotations

from dataclasses import replace

from dpsql.bound.aggregation import rows_sql, source_sql
from dpsql.bound.formulations import kept_sql
from dpsql.model.frame import Frame

SHARDS = 64
"""How many shards the units of any table fall into. Every sketch depends on it: another number is another normaliser
version, and a number that follows the size of a table is not private."""


def sketch_sql(frame: Frame, salt: bytes) -> str:
    """SQL for the exact presence counts of one shard of units after the other: what a sketch is made of.

    One unit's rows stand in one shard, and no unit's shard depends on another unit: it is a hash of the unit and the
    salt modulo a constant. Borders that follow the data (so many rows, so many units, so much memory to a batch) would
    move when a unit is removed; other units would then change batches, and the sketches of neighbouring tables would
    differ by more than a unit. One ordered scan serves all shards: a scan for each needs less memory, and many times
    the time.

    Args:
        frame: what is grouped; its keys are private.
        salt: the frame's 128 secret bits; decides which groups of a unit with too many are kept, and its shard.

    Returns:
        A SELECT with columns shard (UTINYINT, ascending), key_0… and units (BIGINT). A shard without a group has no
        row; within a shard the rows have no defined order.

    Raises:
        ValueError: the keys are public, or there are none: then all of them can be counted.

    """
    if not frame.has_private_keys:
        raise ValueError("only private keys are sketched")
    keys = ", ".join(frame.key_columns)
    # a unit counts in full in each group that it keeps
    unweighted = replace(frame, bounding=replace(frame.bounding, counted_groups=None))
    # as for the priority of groups, one hash of two arguments would mix them weakly
    shard = f"CAST(hash(hash(unit, '{salt.hex()}')) % {SHARDS} AS UTINYINT)"
    return (
        f"WITH source AS ({source_sql(frame, [], salt)}),\n"
        f"rows AS ({rows_sql(frame, [])}),\n"
        f"per_group AS (SELECT unit, {keys} FROM rows WHERE unit IS NOT NULL GROUP BY unit, {keys}),\n"
        f"kept AS ({kept_sql(unweighted, salt)})\n"
        # the order is written out, because the curator may have set another default
        f"SELECT {shard} AS shard, {keys}, count(*) AS units FROM kept GROUP BY shard, {keys} ORDER BY shard ASC"
    )
