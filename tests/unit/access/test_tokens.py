"""Tokens are random, their file holds hashes, and whoever can write to it is the curator alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dpsql.access.tokens import add_token, analysts_of, curators_of, hash_of, read_tokens
from dpsql.errors import PolicyError


def test_a_file_tells_holders_and_no_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    made = {name: add_token(path, name) for name in ("ana", "bob@example.org", "eve")}
    second = add_token(path, "ana")
    tokens = read_tokens(path)
    assert {name: tokens.holder(token) for name, token in made.items()} == {name: name for name in made}
    assert tokens.holder(second) == "ana"
    assert tokens.names == tuple(made)
    assert len({*made.values(), second}) == 4
    for token in made.values():
        assert token not in path.read_text()
        assert len(token) > 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("token", ["", " ", "dpsql_", "ana", "sha256:", "\udcff", "ü" * 40])
def test_nobody_has_another_token(tmp_path: Path, token: str) -> None:
    path = tmp_path / "tokens"
    add_token(path, "ana")
    assert read_tokens(path).holder(token) is None
    assert read_tokens(path).holder(path.read_text().split()[1]) is None


def test_comments_empty_lines_and_a_missing_last_newline_are_no_matter(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# who may ask\n\nana {hash_of('x')}")
    path.chmod(0o600)
    token = add_token(path, "bob")
    tokens = read_tokens(path)
    assert (tokens.holder("x"), tokens.holder(token)) == ("ana", "bob")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nobody",
        "ana",
        "ana secret",
        f"ana {hash_of('x')} more",
        f"an:a {hash_of('x')}",
        f"ana {hash_of('x')[:-1]}",
        f"ana {hash_of('x').upper()}",
    ],
)
def test_a_file_with_another_line_is_refused_whole_without_quoting_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(PolicyError) as refused:
        read_tokens(path)
    assert "secret" not in str(refused.value)


def test_a_file_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    add_token(path, "ana")
    path.chmod(0o620)
    with pytest.raises(PolicyError, match="chmod go-w"):
        read_tokens(path)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="dpsql token"):
        read_tokens(tmp_path / "tokens")


def test_analysts_and_curator_have_files_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    add_token(path, "curator")
    tokens = read_tokens(path)
    assert curators_of(tokens) == tokens
    with pytest.raises(PolicyError, match="--curator-tokens"):
        analysts_of(tokens)
    add_token(path, "ana")
    with pytest.raises(PolicyError, match="'ana'"):
        curators_of(read_tokens(path))


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "a:b", "#ana", "\u212a", "åsa", "x" * 65])
def test_a_name_fits_on_its_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(PolicyError):
        add_token(tmp_path / "tokens", name)
    assert not (tmp_path / "tokens").exists()


def test_names_that_the_policy_holds_equal_are_one_reader(tmp_path: Path) -> None:
    """Two would have two turns at a time, and could time one question by another."""
    path = tmp_path / "tokens"
    tokens = [add_token(path, name) for name in ("Ana", " ana ", "bob", "ANA")]
    read = read_tokens(path)
    assert [read.holder(token) for token in tokens] == ["Ana", "Ana", "bob", "Ana"]
    assert read.names == ("Ana", "bob")
    add_token(path, "Curator")
    with pytest.raises(PolicyError, match="curator"):
        analysts_of(read_tokens(path))
