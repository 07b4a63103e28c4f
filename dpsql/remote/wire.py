"""What travels between server and client: values, receipts and errors as JSON, tables as Arrow streams.

Everything is data: an error is rebuilt from its type's name and the attributes that its type has, and nothing that is
received is ever executed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from dpsql import errors
from dpsql.errors import DpsqlError, Refusal, RemoteError, Span, rebuilt
from dpsql.receipts.layout import Layout
from dpsql.receipts.receipt import SetReceipt
from dpsql.release.left_out import LeftOut, LeftOutReceipt
from dpsql.session import ColumnReceipt, CoverageReceipt, Receipt, Result, is_told

ARROW = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"
JSON = "application/json"
PROBLEM = "application/problem+json"

_RECEIPT, _LAYOUT, _ENDS = b"dpsql.receipt", b"dpsql.layout", b"dpsql.interval_ends"
_LAYOUT_NAMES = ("keys", "is_cut", "units", "domains", "has_others")
_ATTRIBUTES = (
    "span",
    "hint",
    "refusals",
    "unit",
    "analyst",
    "requested_rho",
    "remaining_rho",
    "requested_delta",
    "remaining_delta",
    "requested_epsilon",
    "remaining_epsilon",
    "limit_rho",
    "amount",
)


def to_json(value: object) -> Any:
    """A value as JSON has it; what JSON has no word for becomes an object with one member, its type.

    Raises:
        TypeError: there is no such value in a statement, an option or a receipt.

    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"double": str(value)}
        case Decimal():
            return {"decimal": str(value)}
        case dt.datetime():
            return {"timestamp": value.isoformat()}
        case dt.date():
            return {"date": value.isoformat()}
        case list() | tuple():
            return [to_json(one) for one in value]
        case Mapping():
            return {str(name): to_json(one) for name, one in value.items()}
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            members = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
            return {name: to_json(member) for name, member in members if is_told(name, member)}
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent")


_TYPED: dict[str, Callable[[str], object]] = {
    "double": float,
    "decimal": Decimal,
    "timestamp": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
}


