"""FROM dp_check('visits'): the effect of declared bounds on raw rows, for the curator alone.

Nothing is charged or stored: plans and trial answers are made on a state in memory (`bound_plans`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpsql.engine import Engine
from dpsql.errors import PolicyError
from dpsql.model.environment import TableSchema
from dpsql.plan.environment.links import linked, unit_column
from dpsql.receipts.bound_words import report_rows
from dpsql.receipts.result import Result
from dpsql.release.raw_groups import count_rows
from dpsql.session.bound_plans import BoundPlans, MakeRunner
from dpsql.session.bound_report import BoundCheck
from dpsql.session.declarations.arguments import StateAccess, column_of, split_name, table_of
from dpsql.session.declarations.group_columns import group_columns
from dpsql.session.lookups import text_table
from dpsql.sql.statements import FunctionCall
from dpsql.state import Policy, ProtectedTable, rho_from_nano

MOST_ROWS_OF_AUTO = 2_000_000
"""In larger tables AUTO answers only if it is asked for: its answers may take minutes."""
_TAKES = "dp_check takes the name of a table, by := 'city' (or a list), auto := false, and plot := true"


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of dp_check.

    Attributes:
        table: its name.
        by: the groupings; none for those that are likely.
        auto: whether AUTO answers, to be compared with; None if that follows from the number of rows.
        plot: whether errors are drawn against bounds.

    """

    table: str
    by: tuple[str, ...]
    auto: bool | None
    plot: bool


def check_bounds(call: FunctionCall, access: StateAccess, engine: Engine, runner_on: MakeRunner) -> Result:
    """Return the effect of the declared bounds of a table, and better bounds.

    Args:
        call: of dp_check.
        access: the state file; nothing is written to it.
        engine: the curator's database.
        runner_on: makes runners on states in memory.

    Raises:
        PolicyError: the table is not protected, or an argument makes no sense.

    """
    request = _read(call)
    policy = access.read().policy()
    schema = table_of(split_name(request.table), engine)
    table = policy.protected_table(schema.canonical)
    if table is None or table.archived:
        raise PolicyError(f"table {schema.canonical!r} is not protected, so it has no bounds to check")
    schema = linked(schema, policy, engine)
    columns = request.by or group_columns(schema, policy, engine)
    if not columns:
        raise PolicyError(
            f"no column of {schema.canonical!r} has a public list of keys, or two to a thousand values: name one, as "
            "in by := 'city'"
        )
    options, level = _level(table, policy)
    plans = BoundPlans(runner_on, engine, policy, schema.canonical, options, level)
    unit = unit_column(policy, schema.canonical)
    rows = count_rows(engine, schema.relation, unit)
    auto = rows <= MOST_ROWS_OF_AUTO if request.auto is None else request.auto
    check = BoundCheck(plans, schema, table, unit, rows, auto)
    report = check.report([_columns_of(one, schema) for one in columns], skips=not request.by)
    return text_table(("section", "name", "value"), report_rows(report, plot=request.plot))


def _read(call: FunctionCall) -> _Request:
    """Return the arguments of a call.

    Raises:
        PolicyError: they make no sense.

    """
    named = dict(call.named)
    by, auto, plot = (named.pop(name, None) for name in ("by", "auto", "plot"))
    listed: Sequence[object] = by if isinstance(by, tuple) else () if by is None else (by,)
    texts = tuple(one for one in listed if isinstance(one, str) and one)
    table = call.positional[0] if len(call.positional) == 1 else None
    if not isinstance(table, str) or named or len(texts) < len(listed):
        raise PolicyError(_TAKES)
    if not isinstance(auto, bool | None) or not isinstance(plot, bool | None):
        raise PolicyError(_TAKES)
    return _Request(table, texts, auto, bool(plot))


def _columns_of(by: str, schema: TableSchema) -> tuple[str, ...]:
    """Return the columns of a grouping, as in 'city' or 'city, urgent'.

    Raises:
        PolicyError: the table has no such column.

    """
    return tuple(column_of(schema, name.strip()).name for name in by.split(","))


def _level(table: ProtectedTable, policy: Policy) -> tuple[dict[str, object], str]:
    """Return the level at which errors are compared, and its words: the default of a table, else epsilon = 1."""
    delta = table.default_delta or policy.declared_unit(table.unit).default_delta
    if table.default_rho:
        rho = rho_from_nano(table.default_rho)
        return {"rho": rho, "delta": delta}, f"rho = {rho:.9g}, the default of the table"
    if table.default_epsilon:
        epsilon = table.default_epsilon
        return {"epsilon": epsilon, "delta": delta}, f"epsilon = {epsilon:.9g}, the default of the table"
    return {"epsilon": 1.0, "delta": delta}, "epsilon = 1, because the table has no default"
