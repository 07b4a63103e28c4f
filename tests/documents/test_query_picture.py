"""The picture of a query's way and the table of steps are those of the steps."""

from __future__ import annotations

import re

import pytest

from tests.documents import query_picture
from tests.structure.query_steps import STEPS


def test_the_picture_is_what_is_drawn() -> None:
    drawn = query_picture.picture()
    assert query_picture.PICTURE.read_text(encoding="utf-8") == drawn, "run: python -m tests.documents.query_picture"
    assert len(drawn.encode()) < 60_000


def test_the_picture_names_every_step() -> None:
    words = re.findall(r"<text[^>]*>(.*?)</text>", query_picture.picture())
    for number, step in enumerate(STEPS, start=1):
        assert {f"{number} {step.verb}", step.purpose, step.hands_on} <= set(words)


def test_words_fit_into_their_box() -> None:
    assert max(len(step.purpose) for step in STEPS) <= 60


def test_the_page_shows_the_steps_as_they_are() -> None:
    text = query_picture.PAGE.read_text(encoding="utf-8")
    assert query_picture.with_table(text) == text, "run: python -m tests.documents.query_picture"


def test_a_page_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no place"):
        query_picture.with_table("a page")