def scalar_of(value: object) -> Any:
    """The value that `to_json` made of a single one.

    Raises:
        ValueError: it is none.

    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case dict() if len(value) == 1:
            ((kind, text),) = value.items()
            if kind in _TYPED and isinstance(text, str):
                try:
                    return _TYPED[kind](text)
                except ArithmeticError:
                    raise ValueError(kind) from None
    raise ValueError("neither a JSON value nor an object of one of " + ", ".join(_TYPED))


def _fields(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """The members that this version knows, so that a newer server may say more."""
    return {field.name: data[field.name] for field in dataclasses.fields(kind) if field.name in data}


def receipt_of(data: Mapping[str, Any]) -> Receipt:
    """The receipt that `to_json` made an object of.

    Raises:
        KeyError, TypeError, ValueError: it is none.

    """
    known = _fields(Receipt, data)
    return Receipt(
        **{
            name: scalar_of(known[name])
            for name in known.keys() - {"columns", "notes", "sets", "coverage", "nothing_shown", "left_out"}
        },
        columns=tuple(map(_column_of, data["columns"])),
        notes=tuple(data["notes"]),
        sets=tuple(SetReceipt(tuple(one["keys"]), receipt_of(one["receipt"])) for one in data["sets"]),
        # a server of before says nothing of it
        coverage=tuple(CoverageReceipt(**_scalars(CoverageReceipt, one)) for one in data.get("coverage", ())),
        nothing_shown=tuple(map(str, data.get("nothing_shown", ()))),
        left_out=tuple(map(_left_out_of, data.get("left_out", ()))),
    )


def _scalars(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: scalar_of(one) for name, one in _fields(kind, data).items()}


def _column_of(data: Mapping[str, Any]) -> ColumnReceipt:
    known: dict[str, Any] = {
        name: tuple(map(scalar_of, one)) if isinstance(one, list) else scalar_of(one)
        for name, one in _fields(ColumnReceipt, data).items()
    }
    return ColumnReceipt(**known)


def _left_out_of(data: Mapping[str, Any]) -> LeftOutReceipt:
    known = _scalars(LeftOutReceipt, {name: one for name, one in data.items() if name not in ("columns", "found")})
    return LeftOutReceipt(
        **known, columns=tuple(map(str, data["columns"])), found=LeftOut(**_scalars(LeftOut, data["found"]))
    )


def to_arrow(result: Result) -> bytes:
    """An Arrow stream of the table, with the receipt and what is known of the columns in its schema."""
    table = result.arrow()
    told = {_RECEIPT: json.dumps(to_json(result.receipt), allow_nan=False).encode()}
    if result.layout is not None:
        names = {name: getattr(result.layout, name) for name in _LAYOUT_NAMES}
        told |= {_LAYOUT: json.dumps(to_json(names)).encode(), _ENDS: _stream_of(result.layout.ends)}
    return _stream_of(table.replace_schema_metadata({**(table.schema.metadata or {}), **told}))


def _stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _table_of(content: bytes) -> pa.Table:
    with pa.ipc.open_stream(content) as reader:
        table = reader.read_all()
    # what reads it next, DuckDB for one, believes that times are times and texts are texts
    table.validate(full=True)
    return table


def result_of(content: bytes) -> Result:
    """The result that `to_arrow` made a stream of.

    Raises:
        RemoteError: it is none.

    """
    try:
        table = _table_of(content)
        metadata = dict(table.schema.metadata or {})
        found = json.loads(metadata.pop(_RECEIPT))
        receipt = None if found is None else receipt_of(found)
        names, ends = metadata.pop(_LAYOUT, None), metadata.pop(_ENDS, None)
        layout = None if names is None or ends is None else _layout_of(json.loads(names), _table_of(ends))
    except (pa.ArrowInvalid, OSError, KeyError, TypeError, ValueError, RecursionError):
        raise RemoteError("the server answered with a result that cannot be read; is it of another version?") from None
    return Result(table.replace_schema_metadata(metadata or None), receipt, layout)


def _layout_of(data: Mapping[str, Any], ends: pa.Table) -> Layout:
    units = data["units"]
    # a server of before says nothing of domains, and nothing of columns that are computed
    domains = {str(name): str(domain) for name, domain in data.get("domains", {}).items()}
    if any(f"unknown {name}" not in ends.column_names for name in domains):
        raise ValueError("a column has a domain, and no row says whether its interval covers that")
    keys = tuple(map(str, data["keys"]))
    has_others = bool(data.get("has_others", False))
    return Layout(keys, bool(data["is_cut"]), None if units is None else str(units), ends, domains, has_others)


def error_to_json(error: DpsqlError) -> dict[str, Any]:
    """Type, message and attributes of an error."""
    attributes = {name: to_json(value) for name, value in vars(error).items() if name in _ATTRIBUTES}
    return {"error": type(error).__name__, "detail": str(error), **attributes}


def amounts_of(error: DpsqlError) -> dict[str, object]:
    """Return the numbers of an error and the names of their budget: all attributes that travel but place and cure."""
    told = (name for name in _ATTRIBUTES if name not in ("span", "hint", "refusals"))
    return {name: vars(error)[name] for name in told if name in vars(error)}


def error_of(data: Mapping[str, Any]) -> DpsqlError:
    """The error that `error_to_json` made an object of; a RemoteError where its type is not known here."""
    kind = getattr(errors, str(data.get("error")), None)
    message = str(data.get("detail") or "the server refused")
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        if isinstance(kind, type) and issubclass(kind, DpsqlError):
            attributes = {name: _attribute(name, data[name]) for name in _ATTRIBUTES if name in data}
            return rebuilt(kind, (message,), attributes)
    return RemoteError(message)


def _attribute(name: str, value: Any) -> object:
    if name == "span":
        return None if value is None else Span(**_fields(Span, value))
    if name == "refusals":
        return tuple(Refusal(**{**_fields(Refusal, one), "span": _attribute("span", one["span"])}) for one in value)
    return scalar_of(value)
