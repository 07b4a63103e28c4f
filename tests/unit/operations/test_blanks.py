"""Blanks of cures: the parser names those that are not filled in, and a comparison is no blank."""

from __future__ import annotations

import pytest

from dpsql.errors import ParseError
from dpsql.operations import blanks
from dpsql.operations.dialect import parse_statement
from tests.cures import VALUES_OF_BLANKS, filled

BLANKS = {
    one
    for value in vars(blanks).values()
    for one in (value if isinstance(value, tuple) else (value,))
    if isinstance(one, str) and one.endswith(">")
}
TEXTS = (
    "CALL dp_protect('t', max_rows_per_group := {})",
    "CALL dp_domain('t', 'x', keys := [{}])",
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (max_groups_contributed = {}, rho = 1) count(*) FROM t",
    "SELECT sum(x, contribution_bounds_per_row => (0, {})) FROM t",
    "SELECT dp_sum(x, {}, {}) FROM t",
)


def test_every_blank_has_a_value_in_the_tests_of_cures() -> None:
    assert set(VALUES_OF_BLANKS) == BLANKS


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("blank", sorted(BLANKS))
def test_a_blank_is_named_until_it_is_filled_in(text: str, blank: str) -> None:
    written = text.replace("{}", blank)
    with pytest.raises(ParseError, match=f"fill in {blank.removeprefix('DATE ')}. Write a value") as refused:
        parse_statement(written)
    assert refused.value.span
    assert written[refused.value.span.start :].startswith(blank.removeprefix("DATE "))
    parse_statement(filled(written))


@pytest.mark.parametrize("condition", ["(a <b and c> d)", "x = '(<b>'", "a <b", "f(a, b <c)"])
def test_a_comparison_is_no_blank(condition: str) -> None:
    parse_statement(f"SELECT count(*) FROM t WHERE {condition}")
    with pytest.raises(ParseError, match="not valid SQL"):
        parse_statement(f"SELECT count(*) FROM t WHERE {condition} GROUP")
