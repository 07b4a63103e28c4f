"""Patterns: what is accepted means what DuckDB says; large automata, unknown parts and slow groups are refused."""

from __future__ import annotations

import random

import duckdb
import pytest

from dpsql.operations.pattern_automata import is_one_pass, size_of
from dpsql.operations.pattern_syntax import PatternError, parsed
from dpsql.operations.row_sql import total_sql
from tests.pattern_texts import ACCEPTED, EXPONENTIAL, UNKNOWN

CALLS = (
    "regexp_matches(\"s\", '{p}')",
    "regexp_extract(\"s\", '{p}', {g})",
    "regexp_replace(\"s\", '{p}', '<>')",
    "regexp_full_match(\"s\", '{p}')",
    "regexp_matches(\"s\", '{p}', 'i')",
)


def texts(pattern: str, count: int) -> list[str]:
    """Return random texts of what is written in a pattern, and of what is in none."""
    source = random.Random(pattern)
    pieces = [*pattern, "ab", "c", "/", "@", " ", "é", "日", "\n", "2026-01-31", "foo", "bar", "-", "x.y", "A"]
    return ["", *("".join(source.choices(pieces, k=source.randrange(1, 30))) for _ in range(count))]


def test_accepted_patterns_have_few_states_and_their_groups_are_one_pass() -> None:
    assert len(ACCEPTED) >= 30
    for text, group in ACCEPTED:
        pattern = parsed(text)
        assert size_of(pattern).is_small, text
        assert group <= pattern.groups
        assert not group or is_one_pass(pattern), text


def test_exponential_automata_have_too_many_states() -> None:
    assert len(EXPONENTIAL) >= 20
    assert [text for text in EXPONENTIAL if size_of(parsed(text)).is_small] == []


@pytest.mark.parametrize("text", UNKNOWN)
def test_unknown_parts_are_named(text: str) -> None:
    with pytest.raises(PatternError):
        parsed(text)


def test_slow_groups_are_not_one_pass() -> None:
    for text in (r"^(.*)-(.*)$", r"(a*)(a*)c", r"((a|b)(a|b|c)?)*d", r"(a|ab)(c|bcd)", r"(a*)*b", r"(é|è)x"):
        assert not is_one_pass(parsed(text)), text


def test_what_is_computed_is_what_duckdb_says_of_the_cut_text() -> None:
    with duckdb.connect() as connection:
        for text, group in ACCEPTED:
            found = [[one] for one in (*texts(text, 60), "a" * 2_000 + "c")]
            connection.execute("CREATE OR REPLACE TABLE t (s VARCHAR)")
            connection.executemany("INSERT INTO t VALUES (?)", found)
            written = [call.format(p=text, g=group) for call in CALLS]
            plain = connection.execute(
                f"SELECT {', '.join(written)} FROM (SELECT left(s, 1000) AS s FROM t)"
            ).fetchall()
            total = connection.execute(f"SELECT {', '.join(map(total_sql, written))} FROM t").fetchall()
            assert total == plain, text


def test_a_pattern_that_is_read_is_one_that_duckdb_reads() -> None:
    source = random.Random(7)
    signs = [*"ab.()[]|*+?{}^$-\\,0123dw:", "(?:", "{2}", "[a-z]", r"\d", "[^", "é", "(?i)", "[:digit:]"]
    known = 0
    with duckdb.connect() as connection:
        for _ in range(1_500):
            text = "".join(source.choices(signs, k=source.randrange(1, 9)))
            try:
                pattern = parsed(text)
            except PatternError:
                continue
            known += 1
            size_of(pattern)
            # an error of DuckDB would be raised here
            connection.execute("SELECT regexp_matches(s, $1) FROM (VALUES ('ab0-')) t(s)", [text]).fetchall()
    assert known > 150
