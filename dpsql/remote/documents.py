"""Answers and refusals as JSON documents, in one form for the command line, the server and other tools.

``answer.schema.json`` beside this module is their JSON Schema. A document is a function of a result's table, receipt
and layout, or of an error. It has no number that these do not have. The budget of a unit is in none of them: a document
stays the same while others spend. ``FROM dp_budget()`` has it.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from dpsql.errors import DpsqlError, ParseError, Refusal, SchemaError, UnsupportedQueryError
from dpsql.receipts.column_types import duckdb_type
from dpsql.receipts.layout import Layout, told, values_of
from dpsql.receipts.receipt import Receipt
from dpsql.release.left_out import LeftOut
from dpsql.remote.wire import amounts_of
from dpsql.session import CoverageReceipt, Result

Document: TypeAlias = dict[str, Any]

SCHEMA = "dpsql-answer-1"
"""Version of the documents. A new member does not change it. A member with another meaning does."""
_RECEIPT_AT = "this document"
"""The place of the notes for a reader of the lines."""


@cache
def answer_schema() -> Document:
    """Return the JSON Schema of answers, tables and refusals."""
    found: Document = json.loads(Path(__file__).with_name("answer.schema.json").read_text(encoding="utf-8"))
    return found


def answer_document(result: Result) -> Document:
    """Return the document of a result.

    A number in ``rows`` is an object with ``value``, ``low`` and ``high``, the ends of its 95 % interval, and
    ``within``, which is what ``dp_within_target`` says of it. ``value`` is null where its interval covers its whole
    domain, as on the screen. The share that bounds keep is in ``columns``: it is released for a column and not for a
    row.

    Args:
        result: a private answer, or a table that is looked up. The latter has ``columns`` and ``rows`` alone, with
            plain values.

    """
    table, layout = result.arrow(), result.layout
    columns = _columns(table, result.receipt, layout)
    document = {"schema": SCHEMA, "columns": columns, "rows": list(answer_rows(result))}
    if result.receipt is None:
        return document
    # a result without a standing: other readers' charges are not in a document
    lines = Result(table, result.receipt, layout).lines_below(
        receipt_at=_RECEIPT_AT,
        has_ends=any(layout is not None and layout.interval(name) for name in table.column_names),
    )
    receipt = result.receipt
    return {
        **document,
        **_charged(receipt),
        "lines": lines,
        "kept": list(receipt.kept),
        "parts": [{"name": one.name, **_charged(one.receipt)} for one in receipt.sets],
    }


def answer_rows(result: Result) -> Iterator[Document]:
    """Yield the rows of a result as they are in its document."""
    shown, layout = told(result.arrow(), result.layout), result.layout
    kinds = _kinds(shown, result.receipt, layout)
    cells = [
        _numbers(name, shown, layout) if kinds[name] == "number" else map(json_value, values_of(shown.column(name)))
        for name in shown.column_names
    ]
    for row in zip(*cells, strict=True):
        yield dict(zip(shown.column_names, row, strict=True))


def refusal_document(error: DpsqlError) -> Document:
    """Return the document of an error: ``reasons`` has one member for each refusal, or one for the error.

    A reason has ``code``, ``place`` (line and column from 1, a half-open range of characters; null if it has none),
    ``reason`` and ``cure`` (an empty text if there is none). The code of an error without refusals is the name of its
    type in lower case with underscores, as in ``budget_error``. ``amounts`` has the numbers of the error, for example
    ``requested_rho`` and ``remaining_rho``.
    """
    return {
        "schema": SCHEMA,
        "error": type(error).__name__,
        "detail": str(error),
        "reasons": [_reason(one) for one in _refusals(error)],
        "amounts": {name: json_value(value) for name, value in amounts_of(error).items()},
    }


def document_text(document: Document) -> str:
    r"""Return a document as JSON text, in which each member, column, row and note begins a line.

    >>> print(document_text({"schema": "dpsql-answer-1", "rows": [{"n": 1}, {"n": 2}], "parts": []}), end="")
    {
      "schema": "dpsql-answer-1",
      "rows": [
        {"n": 1},
        {"n": 2}
      ],
      "parts": []
    }
    """
    members = []
    for name, value in document.items():
        text = json_text(value)
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(f"    {json_text(one)}" for one in value) + "\n  ]"
        members.append(f"  {json_text(name)}: {text}")
    return "{\n" + ",\n".join(members) + "\n}\n"


def json_text(value: object) -> str:
    """Return a JSON value as one line.

    Raises:
        ValueError: it holds NaN or an infinity.

    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def json_value(value: object) -> Any:
    """Return a value of a table as JSON has it.

    Whole numbers keep all digits. Decimals are texts. Floating-point numbers that are not finite are null. Times are
    ISO texts, those with a time zone in UTC. Blobs are base64.

    >>> [json_value(one) for one in (2**100, Decimal("0.10"), float("nan"), dt.date(2026, 11, 1), b"ab", [1, None])]
    [1267650600228229401496703205376, '0.10', None, '2026-11-01', 'YWI=', [1, None]]
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return f"{value:f}"
        case dt.datetime():
            return (value if value.tzinfo is None else value.astimezone(dt.UTC)).isoformat()
        case dt.date() | dt.time():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case pa.MonthDayNano():
            return {"months": value.months, "days": value.days, "nanoseconds": value.nanoseconds}
        case list() | tuple():
            return [json_value(one) for one in value]
        case Mapping():
            return {str(json_value(name)): json_value(one) for name, one in value.items()}
    return str(value)


def _kinds(table: pa.Table, receipt: Receipt | None, layout: Layout | None) -> dict[str, str]:
    """Return the kind of each column: ``key``, ``number`` if it is one aggregate of a private answer, or ``value``."""
    keys = set(layout.keys) if layout else set()
    numbers = {one.name for one in receipt.columns} if receipt else set()
    if receipt and layout:
        numbers |= {name for name in table.column_names if layout.interval(name)}
    return {
        name: "key" if name in keys and receipt else "number" if name in numbers else "value"
        for name in table.column_names
    }


def _columns(table: pa.Table, receipt: Receipt | None, layout: Layout | None) -> list[Document]:
    """Return name, DuckDB type and kind of each column, and of a private answer the share that bounds keep."""
    kinds = _kinds(table, receipt, layout)
    columns: list[Document] = [
        {"name": one.name, "type": duckdb_type(one.type), "kind": kinds[one.name]} for one in table.schema
    ]
    if receipt:
        for column in columns:
            column["kept"] = _kept(column["name"], receipt) if column["kind"] == "number" else None
    return columns


def _numbers(name: str, table: pa.Table, layout: Layout | None) -> Iterator[Document]:
    """Yield the numbers of a column with their intervals."""
    nothing = [None] * table.num_rows
    ends = layout.interval(name) if layout else None
    low, high = (end.slice(0, table.num_rows).to_pylist() for end in ends) if ends else (nothing, nothing)
    within = layout.within(name, table.num_rows) if layout else None
    for value, *others in zip(values_of(table.column(name)), low, high, within or nothing, strict=True):
        yield dict(zip(("value", "low", "high", "within"), map(json_value, (value, *others)), strict=True))


def _kept(name: str, receipt: Receipt) -> Document | None:
    """Return the share that bounds keep of a column, the worst of all parts; None if it is not measured."""
    found = [_share_of_rows(one.found) for _, one in receipt.all_left_out if name in one.columns]
    for one in (receipt, *(part.receipt for part in receipt.sets)):
        aggregates = [column.aggregate for column in one.columns if column.name == name]
        found += [_share(coverage) for coverage in one.coverage if any(_is_of(coverage, each) for each in aggregates)]
    if not found:
        return None
    # an unknown end is the worst one
    return min(found, key=lambda one: (not one["too_low"], one["low"] or 0.0))


def _is_of(coverage: CoverageReceipt, aggregate: str) -> bool:
    """Check that coverage is about an aggregate. Coverage of groups is about counts of units."""
    if coverage.of == "groups":
        return aggregate.startswith("count(DISTINCT")
    return aggregate == ("count(*)" if coverage.of == "rows" else coverage.of)


def _share_of_rows(found: LeftOut) -> Document:
    """Return the kept share of rows or amounts; None for what the shown numbers are too small to tell."""
    lost, low = found.could_be, None
    if lost is not None:
        low = json_value(1.0 - lost)
    return {
        "share": 1.0 / found.factor if found.is_too_low else None,
        "low": low,
        "high": None if low is None else json_value(found.shown / (found.shown + found.least)),
        "too_low": found.is_too_low,
    }


def _share(coverage: CoverageReceipt) -> Document:
    """Return the kept share of the rows or totals of a column; None if it is unknown."""
    if coverage.unknown or coverage.share is None:
        return {"share": None, "low": None, "high": None, "too_low": False}
    ends = {name: json_value(getattr(coverage, name)) for name in ("share", "low", "high")}
    return {**ends, "too_low": False}


def _charged(receipt: Receipt) -> Document:
    """Return price, guarantee and notes of a receipt. The price is an amount of rho or epsilon, as ``amount`` says."""
    return {
        "price": {
            "amount": receipt.amount,
            "charged": json_value(receipt.charged_rho),
            "charged_delta": json_value(receipt.charged_delta),
            "reused": receipt.reused,
        },
        "unit": receipt.unit,
        "epsilon": json_value(receipt.epsilon),
        "delta": json_value(receipt.delta),
        "query_hash": receipt.query_hash,
        "notes": list(receipt.notes),
    }


def _refusals(error: DpsqlError) -> tuple[Refusal, ...]:
    """Return the refusals of an error, or the error as one."""
    if isinstance(error, UnsupportedQueryError):
        return error.refusals
    code = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()
    if not isinstance(error, ParseError | SchemaError):
        return (Refusal(code, str(error), ""),)
    # its text has place and cure around the reason
    reason = str(error).removeprefix(f"{error.span}: ").removesuffix(error.hint).rstrip()
    return (Refusal(code, reason, error.hint, error.span),)


def _reason(refusal: Refusal) -> Document:
    """Return a refusal as JSON."""
    span = refusal.span
    place = span and {"line": span.line, "column": span.column, "start": span.start, "end": span.end}
    return {"code": refusal.code, "place": place, "reason": refusal.message, "cure": refusal.hint}
