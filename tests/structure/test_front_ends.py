"""`make test` runs a file of tests for each front end, and leaves no other test out by accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.pages import ROOT
from tests.front_ends import FRONT_ENDS, TESTS, THOROUGH_FOLDERS, is_thorough

SHARED = ("commands",)
"""Folders of dpsql/frontends that are a part of a front end in another place."""


def test_each_front_end_has_a_file_of_tests() -> None:
    folders = {path.parent.name for path in (ROOT / "dpsql" / "frontends").glob("*/__init__.py")}
    assert folders - set(SHARED) == {Path(place).name for place in FRONT_ENDS if "frontends/" in place} - {"cli.py"}


@pytest.mark.parametrize(("place", "tests"), FRONT_ENDS.items())
def test_front_ends_and_their_tests_exist(place: str, tests: str) -> None:
    assert (ROOT / "dpsql" / place).exists()
    assert (TESTS / tests).is_file()


def test_files_of_other_folders_are_for_make_test() -> None:
    left_out = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py") if is_thorough(path)}
    assert left_out == set(THOROUGH_FOLDERS)
