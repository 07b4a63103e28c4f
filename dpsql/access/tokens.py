"""Tokens: 256 random bits each, of which the server's file holds a hash and nothing else.

A file has one line per token, ``NAME sha256:HEX``; empty lines and lines that begin with # are left out. Several lines
with one name let a token be replaced without a pause. The bits are random, so that a plain hash cannot be searched.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsql.errors import PolicyError
from dpsql.session import CURATOR, folded

_NAME = re.compile(r"[A-Za-z0-9_.@+-]{1,64}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Whom the tokens of one file belong to."""

    entries: tuple[tuple[str, bytes], ...]

    def holder(self, token: str) -> str | None:
        """The name that a token belongs to; None for an unknown one, after the same work."""
        asked = hash_of(token).encode()
        holders = [name for name, known in self.entries if hmac.compare_digest(asked, known)]
        return holders[-1] if holders else None

    @property
    def names(self) -> tuple[str, ...]:
        """Everybody who has a token."""
        return tuple(dict.fromkeys(name for name, _ in self.entries))


def hash_of(token: str) -> str:
    """What a file keeps of a token."""
    return "sha256:" + hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def add_token(path: Path, name: str) -> str:
    """Make a token, add its hash to the file, and return the token, which is kept nowhere.

    Raises:
        PolicyError: the name cannot stand in the file.

    """
    name = name.strip()
    if not _NAME.fullmatch(name):
        raise PolicyError("a name for a token has up to 64 letters, digits and signs of . _ @ + -")
    token = f"dpsql_{secrets.token_urlsafe(32)}"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600), "r+b") as file:
        content = file.read()
        ended = not content or content.endswith(b"\n")
        file.write(f"{'' if ended else os.linesep}{name} {hash_of(token)}\n".encode())
    return token


def read_tokens(path: Path) -> Tokens:
    """Read a file of tokens.

    Raises:
        PolicyError: it is missing or empty, others can write to it, or a line is not NAME sha256:HEX.

    """
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PolicyError(f"there is no file {path}; make one with: dpsql token NAME --add-to {path}") from None
    except UnicodeDecodeError:
        raise PolicyError(f"{path} is not a file of tokens") from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PolicyError(f"others can write to {path} and so let themselves in: chmod go-w {path}")
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1)]
    entries = [_entry(path, number, words) for number, words in lines if words and not words[0].startswith("#")]
    if not entries:
        raise PolicyError(f"{path} holds no token; make one with: dpsql token NAME --add-to {path}")
    # one reader has one name, the first that is written, as the policy compares names
    spelling: dict[str, str] = {folded(CURATOR): CURATOR}
    return Tokens(tuple((spelling.setdefault(folded(name), name), known) for name, known in entries))


def analysts_of(tokens: Tokens) -> Tokens:
    """The tokens, where they are of analysts.

    Raises:
        PolicyError: one is the curator's.

    """
    if CURATOR in tokens.names:
        raise PolicyError(f"a token of {CURATOR!r} belongs into the file for --curator-tokens")
    return tokens


def curators_of(tokens: Tokens) -> Tokens:
    """The tokens, where they are the curator's.

    Raises:
        PolicyError: one is somebody else's.

    """
    others = [name for name in tokens.names if name != CURATOR]
    if others:
        raise PolicyError(f"the file for --curator-tokens is for {CURATOR!r} alone, and names {others[0]!r}")
    return tokens


def _entry(path: Path, number: int, words: Sequence[str]) -> tuple[str, bytes]:
    if len(words) != 2 or not _NAME.fullmatch(words[0]) or not _HASH.fullmatch(words[1]):
        raise PolicyError(f"{path}, line {number}: a token's line is NAME sha256:HEX, as `dpsql token` writes it")
    return words[0], words[1].encode()
