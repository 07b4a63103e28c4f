"""Partial and merge: a bounded statement as additive whole numbers of parts, and their sum as the statement's result.

A part holds all rows of some units. Before a statement adds up over units, it treats each unit by itself: its kept
groups, rows and values, its weight, its norm and its place in a histogram follow from its own rows and the salt. So
the totals of any parts add up to those of the whole. The clamp of a total, the minimum of units, the floor of top-k
pre-processing and the keys that a frame holds need the whole, and belong to the merge.

    partial    run on each part: rows with keys and whole numbers, before any clamp. Codes of keys stay inside
    merge      run on the rows of all parts together: it adds the numbers of equal keys, and ends as the statement does

Distinct values are no numbers: two units in two parts may have one value. A part hands on the values that its units
keep, and the merge counts them.

*Guarantee*: over any partition of the units, the merge of the partials has the result of the statement on all rows, bit
for bit (tests/unit/bound/test_partials.py). *Source*: docs/proofs/parts.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpsql.bound.aggregation import Ending, Total, added_up_sql, cell_columns, columns_sql, selected_sql
from dpsql.bound.value_counts import PRESENT, distinct_steps, matches, row_steps
from dpsql.model.frame import PRESENCE, Frame, Statistic
from dpsql.model.statistic_kinds import DISTINCT_KINDS

_PLACES = ("measure", "place")
Numbered = list[tuple[int, Statistic]]


@dataclass(frozen=True, slots=True)
class PartialRows:
    """Rows that a statement has of each part.

    Attributes:
        sql: the SELECT that is run on a part.
        keys: the columns that tell its rows apart.
        totals: the other columns, whole numbers. Those of rows with equal keys are added; if there are none, one of
            these rows is enough.

    """

    sql: str
    keys: tuple[str, ...]
    totals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Partial:
    """A statement as rows of parts and their merge.

    Attributes:
        rows: what is read of each part. Those of all parts together are called as `partial_table` says.
        merged: the SELECT on these tables that has the result of the statement.

    """

    rows: tuple[PartialRows, ...]
    merged: str


def partial_table(place: int) -> str:
    """Return the name under which rows of all parts are offered to the merge.

    Args:
        place: of the rows in ``Partial.rows``.

    """
    return f"dpsql_partial_{place}"


def added(sql: str, keys: Sequence[str], totals: Sequence[str]) -> Partial:
    """Return a statement whose numbers are added, and nothing else: BIGINT in each row of a key, in no order."""
    return Partial((PartialRows(sql, tuple(keys), tuple(totals)),), added_sql(0, keys, totals))


def added_sql(place: int, keys: Sequence[str], totals: Sequence[str]) -> str:
    """Return a SELECT of rows of all parts, with the numbers of equal keys added up."""
    sums = [f"CAST(sum({name}) AS BIGINT) AS {name}" for name in totals]
    return f"SELECT {', '.join([*keys, *sums])} FROM temp.main.{partial_table(place)}{_grouping(keys)}"


def groups_partial(
    frame: Frame, statistics: tuple[Statistic, ...], ending: Ending, texts: Sequence[str], *, has_places: bool = False
) -> Partial:
    """Return the partial of a statement on groups.

    Args:
        frame: what is grouped.
        statistics: the presence count first, then the others.
        ending: which rows the statement has; no part.
        texts: the statement with the ending ``partial``, then with that of each statistic of distinct values.
        has_places: whether rows of coverage come beside the groups (`one_pass`).

    """
    others = list(enumerate(statistics))[1:]
    # the groups of parts are those of the frame in whose groups units are bounded
    finest = frame.bounding.finer or frame
    keys = [*finest.key_columns, *(_PLACES if has_places else ())]
    valued = _valued(others)
    rows = [PartialRows(texts[0], tuple(keys), tuple(_names(others)))]
    rows += [PartialRows(text, (*finest.key_columns, "x"), ()) for text in texts[1:]]
    if len(rows) != 1 + len(valued):
        raise AssertionError("each statistic of distinct values has rows of its own")
    merged = _merged(finest, others, "chosen" if frame.bounding.finer else ending, has_places=has_places)
    if frame.bounding.finer:
        merged = added_up_sql(frame, finest, statistics, merged)
    return Partial(tuple(rows), merged)


def distinct_numbers(statistics: Sequence[Statistic]) -> list[int]:
    """Return the numbers of the statistics of distinct values, each an ending of a statement of parts."""
    return [i for i, one in enumerate(statistics) if one.kind in DISTINCT_KINDS]


def _valued(others: Numbered) -> Numbered:
    return [(i, one) for i, one in others if one.kind in DISTINCT_KINDS]


def _names(others: Numbered) -> list[str]:
    """Return the names of the whole numbers of a part's group."""
    names = ["units", *([PRESENT] if _valued(others) else [])]
    return names + [name for i, one in others if one.kind not in DISTINCT_KINDS for name in cell_columns(i, one)]


