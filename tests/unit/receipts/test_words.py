"""The table of sentences: each row renders with its example, is short, is used, and has a heading."""

from __future__ import annotations

import re
import string
from pathlib import Path

import dpsql
from dpsql.receipts import coverage_words, screen_words, words
from dpsql.receipts.receipt import heading_of
from dpsql.receipts.sentence import Sentence

TABLES = (words, coverage_words, screen_words)
ROWS = {
    f"{table.__name__.rpartition('.')[2]}.{name}": row
    for table in TABLES
    for name, row in vars(table).items()
    if isinstance(row, Sentence)
}
MOST_WORDS = 30


def test_a_row_renders_with_its_example() -> None:
    for row in (*ROWS.values(), *words.NOT_FOUND.values()):
        placeholders = {place for _, place, _, _ in string.Formatter().parse(row) if place is not None}
        assert placeholders == set(row.example), row
        rendered = row.format(**row.example)
        assert not set("{}") & set(rendered), row
        assert all(len(clause.split()) <= MOST_WORDS for clause in re.split(r"[;:] ", rendered)), rendered


def test_a_row_is_used() -> None:
    sources = (path.read_text(encoding="utf-8") for path in Path(dpsql.__file__).parent.rglob("*.py"))
    used = {name for source in sources for name in re.findall(r"\b(?:coverage_|screen_)?words\.\w+", source)}
    assert ROWS.keys() - used == set()


def test_a_note_stands_under_its_heading() -> None:
    for heading, rows in words.HEADINGS.items():
        assert {heading_of(row.format(**row.example)) for row in rows} == {heading}
