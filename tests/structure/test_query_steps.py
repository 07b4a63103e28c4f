"""A query runs through the steps as they are written down, and reads no row before it is charged."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import dpsql
from tests.structure.query_steps import CHARGE, STEPS
from tests.structure.query_trace import PROTECTION, RHO, SIMPLE_QUERY, TABLE

PACKAGE = Path(dpsql.__file__).parent
READS_ROWS = ("engine/database.py:DuckDBEngine.sizes", "engine/database.py:DuckDBEngine.aggregate")


def first_calls(text: str) -> list[str]:
    """Functions of dpsql that a question calls, each where it is called first."""
    calls: dict[str, None] = {}

    def enter(frame: FrameType, event: str, arg: object) -> None:
        path = Path(frame.f_code.co_filename)
        if PACKAGE in path.parents:
            calls.setdefault(f"{path.relative_to(PACKAGE).as_posix()}:{frame.f_code.co_qualname}")

    with dpsql.connect() as session:
        session.connection.execute(TABLE)
        session.sql(PROTECTION)
        before = sys.gettrace()
        sys.settrace(enter)
        try:
            session.sql(text, rho=RHO)
        finally:
            sys.settrace(before)
    return list(calls)


def in_order(calls: Sequence[str], functions: Sequence[str]) -> bool:
    """Whether all functions are called, one after the other."""
    return [call for call in calls if call in functions] == list(functions)


def test_a_query_takes_the_steps_in_their_order() -> None:
    calls = first_calls(SIMPLE_QUERY)
    functions = [name for step in STEPS for name in step.functions]
    assert in_order(calls, functions), [call for call in calls if call in functions]
    charged = calls.index(STEPS[CHARGE].functions[0])
    assert all(calls.index(name) > charged for name in READS_ROWS)


def test_another_order_and_a_step_that_is_not_taken_are_found() -> None:
    calls = ["a", "b", "c"]
    assert in_order(calls, ["a", "c"])
    assert not in_order(calls, ["c", "a"])
    assert not in_order(calls, ["a", "d"])
