"""Finds the files that travel with the package: DuckDB macros and sample data."""

from __future__ import annotations

import contextlib
from pathlib import Path

PACKAGE = Path(__file__).parent
FOLDERS = ("udfs", "sample_data")


def native_library() -> Path | None:
    """The native aggregate for this machine; None where ``make native`` or a platform wheel has not put it there."""
    with contextlib.suppress(FileNotFoundError):
        return asset("udfs", "native", "dpsql_native.duckdb_extension")
    return None


def asset(*parts: str) -> Path:
    """Path of a file or folder below ``udfs`` or ``sample_data``, wherever this package was installed from.

    A wheel carries both inside the package; a checkout, also one installed as editable, has them beside it.

    Args:
        parts: the path from the root of the project, as in ``asset("sample_data", "flights.parquet")``.

    Raises:
        ValueError: the path does not begin with one of the two folders, or leaves it.
        FileNotFoundError: this installation has no such file.

    """
    if not parts or parts[0] not in FOLDERS or ".." in Path(*parts).parts:
        raise ValueError(f"an asset is a path below {' or '.join(FOLDERS)}, not {'/'.join(parts)!r}")
    in_wheel = PACKAGE / "_assets"
    root = in_wheel if in_wheel.is_dir() else PACKAGE.parent
    path = root.joinpath(*parts)
    if not path.exists():
        raise FileNotFoundError(
            f"{'/'.join(parts)} is missing from this installation of dpsql (looked in {root}): reinstall it"
        )
    return path
