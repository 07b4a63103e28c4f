"""Rows of the JSON document of an answer as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def plain_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a document with the value alone in place of a number with its interval."""
    numbers = {column["name"] for column in document["columns"] if column["kind"] == "number"}
    return [
        {name: value["value"] if name in numbers else value for name, value in row.items()} for row in document["rows"]
    ]
