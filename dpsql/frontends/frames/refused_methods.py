"""Methods of other libraries' GroupBy that have no private form, and what to write instead."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from dpsql.errors import Refusal, UnsupportedQueryError

_EXTREME = "One row decides it. Write groupby(…)[{column!r}].median(), or in SQL quantile_cont(x, {share})."
_QUANTILE = "Write groupby(…)[{column!r}].median(), or in SQL quantile_cont(x, 0.9)."
_SPREAD = "Write groupby(…)[{column!r}].agg(['count', 'std'])."
_OTHER = "Write one of {methods}, as in groupby(…)[{column!r}].mean()."
_KEYS = "Write groupby({keys!r}, …).groups()."
_INSTEAD = {
    **dict.fromkeys(("max", "idxmax", "nlargest"), _EXTREME.replace("{share}", "0.99")),
    **dict.fromkeys(("min", "idxmin", "nsmallest"), _EXTREME.replace("{share}", "0.01")),
    "value_counts": "Write groupby({with_column!r}, …).size().",
    "unique": "Write groupby({with_column!r}, …).groups().",
    "describe": "Write groupby(…)[{column!r}].agg(['count', 'mean', 'std', 'median']).",
    "quantile": _QUANTILE,
    "sem": _SPREAD,
    "any": "Write in SQL bool_or(x).",
    "all": "Write in SQL bool_and(x).",
    "ngroups": _KEYS,
    "indices": _KEYS,
    "get_group": _KEYS,
    "len": "Write groupby(…).size().",
    "n_unique": "Write groupby(…)[{column!r}].nunique().",
}
"""Cures, by the name of a method."""

_METHODS = (".size()", ".count()", ".nunique()", ".sum()", ".mean()", ".median()", ".std()", ".var()", ".agg(…)")
_NOT_IN_PANDAS = ("len", "n_unique", "map_groups", "having")
"""Methods that GroupBy has in polars and not in pandas."""


def is_known_elsewhere(name: str) -> bool:
    """Check that GroupBy has a method or attribute of this name in pandas or polars."""
    kinds = (pd.api.typing.DataFrameGroupBy, pd.api.typing.SeriesGroupBy)
    return name in _NOT_IN_PANDAS or any(hasattr(kind, name) for kind in kinds)


def method_refused(name: str, keys: Sequence[str], column: str) -> UnsupportedQueryError:
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
    return UnsupportedQueryError([Refusal("aggregate", f".{name} has no private form.", hint)])
