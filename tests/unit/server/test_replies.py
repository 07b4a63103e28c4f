"""Forms of an answer, and ranges of its bytes."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from dpsql.errors import RemoteError
from dpsql.frontends.server.messages import Problem, busy, format_asked, ranged

CONTENT = bytes(range(100))


@pytest.mark.parametrize(
    ("asked", "status", "part", "place"),
    [
        (None, 200, CONTENT, None),
        ("bytes=0-9", 206, CONTENT[:10], "bytes 0-9/100"),
        ("bytes=90-", 206, CONTENT[90:], "bytes 90-99/100"),
        ("bytes=90-999", 206, CONTENT[90:], "bytes 90-99/100"),
        ("bytes=-8", 206, CONTENT[92:], "bytes 92-99/100"),
        ("bytes=-200", 206, CONTENT, "bytes 0-99/100"),
        ("bytes=99-99", 206, CONTENT[99:], "bytes 99-99/100"),
        ("bytes=100-", 416, b"", "bytes */100"),
        ("bytes=-0", 416, b"", "bytes */100"),
        ("bytes=9-3", 200, CONTENT, None),
        ("bytes=-", 200, CONTENT, None),
        ("bytes=0-1,5-6", 200, CONTENT, None),
        ("lines=0-1", 200, CONTENT, None),
        ("bytes=" + "9" * 5000 + "-", 200, CONTENT, None),
    ],
)
def test_a_range_is_what_the_standard_says(asked: str | None, status: int, part: bytes, place: str | None) -> None:
    reply = ranged(CONTENT, asked, {"ETag": '"x"'}, "application/json")
    assert (reply.status_code, reply.body, reply.headers.get("content-range")) == (status, part, place)
    assert reply.headers["content-length"] == str(len(part))


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (None, "json"),
        ("*/*", "json"),
        ("application/*", "json"),
        ("application/json", "json"),
        ("application/vnd.apache.arrow.stream", "arrow"),
        ("application/json;q=0.5, application/vnd.apache.arrow.stream", "arrow"),
        ("text/html, application/vnd.apache.parquet;q=0.3, */*;q=0.1", "parquet"),
        ("application/json;q=0, application/vnd.apache.parquet;q=0.3", "parquet"),
        ("text/html", None),
        ("application/json;q=0", None),
        ("application/json;q=x", None),
        ("", None),
    ],
)
def test_accept_chooses_the_form(accept: str | None, form: str | None) -> None:
    headers = [] if accept is None else [(b"accept", accept.encode())]
    request = Request({"type": "http", "headers": headers})
    if form is not None:
        assert format_asked(request) == form
        return
    with pytest.raises(Problem) as refused:
        format_asked(request)
    assert refused.value.status == 406


def test_a_question_too_many_may_be_asked_a_second_later() -> None:
    problem = busy(RemoteError("wait"))
    assert (problem.status, problem.headers) == (429, {"Retry-After": "1"})
