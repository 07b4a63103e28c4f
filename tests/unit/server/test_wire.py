"""What crosses the network arrives as it was: values, receipts, errors with their places, tables."""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from dpsql import errors
from dpsql.errors import BudgetError, DpsqlError, ParseError, Refusal, RemoteError, Span, UnsupportedQueryError
from dpsql.receipts.layout import Layout
from dpsql.receipts.receipt import SetReceipt
from dpsql.release.left_out import LeftOut, LeftOutReceipt
from dpsql.remote.wire import error_of, error_to_json, receipt_of, result_of, scalar_of, to_arrow, to_json
from dpsql.session import ColumnReceipt, Receipt, Result

COLUMN = ColumnReceipt("n", "count(*)", (0.0, math.inf), 1.0, 2.0, 0.1 + 0.2, None, 2.0**-20)
RECEIPT = Receipt(
    "hash",
    "main.visits",
    "1",
    "patient",
    "gshm",
    0.1,
    math.inf,
    1e-9,
    0.1,
    5e-324,
    False,
    4,
    None,
    22.5,
    (COLUMN,),
    ("a note",),
)
WHOLE = Receipt(
    "hash",
    "main.visits",
    "1",
    "patient",
    "gshm",
    0.1,
    2.0,
    1e-9,
    0.1,
    0.0,
    True,
    None,
    7,
    None,
    (),
    (),
    (SetReceipt(("city",), RECEIPT), SetReceipt((), RECEIPT)),
)

SPAN = Span(2, 7, 30, 35)
RAISED: tuple[DpsqlError, ...] = (
    ParseError("not valid SQL", SPAN),
    ParseError("not valid SQL"),
    errors.SchemaError("no table 'x'.", hint="Did you mean 'y'?", span=SPAN),
    UnsupportedQueryError([Refusal("star", "A star.", "Name columns.", SPAN), Refusal("b", "c", "d")]),
    BudgetError("patient", requested_rho=0.5, remaining_rho=1e-9, requested_delta=0.0, remaining_delta=3e-31),
    BudgetError("u", analyst="ana", requested_rho=0.5, remaining_rho=0.1, requested_delta=0.0, remaining_delta=1e-9),
    errors.EngineError(),
    errors.AccessError("no"),
    errors.RemoteError("busy"),
)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        2**70,
        -1.5,
        math.inf,
        -math.inf,
        "",
        "Lund \U0001f600",
        Decimal("1.50"),
        dt.date(2026, 11, 1),
        dt.datetime(2026, 11, 1, 12, 30, 0, 5),
        dt.datetime(2026, 11, 1, tzinfo=dt.UTC),
    ],
)
def test_a_value_arrives_with_its_type(value: object) -> None:
    received = scalar_of(json.loads(json.dumps(to_json(value), allow_nan=False)))
    assert received == value
    assert type(received) is type(value)


