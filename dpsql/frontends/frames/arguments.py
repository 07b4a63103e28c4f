"""Arguments of methods of a GroupBy, in the forms that pandas takes, as measures."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from dpsql.errors import PolicyError, Refusal, UnsupportedQueryError
from dpsql.frontends.frames.question import Question
from dpsql.frontends.frames.rows import numeric_columns, require_column
from dpsql.frontends.frames.shape import FUNCTIONS, Bounds, Measure, read_measure

Selected = str | tuple[str, ...] | None
"""Columns that ``groupby(…)[…]`` selects: a text for one, a tuple for a list, None if nothing is selected."""

_ROWS = Measure("size", None, "size")


def read_selection(question: Question, selected: Selected, columns: Hashable | Sequence[Hashable]) -> Selected:
    """Return the columns that ``groupby(…)[columns]`` selects.

    Raises:
        PolicyError: some are selected already, or the list is empty or has one twice.
        SchemaError: there is no such column.

    """
    if selected is not None:
        raise PolicyError(f"{_shown(selected)} is selected already; write groupby(…)[['a', 'b']] for several columns")
    if not isinstance(columns, list):
        return require_column(question.frame, columns, "the selected column")
    names = tuple(require_column(question.frame, one, "the selected column") for one in columns)
    if not names or len(set(names)) != len(names):
        raise PolicyError("a selection is a list of different columns, as in groupby(…)[['a', 'b']]")
    return names


def example_column(question: Question, selected: Selected) -> str:
    """Return a column to name in a cure: a selected one, else the first of numbers that is no key and no unit."""
    if selected is not None:
        return _listed(selected)[0]
    taken = {*question.keys, question.unit.column or question.unit.name}
    numbers = numeric_columns(question.frame)
    return next((name for name in numbers if name not in taken), "x")


def measures_of(
    question: Question, selected: Selected, function: str, column: str | None = None, bounds: Bounds = None
) -> list[Measure]:
    """Return the measures of a method that is one function: of one column, or of those that are selected.

    Raises:
        PolicyError: a column is named although some are selected.
        UnsupportedQueryError: no column is named, and none is selected.

    """
    if column is None and selected is None:
        name = example_column(question, None)
        refusal = Refusal(
            "aggregate",
            f"{function}() names no column.",
            f"Write groupby(…)[{name!r}].{function}().",
        )
        raise UnsupportedQueryError([refusal])
    if column is not None and selected is not None:
        raise PolicyError(f"{_shown(selected)} is selected already; write .{function}() without a column")
    names = [column] if column is not None else _listed(selected)
    return [read_measure(str(name), (name, function, bounds), question.frame) for name in names]


def read_shares(q: object, interpolation: str) -> list[float]:
    """Return the shares of the values below the quantiles that pandas asks for.

    Raises:
        PolicyError: a share is no number from 0 to 1, or the quantile is another than that of ``quantile_cont``.

    """
    if interpolation != "linear":
        raise PolicyError(f"quantile takes interpolation='linear', not {interpolation!r}")
    asked = list(q) if isinstance(q, list | tuple | np.ndarray) else [q]
    shares = [float(one) for one in asked if isinstance(one, int | float | np.number) and not isinstance(one, bool)]
    if not shares or len(shares) != len(asked) or any(not 0 <= one <= 1 for one in shares):
        raise PolicyError("quantile takes shares from 0 to 1, as in quantile(0.9) or quantile([0.25, 0.5, 0.75])")
    if len(set(shares)) != len(shares):
        raise PolicyError("quantile takes each share once")
    return shares


def measures_of_agg(
    question: Question, selected: Selected, function: object, named: Mapping[str, object]
) -> list[Measure]:
    """Return the measures that the arguments of ``agg`` ask for.

    Args:
        question: with the frame and its keys.
        selected: columns that are selected.
        function: a function, a dict of them by column or, if one column is selected, a list; None if it is not given.
        named: the keyword arguments.

    Raises:
        PolicyError: they have another form.
        SchemaError: there is no such column.
        UnsupportedQueryError: a function has no private form, or is asked of every column.

    """
    if function is None and not named:
        raise PolicyError("agg takes named columns, as in agg(cost=('cost', 'sum'))")
    if function is not None and named:
        raise PolicyError(
            "agg takes one argument or named columns, not both; bounds stand as in "
            "('sum', (<lowest value>, <highest value>))"
        )
    if function is None:
        asked = {name: _of_column(selected, one) for name, one in named.items()}
    elif isinstance(function, Mapping):
        asked = _by_column(selected, function)
    elif isinstance(function, list):
        asked = _several(question, selected, function)
    elif not isinstance(selected, str) and isinstance(function, str) and function == "size":
        return [_ROWS]
    elif selected is None:
        return measures_of(question, None, *_with_words(function))
    else:
        asked = {name: (name, *_with_bounds(function)) for name in _listed(selected)}
    measures = [read_measure(name, one, question.frame) for name, one in asked.items()]
    outside = [one.column for one in measures if one.column and selected is not None and one.column not in selected]
    if outside:
        raise PolicyError(f"{outside[0]!r} is not selected; write groupby(…).agg(…) without {_shown(selected)}")
    return measures


def _by_column(selected: Selected, functions: Mapping[object, object]) -> dict[str, object]:
    """Return what a dict of functions by column asks for, by the names of the columns."""
    if isinstance(selected, str) or not functions:
        raise PolicyError("agg takes a dict of columns, as in groupby(…).agg({'x': 'mean'})")
    for column, one in functions.items():
        if isinstance(one, list):
            raise PolicyError(f"agg takes one function a column in a dict; write {_written([column], one)}")
    return {str(column): (column, *_with_bounds(one)) for column, one in functions.items()}


def _several(question: Question, selected: Selected, functions: list[object]) -> dict[str, object]:
    """Return what a list of functions of the selected column asks for, by their names."""
    if not isinstance(selected, str):
        columns = [example_column(question, None)] if selected is None else list(selected)
        raise PolicyError(f"agg takes a list of functions of one selected column; write {_written(columns, functions)}")
    pairs = [_with_bounds(one) for one in functions]
    asked = {str(name): (selected, name, *bounds) for name, *bounds in pairs}
    if not asked or len(asked) != len(pairs):
        raise PolicyError("agg takes a list of different functions, as in agg(['mean', 'count'])")
    return dict(asked)


def _of_column(selected: Selected, asked: object) -> object:
    """Return a named argument of ``agg`` with the column that is selected, if it names none."""
    if not isinstance(selected, str):
        return asked
    is_whole = isinstance(asked, tuple) and len(asked) > 1 and asked[0] == selected and asked[1] in FUNCTIONS
    return asked if is_whole else (selected, *_with_bounds(asked))


def _with_bounds(asked: object) -> tuple[object, ...]:
    """Return a function with its bounds, if there are any: ``'mean'`` or ``('mean', (0, 100))``."""
    return asked if isinstance(asked, tuple) and len(asked) in (1, 2) else (asked,)


def _with_words(function: object) -> tuple[str]:
    """Return the name of a function, for a cure that names it."""
    function = _with_bounds(function)[0]
    if not isinstance(function, str):
        raise PolicyError("agg takes named columns, as in agg(cost=('cost', 'sum')), or agg({'cost': 'sum'})")
    return (function if function in FUNCTIONS else "mean",)


def _written(columns: Sequence[object], functions: Sequence[object]) -> str:
    """Return the ``agg`` with named columns that asks for functions of each column."""
    names = [one for one in functions if isinstance(one, str) and one in FUNCTIONS] or ["mean"]
    pairs = [f"{f'{column}_{name}'!r}: ({column!r}, {name!r})" for column in columns for name in names]
    return f"agg(**{{{', '.join(pairs)}}})"


def _listed(selected: Selected) -> list[str]:
    return [selected] if isinstance(selected, str) else list(selected or ())


def _shown(selected: Selected) -> str:
    return f"[{', '.join(map(repr, _listed(selected)))}]"
