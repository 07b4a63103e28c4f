"""Pages and messages use the words of the glossary's last table for one meaning alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.pages import ROOT
from tests.documents.sentences import readable_pages
from tests.documents.word_uses import GLOSSARY, message_faults, page_faults, sources, word_uses

USES = word_uses(GLOSSARY.read_text(encoding="utf-8"))


def test_the_table_is_read() -> None:
    assert {"kept", "level", "reader", "set", "share", "shown", "unit"} < {use.word for use in USES}
    assert all(use.refused for use in USES)


@pytest.mark.parametrize("page", readable_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_uses_a_word_for_one_meaning(page: Path) -> None:
    assert page_faults(page, USES) == []


def test_messages_use_a_word_for_one_meaning() -> None:
    found = {str(path.relative_to(ROOT)): faults for path in sources() if (faults := message_faults(path, USES))}
    assert found == {}


def test_a_refused_word_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\nNoise that keys\nshare, and a share of `what stands here`.\n```\ntold\n```\nStands.\n")
    assert [fault.partition(";")[0] for fault in page_faults(page, USES)] == [
        "line 3: 'keys share'",
        "line 8: 'Stands'",
    ]
    module = tmp_path / "module.py"
    module.write_text('"""It stands here."""\nTOLD = f"the key {1} stands twice"\n')
    assert [fault.partition(";")[0] for fault in message_faults(module, USES)] == ["'stands'"]
