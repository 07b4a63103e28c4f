"""``df.dp`` and ``dpsql.from_frame``: private GROUP BY on the rows of a data frame."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar, overload

import pandas as pd
import pyarrow as pa

from dpsql.errors import PolicyError
from dpsql.frontends.frames.groupby import ArrowGroupBy, PandasGroupBy, PolarsGroupBy
from dpsql.frontends.frames.listed import read_listed
from dpsql.frontends.frames.privacy_unit import PrivacyUnit
from dpsql.frontends.frames.question import Question
from dpsql.frontends.frames.rows import Frame, is_polars, require_key

if TYPE_CHECKING:
    import polars as pl

Keys = Hashable | Sequence[Hashable]
GroupByT = TypeVar("GroupByT")

_ELSEWHERE = {
    "as_of": "name the version in dpsql.unit(…, version=…)",
    "buckets": "ask in SQL, on the database",
    "max_groups_contributed": "write max_groups=",
    "privacy_unit_column": "name it in dpsql.unit(…, column=…)",
}


class PandasFrame:
    """The private view of a DataFrame, ``df.dp``. It holds the frame and nothing else."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame

    def groupby(
        self,
        by: Keys,
        *,
        unit: PrivacyUnit | str,
        rho: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        max_groups: int | str | None = None,
        max_rows_per_group: int | None = None,
        public_keys: object = None,
        mechanism: str | None = None,
        as_index: bool = True,
        sort: bool = True,
        dropna: bool = True,
        observed: bool = True,
        **options: object,
    ) -> PandasGroupBy:
        """Group rows by columns; what is then asked of the groups is answered privately.

        Args:
            by: a column or a list of columns.
            unit: whose rows they are, as ``dpsql.unit`` says it; a text is ``dpsql.unit(text)``.
            rho: how private the answer shall be, as zCDP.
            epsilon: the same as epsilon at ``delta``, instead of rho.
            delta: what may go wrong with epsilon and with the threshold for keys; has a default.
            max_groups: most groups that one unit counts in, or ``"auto"``.
            max_rows_per_group: most rows that one unit adds to a group.
            public_keys: keys that are known without the data, each of which is then shown: a list; for several keys a
                dict of lists, a list of tuples, or a DataFrame.
            mechanism: how units are counted, as the option of SQL.
            as_index: whether keys become the index.
            dropna: whether groups whose key is missing are left out of the answer.
            sort: by key; otherwise public keys come as they are listed, and others by key too, because the order in
                which they appear is private.
            observed: False to be sure that every key is public and shown; refused where one is not.
            options: further options of ``Session.sql``.

        Raises:
            DpsqlError: see ``dpsql.errors``; before anything is charged.

        """
        level = _level(rho, epsilon, delta, max_groups, mechanism)
        keys = _keys(self._frame, by)
        return PandasGroupBy(
            Question(
                self._frame,
                keys,
                _unit(unit),
                {**level, **_further(options)},
                read_listed(public_keys, keys, dropna=dropna),
                max_rows_per_group,
                observed=observed,
                sort=sort,
                dropna=dropna,
                as_index=as_index,
            )
        )


class TableFrame(ABC, Generic[GroupByT]):
    """The private view of a table without an index."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def groupby(
        self,
        by: Keys,
        *,
        unit: PrivacyUnit | str,
        rho: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        max_groups: int | str | None = None,
        max_rows_per_group: int | None = None,
        public_keys: object = None,
        mechanism: str | None = None,
        dropna: bool = False,
        **options: object,
    ) -> GroupByT:
        """As ``df.dp.groupby``: flat answers in the order of their keys; a missing key is a group, as it is there."""
        level = _level(rho, epsilon, delta, max_groups, mechanism)
        keys = _keys(self._frame, by)
        listed = read_listed(public_keys, keys, dropna=dropna)
        options = {**level, **_further(options)}
        return self._of(
            Question(self._frame, keys, _unit(unit), options, listed, max_rows_per_group, dropna=dropna, as_index=False)
        )

    @abstractmethod
    def _of(self, question: Question) -> GroupByT:
        """What answers a question in the kind of the frame."""


class PolarsFrame(TableFrame[PolarsGroupBy]):
    """The private view of a polars DataFrame."""

    def _of(self, question: Question) -> PolarsGroupBy:
        return PolarsGroupBy(question)


class ArrowFrame(TableFrame[ArrowGroupBy]):
    """The private view of an Arrow table."""

    def _of(self, question: Question) -> ArrowGroupBy:
        return ArrowGroupBy(question)


@overload
def from_frame(frame: pd.DataFrame) -> PandasFrame: ...
@overload
def from_frame(frame: pl.DataFrame) -> PolarsFrame: ...
@overload
def from_frame(frame: pa.Table) -> ArrowFrame: ...
def from_frame(frame: Frame) -> PandasFrame | PolarsFrame | ArrowFrame:
    """The private view of a frame: what ``df.dp`` is to pandas, for polars and Arrow, and for type checkers.

    Raises:
        PolicyError: it is none of these.

    """
    if isinstance(frame, pd.DataFrame):
        return PandasFrame(frame)
    if isinstance(frame, pa.Table):
        return ArrowFrame(frame)
    if is_polars(frame):
        return PolarsFrame(frame)
    hint = "; collect() it first" if type(frame).__name__ == "LazyFrame" else ""
    raise PolicyError(f"from_frame takes a DataFrame of pandas or polars, or an Arrow table{hint}")


def _keys(frame: Frame, by: Keys) -> tuple[str, ...]:
    # a tuple is one name to pandas, and SQL has no such names
    listed = list(by) if isinstance(by, list) else [by]
    if not listed:
        raise PolicyError("groupby takes a column or a list of columns")
    keys = tuple(require_key(frame, key) for key in listed)
    if len(set(keys)) != len(keys):
        raise PolicyError("a key stands twice")
    return keys


def _unit(unit: PrivacyUnit | str) -> PrivacyUnit:
    if isinstance(unit, str):
        return PrivacyUnit(unit)
    if not isinstance(unit, PrivacyUnit):
        raise PolicyError("unit takes dpsql.unit('patient', column='patient_id', …), or the name of one")
    return unit


def _level(
    rho: float | None, epsilon: float | None, delta: float | None, max_groups: int | str | None, mechanism: str | None
) -> dict[str, object]:
    return {
        "rho": rho,
        "epsilon": epsilon,
        "delta": delta,
        "max_groups_contributed": max_groups,
        "mechanism": mechanism,
    }


def _further(options: dict[str, object]) -> dict[str, object]:
    for name, instead in _ELSEWHERE.items():
        if name in options:
            raise PolicyError(f"groupby has no {name}=; {instead}")
    return options


pd.api.extensions.register_dataframe_accessor("dp")(PandasFrame)
