"""Each function without a private form has one refusal, with a hint that is accepted, and this for every name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest
from sqlglot import exp

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.errors import DpsqlError, Refusal, UnsupportedQueryError
from dpsql.operations.dialect import parse_statement
from dpsql.plan.aggregates.registry import BY_NAME
from dpsql.sql.clauses import OTHER_AGGREGATES, PRIVATE_AGGREGATES
from dpsql.sql.function_hints import AGGREGATE_HINTS, ROW_HINTS, Hint
from dpsql.sql.function_refusals import ANSWERED_OTHERWISE
from dpsql.sql.row_rules import allowed_functions
from dpsql.sql.statements import SelectStatement, read_statement
from tests.cures import Question, cures_of, mended

MOST_LETTERS = 130
"""Most letters of message and hint together, for arguments that are short names."""
CLASSES = {name for name, one in vars(exp).items() if isinstance(one, type) and issubclass(one, exp.Expr)}
"""Names of classes of the parser."""
WORDS = {"Filter", "Join", "Leave"}
"""Those that are words of English, too. No message has another one."""
PART = 100
"""Calls in one text."""
NAME = re.compile(r"[a-z]\w*")
"""Names that people can call; the others are operators, or functions that DuckDB calls by itself."""
NO_CALLS = {"reduce", "current_date", "get_current_timestamp", "now", "today"}
"""A function that needs a lambda to be parsed, and those that are the clock of the question and always answered."""
WITHOUT_VALUE = {"percentile_cont", "percentile_disc"}
"""Aggregates that have an answer with WITHIN GROUP, and a row for calls without it."""
ARGUMENTS = {
    "VARCHAR": "city",
    "DATE": "day",
    "TIMESTAMP": "ts",
    "INTERVAL": "INTERVAL 1 DAY",
    "BOOLEAN": "n > 3",
    "DOUBLE": "cost",
    "FLOAT": "cost",
    "T": "cost",
    "ANY": "cost",
}
"""Plausible arguments by types of parameters; whole numbers are ``n``."""


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(
            "CREATE TABLE visits (pid INTEGER, city VARCHAR, code VARCHAR, day DATE, ts TIMESTAMP, cost DOUBLE, "
            "n INTEGER)"
        )
        session.sql("CALL dp_unit('person', rho_budget := 100, delta_threshold := 0.1, delta_conversion := 1e-6)")
        bounds = "max_groups_contributed := 2, max_rows_per_group := 3"
        session.sql(f"CALL dp_protect('visits', unit := 'person', privacy_unit_column := 'pid', {bounds})")
        for column in ("cost", "n"):
            session.sql(f"CALL dp_domain('visits', '{column}', bounds := [0, 100])")
        yield session


def error_of(session: dpsql.Session, text: str) -> DpsqlError | None:
    """Return the error of a text that is planned. Return None if it has a plan."""
    try:
        statement = read_statement(text)
        assert isinstance(statement, SelectStatement)
        session._runner.plan(statement, {"rho": 0.1}, CURATOR)
    except DpsqlError as error:
        return error
    return None


def refusals_of(session: dpsql.Session, text: str) -> tuple[Refusal, ...]:
    error = error_of(session, text)
    assert error is None or isinstance(error, UnsupportedQueryError), f"{text}: {error}"
    return error.refusals if error else ()


INTERVALS = ("to_days", "to_weeks", "to_months", "to_quarters", "to_years", "to_decades", "to_centuries", "to_hours")
"""Beginnings of functions whose value is added to a timestamp."""
INTERVALS_BELOW = ("to_minutes", "to_seconds")


def text_with(calls: Sequence[str], *, aggregates: bool) -> str:
    """Return a text with calls: each an item of the select list, or a condition on rows."""
    if aggregates:
        return f"SELECT {', '.join(calls)} FROM visits"
    shown = (f"(ts + {call})" if call.startswith((*INTERVALS, *INTERVALS_BELOW)) else call for call in calls)
    return f"SELECT count(*) FROM visits WHERE {' AND '.join(f'({one}) IS NOT NULL' for one in shown)}"


def renamed(example: str, name: str) -> str:
    return name.replace("*", "_any").partition("/")[0] + example[example.index("(") :]


def cured(row: Hint) -> bool:
    return row.hint.startswith("Write ")


@pytest.mark.parametrize(
    "row",
    [row for row in (*AGGREGATE_HINTS, *ROW_HINTS) if cured(row)],
    ids=lambda row: row.names.split()[0].replace("/", "_"),
)
def test_a_hint_is_accepted_in_place_of_its_example(session: dpsql.Session, row: Hint) -> None:
    text = text_with([row.example], aggregates=row in AGGREGATE_HINTS)
    (refusal,) = refusals_of(session, text)
    cures = list(cures_of(refusal.hint))
    assert cures, refusal.hint
    for cure in cures:
        assert error_of(session, mended(Question(text), cure, refusal.span).text) is None, cure


def calls_of(rows: Sequence[Hint]) -> list[str]:
    """Return the example of each row, with each of its names."""
    return [renamed(row.example, name) for row in rows for name in row.names.split()]


def test_a_function_with_a_private_form_is_not_in_the_table(session: dpsql.Session) -> None:
    # the parser gives some names one node, and the same call twice has one refusal
    aggregates = [f"{call} FILTER (WHERE n > {place})" for place, call in enumerate(calls_of(AGGREGATE_HINTS))]
    assert len(refusals_of(session, text_with(aggregates, aggregates=True))) == len(aggregates)
    functions = calls_of(ROW_HINTS)
    assert len(refusals_of(session, text_with(functions, aggregates=False))) == len(functions)
    answered = {*BY_NAME, *PRIVATE_AGGREGATES, *ANSWERED_OTHERWISE} - WITHOUT_VALUE
    assert not {name for row in (*AGGREGATE_HINTS, *ROW_HINTS) for name in row.names.split()} & answered


def test_aggregates_that_the_parser_does_not_know_are_those_of_the_table() -> None:
    trees = [parse_statement(f"SELECT {call}").expressions[0] for call in calls_of(AGGREGATE_HINTS)]
    assert {tree.name for tree in trees if isinstance(tree, exp.Anonymous)} == OTHER_AGGREGATES


def calls_of_duckdb(session: dpsql.Session, kinds: str) -> list[str]:
    """Return a call of each function of DuckDB, with plausible arguments for the types of one of its forms."""
    listed = session.connection.execute(
        "SELECT function_name, min_by(if(varargs IS NULL, parameter_types, ['ANY', 'ANY']), "
        "abs(len(parameter_types) - 2)) FROM duckdb_functions() "
        f"WHERE function_type IN ({kinds}) GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    named = [(name, types) for name, types in listed if NAME.fullmatch(name) and name not in NO_CALLS]
    return [f"{name}({', '.join(ARGUMENTS.get(one or 'ANY', 'n') for one in types)})" for name, types in named]


def fault_of(refusal: Refusal, call: str) -> str:
    """Return what is wrong with the refusal of a call; an empty text if nothing is."""
    said = f"{refusal.message} {refusal.hint}"
    classes = (CLASSES - WORDS) & set(re.findall(r"[A-Za-z]+", said))
    if classes or "docs/" in said or len(said) > MOST_LETTERS or "\n" in said:
        return f"{call}: {len(said)} letters, {classes}: {said}"
    return ""


def test_each_aggregate_of_duckdb_has_one_short_refusal(session: dpsql.Session) -> None:
    faults = []
    for call in calls_of_duckdb(session, "'aggregate'"):
        refused = refusals_of(session, text_with([call], aggregates=True))
        faults += [fault_of(one, call) for one in refused] + ([f"{call}: {refused}"] if len(refused) > 1 else [])
    assert not "\n".join(filter(None, faults))


def test_each_function_of_duckdb_has_one_short_refusal(session: dpsql.Session) -> None:
    """Refused calls are conditions of one text, in parts: each of them has one refusal, at its place."""
    calls = [call for call in calls_of_duckdb(session, "'scalar', 'macro'") if not is_allowed(call)]
    assert len(calls) >= 700
    faults = []
    for some in (calls[start : start + PART] for start in range(0, len(calls), PART)):
        text = text_with(some, aggregates=False)
        refused = refusals_of(session, text)
        begins = [text[one.span.start :] for one in refused if one.span]
        refused_once = [call for call in some if sum(one.startswith(call) for one in begins) == 1]
        assert refused_once == some
        assert len(refused) == len(some)
        faults += [fault_of(one, call) for one, call in zip(refused, some, strict=True)]
    assert not "\n".join(filter(None, faults))


def is_allowed(call: str) -> bool:
    """Check that a call is on the list of row expressions, or another spelling of one."""
    nodes, names = allowed_functions()
    (tree,) = parse_statement(f"SELECT {call}").expressions
    called = [node for node in tree.walk() if isinstance(node, exp.Func)]
    return all(
        node.name.lower() in names if isinstance(node, exp.Anonymous) else type(node) in nodes for node in called
    )


def test_a_part_of_a_list_is_refused_without_what_it_is_computed_of(session: dpsql.Session) -> None:
    with pytest.raises(UnsupportedQueryError) as caught:
        session.sql("SELECT quantile_cont(cost, [0.5, 0.6])[1] FROM visits", rho=0.1)
    (refusal,) = caught.value.refusals
    assert refusal.code == "row_syntax"
    assert "CASE" not in refusal.message
    assert "dpsql" not in refusal.message
    assert len(session.sql("SELECT histogram(n, [10])[10] FROM visits", rho=0.1)) == 1


def test_any_value_of_a_key_with_a_filter_has_a_hint_of_its_own(session: dpsql.Session) -> None:
    (refusal,) = refusals_of(session, "SELECT city, any_value(city) FILTER (WHERE n > 3) FROM visits GROUP BY city")
    assert refusal.hint == "Write city, count(*) FILTER (WHERE n > 3) with GROUP BY city."
