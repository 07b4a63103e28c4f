"""Settings of ``dpsql serve``: limits of requests over HTTP, beside the limits of access."""

from __future__ import annotations

from dataclasses import dataclass

from dpsql.access.limits import Limits


@dataclass(frozen=True, slots=True)
class Settings(Limits):
    """How the server answers: the limits of every door, and those of requests over HTTP.

    Attributes:
        body_bytes: largest request.
        body_seconds: within which the headers of a request have to be here, and then its body.
        ask_by_get: whether a GET may ask, and so charge.

    """

    body_bytes: int = 2**20
    body_seconds: float = 20.0
    ask_by_get: bool = False
