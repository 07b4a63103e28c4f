"""Distinct values per group, of which one unit brings in no more than a public number: CTEs beside the bounded query.

*Guarantee*: with c values per unit and group, adding all rows of one unit raises n, the number of distinct values of a
group that the unit is kept in, by some whole number from 0 to c, and leaves all other groups as they are; and it
raises the number of present units, p, by 1. So n - (c/2) p moves by at most c/2 per group, and n itself by at most c.
*Proof*: which values of a unit are kept depends on the unit's own rows (and the salt) alone. So the kept triples
(unit, group, value) of all other units are the same with and without the unit, which adds at most c to each group that
it is kept in. n is the size of the union over units of the kept values of a group; a union with c more values grows by
0 to c. This holds for any notion of equal values, and whatever values other units share with the unit. ∎
*Neighbours*: add or remove all rows of one unit. *Assumes*: `bound` keeps at most max_groups groups of a unit.
"""

from __future__ import annotations

from dpsql.query.frame import COUNT_LATTICE_EXPONENT, Statistic


def distinct_ctes(
    distinct: list[tuple[int, Statistic]], keys: list[str], rows: str, salt: bytes
) -> tuple[tuple[str, str], ...]:
    """Name and body of the CTEs that number a unit's values and count what is kept of all units.

    Args:
        distinct: the numbered statistics of kind ``values``.
        keys: names of the key columns.
        rows: what ``per_group`` reads.
        salt: the frame's; a value's priority is a hash of it with unit, group and value.

    """
    ctes: list[tuple[str, str]] = []
    listed = "".join(f"{key}, " for key in keys)
    group = ", ".join(["unit", *keys])
    for i, statistic in distinct:
        passing = f" AND f_{i}" if statistic.filter_sql else ""
        # equal priorities are told apart by the value, so that the choice never depends on the order of rows
        priority = f"hash(hash(unit, {listed}x, '{salt.hex()}')) ASC, x ASC NULLS LAST"
        place = f"row_number() OVER (PARTITION BY {group} ORDER BY {priority}) AS place"
        numbered = (
            f"SELECT {group}, x, {place} FROM (SELECT DISTINCT {group}, x_{i} AS x FROM {rows} "
            f"WHERE unit IS NOT NULL AND x_{i} IS NOT NULL{passing})"
        )
        of_kept = matches(f"values_{i}", "kept", ["unit", *keys])
        grouping = f" GROUP BY {', '.join(keys)}" if keys else ""
        ctes += [
            (f"values_{i}", f"SELECT * FROM ({numbered}) WHERE place <= {most_values(statistic)}"),
            (
                f"counted_{i}",
                f"SELECT {listed}count(DISTINCT x) AS n FROM values_{i} SEMI JOIN kept ON {of_kept}{grouping}",
            ),
        ]
    return tuple(ctes)


def most_values(statistic: Statistic) -> int:
    """Most values of one unit that count in one group."""
    return statistic.high_steps >> -COUNT_LATTICE_EXPONENT


def distinct_steps(i: int, statistic: Statistic) -> str:
    """The recentred number of distinct values of a group, in lattice steps, from ``summed`` and ``counted_i``."""
    n = f"CAST(coalesce(counted_{i}.n, 0) AS HUGEINT) * {2**-COUNT_LATTICE_EXPONENT}"
    return f"{n} - CAST(summed.present AS HUGEINT) * {statistic.centre_steps}"


def matches(left: str, right: str, columns: list[str]) -> str:
    """A condition that rows of two relations agree on some columns, NULL being equal to NULL."""
    return " AND ".join(f"{left}.{name} IS NOT DISTINCT FROM {right}.{name}" for name in columns) or "true"
