"""Texts without a private part: nobody pays for them, so a server answers them behind all that somebody pays for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_POSTPONES: ContextVar[bool] = ContextVar("postpones", default=False)


class FreeText(BaseException):
    """Signal that a text has no private part, and that nothing was computed of it yet."""


@contextlib.contextmanager
def free_texts_postponed() -> Iterator[None]:
    """Raise `FreeText` where this thread would compute a text without a private part inside the block."""
    token = _POSTPONES.set(True)
    try:
        yield
    finally:
        _POSTPONES.reset(token)


def postpone_free_text() -> None:
    """Raise `FreeText` inside `free_texts_postponed`."""
    if _POSTPONES.get():
        raise FreeText
