"""The refusal of a reading that fails on empty copies of its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpsql.engine import Engine
from dpsql.errors import SchemaError
from dpsql.model.frame import Frame, Statistic
from dpsql.operations.row_sql import STAND_IN_SALT, computed_condition, shielded, with_salt, without_statistics

_HINT = (
    "It has a cast, a comparison or a date that DuckDB does not compute: compare values of one type, and write casts "
    "that DuckDB has, with dates and numbers inside the range of both types."
)
_OTHER_HINT = (
    "Two columns with different collations cannot be compared or put together, for one; nor can what FROM or a "
    "subquery computes always run: ask without it to see which part it is."
)


def refusal_of(frame: Frame, statistics: Sequence[Statistic], engine: Engine) -> SchemaError:
    """Return the refusal of what fails on empty tables. It names the expression if one alone fails.

    Args:
        frame: what is grouped.
        statistics: what is measured.
        engine: where it was tried.

    """
    for sql, text in _expressions(frame, statistics):
        try:
            engine.run_empty([text], listed_keys=None)
        except SchemaError:
            return SchemaError(f"the database cannot compute {sql}, on any rows.", hint=_HINT)
    return SchemaError("the database cannot run this query, on any rows.", hint=_OTHER_HINT)


def _expressions(frame: Frame, statistics: Sequence[Statistic]) -> Iterator[tuple[str, str]]:
    """Each expression of a frame with a query that computes it alone."""
    unit, types = frame.rows.unit_column.sql, frame.rows_sql.types
    relation = with_salt(frame.rows_sql.relation, STAND_IN_SALT)
    values = [*(key.sql for key in frame.keys), *(statistic.value_sql for statistic in statistics)]
    conditions = [*frame.rows.filters, *(statistic.filter_sql for statistic in statistics)]
    for sql in filter(None, values):
        yield sql, f"SELECT {shielded(sql, unit, types)} FROM {without_statistics(relation, [sql])}"
    for sql in filter(None, conditions):
        yield sql, f"SELECT {computed_condition(sql, unit, types)} FROM {without_statistics(relation, [sql])}"
