"""Measures and keys: arguments in the words of pandas, as SQL, and the answer in the shape that pandas gives it."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from dpsql.errors import PolicyError, Refusal, UnsupportedQueryError
from dpsql.frontends.frames.rows import Frame, is_missing, require_column
from dpsql.session import Receipt, as_record, quote, text_literal

Bounds = tuple[float, float] | float | str | None
"""Two numbers, ``"auto"``, or None for what policy and ``max_rows_per_group`` say; or one number, a norm."""

_PER_ROW = {"mean": "avg", "median": "median", "std": "stddev_samp", "var": "var_samp", "quantile": "quantile_cont"}
FUNCTIONS = ("size", "count", "nunique", "sum", *_PER_ROW)
_FORMS = (
    "public_keys is a list of values for one key; for several a dict of such lists, a list of tuples, or a DataFrame"
)


@dataclass(frozen=True, slots=True)
class Measure:
    """One column of the answer.

    Attributes:
        name: of the column in the answer; empty for that of the unit column.
        column: of the frame; None for rows, or where distinct values are counted for units.
        function: as pandas calls it.
        bounds: of one unit in one group for sums and counts, of one row for the others.
        share: of the values below a quantile.

    """

    name: str
    column: str | None
    function: str
    bounds: Bounds = None
    share: float = 0.5

    def of_units(self, owner: str) -> Measure:
        """With the unit column where distinct units are counted."""
        if self.function != "nunique" or self.column is not None:
            return self
        return Measure(self.name or owner, owner, self.function)


def read_measure(name: str, asked: object, frame: Frame) -> Measure:
    """Read one argument of ``agg``: (column, function) or (column, function, bounds).

    Raises:
        PolicyError: it has another form.
        SchemaError: there is no such column.
        UnsupportedQueryError: the function has no private form.

    """
    if isinstance(asked, pd.NamedAgg):
        asked = (asked.column, asked.aggfunc)
    if not isinstance(asked, tuple) or len(asked) not in (2, 3):
        raise PolicyError(f"write {name}=('column', 'sum'): column, function, and bounds where it takes them")
    column, function, *rest = asked
    if not isinstance(function, str) or function not in FUNCTIONS:
        shown = repr(function) if isinstance(function, str) else "a function of Python"
        hint = "Take one of " + ", ".join(map(repr, FUNCTIONS)) + "."
        if isinstance(function, str) and function in ("min", "max"):
            share = "0.01" if function == "min" else "0.99"
            hint = f"One row decides it: ask for 'median', or write groupby(…)[{column!r}].quantile({share})."
        raise UnsupportedQueryError([Refusal("aggregate", f"{name}: {shown} has no private form.", hint)])
    of_rows = function == "size" and column is None
    known = None if of_rows else require_column(frame, column, f"{name}:")
    return Measure(name, known, function, _read_bounds(name, *rest))


def _read_bounds(name: str, bounds: object = None) -> Bounds:
    if bounds is None or (isinstance(bounds, str) and bounds == "auto"):
        return bounds
    if _is_number(bounds):
        return float(cast("float", bounds))
    pair = tuple(bounds) if isinstance(bounds, Iterable) and not isinstance(bounds, str) else ()
    numbers = [float(end) for end in pair if _is_number(end)]
    if len(numbers) != 2 or len(pair) != 2 or not numbers[0] <= numbers[1]:
        raise PolicyError(
            f"{name}: bounds are two finite numbers, the lower first, as in "
            "bounds=(<lowest value>, <highest value>), or 'auto'"
        )
    return numbers[0], numbers[1]


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, str | bool) and math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False


def measure_sql(measure: Measure, column: str | None, *, is_unit: bool) -> str:
    """The aggregate, over a column as the source spells it."""
    name = "*" if column is None or measure.function == "size" else quote(column)
    bounds = measure.bounds
    per = "row" if measure.function in _PER_ROW else "group"
    argument = f", contribution_bounds_per_{per} => {'AUTO' if isinstance(bounds, str) else bounds}"
    if isinstance(bounds, float):
        argument = f", contribution_norm => {bounds!r}"
    elif bounds is None:
        argument = ""
    if measure.function == "nunique":
        return f"count(DISTINCT {name}{'' if is_unit else argument})"
    if measure.function == "quantile":
        argument = f", {measure.share!r}{argument}"
    function = {"size": "count", "count": "count", "sum": "sum", **_PER_ROW}[measure.function]
    return f"{function}({name}{argument})"


@dataclass(frozen=True)
class ListedKeys:
    """Public keys.

    Attributes:
        columns: keys that are listed, each with its distinct values. Noise is added on all their combinations.
        shown: combinations to show, in order; None for all.

    """

    columns: Mapping[str, tuple[object, ...]]
    shown: tuple[tuple[object, ...], ...] | None = None

    def literals(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Columns with the SQL literals of their values."""
        return tuple((name, tuple(map(_literal, values))) for name, values in self.columns.items())

    def combinations(self, keys: Sequence[str]) -> list[tuple[object, ...]] | None:
        """The combinations to show, in order; None where not all keys are listed here."""
        if self.shown is not None:
            return list(self.shown)
        if any(key not in self.columns for key in keys):
            return None
        return list(itertools.product(*(self.columns[key] for key in keys)))


