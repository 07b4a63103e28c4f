"""Refused texts of ``refused_texts.txt``: hints are pasted and accepted, and the others name who can help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.errors import DpsqlError, ParseError, Refusal, SchemaError, UnsupportedQueryError
from dpsql.sql.statements import SelectStatement, read_statement
from tests.cures import VALUES_OF_BLANKS, Question, cures_of, mended

FILE = Path(__file__).with_name("refused_texts.txt")
RECORDS = [block.splitlines() for block in FILE.read_text(encoding="utf-8").strip().split("\n\n")[1:]]
WHOLE = [(text, pasted.removeprefix("=> ")) for text, pasted, _ in (one for one in RECORDS if len(one) == 3)]
OTHERS = [(text, word) for text, word in (one for one in RECORDS if len(one) == 2)]
LEAST_TEXTS, LEAST_WHOLE, LEAST_ACCEPTED = 80, 60, 0.95
TABLES = """
CREATE TABLE sales (customer INTEGER, shop VARCHAR, article VARCHAR, note VARCHAR, sold DATE, amount DOUBLE,
                    pieces INTEGER);
CREATE TABLE stays (patient INTEGER, ward VARCHAR, code VARCHAR, arrived TIMESTAMP, departed TIMESTAMP, cost DOUBLE,
                    weight DOUBLE);
CREATE TABLE hits (visitor INTEGER, page VARCHAR, agent VARCHAR, seen TIMESTAMP, epoch_seconds INTEGER, bytes INTEGER,
                   status INTEGER);
CREATE TABLE readings (home INTEGER, sensor VARCHAR, measured TIMESTAMP, celsius DOUBLE, watts DOUBLE, flags INTEGER);
"""
UNITS = {"sales": "customer", "stays": "patient", "hits": "visitor", "readings": "home"}
BOUNDS = {
    ("sales", "amount"): "[0, 500]",
    ("sales", "pieces"): "[0, 20]",
    ("stays", "cost"): "[0, 9000]",
    ("stays", "weight"): "[0, 200]",
    ("hits", "status"): "[100, 600]",
    ("readings", "celsius"): "[-30, 50]",
    ("readings", "watts"): "[0, 5000]",
}


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(TABLES)
        session.sql("CALL dp_unit('person', rho_budget := 100, delta_threshold := 0.1, delta_conversion := 1e-6)")
        bounds = "max_groups_contributed := 2, max_rows_per_group := 3"
        for table, column in UNITS.items():
            session.sql(f"CALL dp_protect('{table}', unit := 'person', privacy_unit_column := '{column}', {bounds})")
        for (table, column), pair in BOUNDS.items():
            session.sql(f"CALL dp_domain('{table}', '{column}', bounds := {pair})")
        yield session


def refusals_of(session: dpsql.Session, text: str) -> list[Refusal]:
    """Return why a text is refused; none if it is planned, or is an answered look-up."""
    try:
        statement = read_statement(text)
        if not isinstance(statement, SelectStatement):
            session.sql(text)
        else:
            level = {} if re.search(r"\b(rho|epsilon) = ", text) else {"rho": 0.1}
            session._runner.plan(statement, level, CURATOR)
    except UnsupportedQueryError as error:
        return list(error.refusals)
    except (ParseError, SchemaError) as error:
        return [Refusal(type(error).__name__, str(error), error.hint, error.span)]
    except DpsqlError as error:
        return [Refusal(type(error).__name__, str(error), "")]
    return []


def pasted_texts(session: dpsql.Session, text: str) -> list[str]:
    """Return the texts that the hints of a refused text make of it."""
    refused = refusals_of(session, text)
    assert len(refused) == 1, (text, refused)
    return [mended(Question(text), cure, refused[0].span).text for cure in cures_of(refused[0].hint)]


def test_the_list_is_long_enough() -> None:
    assert len(RECORDS) == len(WHOLE) + len(OTHERS) >= LEAST_TEXTS
    assert len(WHOLE) >= LEAST_WHOLE
    assert len({one[0] for one in RECORDS}) == len(RECORDS)


def test_each_hint_makes_the_text_that_a_person_read(session: dpsql.Session) -> None:
    faults = [
        f"{text}\n=> {pasted_texts(session, text)}"
        for text, pasted in WHOLE
        if pasted not in pasted_texts(session, text)
    ]
    assert not "\n".join(faults)


def test_pasted_hints_are_accepted(session: dpsql.Session) -> None:
    accepted = [pasted for _, pasted in WHOLE if not refusals_of(session, pasted)]
    assert len(accepted) >= LEAST_ACCEPTED * len(WHOLE)


@pytest.mark.parametrize(("text", "word"), OTHERS)
def test_a_text_that_no_rewriting_answers_names_who_can_help(session: dpsql.Session, text: str, word: str) -> None:
    (refusal,) = refusals_of(session, text)
    assert word in f"{refusal.message} {refusal.hint}"


def test_no_hint_names_a_bound_or_a_page(session: dpsql.Session) -> None:
    bound = re.compile(r"(?:max_\w+|bounds\w*|keys|budget) (?::=|=>|=) ?[\d(\[]")
    for text in (one[0] for one in RECORDS):
        for refusal in refusals_of(session, text):
            named = [found for found in bound.findall(refusal.hint) if not re.search(r"\d", text)]
            assert not named, refusal
            assert "docs/" not in refusal.hint
            assert not any(blank in refusal.hint for blank in VALUES_OF_BLANKS), refusal
