"""The front ends of dpsql, each with its file of tests that `make test` runs.

`make test` runs all folders of tests but ``end_to_end`` and ``statistical``. Of these it runs the files of this list
alone. Tests in their other files get the marker ``thorough``: `make test-all` runs them, and `make test` does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

TESTS = Path(__file__).parent

THOROUGH_FOLDERS = ("end_to_end", "statistical")
"""Folders whose tests are thorough, but for those of the front ends."""

FRONT_ENDS: Mapping[str, str] = {
    "session": "end_to_end/test_readme.py",
    "frontends/cli.py": "end_to_end/test_cli.py",
    "frontends/dbt": "end_to_end/test_dbt.py",
    "frontends/frames": "end_to_end/test_pandas.py",
    "frontends/server": "end_to_end/test_server.py",
    "frontends/shell": "end_to_end/test_shell.py",
    "dbapi": "end_to_end/test_dbapi.py",
    "remote": "end_to_end/test_remote.py",
}
"""By the place of a front end below dpsql/, its file of tests below tests/."""


def is_thorough(path: Path) -> bool:
    """Return whether `make test` leaves out a file of tests."""
    if not path.is_relative_to(TESTS):
        return False
    place = path.relative_to(TESTS)
    return place.suffix == ".py" and place.parts[0] in THOROUGH_FOLDERS and place.as_posix() not in FRONT_ENDS.values()
