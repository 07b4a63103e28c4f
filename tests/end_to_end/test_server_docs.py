"""The page of the server runs as written, on free ports."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpsql
from dpsql.access.tokens import read_tokens
from dpsql.frontends import cli
from dpsql.frontends.server.doors import Address, Door, Urls
from tests.deterministic_entropy import seeded_system
from tests.documents.page_numbers import check_outputs
from tests.documents.page_runs import SEED
from tests.end_to_end.printed_answers import short_answers
from tests.serving import in_background

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")


def blocks(language: str, page: str = PAGE) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


@pytest.fixture
def urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Urls]:
    """The curator's commands, and a server by the files that they made."""
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    monkeypatch.chdir(tmp_path)
    readme: dict[str, object] = {}
    exec(compile(blocks("python", README)[0], "README.md", "exec"), readme)  # noqa: S102 — the README is ours
    session = readme["session"]
    assert isinstance(session, dpsql.Session)
    session.close()
    capsys.readouterr()
    *made, served = [shlex.split(line) for line in blocks("sh")[0].splitlines()]
    printed = []
    for command in made:
        assert command[0] == "dpsql"
        assert cli.main(command[1:]) == 0
        printed.append(capsys.readouterr().out.strip())
    monkeypatch.setenv("DPSQL_TOKEN", printed[1])
    arguments = cli._parser().parse_args(served[1:])
    doors = {
        name: Door(Address("127.0.0.1", 0), read_tokens(path))
        for name, path in (("analysts", arguments.analysts), ("curator", arguments.curator_tokens))
    }
    with (
        dpsql.connect("clinic.duckdb", read_only=True) as served_session,
        in_background(served_session, doors["analysts"], doors["curator"]) as urls,
    ):
        yield urls


def test_the_page_does_what_it_says(urls: Urls, capsys: pytest.CaptureFixture[str]) -> None:
    code = blocks("python")[0].replace("http://127.0.0.1:8642", urls.analysts)
    with seeded_system(SEED), short_answers():
        exec(compile(code, "docs/server.md", "exec"), {})  # noqa: S102 — the page is ours
    outputs = [("docs/server.md, python", blocks("")[0], capsys.readouterr().out)]
    if shutil.which("curl"):
        asked = blocks("sh")[1].replace("http://127.0.0.1:8642", urls.analysts)
        reply = subprocess.run(["bash", "-c", asked], check=True, capture_output=True, text=True).stdout
        outputs.append(("docs/server.md, curl", blocks("")[1], reply))
    check_outputs("docs/server.md", outputs)


def test_the_addresses_for_duckdb_are_those_of_routes() -> None:
    for address in re.findall(r"8642(/[\w./-]+)", "".join(blocks("sql"))):
        assert re.fullmatch(r"/v1/(queries/[\w-]+/)?result\.(json|parquet)", address)