def read_listed(public_keys: object, keys: Sequence[str], *, dropna: bool) -> ListedKeys | None:
    """Read ``public_keys`` in any of its forms; None where there are none.

    Raises:
        PolicyError: they are in none of the forms, name other columns, or are empty.

    """
    if public_keys is None:
        return None
    if isinstance(public_keys, Mapping):
        columns = {name: _values(values, dropna=dropna) for name, values in public_keys.items()}
        if unknown := [name for name in columns if name not in keys]:
            raise PolicyError(f"public_keys lists {unknown[0]!r}, which is no key; keys are {', '.join(keys)}")
        return ListedKeys(columns)
    if isinstance(public_keys, pd.DataFrame):
        if missing := [key for key in keys if key not in public_keys.columns]:
            raise PolicyError(f"public_keys has no column {missing[0]!r}")
        public_keys = list(public_keys[list(keys)].itertuples(index=False, name=None))
    if len(keys) == 1:
        values = public_keys
        if isinstance(values, list) and values and all(isinstance(one, tuple) and len(one) == 1 for one in values):
            values = [one[0] for one in values]
        return ListedKeys({keys[0]: _values(values, dropna=dropna)})
    return _combined(public_keys, keys, dropna=dropna)


def _combined(public_keys: object, keys: Sequence[str], *, dropna: bool) -> ListedKeys:
    if isinstance(public_keys, str) or not isinstance(public_keys, Iterable):
        raise PolicyError(_FORMS)
    rows = list(public_keys)
    if not rows or any(not isinstance(row, tuple) or len(row) != len(keys) for row in rows):
        raise PolicyError(f"{_FORMS}; here each is of {len(keys)} values, for {', '.join(keys)}")
    plain = dict.fromkeys(tuple(_plain(value) for value in row) for row in rows)
    shown = tuple(row for row in plain if not (dropna and None in row))
    columns = {key: _values([row[place] for row in shown], dropna=dropna) for place, key in enumerate(keys)}
    return ListedKeys(columns, shown)


def _values(values: object, *, dropna: bool) -> tuple[object, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise PolicyError(_FORMS)
    plain = dict.fromkeys(_plain(value) for value in values)
    number = next((one for one in plain if isinstance(one, int | float | Decimal) and not isinstance(one, bool)), None)
    text = next((one for one in plain if isinstance(one, str)), None)
    if number is not None and text is not None:
        raise PolicyError(
            f"public_keys lists texts and numbers for one key, as {text!r} and {number!r}; write all of them in one way"
        )
    if dropna:
        plain.pop(None, None)
    if not plain:
        raise PolicyError("public_keys lists no key")
    return tuple(plain)


def _plain(value: object) -> object:
    """A value of Python; None for what pandas holds missing.

    Raises:
        PolicyError: it is no scalar.

    """
    if isinstance(value, np.datetime64):
        value = pd.Timestamp(value)
    elif isinstance(value, np.generic):
        value = value.item()
    if is_missing(value):
        return None
    if isinstance(value, str | bool | int | float | Decimal | dt.date):
        return value
    raise PolicyError(f"a public key is a text, a number, a date or a time, and {type(value).__name__} is none")


def _literal(value: object) -> str:
    """SQL of a value; texts of everything but NULL, which are cast to the type of the key column."""
    return "NULL" if value is None else text_literal(str(value))


_SIGNED = {
    f"{sign}{bits}": "int64" if sign.islower() else "Int64"
    for sign in ("int", "uint", "UInt")
    for bits in (8, 16, 32, 64)
}
"""Types that hold sums of whole numbers, by the types that pandas finds on no rows."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How an answer is shown; nothing of it is part of a release.

    Attributes:
        sort: whether the answer is in the order of its keys.
        dropna: whether rows with a missing key are left out.
        as_index: whether keys become the index, where there is one.
        intervals: whether both ends of the 95 % interval stand beside each number.
        within_target: whether each number has a truth value beside it, as of ``dp_within_target``.
        ordered: keys whose categories are public, so that the answer is in their order.

    """

    sort: bool = True
    dropna: bool = True
    as_index: bool = True
    intervals: bool = False
    within_target: bool = False
    ordered: tuple[str, ...] = ()

    @property
    def beside(self) -> Mapping[str, str]:
        """Return the columns beside each number: the function of SQL by the ending of the column's name."""
        ends = {"_low": "dp_interval_low", "_high": "dp_interval_high"} if self.intervals else {}
        return ends | ({"_within": "dp_within_target"} if self.within_target else {})


class ReceiptRecord(dict[str, Any]):
    """A receipt as plain values, so that it can be stored with a table; prints as the receipt does."""

    def __init__(self, receipt: Receipt) -> None:
        super().__init__(as_record(receipt))
        self._text = str(receipt)

    def __repr__(self) -> str:
        return self._text


def typed_keys(
    answer: pd.DataFrame,
    empty: pd.DataFrame,
    keys: Sequence[str],
    listed: ListedKeys | None,
    ordered: Collection[str] = (),
) -> pd.DataFrame:
    """Return the keys with their dtypes in the frame; categories are those that are listed, or shown.

    Args:
        answer: the keys come first in it.
        empty: the frame without rows.
        keys: their names.
        listed: public keys that the question brings along.
        ordered: keys whose categories have the order of their dtype.

    """
    typed = {}
    for place, key in enumerate(keys):
        values, dtype = answer.iloc[:, place], empty[key].dtype
        if not isinstance(dtype, pd.CategoricalDtype):
            # an index of objects has the dtype of what is in it, in pandas too
            typed[key] = values if pd.api.types.is_object_dtype(dtype) else _as_dtype(values, dtype)
            continue
        values = _as_dtype(values, dtype.categories.dtype)
        columns = {} if listed is None else listed.columns
        known = _as_dtype(pd.Series(list(columns[key])), dtype.categories.dtype) if key in columns else values
        categories = known.dropna().drop_duplicates()
        if key in ordered:
            # what is listed and is no category comes last
            places = dtype.categories.get_indexer(pd.Index(categories))
            categories = categories.iloc[np.where(places < 0, len(dtype.categories), places).argsort(kind="stable")]
        typed[key] = pd.Series(pd.Categorical(values, categories, ordered=key in ordered and dtype.ordered))
    return pd.DataFrame(typed)


def _as_dtype(values: pd.Series[Any], dtype: Any) -> pd.Series[Any]:
    """With this dtype, or as they are where a key has no place in it."""
    if pd.api.types.is_bool_dtype(dtype) and not pd.api.types.is_bool_dtype(values.dropna().infer_objects().dtype):
        # the text 'false' is true to astype
        return values
    if dtype == "float16" or (isinstance(dtype, pd.ArrowDtype) and _has_no_order(dtype.pyarrow_dtype)):
        return values
    try:
        return values.astype(dtype)
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        return values


def _has_no_order(kind: pa.DataType) -> bool:
    """Whether Arrow cannot put such values in order."""
    return isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind) or is_view(kind)


