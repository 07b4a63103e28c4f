"""Reading one text: which statement it is, where its errors stand, and what no text can make the reader do."""

from __future__ import annotations

import contextlib
import logging
import math
import random
import re
from collections.abc import Callable, Iterator
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.errors import BudgetError, CalibrationError, DpsqlError, ParseError, PolicyError, QueryError
from dpsql.operations.dialect import parse_statement, span_of
from dpsql.sql.row_rules import FUNCTION_EXAMPLES
from dpsql.sql.statements import FunctionCall, Scalar, SelectStatement, read_statement
from tests.sql.golden_records import Clinic, Record, records

QUERIES = [record for record in records() if record.directive in ("plan", "exact") and record.params is None]
TOKEN = re.compile(r"\s+|\w+|'[^']*'|\"[^\"]*\"|\S")
WORDS = [token for record in QUERIES for token in TOKEN.findall(record.sql) if token.strip()]
ODDITIES = TOKEN.findall(
    "(),.;*NULL 1e400'x'$1?:x=>:=[{lambda->::AS IN ANY CASE FILTER OVER INTERVAL ESCAPE UNION PIVOT HAVING random()"
    "current_date count(*)dp_interval_low(n)0-1 99999999999999999999'nan'cost/0 fee*fee/*--$$@\\'"
)
NAMES = tuple(example.partition("(")[0] for example in FUNCTION_EXAMPLES)


@pytest.fixture(scope="module")
def clinic() -> Iterator[Clinic]:
    clinic = Clinic()
    yield clinic
    clinic.close()


def test_a_call_becomes_python_values() -> None:
    call = read_statement("CALL dp_domain('visits', city, keys := ['a', 1, -2.5, DATE '2026-01-01', NULL, true])")
    assert isinstance(call, FunctionCall)
    assert call.name == "dp_domain"
    assert call.positional == ("visits", "city")
    assert call.named == {"keys": ("a", 1, -2.5, "2026-01-01", None, True)}
    assert call.literals["keys"] == ("'a'", "1", "-2.5", "CAST('2026-01-01' AS DATE)", "NULL", "TRUE")


@pytest.mark.parametrize(
    "text", ["FROM dp_budget('patient')", "SELECT * FROM dp_budget('patient') b", "CALL DP_BUDGET('patient')"]
)
def test_books_are_read_by_from_and_by_call(text: str) -> None:
    call = read_statement(text)
    assert isinstance(call, FunctionCall)
    assert (call.name, call.positional) == ("dp_budget", ("patient",))


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("SELECT a,\n  FROM t WHERE x === 1", 2, 20),
        ("call dp_unit", 1, 6),
        ("call dp_unit('x'", 1, 14),
        ("  PRAGMA x", 1, 3),
        ("SELECT * FROM dp_budget() LIMIT 1", 1, 15),
        ("CALL f()", 1, 6),
        ("CALL dp_unit('é😀', rho_budget := 1 + 1)", 1, 34),
    ],
)
def test_parse_errors_say_where(text: str, line: int, column: int) -> None:
    with pytest.raises(ParseError) as caught:
        read_statement(text)
    assert caught.value.span is not None
    assert (caught.value.span.line, caught.value.span.column) == (line, column)


def test_a_span_is_a_range_of_characters() -> None:
    text = "SELECT '😀',\n       median(cost) FROM t"
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    span = span_of(statement.tree.expressions[1], text)
    assert span is not None
    assert text[span.start : span.end] == "median(cost"


@pytest.mark.parametrize(
    "comment",
    [
        "/* sqlglot.anonymous */",
        "/* sqlglot.meta end=5 */",
        "/* sqlglot.meta start=x,end=y */",
        "--sqlglot.meta written=abs\n",
    ],
)
def test_comments_cannot_reach_into_the_tree(comment: str) -> None:
    texts = [f"SELECT abs(a) {c} FROM t WHERE b {c} = 1 {c}" for c in (" " * len(comment), comment)]
    plain, commented = (parse_statement(text) for text in texts)
    assert commented == plain
    for node, other in zip(commented.walk(), plain.walk(), strict=True):
        assert (node.meta.get("start"), node.meta.get("end")) == (other.meta.get("start"), other.meta.get("end"))
        assert node.meta.get("written") == other.meta.get("written")


def test_nothing_of_a_text_is_logged_by_the_parser(caplog: pytest.LogCaptureFixture) -> None:
    texts = (
        "EXPLAIN SELECT 'canary'",
        "CALL f('canary')",
        "SHOW ALL canary",
        "ALTER TABLE canary FOO",
        "VACUUM canary",
    )
    with caplog.at_level(logging.DEBUG):
        for text in texts:
            with pytest.raises(DpsqlError):
                read_statement(text)
    assert caplog.records == []


