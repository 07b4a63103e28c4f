"""Golden files that no other test compares, versions of all of them, and faults that a comparison must find."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import dpsql
from tests.golden import files, tpch
from tests.golden.facts import Entry
from tests.golden.observed import observed
from tests.golden.records import fresh_session
from tests.sql.golden_records import new_session

FILES = sorted(files.FOLDER.glob("*.json"))


@pytest.mark.thorough
def test_the_queries_of_tpch_are_answered_as_before() -> None:
    found = tpch.answers()
    assert set(files.read(tpch.SOURCE).parts) == set(found)
    for key, seen in found.items():
        files.check(tpch.SOURCE, key, seen)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_versions_are_those_that_the_file_was_made_with(path: Path) -> None:
    other = files.other_versions(json.loads(path.read_text(encoding="utf-8"))["made_with"])
    assert not other, f"{path.name}{other}: run {files.COMMAND} and read the difference"


def test_a_patch_release_is_no_other_version(monkeypatch: pytest.MonkeyPatch) -> None:
    made_with = files.installed()
    other = dict(zip(made_with, ("1.2", "3.4"), strict=True))
    for versions, is_other in ((made_with, False), (other, True)):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, now=versions: f"{now[name]}.99")
        assert bool(files.other_versions(made_with)) is is_other


def test_a_statement_takes_one_line_and_holds_no_printed_text() -> None:
    texts = [path.read_text(encoding="utf-8") for path in FILES]
    held = [json.loads(text)["parts"].values() for text in texts]
    entries = [entry for parts in held for part in parts for entry in part]
    assert len(entries) > 500
    assert sum(text.count("\n") for text in texts) < len(entries) + 5 * len(FILES) < 6_000
    assert {field for entry in entries for field in entry} == {
        *("query", "version", "mechanism", "rho", "epsilon", "delta", "charged_rho", "charged_delta", "threshold"),
        *("sigmas", "sets", "points", "frames", "charges", "calibrations"),
    }


QUESTION = "SELECT diagnosis, count(*) AS n FROM visits GROUP BY diagnosis"


@pytest.fixture(scope="module")
def entry() -> Entry:
    answers = fresh_session()
    (entry,) = answers.answer(QUESTION)
    answers.close()
    return entry


def _other_hash(entry: Entry) -> None:
    entry["query"] = "0" * 64


def _other_frame(entry: Entry) -> None:
    entry["frames"][0] = "0" * 64 + entry["frames"][0][64:]


def _other_noise(entry: Entry) -> None:
    entry["points"][0] = entry["points"][0].replace("sigma=", "sigma=1")


def _other_price(entry: Entry) -> None:
    entry["charges"][0] = entry["charges"][0].replace("rho=", "rho=1")


def _other_threshold(entry: Entry) -> None:
    entry["threshold"] += 1e-9


@pytest.mark.parametrize("fault", [_other_hash, _other_frame, _other_noise, _other_price, _other_threshold])
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
    assert [line[0] for line in shown] == ["-", "+"]


def test_a_question_without_an_entry_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FOLDER", tmp_path)
    files.check("planted_page", "block 01", [])
    with pytest.raises(AssertionError, match=r"python -m tests\.golden\.make"):
        files.check("planted_page", "block 01", [{"query": "0" * 64}])


def test_other_versions_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FOLDER", tmp_path)
    files.write("planted_versions", {"a question": [{"query": "0" * 64}]})
    path = files.path_of("planted_versions")
    text = path.read_text(encoding="utf-8").replace(f'"duckdb": "{files.installed()["duckdb"]}"', '"duckdb": "1.2"')
    path.write_text(text, encoding="utf-8")
    with pytest.raises(AssertionError, match=rf"made with duckdb 1\.2, installed is .* run {files.COMMAND}"):
        files.check("planted_versions", "a question", [])


def test_answers_plans_and_analysts_are_seen_and_refusals_are_not() -> None:
    with observed() as seen, new_session() as session:
        analyst = session.as_analyst("ana")
        with pytest.raises(dpsql.UnsupportedQueryError):
            session.sql("SELECT patient_id FROM visits")
        session.sql("FROM dp_budget()")
        assert seen == []
        session.sql(f"FROM dp_explain($$ {QUESTION} $$)")
        answer = analyst.sql(QUESTION)
    plan, answered = seen
    assert answer.receipt is not None
    assert plan["query"] == answer.receipt.query_hash
    assert plan["charged_rho"] == answer.receipt.charged_rho > 0
    # what a threshold costs is part of a point once it is stored
    pairs = list(zip(plan.pop("points"), answered.pop("points"), strict=True))
    assert all(stored.startswith(offered) for offered, stored in pairs)
    assert len(pairs) == 2
    assert plan == answered


def test_of_auto_only_the_plan_and_the_first_draws_are_seen() -> None:
    with observed() as seen, new_session() as session:
        session.sql(QUESTION, max_groups_contributed="AUTO", rho=0.32)
        # the noise of the histogram decides on what these share with it
        session.sql(QUESTION, max_groups_contributed="AUTO", rho=0.32)
        session.sql(QUESTION)
    (plan,) = seen
    assert len(plan["calibrations"]) > 1
    assert len(plan["charges"]) == 1
