"""Numbers in the text and tables of pages are those that the code computes."""

from __future__ import annotations

import re

import pytest

from tests.documents.pages import ROOT
from tests.documents.quoted_numbers import QUOTES, Quote, is_on


@pytest.mark.parametrize(
    "quote",
    [
        pytest.param(quote, id=f"{quote.page} {quote.words}", marks=[pytest.mark.long] if quote.is_long else [])
        for quote in QUOTES
    ],
)
def test_a_page_has_the_numbers_that_its_code_computes(quote: Quote) -> None:
    page = (ROOT / quote.page).read_text(encoding="utf-8")
    text = quote.text()
    assert is_on(text, page), text
    for digit in re.finditer(r"\d", text):
        planted = f"{text[: digit.start()]}{(int(digit[0]) + 1) % 10}{text[digit.end() :]}"
        assert not is_on(planted, page), "the page has a second quote with another number"
