"""Tables and ENUM types that changed under their declarations, and sentences that tell the curator.

Where rows changed within a version, first sums on frozen groups would mix days, and the curator is told. Nothing else
may depend on a mark of a table. An answer, a price or a refusal that hung on the number of rows would tell of one
person's row, so marks are read at every reading of rows, whatever they are, and decide only what the curator can see.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from dpsql.cascade.reader import CURATOR
from dpsql.engine import Engine
from dpsql.operations.dialect import text_literal
from dpsql.release.runtime import read_marks
from dpsql.state import Policy, Release, State

_OWN = logging.getLogger("dpsql")
# what others ask is told where the curator has set up a log, and on no screen by itself
_OF_OTHERS = logging.getLogger("dpsql.curator")
_OF_OTHERS.addHandler(logging.NullHandler())


def tell_curator(reader: str, sentences: Iterable[str]) -> None:
    """Write to the log what the curator should declare, after a question of a reader."""
    logger = _OWN if reader == CURATOR else _OF_OTHERS
    for sentence in sentences:
        logger.warning("%s", sentence)


def warnings_now(state: State, engine: Engine) -> tuple[str, ...]:
    """Return a sentence for each table that changed since its version was first read, and for each lost order."""
    policy = state.policy()
    current = [(one.table, one.version) for one in policy.tables]
    current += [(one.table, one.version) for one in policy.public]
    marks = read_marks(current, engine)
    changed = (change_sentence(mark.table, mark.version) for mark in marks if state.history.differences(mark))
    return (*changed, *order_sentences(lost_orders(policy, engine), engine))


def change_sentence(table: str, version: str) -> str:
    """Say that a table changed, what comes of it, and which statement to write."""
    name = text_literal(table.removeprefix("main."))
    return (
        f"{table} changed since its version {version} was first read: stored answers stay those of then, and what is "
        "asked first now, as a sum over groups that were stored, mixes rows of different days; write CALL "
        f"dp_new_version({name})"
    )


def change_sentences(release: Release) -> list[str]:
    """Return that sentence for each table that a release read in another state."""
    versions = dict(release.table_versions)
    return [change_sentence(table, versions[table]) for table in release.changed]


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
