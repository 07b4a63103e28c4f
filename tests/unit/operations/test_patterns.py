"""Patterns: what is accepted means what DuckDB says; large automata, unknown parts and slow groups are refused."""

from __future__ import annotations

import random

import duckdb
import pytest
from sqlglot import exp

from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import parse_statement
from dpsql.operations.pattern_automata import MAX_STEPS, is_one_pass, size_of
from dpsql.operations.pattern_bytes import byte_sequences
from dpsql.operations.pattern_syntax import PatternError, parsed
from dpsql.operations.row_sql import total_sql
from dpsql.sql.pattern_rules import MAX_SEARCHES, _read, check_pattern
from tests.pattern_texts import ACCEPTED, EXPONENTIAL, SIGNS, UNKNOWN

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
    sizes = {text: size_of(parsed(text)) for text in EXPONENTIAL}
    assert [text for text, size in sizes.items() if size.is_small] == []
    assert max(size.steps for size in sizes.values()) < 1.1 * MAX_STEPS


def test_sequences_of_bytes_are_those_of_the_characters_of_a_range() -> None:
    source = random.Random(3)
    for _ in range(300):
        low = source.choice((source.randrange(0x900), source.randrange(0x11000)))
        high = low + source.randrange(source.choice((3, 100, 5_000)))
        found = list(byte_sequences(low, high))
        assert all(start <= end for sequence in found for start, end in sequence)
        for code in {low, high, *(source.randint(max(0, low - 70), high + 70) for _ in range(60))}:
            written = chr(code).encode("utf-8", "surrogatepass")
            fits = [
                len(one) == len(written) and all(a <= byte <= b for (a, b), byte in zip(one, written, strict=True))
                for one in found
            ]
            assert sum(fits) == (low <= code <= high), (low, high, code)


def test_states_are_counted_in_bytes_with_the_kind_of_the_last_one() -> None:
    assert size_of(parsed("a.{5}#")).states > 1.5 * size_of(parsed("a[ -~]{5}#")).states
    # beside a border of a word, a state also says if the byte before it belongs to a word
    assert size_of(parsed("[a-]b")).states > size_of(parsed("[ac]b")).states


def test_a_group_with_a_table_beyond_the_memory_is_not_one_pass() -> None:
    several = "".join(SIGNS[:16])
    assert is_one_pass(parsed(f"^([{several}]{{10}})-"))
    assert not is_one_pass(parsed(f"^([{several}]{{80}})-"))


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


def refused(texts: list[str], sources: tuple[str, ...] = ("s",)) -> list[str]:
    """Return the messages of refusals of a query with searches for patterns."""
    calls = " OR ".join(f"regexp_matches({source}, '{text}')" for text in texts for source in sources)
    statement = f"SELECT count(*) FROM t WHERE {calls}"
    refusals = Refusals(statement)
    for call in parse_statement(statement).find_all(exp.RegexpLike):
        check_pattern(call, refusals)
    return [refusal.message for refusal in refusals.found]


def test_the_searches_of_a_query_are_few_and_their_automata_small_together() -> None:
    assert refused([f"error{number}" for number in range(MAX_SEARCHES)]) == []
    assert len(refused([f"error{number}" for number in range(MAX_SEARCHES + 1)])) == 1
    # each call builds an automaton, of the same pattern too
    assert len(refused(["error"], tuple(f"upper(s{number})" for number in range(MAX_SEARCHES + 1)))) == 1
    assert refused(["a.{6}#", "b.{6}#"]) == []
    assert refused(["a.{6}#", "b.{6}#", "c.{6}#"]) == refused([f"error{number}" for number in range(300)])


def test_patterns_after_a_large_one_are_not_read() -> None:
    texts = [f"[{''.join(SIGNS[number:])}].{{8}}#" for number in range(10)]
    _read.cache_clear()
    assert len(refused(texts)) == 2
    assert _read.cache_info().misses == 1
