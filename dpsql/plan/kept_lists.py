"""Keys of public rows that stand in the text: ``visits RIGHT JOIN cities USING (city) … GROUP BY city``.

A join that keeps each row of a public side shows each of its keys, whoever has rows. So the keys are public, like those
of a declared list. They are shown, so each reader has to be allowed to see the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dpsql.model.rows import Key, ListedRows, PublicKeys
from dpsql.operations.dialect import to_sql
from dpsql.sql.source.sources import SelectText

_HINT = "Write OPTIONS (group_selection_strategy = GAUSSIAN_THRESHOLD) for the keys with enough units."


def are_listed(text: SelectText, written: Sequence[exp.Expr]) -> bool:
    """Check that public rows which the joins keep have all keys of a query, and that its reader may see them.

    A condition of WHERE about other columns drops rows without a partner, and then which keys there are hangs on the
    protected rows.

    Args:
        text: the query.
        written: its keys.

    """
    if not text.kept:
        return False
    kept = {column.name for column in text.kept.schema.columns}
    keys = _columns(written)
    if not keys <= kept or not _columns(text.select.filters) <= kept or keys & text.owner.names_unit:
        return False
    return all(text.environment.policy.is_readable(table) for table, _ in text.kept.reads)


def read_listed_keys(text: SelectText, written: Sequence[exp.Expr], keys: Sequence[Key]) -> PublicKeys | None:
    """Return the keys that the kept public rows have; None after noting why they cannot be read.

    Args:
        text: the query.
        written: its keys as they stand in it.
        keys: the same as `read_keys` gives them.

    """
    if not text.kept:
        return None
    schema = text.kept.schema
    filters = tuple(sorted({to_sql(part) for part in text.select.filters}))
    rows = ListedRows(schema.relation, text.kept.identity, schema.types, tuple(key.sql for key in keys), filters)
    found = text.environment.schemas.keys_of_rows(rows, [key.type for key in keys])
    if found:
        return found
    if schema.relation:
        text.refusals.add("size", written[0], "a list of keys in the text has at most 1,000,000 keys.", _HINT)
    else:
        text.refusals.add("option", text.hint, "as_of means a version of which no list of keys is stored.", _HINT)
    return None


def _columns(nodes: Sequence[exp.Expr]) -> set[str]:
    return {column.name for node in nodes for column in node.find_all(exp.Column)}