@pytest.mark.parametrize(
    "value",
    [[], {}, {"date": 1}, {"date": "x"}, {"decimal": "x"}, {"double": ""}, {"object": "x"}, {"date": "a", "b": 1}],
)
def test_what_is_no_value_is_refused(value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 — by whichever type reads it
        scalar_of(value)


def test_what_cannot_be_sent_says_so() -> None:
    with pytest.raises(TypeError, match="bytes"):
        to_json(b"x")


LEFT_OUT = LeftOutReceipt(
    ("n", "m"),
    "rows",
    "patient",
    LeftOut(-1.5, 0.1 + 0.2, 0.0, math.inf, 2.0**60, 3, is_of_shown=False),
    is_amount=True,
)
LACKING = replace(
    WHOLE, left_out=(LEFT_OUT,), sets=(SetReceipt(("city",), replace(RECEIPT, left_out=(LEFT_OUT,) * 2)),)
)


def test_receipts_of_other_versions_have_nothing_of_rows_left_out() -> None:
    sent = json.loads(json.dumps(to_json(LACKING), allow_nan=False))
    before = {name: value for name, value in sent.items() if name != "left_out"}
    assert receipt_of(before).left_out == ()
    newer = {**sent["left_out"][0], "of_a_newer_version": 1}
    assert receipt_of({**sent, "left_out": [newer]}).left_out == (LEFT_OUT,)
    with pytest.raises(KeyError):
        receipt_of({**sent, "left_out": [{"of": "rows"}]})


@pytest.mark.parametrize("receipt", [RECEIPT, WHOLE, LACKING])
def test_a_receipt_arrives_whole(receipt: Receipt) -> None:
    sent = json.loads(json.dumps(to_json(receipt), allow_nan=False))
    assert receipt_of(sent) == receipt
    assert receipt_of({**sent, "of_a_newer_version": 1}) == receipt


@pytest.mark.parametrize("receipt", [None, WHOLE, LACKING])
def test_a_table_arrives_with_its_types_and_its_receipt(receipt: Receipt | None) -> None:
    table = pa.table({"city": ["Lund", None], "n": pa.array([1, 2], pa.decimal128(38, 0)), "x": [math.nan, math.inf]})
    arrived = result_of(to_arrow(Result(table, receipt)))
    assert arrived.receipt == receipt
    assert arrived.arrow().schema.equals(table.schema, check_metadata=True)
    assert arrived.arrow().drop(["x"]).equals(table.drop(["x"]))


def test_what_is_known_of_the_columns_arrives() -> None:
    ends = pa.table({"low n": [0.5, math.nan], "high n": [1.5, math.nan]})
    table = pa.table({"city": ["Lund", None], "n": [1, 2]})
    for layout in (Layout(("city",), True, "n", ends), Layout((), False, None, ends)):
        arrived = result_of(to_arrow(Result(table, WHOLE, layout)))
        assert arrived.layout is not None
        assert (arrived.layout.keys, arrived.layout.is_cut, arrived.layout.units) == (
            layout.keys,
            layout.is_cut,
            layout.units,
        )
        assert str(arrived.layout.ends) == str(ends)
        assert arrived.arrow().schema.equals(table.schema, check_metadata=True)


@pytest.mark.parametrize("content", [b"", b"not arrow", to_arrow(Result(pa.table({"n": [1]})))[:40]])
def test_what_is_no_result_says_so(content: bytes) -> None:
    with pytest.raises(RemoteError, match="another version"):
        result_of(content)


@pytest.mark.parametrize(
    ("kind", "content"),
    [(pa.time64("us"), b"\xff" * 7 + b"\x7f"), (pa.string(), b"\0\0\0\0\4\0\0\0")],
    ids=["a time of day after the last", "a text that is no UTF-8"],
)
def test_values_that_are_none_of_their_type_are_no_result(kind: pa.DataType, content: bytes) -> None:
    """A reader would believe them: DuckDB's shell ends on such a time."""
    buffers = [None, pa.py_buffer(content), *([pa.py_buffer(b"\xff\xfe\xc3(")] if kind == pa.string() else [])]
    table = pa.table({"x": pa.Array.from_buffers(kind, 1, buffers)})
    with pytest.raises(RemoteError, match="cannot be read"):
        result_of(to_arrow(Result(table, None)))


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_an_error_arrives_whole(error: DpsqlError) -> None:
    received = error_of(json.loads(json.dumps(error_to_json(error), allow_nan=False)))
    assert type(received) is type(error)
    assert (str(received), vars(received)) == (str(error), vars(error))


def test_every_error_can_arrive() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DpsqlError)]
    assert len(kinds) > 10
    for kind in kinds:
        assert type(error_of({"error": kind.__name__, "detail": "why"})) is kind


@pytest.mark.parametrize(
    "data",
    [
        {"error": "SystemExit", "detail": "why"},
        {"error": "Span", "detail": "why"},
        {"error": "__builtins__", "detail": "why"},
        {"error": ["x"], "detail": "why"},
        {"error": "ParseError", "detail": "why", "span": 3},
        {"error": "UnsupportedQueryError", "detail": "why", "refusals": [{"code": "x"}]},
    ],
)
def test_no_other_name_is_an_error(data: dict[str, object]) -> None:
    received = error_of(data)
    assert type(received) is RemoteError
    assert str(received) == "why"
