"""Faults that bounding code is known to have had elsewhere, each put into the generated SQL."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from dpsql.bound import aggregation, formulations, value_counts
from dpsql.bound.formulations import GroupNumbers
from dpsql.model.frame import Statistic

_ENOUGH = 2**61


@dataclass(frozen=True)
class Fault:
    """A fault as a rewriting of the SQL text, or of what the rewriter believes; the check names what it broke.

    With its seed one of the first cases shows it.
    """

    name: str
    seen_as: str
    rewrite: Callable[[str], str] = str
    plant: Callable[[pytest.MonkeyPatch], None] = lambda patch: None
    seed: int = 105

    def __repr__(self) -> str:
        return self.name


def _without_bounding(sql: str) -> str:
    return _keeping(sql, lambda most: 64)


def _one_group_too_many(sql: str) -> str:
    return _keeping(sql, lambda most: most + 1)


def _keeping(sql: str, changed: Callable[[int], int]) -> str:
    """Another number of groups, in any formulation."""
    sql = re.sub(r"dpsql_(keep|unit)_\d+\((\d+)", lambda m: f"dpsql_{m[1]}_64({changed(int(m[2]))}", sql)
    return re.sub(r"(QUALIFY (?:row_number|dense_rank)\(\).*?<= )(\d+)", lambda m: f"{m[1]}{changed(int(m[2]))}", sql)


def _hashed_codes(sql: str) -> str:
    """Priorities of the codes of a dictionary, which depend on the keys of everybody, in any formulation."""
    key = r"(?:\w+\.)?key_\d+"
    hashed = re.search(rf"hash\(hash\(unit, ({key}(?:, {key})*), '[0-9a-f]{{32}}'\)\)", sql)
    if hashed is None or " AS place FROM " in sql:
        # queries that count distinct values hash these, too
        return sql
    if "dpsql_keep" in sql:
        return sql.replace(hashed[0], hashed[0].replace(hashed[1], "codes.code"))
    if "dpsql_unit" in sql:
        code = f"dense_rank() OVER (ORDER BY {hashed[1]})"
        return sql.replace(hashed[0], hashed[0].replace(hashed[1], code), 1)
    rows = "per_group" if "row_number()" in sql else "rows"
    coded = f"(SELECT *, dense_rank() OVER (ORDER BY {hashed[1]}) AS code FROM {rows} WHERE unit IS NOT NULL)"
    sql = sql.replace(hashed[0], hashed[0].replace(hashed[1], "code"))
    return re.sub(rf"(SELECT \* FROM ){rows}\b(?= (WHERE|QUALIFY|SEMI))", rf"\1{coded} AS {rows}", sql)


def every_value(sql: str) -> str:
    return re.sub(r" WHERE place <= \d+", "", sql)


def values_of_dropped_groups(sql: str) -> str:
    """Distinct values count in groups that their unit is not kept in."""
    return re.sub(r" SEMI JOIN kept ON .*?(?= GROUP BY|\),\n)", "", sql)


def _with_null_units(sql: str) -> str:
    return sql.replace("WHERE unit IS NOT NULL ", "")


def _clamp_after_the_sum(patch: pytest.MonkeyPatch) -> None:
    """Rows and units are added as they are, and the group's total is clamped."""
    value, steps = formulations._group_value, value_counts.row_steps

    def unclamped_value(statistic: Statistic, numbers: GroupNumbers) -> str:
        return value(_unbounded(statistic) if statistic.kind == "sum" else statistic, numbers)

    def unclamped_steps(text: str, statistic: Statistic) -> str:
        return steps(text, replace(statistic, row_bounds_steps=None))

    patch.setattr(formulations, "_group_value", unclamped_value)
    patch.setattr(aggregation, "row_steps", unclamped_steps)


def _clamped_total(sql: str) -> str:
    limit = 2**27
    return re.sub(
        r"coalesce\(sum\((v_\d+ - -?\d+)\), 0\)",
        lambda m: f"coalesce(least(greatest(sum({m[1]}), -{limit}), {limit}), 0)",
        sql,
    )


def _row_cap_ignored(patch: pytest.MonkeyPatch) -> None:
    value = formulations._group_value

    def uncapped(statistic: Statistic, numbers: GroupNumbers) -> str:
        capped = statistic.row_cap is not None
        return value(_unbounded(statistic) if capped else statistic, numbers)

    patch.setattr(formulations, "_group_value", uncapped)


def _unbounded(statistic: Statistic) -> Statistic:
    return replace(
        statistic,
        low_steps=-_ENOUGH,
        high_steps=_ENOUGH,
        group_bounds_steps=(-_ENOUGH, _ENOUGH) if statistic.group_bounds_steps else None,
        limit=10**6 if statistic.row_cap else None,
    )


FAULTS = (
    Fault("bounding off", "l0", _without_bounding),
    Fault("clamp after the sum", "linf", _clamped_total, _clamp_after_the_sum),
    Fault("one group too many", "l0", _one_group_too_many),
    Fault("row cap ignored", "linf", plant=_row_cap_ignored, seed=109),
    Fault("every value of a unit counts", "linf", every_value),
    Fault("NULL unit counted", "NULL units count|formulations differ", _with_null_units),
    Fault("codes hashed in place of keys", "l0", _hashed_codes),
)
