"""``dpsql serve`` refuses what would be unsafe before it listens; ``dpsql token`` prints a token once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import dpsql
from dpsql.access.tokens import add_token, read_tokens
from dpsql.frontends import cli
from dpsql.frontends.server.doors import Address
from dpsql.remote.analyst import is_loopback

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its state, and files of tokens."""
    folder = tmp_path_factory.mktemp("server_cli")
    with dpsql.connect(folder / "clinic.duckdb") as session:
        session.connection.execute("CREATE TABLE visits AS SELECT u AS patient FROM range(9) t(u)")
        session.sql("CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6)")
    with dpsql.connect(folder / "bare.duckdb"):
        pass
    for name in ("ana", "curator"):
        add_token(folder / name, name)
    (folder / "no.pem").write_text("no certificate")
    return folder


def test_a_token_is_printed_once_and_kept_as_a_hash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens"
    assert cli.main(["token", "ana", "--add-to", str(path)]) == 0
    token = capsys.readouterr().out.strip()
    assert read_tokens(path).holder(token) == "ana"
    assert token not in path.read_text()
    assert cli.main(["token", "a b", "--add-to", str(path)]) == 2
    assert cli.main(["token", "ana", "--add-to", str(tmp_path / "missing" / "tokens")]) == 1
    assert "missing" in capsys.readouterr().err


LOCAL = ["--listen", "127.0.0.1:0"]
FULL = ["clinic.duckdb", *LOCAL, "--analysts", "ana"]
EVERYWHERE = "0.0.0.0:0"


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["bare.duckdb", *LOCAL, "--analysts", "ana"], 1, "nothing is protected yet"),
        (["missing.duckdb", *LOCAL, "--analysts", "ana"], 1, "does not exist"),
        (["clinic.duckdb", *LOCAL, "--analysts", "missing"], 2, "dpsql token NAME"),
        (["clinic.duckdb", *LOCAL, "--analysts", "curator"], 2, "--curator-tokens"),
        (["clinic.duckdb", *LOCAL, "--analysts", "no.pem"], 2, "line 1"),
        (["clinic.duckdb", "--listen", "127.0.0.1", "--analysts", "ana"], 2, "HOST:PORT"),
        (["clinic.duckdb", "--listen", EVERYWHERE, "--analysts", "ana"], 2, "in the clear"),
        ([*FULL, "--key", "no.pem"], 2, "--certificate and --key"),
        ([*FULL, "--key", "no.pem", "--certificate", "no.pem"], 2, "cannot be read"),
        ([*FULL, "--curator-listen", "127.0.0.1:0"], 2, "go together"),
        (
            [*FULL, "--curator-listen", EVERYWHERE, "--curator-tokens", "curator"],
            2,
            "in the clear",
        ),
        (
            [*FULL, "--curator-listen", "127.0.0.1:0", "--curator-tokens", "ana"],
            2,
            "alone",
        ),
        ([*FULL, "--workers", "0"], 2, "from 1 up"),
        ([*FULL, "--timeout", "nan"], 2, "timeout"),
        ([*FULL, "--first-answer", "-1"], 2, "first-answer"),
    ],
)
def test_what_is_unsafe_or_makes_no_sense_is_refused(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    complaint: str,
) -> None:
    monkeypatch.chdir(folder)
    assert cli.main(["serve", *arguments]) == code
    assert complaint in capsys.readouterr().err


def test_without_its_packages_the_command_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for name in [name for name in sys.modules if name.startswith("dpsql.frontends.server.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.main(["serve", "clinic.duckdb", *LOCAL, "--analysts", "ana"]) == 2
    assert "pip install 'dpsql[server]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8642", Address("127.0.0.1", 8642)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:80", Address("::1", 80)),
        ("", None),
        (":80", None),
        ("host", None),
        ("host:", None),
        ("host:x", None),
        ("host:65536", None),
        ("::1:80", None),
        ("host:-1", None),
        ("host:²", None),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: Address | None) -> None:
    if address is not None:
        assert Address.of(text) == address
        return
    with pytest.raises(dpsql.PolicyError):
        Address.of(text)


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        (EVERYWHERE[:-2], False),
        ("10.0.0.1", False),
        ("a.example", False),
    ],
)
def test_only_loopback_stays_on_the_machine(host: str, alone: bool) -> None:
    assert is_loopback(host) is alone


@pytest.mark.long
def test_the_command_serves_and_stops_at_a_signal(folder: Path) -> None:
    """The real process; the crash tests start it by fork."""
    with subprocess.Popen(
        [sys.executable, "-m", "dpsql", "serve", folder / "clinic.duckdb", *LOCAL, "--analysts", folder / "ana"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("analysts: http://127.0.0.1:")
        process.terminate()
        assert process.wait(timeout=30) == 0
