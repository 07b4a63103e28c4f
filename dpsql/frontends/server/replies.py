"""Answers as bytes: the form that Accept or the address asks for, whole or a range of it."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from dpsql.errors import RemoteError
from dpsql.frontends.copied import copied
from dpsql.frontends.server.problems import Problem, not_found
from dpsql.frontends.server.query import Query
from dpsql.remote.wire import ARROW, JSON, PARQUET, to_arrow
from dpsql.session import Result

FORMATS: Mapping[str, str] = {"json": JSON, "arrow": ARROW, "parquet": PARQUET}
"""Names at the end of an address, and the media types that they mean; the first is the default."""

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def format_asked(request: Request) -> str:
    """The form that the reader prefers of those that there are.

    Raises:
        Problem: Accept allows none of them (406).

    """
    wanted = []
    for place, one in enumerate(request.headers.get("accept", "*/*").split(",")):
        kind, *parameters = (part.strip().lower() for part in one.split(";"))
        wanted.append((-_weight(parameters), place, kind))
    for weight, _, kind in sorted(wanted):
        for name, media_type in FORMATS.items():
            if weight and kind in (media_type, "*/*", f"{media_type.partition('/')[0]}/*"):
                return name
    raise Problem(406, RemoteError(f"answers come as {', '.join(FORMATS.values())}"))


def format_named(name: str) -> str:
    """The form that an address ends with.

    Raises:
        Problem: there is no such form (404).

    """
    if name not in FORMATS:
        raise not_found(f"answers end in {', '.join('.' + one for one in FORMATS)}")
    return name


def _weight(parameters: list[str]) -> float:
    found = next((one[2:] for one in parameters if one.startswith("q=")), "1")
    return float(found) if re.fullmatch(r"[01](\.\d{0,3})?", found) else 0.0


def encode(result: Result, name: str) -> bytes:
    """The answer in one of ``FORMATS``."""
    return to_arrow(result) if name == "arrow" else copied(result, name)


async def answer_reply(query: Query, result: Result, name: str, request: Request) -> Response:
    """The answer, or the range of it that is asked for; the bytes of one query never change."""
    if name not in query.encoded:
        # two requests may make the same bytes at a time; the first ones stay, so that ranges fit together
        query.encoded.setdefault(name, await asyncio.to_thread(encode, result, name))
    content = query.encoded[name]
    tag = hashlib.sha256(content).hexdigest()[:32]
    headers = {"Accept-Ranges": "bytes", "ETag": f'"{tag}"', "Cache-Control": "private, no-store"}
    return ranged(content, request.headers.get("range"), headers, FORMATS[name])


def ranged(content: bytes, asked: str | None, headers: Mapping[str, str], media_type: str) -> Response:
    """The bytes, or one range of them (RFC 9110, 14); several ranges, or what is no range, get them all."""
    size, found = len(content), _RANGE.fullmatch((asked or "").strip())
    if found is None or found.groups() == ("", ""):
        return Response(content, 200, dict(headers), media_type=media_type)
    first, last = found.groups()
    start = int(first) if first else max(0, size - int(last))
    end = min(int(last), size - 1) if first and last else size - 1
    if first and last and int(last) < int(first):
        return Response(content, 200, dict(headers), media_type=media_type)
    if start >= size or (not first and not int(last)):
        return Response(b"", 416, {**headers, "Content-Range": f"bytes */{size}"}, media_type=media_type)
    part = {**headers, "Content-Range": f"bytes {start}-{end}/{size}"}
    return Response(content[start : end + 1], 206, part, media_type=media_type)
