"""Numbers that lack rows are lower ends wherever they are shown, and a picture has the estimate behind them."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pyarrow as pa
import pytest

from dpsql.frontends.dbt.log_line import MOST_CHARACTERS, log_line
from dpsql.frontends.frames.advice import in_words_of_pandas
from dpsql.frontends.frames.shape import Measure
from dpsql.pictures.charts import LIGHT_BAR
from dpsql.receipts.layout import Layout
from dpsql.receipts.printed_table import print_table
from dpsql.receipts.result import Result
from dpsql.release.left_out import LeftOut, LeftOutReceipt
from tests.unit.receipts.test_screen import MISSED, RECEIPT, of_column

FIRES = LeftOut(57_431.0, 8_000.0, 212_000.0, 900.0, 4096.0, 212)
LOW = LeftOutReceipt(("n", "m"), "rows", "visitor", FIRES)
QUIET = replace(LOW, found=replace(FIRES, value=3_000.0))
TABLE = pa.table(
    {
        "page": ["/", "/a", "/b"],
        "n": [23_793, 1_520, None],
        "m": [23_793, 1_520, None],
        "people": [900, 152, 40],
        "cost": [7.25, 3.5, 1.0],
    }
)
ENDS = pa.table(
    {
        "low n": [23_426.0, 1_153.0, None],
        "high n": [24_160.0, 1_887.0, None],
        "low m": [23_426.0, 1_500.0, None],
        "high m": [24_160.0, 1_887.0, None],
        "low people": [890.0, 142.0, 30.0],
        "high people": [910.0, 162.0, 50.0],
    }
)
LAYOUT = Layout(("page",), is_cut=False, units=None, ends=ENDS)


def cells(box: str) -> list[list[str]]:
    """Return the cells of the rows of a box."""
    rows = [line.split("│")[1:-1] for line in box.splitlines() if line.startswith("│ /")]
    return [[cell.strip() for cell in row] for row in rows]


def test_numbers_that_are_too_low_are_printed_as_lower_ends() -> None:
    printed = print_table(TABLE, LAYOUT, intervals=True, too_low={"n", "m", "no_column"})
    assert cells(printed.box) == [
        ["/", "≥ 23,793 ± 367", "≥ 23,793 (23,426 … 24,160)", "900 ± 10", "7.25"],
        ["/a", "≥ 1,520 ± 367", "≥ 1,520 (1,500 … 1,887)", "152 ± 10", "3.5"],
        ["/b", "NULL", "NULL", "40 ± 10", "1.0"],
    ]
    assert "int64" in printed.box.splitlines()[2]
    assert (printed.has_half_widths, printed.has_ends) == (True, True)
    assert "≥" not in print_table(TABLE, LAYOUT, intervals=True).box


@pytest.mark.parametrize("layout", [None, LAYOUT])
def test_without_intervals_the_numbers_stay_lower_ends(layout: Layout | None) -> None:
    printed = print_table(TABLE, layout, intervals=False, too_low={"n", "cost"})
    assert cells(printed.box)[0] == ["/", "≥ 23,793", "23793", "900", "≥ 7.25"]
    assert not printed.has_half_widths
    empty = print_table(TABLE.slice(0, 0), layout, intervals=True, too_low={"n"})
    assert "≥" not in empty.box


def test_every_way_to_look_at_an_answer_shows_lower_ends() -> None:
    result = Result(TABLE, replace(RECEIPT, left_out=(LOW,)), LAYOUT)
    assert "≥ 23,793 ± 367" in str(result)
    assert "\ntoo low  at least 44,000" in str(result)
    assert "≥ 23,793" in result.printed(intervals=False)
    page = html.unescape(re.sub(r"<[^>]*>", "|", result._repr_html_()))
    assert "|≥ 23,793 |" in page
    assert "|900 |" in page
    assert "|NULL|" in page
    assert "|too low  at least 44,000" in page
    quiet = Result(TABLE, replace(RECEIPT, left_out=(QUIET,)), LAYOUT)
    assert "≥" not in str(quiet) + quiet._repr_html_()


def test_a_picture_has_light_bars_up_to_the_estimate() -> None:
    figures, colors = pytest.importorskip("matplotlib.figure"), pytest.importorskip("matplotlib.colors")
    for left_out, column, is_light in (((LOW,), "n", True), ((LOW,), "people", False), ((QUIET,), "n", False)):
        axes = figures.Figure().subplots()
        Result(TABLE, replace(RECEIPT, left_out=left_out), LAYOUT).plot(column, ax=axes)
        light, *dark = axes.containers if is_light else [None, *axes.containers]
        assert len(dark) == 1
        text = axes.texts[0].get_text()
        assert ("light: about 1.27 × as much, or more, if groups are cut alike" in " ".join(text.split())) == is_light
        heads = {line[:9] for line in text.splitlines() if line.strip()}
        if light is not None:
            factor = 1.0 + 57_431.0 / 212_000.0
            assert [bar.get_width() for bar in light] == pytest.approx([factor * 23_793, factor * 1_520])
            assert [bar.get_width() for bar in dark[0]] == [23_793.0, 1_520.0]
            assert {bar.get_facecolor() for bar in light} == {colors.to_rgba(LIGHT_BAR)}
            assert heads >= {"drawn    ", "too low  ", "price    "}


def test_the_line_of_the_log_warns_first() -> None:
    fires = replace(RECEIPT, left_out=(LOW,), notes=(MISSED,))
    assert log_line("hits", fires) == (
        "hits: too low: at least 44,000, probably 57,000 or more rows of busy visitors are left out"
    )
    assert log_line("a_long_name_of_a_model", fires).endswith("probably 57,000 or more rows are left out")
    assert log_line("m" * 90, fires).endswith("…: too low; see its receipt")
    assert log_line("hits", replace(fires, nothing_shown=("no city is shown",))).startswith("hits: no city is shown")
    quiet = replace(RECEIPT, left_out=(QUIET,))
    assert log_line("hits", quiet).startswith("hits: no sign that rows are left out; up to 9 % could be")
    assert log_line("hits", replace(quiet, notes=(MISSED,))).startswith("hits: missed: 50 % of the groups are")
    warned = replace(quiet, coverage=(of_column("avg(cost)", least=646),))
    assert "avg(cost)" in log_line("hits", warned)
    for receipt in (fires, quiet, warned):
        for length in range(1, 120):
            assert len(log_line("m" * length, receipt)) <= MOST_CHARACTERS


def test_a_receipt_of_a_frame_names_columns_as_the_answer_does() -> None:
    low = LeftOutReceipt(("costs",), "sum(cost)", "visitor", FIRES, is_amount=True)
    measure = Measure("costs", "sum", "cost")
    (told,) = in_words_of_pandas(replace(RECEIPT, left_out=(low,)), [measure], lambda _: "sum(cost)").kept
    assert told.startswith("costs: numbers are too low")
    assert "sum(" not in told
    assert "dp_unbounded" not in told
