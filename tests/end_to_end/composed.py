"""Texts of several private parts: what they are taken apart into, what they cost, and a small clinic to ask about."""

from __future__ import annotations

from typing import Any

import duckdb

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.errors import QueryError
from dpsql.operations.dialect import to_sql
from dpsql.session.composition_plan import ComposedPlan
from dpsql.session.compositions import Composed
from dpsql.sql.statements import SelectStatement, read_statement
from dpsql.state import Spent

WITH = "WITH DIFFERENTIAL_PRIVACY OPTIONS"
TABLES = """
CREATE TABLE visits AS SELECT (i % 600)::INT AS patient, ['Lund', 'Oslo', 'Umeå'][1 + i % 3] AS city,
    (i % 4)::INT AS ward, (i % 100)::INT AS cost FROM range(1200) t(i);
CREATE TABLE shifts AS SELECT (i % 500)::INT AS nurse, (i % 2)::INT AS night FROM range(900) t(i);
CREATE TABLE wards AS SELECT i::INT AS ward, 'Ward ' || i AS name, (10 + i)::INT AS beds FROM range(4) t(i);
"""
_RULES = "max_groups_contributed := 2, max_rows_per_group := 2, coverage := FALSE"
DECLARED = (
    "CALL dp_unit('patient', rho_budget := 1000, delta_threshold := 1e-2, delta_conversion := 1e-6)",
    "CALL dp_unit('nurse', rho_budget := 0.4, delta_threshold := 1e-6, delta_conversion := 1e-6)",
    f"CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', {_RULES})",
    f"CALL dp_protect('shifts', unit := 'nurse', privacy_unit_column := 'nurse', {_RULES})",
    "CALL dp_domain('visits', 'cost', bounds := [0, 100])",
    "CALL dp_domain('visits', 'ward', keys := [0, 1, 2, 3])",
    "CALL dp_domain('shifts', 'night', keys := [0, 1])",
    "CALL dp_public('wards', readable := true)",
    "CALL dp_analyst('ana', rho_limit := 0.5)",
    "CALL dp_analyst('bea', budget_part := 0.001)",
)
TWO_COUNTS = (
    "SELECT (SELECT count(*) FROM visits) AS a, (SELECT count(DISTINCT patient) FROM visits WHERE cost > 40) AS b"
)
TWO_UNITS = "SELECT 'visits' AS label, count(*) AS n FROM visits UNION ALL SELECT 'shifts', count(*) FROM shifts"


def spent(session: dpsql.Session, unit: str) -> Spent:
    """Return what is spent of the budget of a unit."""
    return session._access.read().ledger.spent(unit)


def receipt_of(result: dpsql.Result) -> dpsql.Receipt:
    """Return the receipt of an answer, which has one."""
    assert result.receipt is not None
    return result.receipt


def composed_plan_of(session: dpsql.Session, text: str, **options: Any) -> ComposedPlan | None:
    """Return the plan of a text by its parts. Return None if the text is one private query."""
    statement, runner = read_statement(text), session._runner
    assert isinstance(statement, SelectStatement)
    try:
        runner.answerable(statement, options, CURATOR)
    except QueryError as error:
        composed = runner.composed(statement, options, CURATOR, error)
        return composed._plan if isinstance(composed, Composed) else None
    return None


def rows_from_parts(session: dpsql.Session, plan: ComposedPlan) -> list[tuple[Any, ...]]:
    """Ask each part alone, which costs nothing, and run the outer text over the answers in plain DuckDB."""
    with duckdb.connect(config={"threads": "1"}) as beside:
        for part in plan.parts:
            answer = session.sql(part.part.sql, **part.options)  # type: ignore[arg-type]
            assert (receipt_of(answer).charged_rho, receipt_of(answer).charged_delta) == (0.0, 0.0), part.part.sql
            beside.register(part.part.name, answer.arrow().rename_columns(part.names))
        for table in plan.composition.tables:
            rows = session.connection.sql(f"FROM {table.schema.relation}").to_arrow_table()
            beside.register(table.name, rows)
        return beside.execute(to_sql(plan.composition.outer)).fetchall()
