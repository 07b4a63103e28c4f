"""New database files: they have a format that the DuckDB shell reads, which is older than the Python package."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from pathlib import Path

import duckdb

from dpsql.operations.dialect import text_literal

SHELL_STORAGE_VERSION = "v1.5.0"
"""The newest storage version that the shell of ``pip install 'dpsql[shell]'`` reads."""

_OTHER_PLACE = re.compile(r":?[A-Za-z0-9_]{2,}:")
"""Beginning of a path that is no file of this machine: ``:memory:``, ``md:``, ``s3:``. A drive has one letter."""
_OWN_CHOICES = frozenset({"access_mode", "storage_compatibility_version"})


def create_for_shell(path: str | Path, settings: Collection[str]) -> None:
    """Create an empty database with `SHELL_STORAGE_VERSION` if ``path`` names a file that does not exist.

    The file keeps this version when it is opened later. A setting at that time would keep other connections with
    other settings away from the file.

    Args:
        path: as it will be opened.
        settings: names of the DuckDB settings with which it will be opened. One may choose another version.

    """
    name = str(path)
    if not name or _OTHER_PLACE.match(name) or Path(name).expanduser().exists():
        return
    if not _OWN_CHOICES.isdisjoint(settings):
        return
    # if this fails, opening the file fails for the same reason and is told then
    with contextlib.suppress(duckdb.Error), duckdb.connect(":memory:") as connection:
        connection.execute(f"ATTACH {text_literal(name)} AS created (STORAGE_VERSION '{SHELL_STORAGE_VERSION}')")
