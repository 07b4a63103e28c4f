"""dpsql itself: once with nothing named, once with the bounds that the other systems get."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

import dpsql
from benchmarks.peer_systems.exchange import (
    HIGHEST_AMOUNT,
    LOWEST_AMOUNT,
    PEOPLE,
    QUESTIONS,
    ROWS,
    SUMS,
    Asked,
    Way,
    serve,
)

_BUDGET = "privacy_unit_column := 'person', rho_budget := 1, delta_threshold := 1e-5, delta_conversion := 1e-6"
_BOUNDED_SUM = f"sum(amount, contribution_bounds_per_row => ({LOWEST_AMOUNT:g}, {HIGHEST_AMOUNT:g}))"


class _Fresh:
    """A session over the rows that has answered nothing, so that every answer is a first one."""

    def __init__(self, table: pa.Table, declared: str, asked: Asked, options: dict[str, Any]) -> None:
        self.table, self.declared, self.asked, self.options = table, declared, asked, options
        self.session: dpsql.Session | None = None

    def prepare(self) -> None:
        if self.session is not None:
            self.session.close()
        self.session = dpsql.connect(threads=2, allow_unsigned_extensions=True)
        self.session.connection.register("made", self.table)
        self.session.connection.execute("CREATE TABLE data AS FROM made")
        self.session.sql(f"CALL dp_protect('data', {self.declared})")

    def released(self, select: str) -> dict[int, float]:
        assert self.session is not None
        text = f"SELECT key, {select} FROM data GROUP BY key"
        asked = self.asked
        return dict(self.session.sql(text, epsilon=asked.epsilon, delta=asked.delta, **self.options).fetchall())


def ways(rows: Path, asked: Asked) -> list[Way]:
    """Nothing named, as in `benchmarks.defaults`; and the bounds of the others by name."""
    table = pyarrow.csv.read_csv(rows)
    default = _Fresh(table, _BUDGET, asked, {})
    bounds = f"coverage := FALSE, max_rows_per_group := {asked.max_rows}, {_BUDGET}"
    bounded = _Fresh(table, bounds, asked, {"max_groups_contributed": asked.max_groups})
    texts = {PEOPLE: QUESTIONS[PEOPLE], ROWS: QUESTIONS[ROWS], SUMS: _BOUNDED_SUM}
    return [
        Way(
            "nothing named",
            "AUTO finds the bounds, within epsilon",
            {name: partial(default.released, text) for name, text in QUESTIONS.items()},
            default.prepare,
        ),
        Way(
            "the same bounds",
            f"{asked.max_groups} groups, {asked.max_rows} rows in each, no coverage",
            {name: partial(bounded.released, text) for name, text in texts.items()},
            bounded.prepare,
        ),
    ]


if __name__ == "__main__":
    serve("dpsql", ways)
