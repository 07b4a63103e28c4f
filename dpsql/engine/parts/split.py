"""The split of tables into a folder of parts (`engine/parts/manifest.py`).

All rows are read once, in one transaction, and put by part into a file of the folder that is removed in the end. The
parts are written from there. Until the manifest is replaced, the folder is what it was before, but for its head.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from dpsql.engine.connection import Connection, Cursor
from dpsql.engine.parts.manifest import (
    DEFINITIONS,
    HEAD,
    MANIFEST,
    PUBLIC_ROWS,
    PartFile,
    Split,
    SplitTable,
    file_digest,
    is_parts_folder,
    read_manifest,
    write_manifest,
)
from dpsql.engine.parts.part_rows import numbered_rows, parents_of, unit_type
from dpsql.engine.parts.part_tables import (
    create_tables,
    create_view,
    drop_all,
    kept_keys,
    name_in,
    views_that_work,
)
from dpsql.engine.parts.sources import (
    ForeignKey,
    SplitSource,
    SplitView,
    require_no_collation,
)
from dpsql.engine.parts.unit_part import MOST_PARTS, SplitError, unit_kind
from dpsql.errors import PolicyError
from dpsql.operations.dialect import quote, text_literal

_OWN_FILE = re.compile(r"(part-[0-9a-f]{8}-[0-9]+|rows-[0-9a-f]{16})\.duckdb(\.wal)?")
"""Names of files that a split makes, but for head and manifest."""


@dataclass(frozen=True, slots=True)
class WrittenSplit:
    """A split that was written.

    Attributes:
        split: its manifest.
        replaced: whether the folder had another split before.
        notes: sentences about views and constraints that were left out.
        gone: canonical names of tables of the split before that this one lacks.

    """

    split: Split
    replaced: bool
    notes: tuple[str, ...]
    gone: tuple[str, ...] = ()


def split_tables(
    connection: Connection,
    tables: Sequence[SplitSource],
    public: Sequence[SplitSource] = (),
    *,
    parts: int,
    folder: Path,
    views: Sequence[SplitView] = (),
) -> WrittenSplit:
    """Write tables as a folder of parts, in place of the split that the folder has.

    Args:
        connection: reads the sources, and attaches the files while they are written.
        tables: the tables that are split by their units.
        public: the tables that every part has.
        parts: number of parts.
        folder: a folder of parts, an empty folder, or a path where there is none.
        views: views that the head and all parts have, if they read tables of the split alone.

    Raises:
        SplitError: there is no such split of these tables, or they could not be read or written.

    """
    sources = (*tables, *public)
    _require_split(connection, tables, public, parts)
    replaced = is_parts_folder(folder)
    before = _tables_of(folder) if replaced else ()
    writing = _Writing(connection, folder, secrets.token_hex(8), sources, parts)
    failed = ""
    with _private_folder(folder) as written:
        try:
            split = writing.write(views, written)
        except duckdb.Error:
            failed = writing.doing
        if failed:
            # outside the handler, so that no text of DuckDB travels along
            raise SplitError(failed)
    _remove_other_files(folder, split)
    gone = tuple(table for table in before if split.table(table) is None)
    return WrittenSplit(split, replaced, tuple(writing.notes), gone)


def _tables_of(folder: Path) -> tuple[str, ...]:
    """Return the tables of a folder's manifest, and none if it is damaged."""
    with contextlib.suppress(PolicyError):
        return tuple(one.table for one in read_manifest(folder).tables)
    return ()


def _remove_other_files(folder: Path, split: Split) -> None:
    """Remove the parts of earlier splits, and what killed ones left."""
    names = {part.name for part in split.parts}
    for path in folder.iterdir():
        if _OWN_FILE.fullmatch(path.name) and path.name not in names:
            path.unlink(missing_ok=True)


