"""A query runs through the steps as they are written down, and reads no row before it is charged."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import FrameType

import dpsql
from tests.structure.query_steps import CHARGE, STEPS
from tests.structure.query_trace import RHO, SIMPLE_QUERY, protected_table

PACKAGE = Path(dpsql.__file__).parent
READS_ROWS = {
    "engine/database.py:DuckDBEngine.aggregate",
    "engine/database.py:DuckDBEngine.sizes",
    "engine/database.py:DuckDBEngine.stream",
    "engine/transaction.py:DuckDBTransaction.exact",
    "engine/transaction.py:DuckDBTransaction.make_kept_pairs",
    "engine/transaction.py:DuckDBTransaction.make_pairs",
    "engine/transaction.py:DuckDBTransaction.make_rows",
}


def first_calls(text: str) -> list[str]:
    """Functions of dpsql that a question calls, each where it is called first."""
    calls: dict[str, None] = {}

    def enter(frame: FrameType, event: str, arg: object) -> None:
        path = Path(frame.f_code.co_filename)
        if PACKAGE in path.parents:
            calls.setdefault(f"{path.relative_to(PACKAGE).as_posix()}:{frame.f_code.co_qualname}")

    with protected_table() as session:
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
    assert READS_ROWS.isdisjoint(calls[:charged])
    assert not READS_ROWS.isdisjoint(calls[charged:])


def test_functions_that_read_rows_are_named_right() -> None:
    for name in READS_ROWS:
        path, _, function = name.partition(":")
        module = import_module("dpsql." + path.removesuffix(".py").replace("/", "."))
        assert callable(attrgetter(function)(module))


def test_another_order_and_a_step_that_is_not_taken_are_found() -> None:
    calls = ["a", "b", "c"]
    assert in_order(calls, ["a", "c"])
    assert not in_order(calls, ["c", "a"])
    assert not in_order(calls, ["a", "d"])
