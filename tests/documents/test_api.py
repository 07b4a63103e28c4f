"""The page of the Python API holds every public name, as the docstrings are."""

from __future__ import annotations

import pytest

import dpsql
from tests.documents import api


def test_the_page_is_what_is_generated() -> None:
    assert api.PAGE.read_text(encoding="utf-8") == api.page(), "run: python -m tests.documents.api"


def test_every_public_name_is_in_one_group() -> None:
    named = [name for names in api.GROUPS.values() for name in names]
    of_remote = [f"remote.{name}" for name in dpsql.remote.__all__]
    # what PEP 249 names is in PEP 249
    of_tools = ["dbapi.connect", "dbapi.Connection", "dbapi.Cursor", "dbapi.Error"]
    others = [name for name in dpsql.__all__ if name not in ("dbapi", "remote")]
    assert sorted(named) == sorted([*of_remote, *of_tools, *others])


def test_a_name_without_a_docstring_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpsql.Session, "__doc__", None)
    with pytest.raises(ValueError, match=r"dpsql\.Session"):
        api.page()