def _require_split(
    connection: Connection, tables: Sequence[SplitSource], public: Sequence[SplitSource], parts: int
) -> None:
    """Refuse what cannot be split, before anything is written.

    Raises:
        SplitError: see the messages.

    """
    if not 1 <= parts <= MOST_PARTS:
        raise SplitError(f"tables are split into 1 to {MOST_PARTS} parts")
    if not tables:
        raise SplitError("a split needs a table with a unit column: --by names the column")
    by_name: dict[str, SplitSource] = {}
    for source in (*tables, *public):
        if source.table in by_name:
            raise SplitError(f"the table {source.table} is twice in the split")
        by_name[source.table] = source
    kinds: dict[str | None, SplitSource] = {}
    for source in tables:
        parents = parents_of(source, by_name)
        require_no_collation(connection, parents[-1] if parents else source)
        kinds.setdefault(unit_kind(unit_type(source, parents)), source)
    if len(kinds) > 1:
        first, second = itertools.islice(kinds.items(), 2)
        raise SplitError(
            f"the unit columns of {first[1].table} and {second[1].table} have different types ({first[0]} and "
            f"{second[0]}), so one unit would be in two parts: give both one type"
        )


@contextlib.contextmanager
def _private_folder(folder: Path) -> Iterator[list[Path]]:
    """Hold a folder that only its owner may enter; the files that are added to the list are removed by an error.

    Raises:
        SplitError: the folder has other things in it.

    """
    if folder.exists() and not folder.is_dir():
        raise SplitError(f"{folder} is a file: --out names a folder")
    if folder.is_dir() and not is_parts_folder(folder) and any(folder.iterdir()):
        raise SplitError(f"{folder} is not empty and is no folder of parts: --out names a new folder")
    is_new = not folder.exists()
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    written: list[Path] = []
    try:
        yield written
    except BaseException:
        for path in written:
            for name in (path, path.with_name(f"{path.name}.wal")):
                name.unlink(missing_ok=True)
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


