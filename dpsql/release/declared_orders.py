"""Declared orders of ENUM columns whose type has another list of members now: what the curator is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dpsql.engine import Engine
from dpsql.operations.dialect import text_literal
from dpsql.state import Policy


def lost_orders(policy: Policy, engine: Engine) -> Iterator[tuple[str, str]]:
    """Yield the table and name of each column whose type has another list than the one that was declared."""
    for domain in policy.domains:
        schema = engine.find(domain.table, views=True) if domain.ordered else None
        if schema and engine.members(schema, domain.column) != domain.ordered:
            yield domain.table, domain.column


def order_sentences(origins: Iterable[tuple[str, str]], engine: Engine) -> Iterator[str]:
    """Yield a sentence for each column that lost its declared order, with the statement to write."""
    for table, column in origins:
        schema = engine.find(table, views=True)
        value = "true" if schema and engine.members(schema, column) else "NULL"
        names = f"{text_literal(table.removeprefix('main.'))}, {text_literal(column)}"
        yield (
            f"the type of {table}.{column} has another list of values than the one that was declared, so ORDER BY "
            f"sorts by letters; write CALL dp_domain({names}, ordered := {value})"
        )
