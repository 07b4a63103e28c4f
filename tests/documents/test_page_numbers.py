"""The comparison of printed numbers with those on pages finds wrong ones, and covers each page with an output."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from tests.documents import page_numbers
from tests.documents.page_numbers import (
    TOLERANCES,
    WITHOUT_NUMBERS,
    check_listed,
    check_outputs,
    differences,
    plain,
    planted_faults,
)
from tests.documents.pages import Page, pages
from tests.documents.reprint import reprinted

WITH_OUTPUT = {page.name: page for page in pages() if any(block.output is not None for block in page.blocks)}
ANSWER = """
┌─────────┬───────────┬────────────────────┐
│  city   │ patients  │        cost        │
├─────────┼───────────┼────────────────────┤
│ Lund    │ 3,919 ± 15 │ 61.2 (54.6 … 70.4) │
└─────────┴───────────┴────────────────────┘
groups  shown if their noisy count of units exceeds 41.98; at least 817 units have more
"""


@pytest.fixture(autouse=True)
def _tolerance() -> object:
    with mock.patch.dict(TOLERANCES, {"page.md": {r"at least (\d+) units": 400.0}}):
        yield


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("41.98", "41.99"),
        ("41.98", "41.9"),
        ("± 15", "± 16"),
        ("3,919", "3,965"),
        ("61.2", "85.0"),
        ("54.6", "10.0"),
        ("70.4", "94.2"),
        ("817", "1300"),
        ("Lund", "Malmö"),
    ],
)
def test_a_wrong_number_or_word_is_a_difference(old: str, new: str) -> None:
    (found,) = differences("page.md", ANSWER.replace(old, new), ANSWER)
    assert found.expected != found.printed


@pytest.mark.parametrize(("old", "new"), [("3,919", "3,960"), ("61.2", "70"), ("817", "1,200"), ("│ Lund ", "│ Lund")])
def test_other_noise_and_another_width_of_the_table_are_no_difference(old: str, new: str) -> None:
    assert differences("page.md", ANSWER.replace(old, new).replace("1,200", "1200"), ANSWER) == []


def test_a_noisy_number_that_is_none_is_a_difference() -> None:
    assert differences("page.md", "x nan ± 3", "x 5 ± 3")
    assert differences("page.md", "5 ± 0", "6 ± 0")


def test_each_digit_of_a_page_is_planted() -> None:
    line = plain("rho 0.25, 3,919 ± 15, at least 817 units")
    assert list(planted_faults("page.md", line)) == [
        line.replace("3,919", "993,919"),
        line.replace("817", "99817"),
        line.replace("0.25", "1.25"),
        line.replace("0.25", "0.35"),
        line.replace("0.25", "0.26"),
        line.replace("15", "25"),
        line.replace("15", "16"),
    ]


def test_a_wrong_number_that_passes_fails_the_page() -> None:
    with (
        mock.patch.object(page_numbers, "plain", return_value="same"),
        mock.patch.object(page_numbers, "planted_faults", return_value=["wrong"]),
        pytest.raises(AssertionError, match="a wrong number would not fail"),
    ):
        check_outputs("page.md", [("here", "1", "2")])


def test_a_tolerance_for_an_exact_number_fails_the_page() -> None:
    with pytest.raises(AssertionError, match="they need no tolerance"):
        check_outputs("page.md", [("here", "at least 817 units", "at least 817 units")])
    check_outputs("page.md", [("here", "at least 817 units", "at least 900 units")])


def test_the_list_of_pages_without_numbers_only_shrinks() -> None:
    assert WITHOUT_NUMBERS.keys() <= {"docs/dbt.md", "docs/shell.md"} & WITH_OUTPUT.keys()


def test_a_page_on_the_list_that_could_leave_fails() -> None:
    check_listed("docs/dbt.md", "rho 1; probably 76,000 or more rows are left out")
    with pytest.raises(AssertionError, match="take it off the list"):
        check_listed("docs/dbt.md", "rho 1; 20 units")
    with pytest.raises(AssertionError, match="compare its numbers"):
        check_listed("docs/sql.md", "1")


@pytest.mark.parametrize(
    "page", [page for page in WITH_OUTPUT.values() if page.runner is not None], ids=lambda p: p.name
)
def test_a_page_with_a_test_of_its_own_has_its_numbers_compared(page: Page) -> None:
    assert page.runner is not None
    text = page.runner.read_text(encoding="utf-8")
    called = {"check_listed("} if page.name in WITHOUT_NUMBERS else {"check_outputs(", "compared_run("}
    assert any(name in text for name in called), f"{page.runner.name} compares no numbers of {page.name}"


def test_each_tolerance_belongs_to_a_page_with_an_output() -> None:
    assert TOLERANCES.keys() - {"page.md"} <= WITH_OUTPUT.keys() - WITHOUT_NUMBERS.keys()


def test_a_page_is_printed_again(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n```python\nprint(6 * 7)\n```\n```\n41\n```\nThe end, 41.\n")
    assert reprinted(page, tmp_path) == "# Page\n```python\nprint(6 * 7)\n```\n```\n42\n```\nThe end, 41.\n"