DEEP: dict[str, Callable[[int], str]] = {
    "parentheses": lambda n: "SELECT " + "(" * n + "1" + ")" * n + ", count(*) FROM visits",
    "calls": lambda n: "SELECT count(*) FROM visits WHERE " + "abs(" * n + "1" + ")" * n + " > 0",
    "cases": lambda n: "SELECT count(*) FROM visits WHERE " + "case when true then " * n + "1" + " end" * n + " > 0",
    "conditions": lambda n: "SELECT count(*) FROM visits WHERE " + " AND ".join(["urgent"] * n),
    "additions": lambda n: "SELECT count(*) FROM visits WHERE " + "1 + " * n + "1 > 0",
    "subqueries": lambda n: "SELECT count(*) FROM " + "(SELECT * FROM " * n + "visits" + ")" * n,
    "unions": lambda n: " UNION ALL ".join(["SELECT count(*) FROM visits"] * n),
    "lists": lambda n: "SELECT count(*) FROM visits WHERE cost = " + "[" * n + "1" + "]" * n,
}


@pytest.mark.parametrize("kind", DEEP)
def test_depth_is_refused_and_never_a_crash(kind: str, clinic: Clinic) -> None:
    with pytest.raises(DpsqlError):
        clinic.plan(Record("", 0, "plan", DEEP[kind](3000), None, {}, ()))


@pytest.mark.parametrize("kind", ["conditions", "additions"])
def test_long_is_not_deep(kind: str, clinic: Clinic) -> None:
    clinic.plan(Record("", 0, "plan", DEEP[kind](100), None, {}, ()))


def test_a_struct_without_names_is_no_sql() -> None:
    """sqlglot fails on it with an error of Python."""
    with pytest.raises(ParseError):
        read_statement("SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_half_width = {: 5}) count(*) AS n FROM t")


def test_half_characters_are_refused() -> None:
    for text, values in (
        ("SELECT '\ud800' FROM t", []),
        ('SELECT 1 AS "\udfff" FROM t', []),
        ("SELECT ? FROM t", ["\ud800"]),
    ):
        with pytest.raises(ParseError):
            read_statement(text, values)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.dates(),
    st.datetimes(),
    st.floats(),
    st.decimals(),
    st.text(st.characters(codec="utf-8")),
)


@given(st.lists(SCALARS, max_size=4))
def test_any_value_can_be_a_parameter_unless_it_is_not_finite(values: list[Scalar]) -> None:
    text = "SELECT 1 FROM t WHERE c IN (0" + ", ?" * len(values) + ") LIMIT 5"
    if not all(value.is_finite() for value in values if isinstance(value, Decimal)) or not all(
        math.isfinite(value) for value in values if isinstance(value, float)
    ):
        with pytest.raises(ParseError):
            read_statement(text, values)
        return
    statement = read_statement(text, values)
    assert isinstance(statement, SelectStatement)
    written = statement.tree.args["where"].this.sql("duckdb")
    assert parse_statement(f"SELECT 1 FROM t WHERE {written} LIMIT 5") == statement.tree


def mutated(text: str, seed: int) -> str:
    """The text after a few careless or malicious edits."""
    rng = random.Random(seed)
    tokens = TOKEN.findall(text)
    for _ in range(rng.choice([1, 1, 2, 3])):
        place, other = rng.randrange(len(tokens)), rng.randrange(len(tokens))
        match rng.randrange(8):
            case 0:
                tokens = tokens[: place + 1]
            case 1:
                tokens[place] = ""
            case 2:
                tokens.insert(place, tokens[other])
            case 3:
                tokens[place], tokens[other] = tokens[other], tokens[place]
            case 4:
                tokens[place] = f" {rng.choice([*WORDS, *ODDITIES])} "
            case _:
                words = [i for i, token in enumerate(tokens) if token.islower() or token.isdigit()] or [place]
                place = rng.choice(words)
                called = "".join(tokens[place + 1 : place + 2]).startswith("(")
                tokens[place] = rng.choice(NAMES if called else [word for word in WORDS if word.islower()])
    return "".join(tokens)


def check_mutation(clinic: Clinic, record: Record, seed: int) -> None:
    text = mutated(record.sql, seed)
    try:
        if not isinstance(read_statement(text), SelectStatement):
            return
        query = clinic.plan(Record("", 0, "plan", text, None, record.options, ()))
    except (QueryError, PolicyError):
        return
    if query.first.auto:
        # what AUTO asks is drawn before there is a frame to answer by
        return
    # what is accepted, and so would be charged, is answered
    with contextlib.suppress(BudgetError, CalibrationError):
        clinic.exact(query)


@settings(max_examples=75)
@given(record=st.sampled_from(QUERIES), seed=st.integers(0, 2**32))
def test_mutated_queries_are_answered_or_refused(clinic: Clinic, record: Record, seed: int) -> None:
    check_mutation(clinic, record, seed)


@pytest.mark.long
@settings(max_examples=20_000)
@given(record=st.sampled_from(QUERIES), seed=st.integers(0, 2**32))
def test_many_mutated_queries_are_answered_or_refused(clinic: Clinic, record: Record, seed: int) -> None:
    check_mutation(clinic, record, seed)
