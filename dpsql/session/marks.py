"""What the curator is told where rows changed within a version: first sums on frozen groups would mix days.

Nothing else may depend on a mark. An answer, a price or a refusal that hung on the number of rows would tell of one
person's row, so marks are read at every reading of rows, whatever they are, and decide only what the curator can see.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dpsql.engine import Engine
from dpsql.query.dialect import text_literal
from dpsql.session.reader import CURATOR
from dpsql.state import Release, State, TableMark

_OWN = logging.getLogger("dpsql")
# what others ask is told where the curator has set up a log, and on no screen by itself
_OF_OTHERS = logging.getLogger("dpsql.curator")
_OF_OTHERS.addHandler(logging.NullHandler())


def read_marks(table_versions: Sequence[tuple[str, str]], engine: Engine) -> tuple[TableMark, ...]:
    """The marks of tables in their versions, as they are now."""
    found = engine.marks([table for table, _ in table_versions])
    return tuple(
        TableMark(table, version, tuple(found[table].items())) for table, version in table_versions if table in found
    )


def changed_tables(marks: Sequence[TableMark], state: State) -> tuple[str, ...]:
    """The tables whose rows are others than when their version was first read."""
    return tuple(mark.table for mark in marks if state.marks.differences(mark))


def log_changes(release: Release) -> None:
    """Tell the log what the curator should declare."""
    logger = _OWN if release.analyst == CURATOR else _OF_OTHERS
    for sentence in _sentences(release):
        logger.warning("%s", sentence)


def warnings_now(state: State, engine: Engine) -> tuple[str, ...]:
    """A sentence for each table whose rows changed since its current version was first read."""
    policy = state.policy()
    current = [(one.table, one.version) for one in policy.tables]
    current += [(one.table, one.version) for one in policy.public]
    marks = read_marks(current, engine)
    return tuple(change_sentence(mark.table, mark.version) for mark in marks if state.marks.differences(mark))


def change_sentence(table: str, version: str) -> str:
    """What happened, what comes of it, and the statement to write."""
    return (
        f"{table} changed since its version {version} was first read: stored answers stay those of then, and what is "
        f"asked first now, as a sum over groups that were stored, mixes rows of different days; {_statement(table)}"
    )


def change_note(release: Release) -> str | None:
    """The same for what a release read; None where nothing had changed."""
    return "; ".join(_sentences(release)) or None


def _sentences(release: Release) -> list[str]:
    versions = dict(release.table_versions)
    return [change_sentence(table, versions[table]) for table in release.changed]


def _statement(table: str) -> str:
    """The declaration to write."""
    return f"write CALL dp_new_version({text_literal(table.removeprefix('main.'))})"