def _grouping(keys: Sequence[str]) -> str:
    return f" GROUP BY {', '.join(keys)}" if keys else ""


def _typed(frame: Frame) -> list[str]:
    """Return the keys of a frame in their types, which those of the rows of parts need not be."""
    return [f"CAST({name} AS {key.type}) AS {name}" for name, key in zip(frame.key_columns, frame.keys, strict=True)]


def _merged(frame: Frame, others: Numbered, ending: Ending, *, has_places: bool) -> str:
    """Return the SELECT on rows of parts with the result of a statement on the groups of a frame."""
    keys, places = frame.key_columns, list(_PLACES if has_places else ())
    sums = [f"sum(CAST({name} AS HUGEINT)) AS {name}" for name in _names(others)]
    typed = f"SELECT * REPLACE ({', '.join(_typed(frame))})" if keys else "SELECT *"
    ctes = [
        f"totals AS (SELECT {', '.join([*keys, *places, *sums])} FROM ({typed} FROM temp.main.{partial_table(0)})"
        f"{_grouping([*keys, *places])})",
        f"summed AS (SELECT * FROM totals{' WHERE measure IS NULL' * has_places})",
    ]
    totals, joins = [Total(PRESENCE, "units", "summed.units")], ""
    for place, (i, one) in enumerate(_valued(others), start=1):
        ctes.append(f"counted_{i} AS ({_counted(frame, one, place)})")
        joins += f" LEFT JOIN counted_{i} ON {matches('summed', f'counted_{i}', keys)}"
    for i, one in others:
        if one.kind in DISTINCT_KINDS:
            totals.append(Total(one, f"stat_{i}", distinct_steps(i, one)))
        else:
            totals += [Total(one, name, f"summed.{name}") for name in cell_columns(i, one)]
    listed = "".join(f"summed.{key}, " for key in keys)
    ctes.append(
        f"grouped AS MATERIALIZED (SELECT {listed}{columns_sql(totals, frame, ending)} FROM summed{joins})",
    )
    named, groups = ",\n".join(ctes), selected_sql(frame, others, ending)
    if not has_places:
        return f"WITH {named}\n{groups}"
    return (
        f"WITH {named}\nSELECT *, NULL::INTEGER AS measure, NULL::INTEGER AS place FROM ({groups}) "
        "UNION ALL BY NAME SELECT measure, place, CAST(units AS BIGINT) AS units FROM totals WHERE measure IS NOT NULL"
    )


def _counted(frame: Frame, statistic: Statistic, place: int) -> str:
    """Return a SELECT of the number n of distinct values of each group, or of their sum."""
    keys = "".join(f"{key}, " for key in frame.key_columns)
    typed = f"SELECT {''.join(f'{one}, ' for one in _typed(frame))}x FROM temp.main.{partial_table(place)}"
    grouping = _grouping(frame.key_columns)
    if statistic.kind == "value_sum":
        different = f"SELECT DISTINCT {keys}x FROM ({typed})"
        return f"SELECT {keys}sum({row_steps('x', statistic)}) AS n FROM ({different}){grouping}"
    return f"SELECT {keys}count(DISTINCT x) AS n FROM ({typed}){grouping}"
