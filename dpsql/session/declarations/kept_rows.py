"""The note of a declaration whose bounds leave out many rows, for a curator who may know of rows.

Raw rows are read for it. So it stands in the answer of the declaration alone, and nothing of it is stored. Larger
tables than `MOST_ROWS`, and views, have no note: FROM dp_check(…) reads them.
"""

from __future__ import annotations

import contextlib
import time

from dpsql.engine import Engine, seconds_left
from dpsql.errors import DpsqlError
from dpsql.operations.dialect import text_literal
from dpsql.plan.environment.links import linked, unit_column
from dpsql.receipts.bound_words import percent
from dpsql.release.raw_groups import count_rows
from dpsql.session.declarations.arguments import split_name, table_of
from dpsql.session.declarations.group_columns import group_columns, least_kept
from dpsql.state import Policy, ProtectedTable

MOST_ROWS = 1_000_000
_SECONDS = 2.0
_WORTH_TELLING = 0.9
_NO_BOUNDS = (None, None)


def kept_note(name: str, before: Policy, after: Policy, engine: Engine) -> str:
    """Return the share of the rows that new bounds of a table keep, as the end of a sentence.

    Return an empty text if the bounds are those of before, if they keep nine tenths of the rows by each column that
    one may group by, or if the rows cannot be counted in `_SECONDS`.

    Args:
        name: of the table, as the declaration has it.
        before: what was declared before.
        after: what is declared now.
        engine: where the rows are.

    """
    with contextlib.suppress(DpsqlError):
        schema = table_of(split_name(name), engine)
        old, new = (policy.protected_table(schema.canonical) for policy in (before, after))
        bounds = _bounds_of(new)
        if bounds in (_NO_BOUNDS, _bounds_of(old)) or not engine.is_base_table(schema):
            return ""
        schema, unit = linked(schema, after, engine), unit_column(after, schema.canonical)
        deadline = time.monotonic() + _SECONDS
        if count_rows(engine, schema.relation, unit, _SECONDS) > MOST_ROWS:
            return ""
        columns = group_columns(schema, after, engine, seconds_left(deadline))
        found = least_kept(schema, unit, columns, bounds, engine, seconds_left(deadline))
        if found and found[1] < _WORTH_TELLING:
            column, share = found
            return (
                f"; by {column}, these bounds keep {percent(share)} of the rows: FROM dp_check({text_literal(name)}) "
                "shows more"
            )
    return ""


def _bounds_of(table: ProtectedTable | None) -> tuple[int | None, int | None]:
    """Return the bounds on groups and on rows of a unit."""
    return (table.max_groups, table.max_rows_per_group) if table else _NO_BOUNDS
