"""The page on other systems: rows in which others are ahead, what was run and what was read, and its sources."""

from __future__ import annotations

import re

from benchmarks import peers
from tests.documents.pages import ROOT

PAGE = ROOT / "docs" / "comparison.md"
MEASURED = (ROOT / "docs" / "measured.md", ROOT / "benchmarks" / "README.md")
NAMES = {
    "opendp": "OpenDP",
    "pipelinedp": "PipelineDP",
    "smartnoise": "SmartNoise SQL",
    "pydp": "PyDP",
    "diffprivlib": "diffprivlib",
}
"""Names on the page, by those of `benchmarks.peers`."""
SUBJECTS = (
    "scale",
    "user interface for people without SQL",
    "synthetic data",
    "community and releases",
    "independent review",
)

_SECTION = re.compile(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
_MARKS = re.compile(r"\[([a-z]\d(?:, [a-z]\d)*)\]")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_NUMBER = re.compile(r"\d+(?:\.\d+)*")

Rows = list[list[str]]


def section(markdown: str, title: str) -> str:
    """Return the text below a heading of the second level."""
    found: dict[str, str] = dict(_SECTION.findall(markdown))
    return found[title]


def table(text: str) -> Rows:
    """Return the cells of a table without its line of dashes; the first row is the header."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if not set("".join(row)) <= {"-"}]


def ahead(markdown: str) -> Rows:
    """Return the rows in which others are ahead: subject, others, dpsql, and whether it was run or read."""
    return table(section(markdown, "Where others are ahead"))[1:]


def run_columns(markdown: str) -> set[str]:
    """Return the systems of the table of features that are marked as run, without links and brackets."""
    header, marks = table(section(markdown, "Feature by feature"))[:2]
    assert marks[0] == "checked"
    assert set(marks[1:]) == {"run", "read"}
    names = [re.sub(r" (\(| for ).*", "", _LINK.sub(r"\1", cell)).strip("`") for cell in header]
    return {name for name, mark in zip(names, marks, strict=True) if mark == "run"}


def said_to_be_run(markdown: str) -> str:
    """Return the item on systems that were run, on one line."""
    found = re.search(r"^- \*\*Run\*\*: (.*?)(?=^- )", markdown, re.MULTILINE | re.DOTALL)
    assert found is not None
    return " ".join(found[1].split())


def installed() -> set[str]:
    """Return name and version of each system that `benchmarks.peers` installs."""
    packages = {name: wanted[0] for name, wanted in peers.SYSTEMS.items() if name != peers.OWN}
    return {f"{NAMES[name]} {package.partition('==')[2]}" for name, package in packages.items()}


def sources_missing(markdown: str) -> set[str]:
    """Return the marks that the page uses and its sources lack, and those of sources that it does not use."""
    body, _, sources = markdown.partition("\n## Sources\n")
    used = {mark for found in _MARKS.findall(body) for mark in found.split(", ")}
    listed = {mark for row in table(sources)[1:] for cell in row[::2] for mark in cell.split(", ") if mark}
    return used ^ listed


def test_each_subject_in_which_others_are_ahead_has_a_row() -> None:
    rows = ahead(PAGE.read_text(encoding="utf-8"))
    assert set(SUBJECTS) <= {row[0] for row in rows}
    for _, others, own, checked in rows:
        assert others not in ("", "–")
        assert own not in ("", "–")
        assert checked in ("run", "read")


def test_the_reader_sees_first_when_to_choose_another_system() -> None:
    titles = [title for title, _ in _SECTION.findall(PAGE.read_text(encoding="utf-8"))]
    assert titles[:2] == ["When to choose another system", "Where others are ahead"]


def test_systems_said_to_be_run_are_those_of_the_benchmark() -> None:
    markdown = PAGE.read_text(encoding="utf-8")
    words = said_to_be_run(markdown)
    assert {system for system in installed() if system in words} == installed()
    assert len(_VERSION.findall(words)) == len(installed())


def test_columns_marked_as_run_are_systems_of_the_benchmark() -> None:
    markdown = PAGE.read_text(encoding="utf-8")
    header = section(markdown, "Feature by feature").splitlines()[1]
    named = {name for name in NAMES.values() if f"[{name}]" in header}
    assert run_columns(markdown) == named | {peers.OWN}


def test_numbers_of_rows_that_were_run_are_measured() -> None:
    measured = {number for path in MEASURED for number in _NUMBER.findall(path.read_text(encoding="utf-8"))}
    rows = [row for row in ahead(PAGE.read_text(encoding="utf-8")) if row[-1] == "run"]
    assert rows
    for row in rows:
        assert any(system in row[1] for system in installed())
        assert set(_NUMBER.findall(row[1] + row[2])) <= measured


def test_every_mark_has_a_source_and_every_source_a_mark() -> None:
    assert sources_missing(PAGE.read_text(encoding="utf-8")) == set()


def test_a_system_that_was_only_read_and_a_mark_without_source_are_found() -> None:
    markdown = PAGE.read_text(encoding="utf-8")
    row = "| checked | run | run | run | read |"
    assert row in markdown
    assert "Tumult Analytics" in run_columns(markdown.replace(row, "| checked | run | run | run | run |"))
    assert sources_missing(markdown.replace("[t4]", "[t9]", 1)) == {"t9"}
    assert sources_missing(markdown.replace("[w1]", "")) == {"w1"}
