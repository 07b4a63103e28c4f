"""The README's first screen runs as written, its intervals are narrow, and its SQL is what the curator can declare."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dpsql
from dpsql.frontends.demo import interval_of
from tests.deterministic_entropy import seeded_system
from tests.documents.page_numbers import check_outputs
from tests.documents.page_runs import SEED
from tests.end_to_end.printed_answers import short_answers
from tests.golden import files
from tests.golden.observed import observed

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def code_blocks(language: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in blocks if name == language]


def test_the_first_example_prints_what_stands_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    with seeded_system(SEED), observed() as seen, short_answers():
        exec(compile(code_blocks("python")[0], "README.md", "exec"), names)  # noqa: S102 — the README is ours
    printed, shown = capsys.readouterr().out, code_blocks("")[0]
    session, question = names["session"], names["question"]
    assert isinstance(session, dpsql.Session)
    assert isinstance(question, str)
    answer = session.sql(question)
    # noise is small beside every number
    for column in answer.columns[1:]:
        for number, (low, high) in zip(answer.df()[column], interval_of(answer, column), strict=True):
            assert high - low < 0.2 * number
    session.close()
    check_outputs("README.md", [("README.md, first example", shown, printed)])
    files.check("README.md", "first example", seen)


def test_the_readme_is_short() -> None:
    assert README.count("\n") <= 120


def test_every_statement_of_the_curator_runs() -> None:
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE visits (visit_id INTEGER PRIMARY KEY, patient_id INTEGER, city VARCHAR, cost DOUBLE)"
        )
        session.connection.execute("CREATE TABLE meals (visit_id INTEGER, dish VARCHAR)")
        session.connection.execute("CREATE TABLE cities AS SELECT 'Lund' AS name")
        statements = [text.strip() for text in re.sub(r"--.*", "", code_blocks("sql")[0]).split(";") if text.strip()]
        assert len(statements) == 8
        for statement in statements:
            assert len(session.sql(statement)) > 0
