"""What is printed has the digits that its interval knows, and what is read has all of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dpsql.receipts.layout import Layout, rounded
from dpsql.receipts.result import Result

TABLE = pa.table(
    {
        "city": ["Lund", "Umeå"],
        "n": [10, 12],
        "mean": [112.12734432094317, 7.5],
        "low": [100.12734432094317, 4.25],
        "high": [124.12734432094317, 10.75],
        "ratio": [0.123456789, 0.5],
    }
)
ENDS = pa.table({"low n": [8.0, 9.0], "high n": [12.0, 15.0], "low mean": TABLE["low"], "high mean": TABLE["high"]})
LAYOUT = Layout(("city",), is_cut=True, units="n", ends=ENDS)


def test_numbers_and_ends_have_two_digits_of_the_narrowest_interval() -> None:
    shown = rounded(TABLE, LAYOUT)
    assert shown.schema == TABLE.schema
    assert shown["mean"].to_pylist() == [112.1, 7.5]
    assert (shown["low"].to_pylist(), shown["high"].to_pylist()) == ([100.1, 4.2], [124.1, 10.8])
    # a whole number, and what is no number of its own
    assert (shown["n"], shown["ratio"]) == (TABLE["n"], TABLE["ratio"])


@pytest.mark.parametrize("layout", [None, Layout(("city",), is_cut=False, units=None, ends=pa.table({}))])
def test_without_intervals_nothing_is_rounded(layout: Layout | None) -> None:
    assert rounded(TABLE, layout) == TABLE


def test_an_empty_answer_and_one_without_a_width_are_printed_as_they_are() -> None:
    assert rounded(TABLE.slice(0, 0), Layout((), False, None, ENDS.slice(0, 0))).num_rows == 0
    exact = pa.table({f"{end} mean": TABLE["mean"] for end in ("low", "high")})
    assert rounded(TABLE, Layout((), False, None, exact)) == TABLE


def test_what_is_printed_is_rounded_and_what_is_read_is_not() -> None:
    result = Result(TABLE, layout=LAYOUT)
    assert "112.1 " in str(result)
    assert "112.12" not in str(result)
    assert result.fetchall()[0][2] == result.df()["mean"][0] == 112.12734432094317
