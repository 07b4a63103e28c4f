"""Errors of the planner in the words of pandas: there is no text to point into, and other things to write."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from dpsql.errors import SchemaError, UnsupportedQueryError

_HINTS = {
    "bounds_missing": (
        "Give bounds of it, as in bounds=(0, 500): for sums and counts what one unit adds to one group, else what one "
        "row is. Counts, means and the like also take groupby(…, max_rows_per_group=5)."
    ),
    "bounds_invalid": "Write bounds=(0, 500).",
    "privacy_level_missing": "Write groupby(…, epsilon=0.5) or groupby(…, rho=0.01).",
    "max_groups_missing": (
        "Write groupby(…, max_groups=4): a unit then counts in at most 4 groups. With public_keys= it is not needed."
    ),
    "public_keys_missing": "List the values of every key in public_keys=.",
    "value_type": "Take another column, or convert it first with df.astype(…): columns of Python objects are texts.",
    "key_type": "Convert it first, as in df.astype({'key': 'str'}).",
}  # fmt: skip


@contextlib.contextmanager
def in_words_of_pandas() -> Iterator[None]:
    """Rewrite what is raised inside: without places in a text, and with hints for who wrote none.

    Raises:
        UnsupportedQueryError, SchemaError: as they came, rewritten.

    """
    try:
        yield
    except UnsupportedQueryError as error:
        refusals = [dataclasses.replace(one, hint=_HINTS.get(one.code, one.hint), span=None) for one in error.refusals]
        raise UnsupportedQueryError(refusals) from None
    except SchemaError as error:
        place = f"{error.span}: " if error.span else ""
        raise SchemaError(str(error).removeprefix(place).removesuffix(error.hint).rstrip(), hint=error.hint) from None