class _Writing:
    """One split on its way to the disk; ``doing`` is what to say if DuckDB fails."""

    def __init__(
        self,
        connection: Connection,
        folder: Path,
        identity: str,
        sources: Sequence[SplitSource],
        parts: int,
    ) -> None:
        self._connection = connection
        self._folder = folder
        self._identity = identity
        self._sources = {one.table: one for one in sources}
        self._parts = parts
        self._most = dict.fromkeys(self._sources, 0)
        self._kept, self.notes = _kept_keys(sources)
        self.doing = self._no_room = f"DuckDB could not write into {folder}: is the disk full?"

    def write(self, views: Sequence[SplitView], written: list[Path]) -> Split:
        """Write all files, the manifest last; a new file is added to the list before it is created."""
        head = self._folder / HEAD
        with self._connection.pinned() as cursor:
            if is_parts_folder(self._folder):
                # found out before the rows are read
                self.doing = f"{head} cannot be written: another program has it open, or it is damaged"
                cursor.rows(f"ATTACH {text_literal(str(head))} AS dpsql_head_{self._identity}")
                cursor.rows(f"DETACH dpsql_head_{self._identity}")
                self.doing = self._no_room
            trial = f"dpsql_trial_{self._identity}"
            working = views_that_work(self._connection, cursor, views, [*self._sources.values()], self._kept, trial)
            names = [".".join(view.place) for view in views if view not in working]
            if names:
                self.notes.append(
                    f"views left out, because they read tables outside the split or fail: {', '.join(sorted(names))}"
                )
            scratch = self._folder / f"rows-{self._identity}.duckdb"
            written.append(scratch)
            with self._attached(cursor, scratch, "rows") as rows:
                self._stage(cursor, rows)
                files = []
                for number in range(self._parts):
                    path = self._folder / f"part-{self._identity[:8]}-{number}.duckdb"
                    written.append(path)
                    with self._attached(cursor, path, "part") as part:
                        self._fill(cursor, part, rows, working, number)
                    files.append(PartFile(path.name, file_digest(path)))
                if not is_parts_folder(self._folder):
                    written.append(head)
                with self._attached(cursor, head, "head") as name:
                    self._fill(cursor, name, rows, working, None)
                    ((definitions,),) = cursor.rows(DEFINITIONS, [name, name])
                    public = {
                        one.table: str(cursor.rows(PUBLIC_ROWS.format(name_in(name, one.place)))[0][0])
                        for one in self._sources.values()
                        if not one.unit_column
                    }
        scratch.unlink()
        tables = tuple(
            SplitTable(one.table, self._unit_column(one), one.links, self._most[one.table], public.get(one.table, ""))
            for one in self._sources.values()
        )
        split = Split(self._identity, duckdb.__version__, definitions, tables, tuple(files))
        # an interrupt after the manifest is written may not remove what it names
        made = written[:]
        written[:] = [self._folder / f"{MANIFEST}.new"]
        try:
            write_manifest(self._folder, split)
        except Exception:
            written += made
            raise
        (self._folder / MANIFEST).chmod(0o600)
        return split

    def _unit_column(self, source: SplitSource) -> str:
        """Return the unit column as its table spells it."""
        if not source.unit_column:
            return ""
        owner = self._sources[source.links[-1][1]] if source.links else source
        return owner.column(source.unit_column).name

    @contextlib.contextmanager
    def _attached(self, cursor: Cursor, path: Path, role: str) -> Iterator[str]:
        """Attach a file for its owner alone, and write all of it into the file before it is detached."""
        name = f"dpsql_{role}_{self._identity}"
        cursor.rows(f"ATTACH {text_literal(str(path))} AS {quote(name)}")
        try:
            path.chmod(0o600)
            yield name
            cursor.rows(f"CHECKPOINT {quote(name)}")
        finally:
            cursor.rows(f"DETACH {quote(name)}")

    def _stage(self, cursor: Cursor, rows: str) -> None:
        """Read all sources in one transaction, by part."""
        with _transaction(cursor):
            for place, source in enumerate(self._sources.values()):
                self.doing = f"the rows of {source.table} could not be read, or the disk of {self._folder} is full"
                parents = parents_of(source, self._sources)
                query = numbered_rows(source, parents, self._parts)
                cursor.rows(f"CREATE TABLE {quote(rows)}.main.rows_{place} AS {query}")
                if source.unit_column:
                    ((most,),) = cursor.rows(
                        f"SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM {quote(rows)}.main.rows_{place} "
                        "GROUP BY part)"
                    )
                    self._most[source.table] = int(most)
        self.doing = self._no_room

    def _fill(self, cursor: Cursor, database: str, rows: str, views: Sequence[SplitView], number: int | None) -> None:
        """Create all tables and views of a part, with its rows; or those of the head, if there is no number."""
        places = {one.table: place for place, one in enumerate(self._sources.values())}
        with _transaction(cursor):
            if number is None:
                drop_all(cursor, database)
            for source in create_tables(cursor, database, [*self._sources.values()], self._kept):
                if source.unit_column and number is None:
                    continue
                columns = ", ".join(f"column_{place}" for place in range(len(source.columns)))
                where = f" WHERE part = {number}" if source.unit_column else ""
                cursor.rows(
                    f"INSERT INTO {name_in(database, source.place)} SELECT {columns} "
                    f"FROM {quote(rows)}.main.rows_{places[source.table]}{where}"
                )
            for view in views:
                create_view(cursor, database, view)


def _kept_keys(
    sources: Sequence[SplitSource],
) -> tuple[dict[tuple[str, str], tuple[ForeignKey, ...]], list[str]]:
    kept, notes = kept_keys(sources)
    return kept, list(notes)


@contextlib.contextmanager
def _transaction(cursor: Cursor) -> Iterator[None]:
    cursor.rows("BEGIN TRANSACTION")
    try:
        yield
        cursor.rows("COMMIT")
    except BaseException:
        with contextlib.suppress(duckdb.Error):
            cursor.rows("ROLLBACK")
        raise
