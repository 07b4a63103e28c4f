"""What refusals of the golden records tell people to write is accepted, and mends them; for nothing that is charged.

A cure is SQL that stands in a hint; `tests.cures` says how it is found and applied. Each one is planned alone, for the
curator and for analysts. The same refusal does not come again, and no other one comes of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext

import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.errors import Refusal, SchemaError, UnsupportedQueryError
from dpsql.sql.statements import SelectStatement, read_statement
from tests.cures import Cure, NotACureError, Question, cures_of, mended
from tests.sql.golden_records import Clinic, Record, records

REFUSED = [record for record in records() if record.directive == "refuse"]
# bounds that are missing may show when all else is mended; their own cures are tried where records lack them
BOUNDS = re.compile(
    r"\b(max_groups_contributed|max_rows_\w+|\w*bounds\w*|contribution_norm|top_k|sketch_size|\w+_budget|keys) "
    r"(?::=|=>|=) ([(\[]?[^()\[\]]*)"
)
"""Names of what bounds a unit or its values, with their values."""
ASKED_NEXT = {"max_groups_missing", "bounds_missing"}


@pytest.fixture(scope="module")
def clinic() -> Iterator[Clinic]:
    clinic = Clinic()
    yield clinic
    clinic.close()


def refusals_of(clinic: Clinic, question: Question, record: Record) -> list[Refusal]:
    """Return why a question has no plan; none if it has one, or is no SELECT."""
    with clinic.afresh() if question.declarations or record.declared else nullcontext(clinic.session) as session:
        try:
            for declaration in (*record.declared, *question.declarations):
                session.sql(declaration)
            statement = read_statement(question.text, record.params)
            if isinstance(statement, SelectStatement):
                session._runner.plan(statement, question.options, CURATOR)
        except UnsupportedQueryError as error:
            return list(error.refusals)
        except SchemaError as error:
            return [Refusal("schema", str(error), error.hint, error.span)]
        except dpsql.DpsqlError as error:
            return [Refusal(type(error).__name__, str(error), "")]
    return []


def reasons(refusals: Iterable[Refusal]) -> Counter[tuple[str, str]]:
    return Counter((one.code, one.message) for one in refusals)


def hints_of(refusal: Refusal) -> set[str]:
    return {refusal.hint, refusal.for_analyst().hint}


def declares(refusal: Refusal) -> bool:
    return "CALL" in refusal.hint or ":=" in refusal.hint


def invented(hint: str, record: Record) -> list[str]:
    """Return the numbers of a hint that bound something, and that its text does not have."""
    numbers = [number for found in BOUNDS.finditer(hint) for number in re.findall(r"\d[\d.]*", found[2])]
    # each unit in one bucket, and from 0 up
    return [one for one in numbers if one not in record.sql and one not in ("0", "1")]


def fault(clinic: Clinic, record: Record, refused: list[Refusal], refusal: Refusal, cure: Cure) -> str:
    """Return what is wrong with a cure; an empty text if nothing is."""
    question = mended(Question(record.sql, record.options), cure.filled(), refusal.span)
    before, after = reasons(refused), reasons(refusals_of(clinic, question, record))
    this = refusal.code, refusal.message
    if after[this] >= before[this]:
        return f"mends nothing: {question}"
    new = {one for one in set(after) - set(before) if one[0] not in ASKED_NEXT}
    return f"brings {new}: {question}" if new else ""


@pytest.mark.thorough
@pytest.mark.parametrize("file", sorted({record.file for record in REFUSED}))
def test_what_a_refusal_says_to_write_is_accepted(file: str, clinic: Clinic) -> None:
    faults = []
    for record in (one for one in REFUSED if one.file == file):
        refused = refusals_of(clinic, Question(record.sql, record.options), record)
        for refusal, hint in ((one, hint) for one in refused for hint in sorted(hints_of(one))):
            try:
                said = [fault(clinic, record, refused, refusal, cure) for cure in cures_of(hint)]
            except NotACureError as error:
                said = [str(error)]
            faults += [f"{record}: [{refusal.code}] {hint}\n  {one}" for one in said if one]
        faults += [f"{record}: {one}" for one in refused for hint in hints_of(one) if invented(hint, record)]
        faults += [f"{record}: an analyst declares nothing: {one}" for one in refused if declares(one.for_analyst())]
    assert not faults, "\n".join(faults)


def test_a_cure_that_mends_nothing_is_caught(clinic: Clinic) -> None:
    """Planted faults: another option, a call that is refused as well, a declaration of another column."""
    record = next(one for one in REFUSED if "max_groups_missing" in one.expected[0])
    refused = refusals_of(clinic, Question(record.sql, record.options), record)
    refusal = next(one for one in refused if one.code == "max_groups_missing")
    hints = (
        "Write OPTIONS (rho = 0.2).",
        "Declare CALL dp_protect('main.bills', max_rows_per_unit := 0).",
        "Write OPTIONS (top_k = 0).",
    )
    for hint in hints:
        (cure,) = cures_of(hint)
        assert fault(clinic, record, refused, refusal, cure)
    assert invented("Write OPTIONS (max_groups_contributed = 4).", record)
    assert invented("Write sum(x, contribution_bounds_per_group => (0, 500)).", record)
    with pytest.raises(NotACureError):
        list(cures_of("Write max_groups_contributed = 4."))
    with pytest.raises(NotACureError):
        list(cures_of("Declare max_groups_contributed in dp_protect."))