def is_view(kind: pa.DataType) -> bool:
    """Return whether Arrow has values of this type as views, of which it has no order."""
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def rows_to_show(keys: pd.DataFrame, listed: ListedKeys | None, form: AnswerForm) -> npt.NDArray[np.intp]:
    """Which rows are shown, in which order: by key, or as they are listed. The order of first appearance is private.

    Missing keys are left out of the answer and not of the rows, so the release is the one of all groups.
    """
    numbered = keys.reset_index(drop=True)
    numbered = numbered.sort_values(list(keys.columns), kind="stable") if form.sort and len(keys) else numbered
    rows: npt.NDArray[np.intp] = (numbered.dropna() if form.dropna else numbered).index.to_numpy()
    combinations = None if listed is None else listed.combinations(list(keys.columns))
    if combinations is None or not len(keys):
        return rows
    wanted = pd.DataFrame(combinations, columns=keys.columns, dtype=object)
    for key in keys.columns:
        wanted[key] = _as_dtype(wanted[key], keys[key].dtype)
    places = pd.MultiIndex.from_frame(wanted).get_indexer(pd.MultiIndex.from_frame(keys))[rows]
    listed_rows: npt.NDArray[np.intp] = rows[places >= 0]
    return listed_rows if form.sort else listed_rows[np.argsort(places[places >= 0], kind="stable")]


def typed_values(values: pd.Series[Any], measure: Measure, empty: pd.DataFrame, keys: Sequence[str]) -> pd.Series[Any]:
    """A column of the answer with the dtype that pandas gives it; whole numbers rounded, and never unsigned.

    Where pandas computes no number of the column, because the source has numbers where the frame has texts, it is as
    SQL has it.
    """
    values = values.astype("float64") if pd.api.types.is_object_dtype(values.dtype) else values
    dtype = _dtype_in_pandas(measure, empty, keys)
    if dtype is None:
        return values
    dtype = _SIGNED.get(str(dtype), dtype)
    if pd.api.types.is_integer_dtype(dtype) and pd.api.types.is_float_dtype(values.dtype):
        values = values.round()
    return _as_dtype(values, dtype)


def _dtype_in_pandas(measure: Measure, empty: pd.DataFrame, keys: Sequence[str]) -> Any:
    """The dtype of the same number in pandas, found on no rows; None where it is none."""
    grouped = empty.groupby([empty[key].astype(object) for key in keys])
    if measure.column is None or measure.function == "size":
        return grouped.size().dtype
    try:
        dtype = getattr(grouped[measure.column], measure.function)().dtype
    except (TypeError, ValueError, NotImplementedError):
        return None
    return dtype if pd.api.types.is_numeric_dtype(dtype) else None
