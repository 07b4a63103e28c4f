"""What the queries of TPC-H cost, and by which noise they are answered, asked as benchmarks/tpch.py asks them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.tpch import DELTA, EPSILON, policy
from benchmarks.tpch_queries import QUERIES
from tests.golden.facts import Entry
from tests.golden.fresh_session import FreshSession

SOURCE = "benchmarks/tpch"
_TABLES = Path(__file__).with_name("tpch.sql").read_text(encoding="utf-8")


def answers(rows: str = "") -> dict[str, list[Entry]]:
    """Return the entries of each query that is not refused, on empty tables or with rows if SQL for them is given."""
    sessions = {unit: FreshSession(_TABLES + rows) for unit in {query.unit for query in QUERIES}}
    found = {}
    for query in QUERIES:
        sessions[query.unit].declare(policy(query))
        found[f"Q{query.number:02}"] = sessions[query.unit].answer(
            query.sql, None, {"epsilon": EPSILON, "delta": DELTA}
        )
    for one in sessions.values():
        one.close()
    return {key: entries for key, entries in found.items() if entries}
