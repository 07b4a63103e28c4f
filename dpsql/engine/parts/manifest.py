"""The manifest of a folder of parts: which tables were split, by which units, into which files.

A folder holds one database file for each part, a *head* and the manifest. Every part has all tables of the split: of a
protected table the rows of its own units, of a public table all rows. The head has the same tables, views and
constraints; its protected tables are empty. Names, types and public rows are read from the head.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsql.errors import PolicyError

HEAD = "head.duckdb"
"""Name of the database file with names, types, constraints and public rows."""
MANIFEST = "parts.json"
"""Name of the manifest."""
_FORMAT = 1
_PART = re.compile(r"part-[0-9a-f]{8}-[0-9]+\.duckdb")
"""Names of parts."""
_HEADERS = 3 * 4096
"""Bytes of the headers of a DuckDB file: one is written at each checkpoint, with a number that grows."""

Step = tuple[tuple[str, ...], str, tuple[str, ...]]
"""Columns of a table, canonical name of the parent whose key they hold, and the columns of that key."""


@dataclass(frozen=True, slots=True)
class SplitTable:
    """A table of a split.

    Attributes:
        table: canonical name.
        unit_column: the column that names the unit, of the table itself or of the last parent. It is empty if the
            table is public, and all parts have all of its rows.
        links: the steps from a row to the row of the last parent; none if the table has the column itself.
        most_rows: number of its rows in the part with the most.
        public_rows: digest of its rows if it is public (`PUBLIC_ROWS`).

    """

    table: str
    unit_column: str
    links: tuple[Step, ...] = ()
    most_rows: int = 0
    public_rows: str = ""


@dataclass(frozen=True, slots=True)
class PartFile:
    """A file of a part, as the split left it.

    Attributes:
        name: name of the file in the folder.
        digest: what `file_digest` says of it.

    """

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class Split:
    """The manifest of a folder.

    Attributes:
        identity: random text that names the split.
        duckdb_version: version of DuckDB that wrote the files.
        definitions: digest of the definitions of all tables and views of the head (`definitions_digest`).
        tables: the tables, by canonical name.
        parts: the files, in the order of their numbers.

    """

    identity: str
    duckdb_version: str
    definitions: str
    tables: tuple[SplitTable, ...]
    parts: tuple[PartFile, ...]

    def table(self, name: str) -> SplitTable | None:
        """Return the table of a canonical name. Return None if the split has none."""
        return next((one for one in self.tables if one.table == name), None)


DEFINITIONS = (
    "SELECT coalesce(md5(string_agg(sql, ' ' ORDER BY sql ASC)), '') FROM (SELECT sql FROM duckdb_tables() "
    "WHERE NOT (internal OR temporary) AND schema_name <> 'dpsql_hidden' AND database_name = ? UNION ALL "
    "SELECT sql FROM duckdb_views() WHERE NOT (internal OR temporary) AND database_name = ?)"
)
"""A query for the digest of the definitions of all tables and views of a database, which is named twice."""


PUBLIC_ROWS = "SELECT count(*) || ' ' || coalesce(sum(CAST(hash(listed) AS HUGEINT)), 0) FROM {} AS listed"
"""A query for the digest of the rows of a table: a sum has no order."""


def is_parts_folder(path: Path) -> bool:
    """Return whether a path is a folder of parts."""
    return (path / MANIFEST).is_file()


def file_digest(path: Path) -> str:
    """Return a text that another committed content of a DuckDB file would change: its size, headers and log.

    Raises:
        OSError: the file cannot be read.

    """
    with path.open("rb") as content:
        headers = content.read(_HEADERS)
    log = path.with_name(f"{path.name}.wal")
    has_log = log.is_file() and log.stat().st_size > 0
    return hashlib.sha256(headers + f"{path.stat().st_size} {has_log}".encode()).hexdigest()


def write_manifest(folder: Path, split: Split) -> None:
    """Write the manifest of a folder, in place of another if there is one, at one moment."""
    written = folder / f"{MANIFEST}.new"
    content = {"format": _FORMAT, **dataclasses.asdict(split)}
    written.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    written.replace(folder / MANIFEST)


def read_manifest(folder: Path) -> Split:
    """Return the manifest of a folder.

    Raises:
        PolicyError: there is none, or it is not one of this version.

    """
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if content.pop("format") == _FORMAT:
            return _split_of(content)
    except NotADirectoryError:
        raise PolicyError(f"{folder} is a file, and no folder of parts") from None
    except FileNotFoundError:
        raise PolicyError(f"{folder} is no folder of parts: it has no {MANIFEST}. Make one with dpsql split") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise PolicyError(f"{folder / MANIFEST} is damaged, or of another version of dpsql: split the tables again")


def _split_of(content: dict[str, Any]) -> Split:
    """Return the split of a manifest.

    Raises:
        ValueError: a value has another type, a part is in another folder or twice, or there is none.

    """
    tables = tuple(
        SplitTable(
            _text(one["table"]),
            _text(one["unit_column"]),
            tuple(
                (tuple(map(_text, columns)), _text(parent), tuple(map(_text, key)))
                for columns, parent, key in one["links"]
            ),
            int(one["most_rows"]),
            _text(one["public_rows"]),
        )
        for one in content["tables"]
    )
    parts = tuple(PartFile(_text(one["name"]), _text(one["digest"])) for one in content["parts"])
    names = [part.name for part in parts]
    # units of a part that is there twice would count twice
    if not names or len(set(names)) < len(names) or not all(map(_PART.fullmatch, names)):
        raise ValueError
    identity, version = _text(content["identity"]), _text(content["duckdb_version"])
    return Split(identity, version, _text(content["definitions"]), tables, parts)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value
