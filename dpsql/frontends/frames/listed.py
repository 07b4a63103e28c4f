"""``public_keys=``: group keys that are known without the data, as SQL literals and as an order to show them in."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pandas as pd

from dpsql.errors import PolicyError
from dpsql.query.dialect import text_literal

_FORMS = (
    "public_keys is a list of values for one key; for several a dict of such lists, a list of tuples, or a DataFrame"
)


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
        return tuple((name, tuple(_literal(value) for value in values)) for name, values in self.columns.items())

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
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str | bool | int | float | Decimal | dt.date):
        return value
    raise PolicyError(f"a public key is a text, a number, a date or a time, and {type(value).__name__} is none")


def _literal(value: object) -> str:
    """SQL of a value; texts of everything but NULL, which are cast to the type of the key column."""
    if value is None:
        return "NULL"
    if isinstance(value, dt.datetime):
        text = value.isoformat(sep=" ")
    elif isinstance(value, float):
        text = repr(value)
    else:
        text = str(value)
    return text_literal(text)
