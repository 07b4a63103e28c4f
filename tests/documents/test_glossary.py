"""The glossary is sorted, each term has one sentence and a link, and other pages use it."""

from __future__ import annotations

import re

import pytest

from tests.documents.pages import ROOT

DOCS = ROOT / "docs"
ENTRY = re.compile(r"^- \*\*(.+?)\*\*(?: \((.+?)\))?: (.*?)(?=\n- |\n\n|\n*\Z)", re.MULTILINE | re.DOTALL)
TEXT = (DOCS / "glossary.md").read_text(encoding="utf-8")
TERMS = {term: (other, sentence) for term, other, sentence in ENTRY.findall(TEXT)}
OTHERS = "\n".join(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md") if path.name != "glossary.md")


def uses(term: str, text: str = OTHERS) -> bool:
    """Whether a text has a term as a word, also as a plural, and with other spaces."""
    words = re.escape(term).replace(r"\ ", r"[\s_]+")
    return re.search(rf"\b{words}(s|es|ed)?\b", text, re.IGNORECASE) is not None


def test_every_entry_is_read() -> None:
    assert len(TERMS) == TEXT.count("\n- **") > 40


def test_terms_are_sorted() -> None:
    assert list(TERMS) == sorted(TERMS, key=str.casefold)


@pytest.mark.parametrize("term", TERMS)
def test_a_term_has_one_sentence_that_ends_in_a_link(term: str) -> None:
    _, sentence = TERMS[term]
    assert re.search(r"\(\[[\w\s]+\]\([\w/.-]+\.md(#[\w-]+)?\)\)\.$", sentence)
    assert len(re.findall(r"[.!?](?=\s|$)", sentence)) == 1


@pytest.mark.parametrize("term", TERMS)
def test_other_pages_use_a_term(term: str) -> None:
    other, _ = TERMS[term]
    assert uses(term)
    assert not other or uses(other)


def test_a_term_that_no_page_uses_is_found() -> None:
    assert not uses("levels of trust")
    assert uses("privacy unit", "privacy\nunits")
    assert not uses("rise", "risen surprise")
