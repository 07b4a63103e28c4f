"""The table of what goes with what: every row is met by a query, and asks about things that there are."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import pytest

import dpsql
from dpsql.mechanism.registry import MECHANISMS
from dpsql.model.combinations import COMBINATIONS, Combination, Known
from dpsql.model.private_query import OPTION_NAMES, QueryOptions
from dpsql.model.refusals import CODES, Refusals, refuse_combinations, that_hold
from dpsql.sql.options import _WORDS, MAX_GROUPS_LIMIT
from tests.sql.golden_records import Clinic, new_session, records

WORDS = {f"{name} = {word}" for name, words in _WORDS.items() for word in words} | {"max_groups_contributed = AUTO"}
WORDS |= {f"mechanism = {one.word}" for one in MECHANISMS}
THINGS = {*OPTION_NAMES, *WORDS, *get_args(Known)}


@cache
def refused() -> list[str]:
    """Return the lines of all messages by which queries of golden records are refused."""
    codes = {row.code for row in COMBINATIONS}
    clinic, lines = Clinic(), []
    for record in (one for one in records() if one.directive == "refuse"):
        if any(part.partition("@")[0] in codes for part in record.expected[0].split()[1:]):
            with clinic.declaring(record) as session, pytest.raises(dpsql.DpsqlError) as raised:
                session.sql(record.sql, record.params, **record.options)
            lines += str(raised.value).splitlines()
    clinic.close()
    return lines


_COUNT = "SELECT count(DISTINCT patient_id) FROM visits"
QUERIES: dict[tuple[str, str], tuple[tuple[str, ...], dict[str, Any], str]] = {
    ("rho_ceiling", "a lower ceiling of the policy, or limit of the reader"): (
        ("CALL dp_protect('visits', coverage := FALSE, rho_ceiling := 0.5)",), {"rho_ceiling": 0.75}, _COUNT,
    ),
    ("refresh", "as_of an earlier version"): (
        ("CALL dp_new_version('visits', version := '2')",), {"refresh": True, "as_of": "1"}, _COUNT,
    ),
}  # fmt: skip
"""Declarations, options and a text that meet a row which needs more than the tables and the policy of the records."""


def _name(row: Combination) -> str:
    return f"{row.thing} x {row.beside[0]}"


def _pattern(row: Combination) -> re.Pattern[str]:
    """The line of a refusal, with anything in the place of names in braces."""
    words = re.split(r"\{[^}]*\}", f"{row.message} {row.hint}")
    return re.compile(rf"- \[{row.code}\] .*{'.+'.join(map(re.escape, words))}$")


def _is_met(row: Combination) -> bool:
    return any(_pattern(row).search(line) for line in refused())


@pytest.mark.parametrize("row", COMBINATIONS, ids=_name)
def test_a_record_or_a_query_meets_every_row(row: Combination) -> None:
    if (row.thing, row.beside[0]) not in QUERIES:
        assert _is_met(row)
        return
    declarations, options, text = QUERIES[row.thing, row.beside[0]]
    with new_session() as session:
        for declaration in declarations:
            session.sql(declaration)
        with pytest.raises(dpsql.UnsupportedQueryError) as raised:
            session.sql(text, **options)
    (line,) = str(raised.value).splitlines()[1:]
    assert _pattern(row).search(line)


def test_a_query_stands_here_only_where_no_record_can() -> None:
    rows = {(row.thing, row.beside[0]): row for row in COMBINATIONS}
    assert not any(_is_met(rows[pair]) for pair in QUERIES)


def test_a_row_that_nobody_meets_is_found() -> None:
    assert not _is_met(replace(COMBINATIONS[0], message="rho and epsilon are twins."))


def test_no_two_rows_are_about_the_same_things() -> None:
    pairs = Counter(frozenset((row.thing, other)) for row in COMBINATIONS for other in row.beside)
    assert [pair for pair, count in pairs.items() if count > 1] == []
    assert all(row.thing not in row.beside for row in COMBINATIONS)


def test_no_two_rows_say_the_same() -> None:
    assert len({(row.code, row.message, row.hint) for row in COMBINATIONS}) == len(COMBINATIONS)


def test_things_are_options_their_words_or_known_of_a_query() -> None:
    named = {thing for row in COMBINATIONS for thing in (row.thing, *row.beside)}
    assert named <= THINGS
    assert set(get_args(Known)) <= named
    assert not set(get_args(Known)) & WORDS


@pytest.mark.parametrize("row", COMBINATIONS, ids=_name)
def test_a_row_has_a_code_a_sentence_and_a_cure(row: Combination) -> None:
    assert row.code in CODES
    assert row.message.endswith(".")
    assert row.hint.endswith(".")


def test_options_are_given_by_their_names_and_words() -> None:
    options = QueryOptions(rho=0.1, mechanism="CSH", top_k=MAX_GROUPS_LIMIT, own_threshold=False, refresh=True)
    assert options.given == {"rho", "mechanism", "mechanism = CSH", "top_k", "refresh"}
    assert QueryOptions().given == frozenset()


def test_an_empty_text_is_given() -> None:
    assert "buckets" in QueryOptions(buckets="").given


def _refused(things: set[str], known: set[str], *, first: bool = False) -> list[str]:
    refusals = Refusals("")
    noted = refuse_combinations(things, known, None, refusals, first=first, mechanism="CSH")
    assert noted == bool(refusals.found)
    return [refusal.message for refusal in refusals.found]


def test_a_thing_alone_is_not_refused() -> None:
    assert _refused({"other_group"}, {"other_group"}) == []


def test_things_are_not_refused_where_nobody_asks_about_them() -> None:
    assert _refused({"other_group"}, {"other_group", "GROUPING SETS", "top_k"}) == [
        "other_group is for one set of keys in GROUP BY."
    ]


def test_what_the_query_has_not_is_not_refused() -> None:
    assert _refused({"other_group", "buckets"}, {"GROUPING SETS", "private keys"}) == []


def test_all_are_noted_in_the_order_of_the_table_or_the_first() -> None:
    known = {"public keys", "a mechanism without public keys", "top_k"}
    found = _refused({"public keys"}, known)
    assert found == [
        "every listed key is answered, so there is nothing to pre-select.",
        "CSH chooses which keys are shown, and here all of them are.",
    ]
    assert _refused({"public keys"}, known, first=True) == found[:1]


def test_two_of_the_things_beside_are_one_refusal() -> None:
    assert len(_refused({"GROUPING SETS"}, {"GROUPING SETS", "top_k", "a mechanism without GROUPING SETS"})) == 1


def test_what_holds_is_kept() -> None:
    assert that_hold({"HAVING": None, "quantiles": 2, "public keys": False, "private keys": True}) == {
        "quantiles", "private keys",
    }  # fmt: skip
