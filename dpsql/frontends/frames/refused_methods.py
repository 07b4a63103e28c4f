"""Methods of other libraries' GroupBy that have no private form, and what to write instead."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pandas as pd

from dpsql.errors import PolicyError, Refusal, UnsupportedQueryError

_EXTREME = "One row decides it. Write groupby(…)[{column!r}].quantile({share})."
_SPREAD = "Write groupby(…)[{column!r}].agg(['count', 'std'])."
_OTHER = "Write one of {methods}, as in groupby(…)[{column!r}].mean()."
_KEYS = "Write groupby({keys!r}, …).groups()."
_INSTEAD = {
    **dict.fromkeys(("max", "idxmax", "nlargest"), _EXTREME.replace("{share}", "0.99")),
    **dict.fromkeys(("min", "idxmin", "nsmallest"), _EXTREME.replace("{share}", "0.01")),
    "value_counts": "Write groupby({with_column!r}, …).size().",
    "unique": "Write groupby({with_column!r}, …).groups().",
    "describe": "Write groupby(…)[{column!r}].agg(['count', 'mean', 'std', 'median']).",
    "sem": _SPREAD,
    "any": "Write in SQL bool_or(x).",
    "all": "Write in SQL bool_and(x).",
    "ngroups": _KEYS,
    **dict.fromkeys(("shape", "index", "columns"), _KEYS),
    **dict.fromkeys(("pivot_table", "pivot", "unstack"), "Write groupby({with_column!r}, …).size().unstack()."),
    "indices": _KEYS,
    "get_group": _KEYS,
    "len": "Write groupby(…).size().",
    "n_unique": "Write groupby(…)[{column!r}].nunique().",
}
"""Cures, by the name of a method."""

_METHODS = (
    ".size()",
    ".count()",
    ".nunique()",
    ".sum()",
    ".mean()",
    ".median()",
    ".std()",
    ".var()",
    ".quantile()",
    ".agg(…)",
)
_NOT_IN_PANDAS = ("len", "n_unique", "map_groups", "having")
"""Methods that GroupBy has in polars and not in pandas."""
_GROUPED = ("sum", "mean", "median", "std", "var", "count", "nunique", "quantile")
_EARLIER = "Write df.{name}(…).dp.groupby({key!r}, …).size()."
_ROWS = "Rows are private. Write df.dp.groupby({key!r}, …).size() for numbers of groups; df itself has the rows."
_OF_FRAMES = {
    **dict.fromkeys(
        _GROUPED,
        "Write df.dp.groupby({key!r}, …)[{column!r}].{name}(), or for one number over all rows "
        "df.assign(every=1).dp.groupby('every', public_keys=[1], …)[{column!r}].{name}().",
    ),
    **dict.fromkeys(("value_counts", "size", "hist"), "Write df.dp.groupby({key!r}, …).size()."),
    **dict.fromkeys(("drop_duplicates", "duplicated"), "Write df.dp.groupby({key!r}, …).groups()."),
    **dict.fromkeys(("min", "max"), "One row decides it. Write df.dp.groupby({key!r}, …)[{column!r}].quantile(0.99)."),
    **dict.fromkeys(
        ("pivot_table", "pivot", "unstack"), "Write df.dp.groupby([{key!r}, …], …)[{column!r}].mean().unstack()."
    ),
    **dict.fromkeys(
        ("resample", "rolling", "asfreq"),
        "Write df.dp.groupby(pd.Grouper(key='when', freq='D'), …)[{column!r}].mean().",
    ),
    **dict.fromkeys(
        ("query", "assign", "merge", "join", "astype", "rename", "filter", "dropna", "fillna", "drop", "replace"),
        _EARLIER,
    ),
    **dict.fromkeys(("columns", "dtypes", "index", "keys"), "Write df.{name}."),
    **dict.fromkeys(("agg", "aggregate"), "Write df.dp.groupby({key!r}, …)[{column!r}].agg(['mean', 'count'])."),
    "describe": "Write df.dp.groupby({key!r}, …)[{column!r}].agg(['count', 'mean', 'std', 'median']).",
}
"""Cures, by the name of a method or attribute of a DataFrame."""
_TAKEN = {
    "numeric_only": (True, False),
    "min_count": (0, -1),
    "skipna": (True,),
    "dropna": (True,),
    "ddof": (1,),
    "engine": (None,),
    "engine_kwargs": (None,),
}
"""Arguments of pandas, with the values for which a private answer is what pandas would compute."""


class MethodRefusedError(UnsupportedQueryError, AttributeError):
    """A method or attribute has no private form. ``hasattr`` and ``getattr`` with a default see that it is missing."""


def frame_method_refused(name: str, key: str, column: str) -> MethodRefusedError:
    """Return the error of a method or attribute of a DataFrame that ``df.dp`` does not have.

    Args:
        name: of the method.
        key: a column to group by in the cure.
        column: a column of numbers for the cure.

    """
    hint = _OF_FRAMES.get(name, _ROWS).format(name=name, key=key, column=column)
    return MethodRefusedError([Refusal("aggregate", f"df.dp has no {name}: it answers groups alone.", hint)])


def column_refused(name: object, key: str, column: str) -> MethodRefusedError:
    """Return the error of ``df.dp[…]``.

    Args:
        name: what stands in the brackets.
        key: a column to group by in the cure.
        column: a column of numbers for the cure.

    """
    hint = f"Write df.dp.groupby({key!r}, …)[{column!r}].mean()."
    if isinstance(name, str):
        hint = f"Write df.dp.groupby({name!r}, …).size() to count its values, or df.dp.groupby(…)[{name!r}].mean()."
    return MethodRefusedError([Refusal("aggregate", "df.dp has no columns: it answers groups alone.", hint)])


def require_plain_arguments(function: str, arguments: Mapping[str, object]) -> None:
    """Check arguments that pandas has and a private answer has not, so that they ask for nothing else.

    Raises:
        PolicyError: an argument is unknown, or asks for another number.

    """
    for name, value in arguments.items():
        known = _TAKEN.get(name)
        if known is None or not any(value is one or (type(value) is type(one) and value == one) for one in known):
            cure = "write in SQL stddev_pop(x) or var_pop(x)" if name == "ddof" else "leave it out"
            shown = f"{name}={value!r}" if isinstance(value, str | int | float | None) else name
            raise PolicyError(f"{function}() takes no {shown}; {cure}")


def is_known_elsewhere(name: str, columns: Collection[str]) -> bool:
    """Check that GroupBy has a method or attribute of this name in pandas or polars, or else a frame of pandas has it.

    Args:
        name: of the method.
        columns: names that are columns, where GroupBy itself has no such method.

    """
    kinds = (pd.api.typing.DataFrameGroupBy, pd.api.typing.SeriesGroupBy)
    if name in _NOT_IN_PANDAS or any(hasattr(kind, name) for kind in kinds):
        return True
    return name not in columns and (hasattr(pd.DataFrame, name) or hasattr(pd.Series, name))


def method_refused(name: str, keys: Sequence[str], column: str) -> MethodRefusedError:
    """Return the error of a method that has no private form.

    Args:
        name: of the method.
        keys: that rows are grouped by.
        column: to name in the cure.

    """
    hint = _INSTEAD.get(name, _OTHER).format(
        column=column,
        keys=list(keys) if len(keys) > 1 else keys[0],
        with_column=[*keys, column],
        methods=", ".join(_METHODS),
    )
    return MethodRefusedError([Refusal("aggregate", f".{name} has no private form.", hint)])
