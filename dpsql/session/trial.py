"""What DuckDB cannot run whatever the rows are: found on empty copies of the tables, before anything is charged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from dpsql.engine import Engine
from dpsql.errors import SchemaError
from dpsql.query.frame import Frame, Statistic
from dpsql.query.salt import STAND_IN_SALT, with_salt
from dpsql.query.shielded import computed_condition, shielded, without_statistics

_HINT = (
    "It has a cast, a comparison or a date that DuckDB does not compute: compare values of one type, and write casts "
    "that DuckDB has, with dates and numbers inside the range of both types."
)
_OTHER_HINT = (
    "Two columns with different collations cannot be compared or put together, for one; nor can what FROM or a "
    "subquery computes always run: ask without it to see which part it is."
)


class HasEngine(Protocol):
    """What the trial runs on."""

    @property
    def engine(self) -> Engine:
        """The curator's database."""


def require_runs(
    frame: Frame, statistics: Sequence[Statistic], queries: Sequence[str], listed: pa.Table | None, rooms: HasEngine
) -> None:
    """Refuse what fails on empty tables.

    Args:
        frame: what is grouped.
        statistics: what is measured.
        queries: all that may run for it.
        listed: keys that the queries are about.
        rooms: where they will run.

    Raises:
        SchemaError: one of them fails; the error names the expression where one alone fails.

    """
    try:
        rooms.engine.run_empty(queries, listed_keys=listed)
    except SchemaError as error:
        message = str(error)
    else:
        return
    for sql, text in _expressions(frame, statistics):
        try:
            rooms.engine.run_empty([text], listed_keys=None)
        except SchemaError:
            raise SchemaError(f"the database cannot compute {sql}, whatever the rows are.", hint=_HINT) from None
    raise SchemaError(message, hint=_OTHER_HINT)


def _expressions(frame: Frame, statistics: Sequence[Statistic]) -> Iterator[tuple[str, str]]:
    """Each expression of a frame with a query that computes it alone."""
    unit, relation = frame.unit_column.sql, with_salt(frame.relation, STAND_IN_SALT)
    values = [*(key.sql for key in frame.keys), *(statistic.value_sql for statistic in statistics)]
    conditions = [*frame.filters, *(statistic.filter_sql for statistic in statistics)]
    for sql in filter(None, values):
        yield sql, f"SELECT {shielded(sql, unit, frame.types)} FROM {without_statistics(relation, [sql])}"
    for sql in filter(None, conditions):
        yield sql, f"SELECT {computed_condition(sql, unit, frame.types)} FROM {without_statistics(relation, [sql])}"
