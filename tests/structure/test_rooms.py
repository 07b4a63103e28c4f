"""The list of rooms: complete, from the ground up, and what the pages show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.pages import ROOT
from tests.structure.rooms import BEGINS, BY_NAME, ENDS, PAGES, ROOMS, room_of, table, with_table
from tests.structure.source_figures import PACKAGE, module_sources

TOGETHER = ("frontends", PACKAGE)
"""Rooms that lead to each other: the server and the command line, and what ``import dpsql`` gives."""


LEVELS, LEVELS_OF_SESSION = 14, 9
"""Rooms above each other: of the whole library, and up to the only room that knows all others."""
CIRCLES = {
    ("frontends", "dpsql"),
    ("frontends.commands", "frontends"),
    ("frontends.server", "dpsql"),
    ("frontends.server", "frontends"),
}
"""Rooms, each with one that stands above it and that it imports all the same."""


def test_every_folder_is_a_room() -> None:
    modules = module_sources(ROOT)
    folders = {name.rpartition(".")[0] for name in modules if name.count(".") > 1}
    assert {folder.removeprefix(f"{PACKAGE}.") for folder in folders} <= set(BY_NAME)
    assert {room_of(name) for name in modules} == set(BY_NAME)


def test_a_room_imports_from_rooms_that_stand_before_it() -> None:
    before: set[str] = set()
    for room in ROOMS:
        known = {name for name in room.imports if not (room.name.startswith(TOGETHER) and name in TOGETHER)}
        assert known - {room.name} <= before, room.name
        before.add(room.name)


def test_the_house_has_no_more_levels() -> None:
    levels: dict[str, int] = {}
    for room in ROOMS:
        levels[room.name] = 1 + max((levels[name] for name in room.imports if name in levels), default=0)
    assert levels["session"] <= LEVELS_OF_SESSION
    assert max(levels.values()) <= LEVELS


def test_only_the_front_ends_lead_to_each_other() -> None:
    before: set[str] = set()
    later = set()
    for room in ROOMS:
        later |= {(room.name, name) for name in room.imports if name not in before}
        before.add(room.name)
    assert later == CIRCLES


def test_a_module_stands_in_the_innermost_room() -> None:
    assert room_of("dpsql.sql.source.joins") == "sql.source"
    assert room_of("dpsql.sql.clauses") == "sql"
    assert room_of("dpsql") == "dpsql"
    assert room_of("dpsql.attic.old") == "attic"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pages_show_the_rooms_as_they_are(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert with_table(text) == text, "python -m tests.structure.rooms"


def test_a_page_without_a_place_for_the_table_is_refused() -> None:
    assert with_table(f"a\n{BEGINS}old\n{ENDS}b\n") == f"a\n{BEGINS}{table()}{ENDS}b\n"
    with pytest.raises(ValueError, match="no place"):
        with_table("a page")
