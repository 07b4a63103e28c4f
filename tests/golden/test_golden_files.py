"""The golden files that no other test compares, their versions, and that a comparison finds what changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import dpsql
from tests.golden import files, tpch
from tests.golden.observed import Entry, observed
from tests.golden.records import fresh_session
from tests.sql.golden_records import new_session

FILES = sorted(files.FOLDER.glob("*.json"))


def test_the_queries_of_tpch_are_answered_as_before(tmp_path: Path) -> None:
    found = tpch.answers(tmp_path)
    assert set(files.read(tpch.SOURCE).parts) == set(found)
    for key, seen in found.items():
        files.check(tpch.SOURCE, key, seen)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_versions_are_those_that_the_file_was_made_with(path: Path) -> None:
    other = files.other_versions(json.loads(path.read_text(encoding="utf-8"))["made_with"])
    assert not other, f"{path.name}{other}: run python -m tests.golden.make and read the difference"


def test_the_files_are_small() -> None:
    assert 500_000 < sum(path.stat().st_size for path in FILES) < 2_000_000


QUESTION = "SELECT diagnosis, count(*) AS n FROM visits GROUP BY diagnosis"


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> Entry:
    answers = fresh_session(tmp_path_factory.mktemp("state"))
    (entry,) = answers.answer(QUESTION)
    answers.close()
    return entry


def _other_hash(entry: Entry) -> None:
    entry["receipt"]["query_hash"] = "0" * 64


def _other_frame(entry: Entry) -> None:
    entry["frames"][0] = "0" * 64 + entry["frames"][0][64:]


def _other_noise(entry: Entry) -> None:
    entry["points"][0] = entry["points"][0].replace("sigma=", "sigma=1")


def _other_price(entry: Entry) -> None:
    entry["charges"][0] = entry["charges"][0].replace("rho=", "rho=1")


def _other_threshold(entry: Entry) -> None:
    entry["receipt"]["threshold"] += 1e-9


def _other_sentence(entry: Entry) -> None:
    entry["printed"].pop()


@pytest.mark.parametrize(
    "fault", [_other_hash, _other_frame, _other_noise, _other_price, _other_threshold, _other_sentence]
)
def test_what_changed_is_shown_in_few_lines(
    fault: Callable[[Entry], None], entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "FOLDER", tmp_path)
    source = f"planted{fault.__name__}"
    files.write(source, {"a question": [entry]})
    files.check(source, "a question", [entry])
    changed = json.loads(json.dumps(entry))
    fault(changed)
    with pytest.raises(AssertionError, match=f"{source}: a question") as raised:
        files.check(source, "a question", [changed])
    shown = [line for line in str(raised.value).splitlines() if line[0] in "+-"]
    assert 1 <= len(shown) <= 2


def test_a_question_without_an_entry_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FOLDER", tmp_path)
    files.check("planted_page", "block 01", [])
    with pytest.raises(AssertionError, match=r"python -m tests\.golden\.make"):
        files.check("planted_page", "block 01", [{"asked": QUESTION}])


def test_other_versions_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FOLDER", tmp_path)
    files.write("planted_versions", {"a question": [{"asked": QUESTION}]})
    path = files.path_of("planted_versions")
    path.write_text(path.read_text(encoding="utf-8").replace(files.installed()["sqlglot"], "1.2.3"), encoding="utf-8")
    with pytest.raises(AssertionError, match=r"made with sqlglot 1\.2\.3, installed is"):
        files.check("planted_versions", "a question", [])


def test_refusals_plans_and_analysts_are_seen() -> None:
    with observed() as seen, new_session() as session:
        analyst = session.as_analyst("ana")
        for door, text in (
            (session, "SELECT patient_id FROM visits"),
            (session, f"FROM dp_explain($$ {QUESTION} $$)"),
            (analyst, QUESTION),
            (session, "FROM dp_budget()"),
        ):
            try:
                door.sql(text)
            except dpsql.UnsupportedQueryError:
                continue
    assert [sorted(entry.keys() & {"refused", "explained", "receipt"}) for entry in seen] == [
        ["refused"], ["explained"], ["receipt"],
    ]  # fmt: skip
    assert seen[2]["reader"] == "ana"
    assert seen[2]["points"]
