"""No sentence of a page outside the proofs has more than 30 words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.pages import ROOT
from tests.documents.sentences import long_sentences, readable_pages, sentences


@pytest.mark.parametrize("page", readable_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_of_a_page_is_long(page: Path) -> None:
    assert long_sentences(page) == []


def test_a_page_is_read_as_its_sentences() -> None:
    page = """# A title
One sentence with `code of words` and a [link of
three words](page.md#here). Another
one: `a`, `b`,
`c`, e.g. these. 2 more?

<!-- tables: none of
these -->
- An item
- `An item` that
  goes on

```sql
SELECT not a sentence
```
| a cell | another `|` cell |
| --- | --- |
"""
    assert [(one.line, one.words) for one in sentences(page)] == [
        (1, 2),
        (2, 10),
        (3, 5),
        (5, 2),
        (9, 2),
        (10, 4),
        (16, 2),
        (16, 3),
    ]
    assert [one.text for one in sentences(page)][2] == "Another one: `a`, `b`, `c`, e.g. these."


def test_a_long_sentence_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A title\n\nThis is short. {'Word ' * 15}\n{'word ' * 16}end.\n")
    assert len(long_sentences(page)) == 1
    assert long_sentences(page)[0].startswith("line 3, 32 words: Word")
