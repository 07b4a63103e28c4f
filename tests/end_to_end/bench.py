"""A database whose queries are planned and bounded, without noise."""

from __future__ import annotations

from collections import Counter

import dpsql
from dpsql.bound.aggregation import bounded_sql
from dpsql.cascade.reader import CURATOR, Reader
from dpsql.engine import DuckDBEngine, Sandbox
from dpsql.errors import DpsqlError
from dpsql.plan.environment.policy_view import environment
from dpsql.plan.planner import plan_query
from dpsql.sql.statements import SelectStatement, read_statement
from tests.frames import with_bounding

TABLES = """
CREATE TABLE t AS SELECT i AS pid, (1 + i % 4)::INTEGER AS n, (12 + i % 3)::VARCHAR AS s, 1.5::DOUBLE + i AS d,
    i::HUGEINT AS big, DATE '2026-01-01' + (i % 5)::INTEGER AS day, 1::TINYINT AS small FROM range(20) r(i);
CREATE TABLE names AS SELECT i::INTEGER AS n, 'name ' || i AS name FROM range(6) r(i);
"""


class Bench:
    """A database and what plans queries of it."""

    def __init__(self, *more: str) -> None:
        self.session = dpsql.connect(threads=1)
        for statements in (TABLES, *more):
            self.session.connection.execute(statements)
        self.session.sql("CALL dp_unit('person', rho_budget := 10, delta_threshold := 0.1, delta_conversion := 1e-6)")
        self.session.sql(
            "CALL dp_protect('t', coverage := FALSE, "
            "unit := 'person', privacy_unit_column := 'pid', max_groups_contributed := 2, "
            "max_rows_per_group := 3)"
        )
        self.session.sql("CALL dp_public('names')")
        self.engine, sandbox = DuckDBEngine(self.session.connection), Sandbox()
        self.environment = environment(self.session._access.read().policy(), self.engine, sandbox, Reader(CURATOR))

    def outcome(self, text: str) -> str | Counter[tuple[object, ...]]:
        """The bounded groups, or the type of the refusal."""
        statement = read_statement(text)
        assert isinstance(statement, SelectStatement)
        try:
            query = plan_query(statement, self.environment, {"rho": 1.0, "delta": 1e-6})
        except DpsqlError as error:
            return f"{type(error).__name__}: {error}"
        frame = with_bounding(query.first.frame, sparsity=None)
        sql = bounded_sql(frame, query.first.statistics, bytes(16))
        # Python has no word for some dates
        texts = f"SELECT CAST(COLUMNS(*) AS VARCHAR) FROM ({sql})"
        table = self.engine.aggregate(texts, listed_keys=None, timeout_seconds=20).reveal()
        return Counter(tuple(row.values()) for row in table.to_pylist())
