"""Lines below an answer whose numbers lack rows: the warning is first, and claims no more than the receipt."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from dpsql.receipts import left_out_words, words
from dpsql.receipts.left_out_words import lacks_people, may_cut_some
from dpsql.receipts.printed_table import PrintedTable
from dpsql.receipts.receipt import Receipt, SetReceipt
from dpsql.receipts.screen import MOST_CHARACTERS, MOST_LINES
from dpsql.release.left_out import LeftOut, LeftOutReceipt
from tests.unit.receipts.test_screen import MISSED, NOTE, RECEIPT, UNBOUNDED, WIDTH, coverage, lines, of_column

FIRES = LeftOut(57_431.0, 8_000.0, 212_000.0, 900.0, 4096.0, 212)
QUIET = replace(FIRES, value=3_000.0)
UNCLEAR = replace(FIRES, shown=3_000.0)
ELSEWHERE = replace(FIRES, groups=40, is_of_shown=False)
AMOUNT = replace(FIRES, value=1_234_567.0, sigma=1e5, shown=2_300_000.0, groups=5)
LONG = "a_column_whose_name_is_as_long_as_nobody_writes_them_but_a_program_may"


def rows(found: LeftOut, column: str = "n", **changes: Any) -> LeftOutReceipt:
    """Return the rows left out of a count."""
    return replace(LeftOutReceipt((column,), "rows", "visitor", found), **changes)


def amount(found: LeftOut, column: str = "cost") -> LeftOutReceipt:
    """Return the amount left out of a sum."""
    return LeftOutReceipt((column,), "sum(cost)", "visitor", found, is_amount=True)


def heads(found: list[str]) -> list[str]:
    return [line[:8].strip() for line in found]


def test_the_warning_and_the_estimate_come_first() -> None:
    assert lines(NOTE, left_out=(rows(FIRES),)) == [
        "too low  at least 44,000, probably 57,000 or more rows of busy visitors are left out of 212 groups",
        "whole    about 1.27 × these numbers, or more, if groups are cut alike: dp_unbounded(n)",
        "error    ± covers the noise with 95 % probability, not what is left out",
        "price    epsilon 1 at delta 1e-08; spent so far: epsilon 0.806 of 3; 1 note in answer.receipt",
    ]
    whole_answer = lines(left_out=(rows(replace(FIRES, groups=5)),))
    assert whole_answer[0] == "too low  at least 44,000, probably 57,000 or more rows of busy visitors are left out"
    assert whole_answer[3].endswith("room for 10 more such questions")


@pytest.mark.parametrize(
    ("found", "bounds"),
    [
        (QUIET, "no sign that rows are left out; up to 9 % could be, if no visitor lacks over 4,096 rows"),
        (replace(QUIET, value=-9e9), "no sign that rows are left out; up to 0.01 % could be"),
        (
            replace(QUIET, value=20_000.0),
            "no clear sign that rows are left out; up to 16 % could be, if no visitor lacks over 4,096",
        ),
        (
            replace(QUIET, sigma=40_000.0),
            "up to 31 % of the rows could be left out, if no visitor lacks over 4,096 rows",
        ),
        (replace(UNCLEAR, value=20_000.0), "too few rows are shown to say how many bounds leave out"),
        (UNCLEAR, "at least 44,000 rows are left out; too few are shown to say how large a part that is"),
        (
            replace(QUIET, groups=40, is_of_shown=False),
            "no sign that rows are left out, by 40 groups of another answer; up to 9 % could be",
        ),
    ],
)
def test_without_a_warning_a_line_says_what_could_be_left_out(found: LeftOut, bounds: str) -> None:
    shown = lines(left_out=(rows(found),))
    assert heads(shown) == ["error", "bounds", "price", "groups"]
    assert shown[0].endswith("not uncounted rows or values cut by bounds")
    assert shown[1].startswith(f"bounds  {bounds}")


def test_no_number_is_said_of_groups_that_the_answer_cannot_show() -> None:
    first, second, *_ = lines(left_out=(rows(ELSEWHERE),))
    assert first == "too low  probably about 21 % of these rows are left out, measured in 40 groups of another answer"
    assert "about 1.27 × these numbers" in second
    told = left_out_words.sentence(rows(ELSEWHERE))
    assert not re.search(r"57,\d|44,\d", told)
    assert "40 groups of another answer" in told


def test_an_amount_is_said_with_its_column() -> None:
    first, second, *_ = lines(left_out=(amount(AMOUNT),))
    assert first == "too low  cost: an amount of at least 1.07 million, probably 1.23 million or more is left out"
    assert second == "whole    about 1.54 × these numbers, or more, if groups are cut alike: dp_unbounded(cost)"
    assert lines(left_out=(amount(replace(AMOUNT, value=1.0)),))[1].startswith(
        "bounds  no sign that amounts are left out"
    )


def test_the_worst_of_several_columns_comes_first() -> None:
    columns = WIDTH, replace(WIDTH, name="cost")
    first, second, *_ = lines(left_out=(rows(FIRES), amount(AMOUNT)), columns=columns)
    assert first.startswith("too low  cost: at least 1.07 million, probably 1.23 million or more is left out")
    assert first.endswith("; n is too low, too")
    assert second == "whole    about 1.54 × cost and 1.27 × n, or more, if groups are cut alike: dp_unbounded"
    # a column that is not too low is not multiplied
    first, second, *_ = lines(left_out=(rows(FIRES), amount(replace(AMOUNT, value=0.0))), columns=columns)
    assert first.startswith("too low  n: at least 44,000")
    assert second == "whole    about 1.27 × n, or more, if groups are cut alike: dp_unbounded(n)"
    many = [rows(replace(FIRES, value=n * 1e4, groups=5), f"n{n}", of=f"count(c{n})") for n in (3, 5, 7, 6)]
    first, second, *_ = lines(left_out=tuple(many), columns=columns)
    assert first.startswith("too low  n7: at least 56,000, probably 70,000 or more rows")
    assert first.endswith("3 more are too low")
    assert second == "whole    about 1.33 × n7, or more, if groups are cut alike: dp_unbounded"
    quiet = lines(left_out=(rows(QUIET), amount(replace(AMOUNT, value=0.0))), columns=columns)
    assert quiet[1].startswith("bounds  no sign that rows or amounts are left out; up to 9 % could be")
    hidden = lines(left_out=(rows(QUIET), amount(replace(AMOUNT, value=0.0, shown=9.0))), columns=columns)
    assert hidden[1] == "bounds  cost: too little is shown to say how much bounds leave out"


def test_a_grouping_set_is_named_if_there_are_several() -> None:
    by_city = SetReceipt(("city",), replace(RECEIPT, left_out=(rows(FIRES),)))
    in_all = SetReceipt((), replace(RECEIPT, left_out=(rows(replace(FIRES, value=90_000.0, groups=1)),)))
    one = lines(sets=(by_city, SetReceipt((), RECEIPT)))
    assert one[0].startswith("too low  at least 44,000")
    two = lines(sets=(by_city, in_all))
    assert two[0].startswith("too low  (): at least 76,000, probably 90,000 or more rows")
    assert two[0].endswith("; (city) is too low, too")
    assert two[1] == "whole    about 1.42 × n of () and 1.27 × n of (city), or more, if groups are cut alike"
    assert lines(sets=(in_all, replace(by_city, receipt=replace(RECEIPT, left_out=(rows(QUIET),)))))[1] == (
        "whole    about 1.42 × the numbers of (), or more: dp_unbounded(n)"
    )
    receipt = replace(RECEIPT, sets=(by_city, in_all))
    assert [told.partition(":")[0] for told in receipt.kept] == ["(city)", "()"]
    assert receipt.too_low_of("n") is None, "its sets have factors of their own"
    assert replace(RECEIPT, sets=(by_city,)).too_low_of("n") == FIRES


def test_coverage_of_other_columns_gives_way_to_the_warning() -> None:
    kept = (of_column("avg(hits)", least=646),)
    assert heads(lines(left_out=(rows(FIRES),), coverage=kept)) == ["too low", "whole", "error", "price"]
    assert "1 note in answer.receipt" in lines(left_out=(rows(FIRES),), coverage=kept)[-1]
    both = lines(left_out=(rows(QUIET),), coverage=kept)
    assert heads(both) == ["error", "bounds", "bounds", "price"]
    assert both[1].startswith("bounds  no sign that rows of n are left out; up to 9 % could be")
    assert both[2] == "bounds  avg(hits): at least 646 units may have uncounted rows"
    computed = lines(left_out=(rows(QUIET, columns=()),), coverage=kept)
    assert computed[1].startswith("bounds  no sign that rows are left out; up to 9 %")
    missed = lines(MISSED, left_out=(rows(QUIET),), coverage=kept)
    assert heads(missed) == ["missed", "error", "bounds", "price"]
    assert missed[2] == both[2]


def test_a_join_of_single_rows_keeps_its_place_if_there_is_room() -> None:
    note = words.SINGLE_ROW.format(unit="visitor", tables="main.people")
    shown = lines(note, left_out=(rows(QUIET),))
    assert shown[1].startswith("bounds  only 1 row of a unit joins from main.people (the rest is unknown); no sign")
    assert "up to 9 % could be" in " ".join(" ".join(shown).split())
    assert heads(lines(note, left_out=(rows(FIRES),))) == ["too low", "whole", "error", "price"]


def test_truth_values_that_are_null_say_why() -> None:
    note = left_out_words.within_unknown(rows(QUIET), 0.1)
    why = "up to 9 % of the rows could be left out, too much beside the noise to be sure of 10 %"
    assert note == f"NULL in truth values about the target: {why}"
    shown = lines(note, left_out=(rows(QUIET),))
    assert heads(shown) == ["within", "error", "price", "groups"]
    assert shown[0] == f"within  NULL: {why}"
    too_low = left_out_words.within_unknown(rows(FIRES), 0.1)
    assert too_low.endswith("numbers are too low, because rows are left out")
    assert heads(lines(too_low, left_out=(rows(FIRES),)))[0] == "too low"
    shorter = left_out_words.within_unknown(rows(replace(QUIET, value=-18e3)), 0.1)
    assert lines(shorter)[0] == "within  NULL: up to 0.01 % of the rows could be left out, too much beside the noise"
    unclear = left_out_words.within_unknown(amount(replace(UNCLEAR, value=0.0)), 0.1)
    assert unclear.endswith("too little is shown to say how much bounds leave out")
    sign = left_out_words.within_unknown(rows(replace(QUIET, value=QUIET.sigma * 2.0)), 0.1)
    assert sign.endswith(f": rows seem to be left out, and of one visitor more than {QUIET.cut:,.9g} may be")
    # other columns say nothing of rows, whose own line stays
    for other in (may_cut_some("rows or values", ["cost"]), lacks_people("people", 12.0, "visitor", 0.1)):
        assert heads(lines(other, left_out=(rows(QUIET),)))[:3] == ["within", "error", "bounds"]
    receipt = replace(RECEIPT, notes=(note,))
    assert receipt.missing == (note,)
    assert note in receipt.sections["error"]


@pytest.mark.parametrize(
    ("column", "of", "call"),
    [
        ("n", "rows", "dp_unbounded(n)"),
        ("my rows", "rows", 'dp_unbounded("my rows")'),
        ("count_star()", "rows", "add AS n, dp_unbounded(n)"),
        ("sum(cost)", "sum(cost)", "add AS n, dp_unbounded(n)"),
    ],
)
def test_the_estimate_is_asked_for_with_text_that_can_be_pasted(column: str, of: str, call: str) -> None:
    (wording, *_) = left_out_words.whole([("", rows(FIRES, column, of=of))])
    assert wording.endswith(f"cut alike: {call}")
    (unnamed, *_) = lines(left_out=(rows(FIRES, column, of=of),))[1:]
    assert unnamed.endswith(call)
    (none, *_) = left_out_words.whole([("", rows(FIRES, columns=()))])
    assert none.endswith("cut alike")


def test_a_cut_of_one_row_is_one_row() -> None:
    sentence = left_out_words.sentence(rows(replace(FIRES, cut=1.0)))
    assert "at most 1 row is counted here" in sentence


def test_one_group_has_its_own_estimate() -> None:
    alone = lines(left_out=(rows(replace(FIRES, groups=1)),), table=PrintedTable("", 1))
    assert alone[1] == "whole    about 1.27 × this number, or more: dp_unbounded(n)"
    assert "alike" not in left_out_words.sentence(rows(replace(FIRES, groups=1)))


def test_what_is_computed_from_a_count_has_no_factor() -> None:
    """A ratio of two sums is not too low as they are."""
    bounded = "sum(cost, contribution_bounds_per_row => (0, 50))"
    count, total = rows(FIRES, columns=()), replace(amount(AMOUNT), columns=(), of=bounded)
    first, second, *_ = lines(left_out=(count,))
    assert first.startswith("too low  at least 44,000")
    assert second == "whole    about 1.27 × the counted rows, or more, if groups are cut alike"
    assert lines(left_out=(total,))[1] == "whole    about 1.54 × sum(cost), or more, if groups are cut alike"
    both = lines(left_out=(count, total))[1]
    assert both == "whole    about 1.54 × sum(cost) and 1.27 × the counted rows, or more, if groups are cut alike"


def test_a_warning_names_another_column_of_which_much_may_be_left_out() -> None:
    few = rows(replace(QUIET, value=50_000.0, sigma=20_000.0), "few", of="count(*) FILTER (WHERE old)")
    assert lines(left_out=(rows(replace(FIRES, groups=3)), few))[0] == (
        "too low  n: at least 44,000, probably 57,000 or more rows are left out; few may be, too"
    )
    hardly = replace(few, found=replace(QUIET, value=0.0, sigma=9_000.0))
    assert "few" not in lines(left_out=(rows(FIRES), hardly))[0]


def test_a_long_price_below_a_warning_is_not_cut() -> None:
    paid: dict[str, Any] = {
        "charged_rho": 0.00677369,
        "charged_delta": 2.5e-9,
        "epsilon": 1.594,
        "delta": 1.25e-8,
        "reused": False,
    }
    price = lines(left_out=(rows(FIRES),), **paid)[3]
    assert price == "price    rho 0.00677369 and threshold delta 2.5e-09, for epsilon 1.594 at delta 1.25e-08"


def test_an_answer_that_is_computed_from_another_has_none_of_its_numbers() -> None:
    """A column may have the name of a count, and be something else."""
    of_set = SetReceipt(("city",), replace(RECEIPT, left_out=(rows(FIRES),)))
    receipt = replace(RECEIPT, left_out=(rows(FIRES),), sets=(of_set,)).of_computed
    assert receipt.is_too_low
    assert not receipt.too_low_columns


def numbers_of(text: str) -> list[float]:
    """Return the numbers of a text that follow ``at least``."""
    scale = {"": 1.0, "million": 1e6, "billion": 1e9, "trillion": 1e12}
    pattern = r"at least ([\d,.]*\d)(?: (million|billion|trillion))?"
    return [float(number.replace(",", "")) * scale[word] for number, word in re.findall(pattern, text)]


def test_no_wording_claims_more_than_the_numbers() -> None:
    for exponent, lead in itertools.product(range(-3, 15), (1.0, 1.099, 1.9999, 2.0, 5.55, 9.999)):
        value = lead * 10.0**exponent
        found = replace(FIRES, value=value, sigma=value / 10.0, shown=10.0 * value, shown_sigma=value / 10.0)
        assert found.is_too_low
        for one in (rows(found), amount(found)):
            for text in (*left_out_words.too_low([("", one)], 5), left_out_words.sentence(one)):
                assert all(0.0 < number <= found.least * (1.0 + 1e-12) for number in numbers_of(text)), text
        quiet = replace(found, value=0.0)
        (most,) = {re.search(r"up to ([\d.]+) %", text)[1] for text in left_out_words.bounds([("", rows(quiet))])}  # type: ignore[index]
        assert quiet.could_be is not None
        assert float(most) >= 100.0 * quiet.could_be


def test_there_are_four_short_lines_at_most() -> None:
    huge = replace(FIRES, value=1.23e18, sigma=1e17, shown=1.0, shown_sigma=0.1, groups=10**7)
    notes = [(), (MISSED,), (MISSED, UNBOUNDED, NOTE, words.SINGLE_ROW.format(unit=LONG, tables=LONG))]
    notes += [(MISSED, UNBOUNDED, left_out_words.within_unknown(rows(QUIET), 0.1))]
    kept = [(), (coverage(LONG, 0.78, beyond=10**7, least=10**6),), (of_column(LONG, least=10**6), of_column("a"))]
    columns = [
        (rows(FIRES, LONG, unit=LONG),),
        (rows(QUIET, LONG, unit=LONG), amount(UNCLEAR, LONG)),
        (amount(huge, LONG), rows(FIRES, LONG), rows(QUIET)),
        (rows(ELSEWHERE, LONG, of=LONG), rows(UNCLEAR)),
    ]
    nothing: list[tuple[str, ...]] = [(), (f"groups by ({LONG}): coarser keys help", LONG)]
    ends = PrintedTable("", 5, end_columns=(LONG, f"{LONG}_high"))
    tables: list[tuple[PrintedTable, dict[str, str]]] = [(ends, {LONG: "[0, 500]"}), (PrintedTable("", 5), {})]
    for said, covered, left, empty, (table, nulls) in itertools.product(notes, kept, columns, nothing, tables):
        found = lines(*said, coverage=covered, left_out=left, nothing_shown=empty, unknown=nulls, table=table)
        assert 1 <= len(found) <= MOST_LINES, found
        assert max(map(len, found)) <= MOST_CHARACTERS
        assert "price" in heads(found)
        fires = any(one.found.is_too_low for one in left)
        assert heads(found)[len(empty) > 0 : 2].count("too low") == fires
        assert ("×" in " ".join(found)) == fires, "the factor is never left out"


def test_an_answer_without_rows_has_no_warning() -> None:
    found = lines(left_out=(rows(FIRES),), nothing_shown=("LIMIT left out all 7 groups",), table=PrintedTable("", 0))
    assert heads(found) == ["nothing", "price", "groups"]


def receipt_with(*found: LeftOutReceipt) -> Receipt:
    return replace(RECEIPT, left_out=found)


def test_the_receipt_has_all_details() -> None:
    (told,) = receipt_with(rows(FIRES)).kept
    assert told == (
        "numbers are too low: the whole is about 1.27 × as much, or more, if groups are cut alike; the noisy number of "
        "rows that bounds leave out of 212 groups is 57,430 (standard deviation 8,000); at least 44,000 (95 %); of one "
        "unit (visitor) at most 4,096 rows are counted here, and what one unit has beyond that is in no number; up to "
        "27 % of the whole could be left out, and more beyond that cut"
    )
    (told,) = receipt_with(amount(replace(AMOUNT, value=-5.0))).kept
    assert told.startswith("sum(cost): the noisy amount that bounds leave out of 5 groups is -5 (")
    assert "at least" not in told
    (told,) = receipt_with(rows(UNCLEAR)).kept
    assert told.endswith("too little is shown to compare with")
    assert math.isnan(UNCLEAR.high_factor)
    receipt = receipt_with(rows(FIRES, columns=("n", "m")), amount(replace(AMOUNT, value=0.0)))
    assert receipt.too_low_columns == {"n", "m"}
    assert receipt.sections["bounds"][:2] == receipt.kept
