"""The errors form one documented tree and carry what a caller needs."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from dpsql import errors
from dpsql.errors import (
    BudgetError,
    DpsqlError,
    ParseError,
    QueryError,
    Refusal,
    SchemaError,
    Span,
    UnsupportedQueryError,
)

TREE_LINE = re.compile(r"^ {4}(?P<branch>[│ ]*[├└]── )?(?P<name>\w+Error)\b", re.MULTILINE)


def documented_tree(text: str) -> dict[str, str]:
    """Child to parent, read from the drawing: a name's parent is the last one with a shorter branch."""
    parents: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in TREE_LINE.finditer(text):
        depth = len(line["branch"] or "")
        path = [(above, name) for above, name in path if above < depth]
        if path:
            parents[line["name"]] = path[-1][1]
        path.append((depth, line["name"]))
    return parents


def actual_tree() -> dict[str, str]:
    classes = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
    return {kind.__name__: kind.__bases__[0].__name__ for kind in classes if kind is not DpsqlError}


def test_the_drawing_is_the_tree() -> None:
    assert documented_tree(errors.__doc__ or "") == actual_tree()


def test_the_drawing_is_read_by_depth() -> None:
    drawing = "    AError\n    ├── BError  x\n    │   └── CError  y\n    └── DError  z\n"
    assert documented_tree(drawing) == {"BError": "AError", "CError": "BError", "DError": "AError"}


def test_a_span_is_read_by_people_as_a_place() -> None:
    assert str(Span(line=2, column=7, start=30, end=35)) == "line 2, column 7"


def test_all_refusals_are_kept_in_order_and_shown_with_their_place() -> None:
    first = Refusal("no-window", "Window functions have no private answer.", "Use GROUP BY.", Span(1, 8, 7, 20))
    second = Refusal("unbounded-sum", "sum(cost) has no bounds.", "Write dp_sum(cost, 0, 500).")
    error = UnsupportedQueryError(iter_once := [first, second])
    iter_once.clear()
    assert error.refusals == (first, second)
    first_line, second_line = str(error).splitlines()[1:]
    assert first_line.split() == f"- [no-window] line 1, column 8: {first.message} {first.hint}".split()
    assert second_line.split() == f"- [unbounded-sum] {second.message} {second.hint}".split()


@pytest.mark.parametrize("kind", [ParseError, SchemaError])
def test_errors_about_the_text_say_where(kind: type[ParseError] | type[SchemaError]) -> None:
    place = Span(3, 1, 40, 44)
    assert kind("no such thing", span=place).span == place
    assert str(kind("no such thing", span=place)).startswith("line 3, column 1: no such thing")
    assert str(kind("no such thing")) == "no such thing"
    assert issubclass(kind, QueryError)


def test_a_schema_error_keeps_its_hint_apart() -> None:
    error = SchemaError("There is no table 'visit'.", hint="Did you mean 'visits'?")
    assert error.hint == "Did you mean 'visits'?"
    assert str(error).endswith(error.hint)


def test_a_budget_error_carries_exact_numbers_and_shows_small_ones() -> None:
    error = BudgetError(
        "patient",
        requested_rho=0.0123456,
        remaining_rho=1.23456e-7,
        requested_delta=1.25e-9,
        remaining_delta=3.0625e-31,
    )
    assert (error.unit, error.requested_rho, error.remaining_rho) == ("patient", 0.0123456, 1.23456e-7)
    assert (error.requested_delta, error.remaining_delta) == (1.25e-9, 3.0625e-31)
    for digits in ("0.0123456", "1.23456e-07", "1.25e-09", "3.0625e-31"):
        assert digits in str(error)


@pytest.mark.parametrize(
    "error",
    [
        UnsupportedQueryError([Refusal("star", "A star would release rows.", "Name columns.", Span(1, 8, 7, 8))]),
        SchemaError("There is no column 'x'.", hint="Columns are a, b.", span=Span(1, 1, 0, 1)),
        BudgetError("patient", requested_rho=1.0, remaining_rho=0.5, requested_delta=0.0, remaining_delta=1e-9),
    ],
)
def test_an_error_crosses_a_process_pool_whole(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 — what was pickled a moment ago
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_an_analyst_is_told_what_an_analyst_can_do() -> None:
    place = Span(1, 8, 7, 8)
    for error in (
        ParseError("no", place, hint="CALL it.", analyst_hint="Ask."),
        SchemaError("no", hint="CALL it.", span=place, analyst_hint="Ask."),
    ):
        told = error.for_analyst()
        assert type(told) is type(error)
        assert str(told) == "line 1, column 8: no Ask."
        assert vars(told) == {"span": place, "hint": "Ask."}
    refused = UnsupportedQueryError([Refusal("star", "no", "CALL it.", place, "Ask."), Refusal("size", "no", "Less.")])
    assert [one.hint for one in refused.for_analyst().refusals] == ["Ask.", "Less."]
    assert "CALL" not in str(refused.for_analyst())
    plain = SchemaError("no", hint="Both.")
    assert plain.for_analyst() is plain
