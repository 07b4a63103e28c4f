"""Lines below a printed answer: whatever is to be said, there are four of them, and the worst comes first."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from dpsql.receipts import words
from dpsql.receipts.coverage_lines import CoverageReceipt
from dpsql.receipts.printed_table import PrintedTable
from dpsql.receipts.receipt import ColumnReceipt, Receipt
from dpsql.receipts.screen import MOST_CHARACTERS, MOST_LINES, Screen, Standing

MISSED = words.NOT_REACHED.format(
    shown="50 % of the groups are within it after 3 steps, at rho = 0.1", why="no more rho"
)
UNBOUNDED = words.WITHOUT_BOUNDS.format(**words.WITHOUT_BOUNDS.example)
NOTE = words.LEANS_UP.format()
STANDING = Standing(0.806, 3.0, 0.01, 0.2, 10)
WIDTH = ColumnReceipt("n", "count(*)", (0.0, 1.0), 1.0, 1.0, 9.55, 18.7, 1.0)


RECEIPT = Receipt(
    query_hash="",
    table="main.t",
    version="1",
    unit="patient",
    mechanism="gshm",
    rho=0.0175,
    epsilon=1.0,
    delta=1e-8,
    charged_rho=0.0175,
    charged_delta=2.5e-9,
    reused=False,
    max_groups=4,
    max_keys=None,
    threshold=57.68,
    columns=(WIDTH,),
    notes=(),
    asked_rho=0.0175,
    asked_by="epsilon",
)


def coverage(of: str, low: float, *, beyond: int = 0, least: int = 0, unknown: str = "") -> CoverageReceipt:
    """Return the coverage of one column."""
    return CoverageReceipt(
        of, "patient", low, low, low + 0.05, 4096.0, least, beyond, 0.34 if least else 0.0, 1.0, "", unknown
    )


def of_column(
    of: str, *, least: int = 0, unknown: str = "", most_cut: float = 0.09, totals: bool = False
) -> CoverageReceipt:
    """Return the coverage of an average, or of a sum of both signs."""
    kept = replace(coverage(of, 0.92, beyond=2 * least, least=least, unknown=unknown), size=64.0)
    if unknown:
        kept = replace(kept, share=None)
    nouns = "totals in a group" if totals else "values"
    return replace(
        kept,
        measured=nouns if totals else "rows",
        values=nouns,
        cut="scaled down" if totals else "cut at [0.5, 128]",
        most_cut=most_cut,
    )


def lines(
    *notes: str, table: PrintedTable | None = None, unknown: dict[str, str] | None = None, **changes: object
) -> list[str]:
    """Return the lines below an answer with some notes, and with other attributes of its receipt."""
    receipt = replace(RECEIPT, notes=notes, **changes)  # type: ignore[arg-type]
    printed = table or PrintedTable("", 5, has_half_widths=True)
    return Screen(receipt, printed, unknown or {}, STANDING, "answer.receipt").lines()


def test_an_answer_has_its_error_bounds_price_and_keys() -> None:
    assert lines(NOTE, NOTE, coverage=(coverage("rows", 0.91),)) == [
        "error   ± covers the noise with 95 % probability, not uncounted rows or values cut by bounds",
        "bounds  91 % to 97 % of all rows are counted",
        "price   epsilon 1 at delta 1e-08; spent so far: epsilon 0.806 of 3; 2 notes in answer.receipt",
        "groups  shown if their noisy count of units exceeds 57.68",
    ]
    assert lines(NOTE)[1:] == [
        "price   epsilon 1 at delta 1e-08; spent so far: epsilon 0.806 of 3, room for 10 more such questions",
        "groups  shown if their noisy count of units exceeds 57.68",
        "notes   1, in answer.receipt",
    ]


def test_the_worst_column_comes_first_and_units_beyond_are_never_left_out() -> None:
    kept = coverage("rows", 0.91), coverage("values of sum(cost)", 0.78, beyond=2914, least=646)
    *_, first, second, price = lines(NOTE, coverage=kept)
    assert first.startswith("bounds  sum(cost): at least 78 % of totals up to 4,096 per unit (patient) is counted;")
    assert "at least 646 units have more" in " ".join(f"{first} {second}".split())
    assert "34 % of all" in second
    assert price.startswith("price   epsilon 1 at delta 1e-08; spent: 0.806 of 3, room for 10 questions")


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        (
            of_column("avg(hits)"),
            "avg(hits): up to 9.0 % of units may have values cut at [0.5, 128]; at most 98 % and at least 92 % of its "
            "rows are counted for units with up to 64 of them",
        ),
        (
            of_column("avg(hits)", least=646),
            "avg(hits): at least 646 units have more than 64 of its rows, with at least 34 % of all; the counted part "
            "of theirs is not known; up to 9.0 % of units may have values cut at [0.5, 128]",
        ),
        (
            of_column("sum(net)", totals=True, most_cut=1.0),
            "sum(net): it is unknown how many totals in a group are scaled down; at most 98 % and at least 92 % of "
            "totals in a group (by size) are counted for units (patient) with up to 64",
        ),
        (
            replace(of_column("avg(hits)"), share=None, low=0.0),
            "avg(hits): up to 9.0 % of the units (patient) with values may have values cut at [0.5, 128]",
        ),
    ],
)
def test_the_warning_about_an_average_comes_first(kept: CoverageReceipt, told: str) -> None:
    found = lines(coverage=(kept,))
    begin = next(place for place, line in enumerate(found) if line.startswith("bounds"))
    end = next(place for place, line in enumerate(found) if line.startswith("price"))
    assert " ".join(" ".join(found[begin:end]).split()) == f"bounds {told}"


@pytest.mark.parametrize(
    ("changes", "price"),
    [
        ({"asked_by": "rho"}, "rho 0.0175 and threshold delta 2.5e-09; spent: 0.01 of 0.2, room for 10 questions"),
        (
            {"reused": True},
            "nothing: served as stored, with epsilon 1 at delta 1e-08; spent so far: epsilon 0.806 of 3",
        ),
        ({"asked_by": "rho", "charged_rho": 0.01, "charged_delta": 0.0}, "rho 0.01, for an answer with rho 0.0175"),
    ],
)
def test_a_price_is_told_in_the_words_of_the_question(changes: dict[str, Any], price: str) -> None:
    (line,) = (line for line in lines(**changes) if line.startswith("price"))
    assert line.startswith(f"price   {price}")


def test_there_are_four_short_lines_at_most() -> None:
    long = "a_column_whose_name_is_as_long_as_nobody_writes_them_but_a_program_may"
    told = [(), (MISSED,), (UNBOUNDED,), (MISSED, UNBOUNDED, NOTE)]
    kept = [
        (),
        (coverage(long, 0.78, beyond=10**7, least=10**6),),
        (coverage(long, 0.0, unknown="noise hides the units"),),
        (of_column(long, least=10**6),),
        (of_column(long, totals=True, most_cut=1.0), of_column("a")),
        (of_column(long, unknown="noise hides the units"),),
    ]
    unknown: list[dict[str, str]] = [{}, {long: "[0, 500]", f"{long}_too": "[0, 1]"}]
    nothing = [(), (f"groups by ({long}): {words.OTHER_KEYS}", f"groups by ({long}, {long}): {words.OTHER_KEYS}")]
    tables = [PrintedTable("", 0), PrintedTable("", 5, end_columns=(long, f"{long}_high"))]
    for notes, covered, nulls, empty, table in itertools.product(told, kept, unknown, nothing, tables):
        found = lines(*notes, coverage=covered, nothing_shown=empty, unknown=nulls, table=table)
        assert 2 <= len(found) <= MOST_LINES, found
        assert max(map(len, found)) <= MOST_CHARACTERS
        heads = {line[:8].strip() for line in found}
        assert {"price"} <= heads
        assert ("bounds" in heads) == bool(covered and table.rows)
        assert ("nothing" in heads) == bool(empty)
        if covered and table.rows and covered[0].least_beyond:
            below = " ".join(" ".join(found).split())
            assert "at least 1,000,000 units have more" in below or "at least 1,000,000 units may" in below
