"""Private rows that are compared with a private number: identity, price and answers, also after a failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import dpsql
from dpsql.errors import EngineError, UnsupportedQueryError
from dpsql.receipts.result import Result
from dpsql.session.runner import StatementRunner
from dpsql.sql.statements import SelectStatement
from tests.end_to_end.receipts import receipt_of
from tests.end_to_end.retail_schema import assert_equal_rows, create_tables
from tests.noise_sources import seeded_noise

LEVEL: Mapping[str, Any] = {"rho": 2.0, "delta": 1e-5}
ABOVE = "SELECT count(*) AS n FROM store_sales WHERE amount > (SELECT avg(amount) FROM store_sales)"
TEXTS = {
    "in WHERE": ABOVE,
    "in an aggregate": "SELECT sum(CASE WHEN amount > (SELECT avg(amount) FROM web_sales) THEN 1 ELSE 0 END) "
    "FROM store_sales",
    "in FILTER": "SELECT count(*) FILTER (WHERE amount > (SELECT avg(amount) FROM web_sales)) FROM store_sales",
    "in a key": "SELECT CASE WHEN amount > (SELECT avg(amount) FROM store_sales) THEN 'high' ELSE 'low' END AS k, "
    "count(*) FROM store_sales GROUP BY 1",
    "by WITH": "WITH m AS (SELECT avg(amount) AS a FROM store_sales) "
    "SELECT count(*) FROM store_sales WHERE amount > (SELECT a FROM m)",
    "of a number of numbers": "SELECT count(*) FROM store_sales WHERE amount > "
    "(SELECT avg(amount) FROM store_sales WHERE amount > (SELECT avg(amount) FROM web_sales))",
    "beside an output": "SELECT count(*), (SELECT count(*) FROM web_sales) FROM store_sales "
    "WHERE amount > (SELECT 1.2 * avg(amount) FROM store_sales)",
    "in two parts": "SELECT 'above', count(*) FROM store_sales WHERE amount > (SELECT avg(amount) FROM store_sales) "
    "UNION ALL SELECT 'below', count(*) FROM store_sales WHERE amount <= (SELECT avg(amount) FROM store_sales)",
}


@pytest.fixture(scope="module")
def quiet() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        create_tables(session)
        yield session


@pytest.fixture
def noisy() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        create_tables(session)
        session._runner.noise_source = seeded_noise(53)
        yield session


def _spent(session: dpsql.Session) -> float:
    ((spent,),) = session.sql("FROM dp_budget()").arrow().select(["rho_spent"]).to_pydict().values()
    return float(spent)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_rows_are_those_of_duckdb(quiet: dpsql.Session, text: str) -> None:
    right = quiet.connection.execute(text).fetchall()
    assert_equal_rows(quiet.sql(text, **LEVEL).fetchall(), right, ordered=False)


def test_both_parts_are_paid_as_explained_and_once(noisy: dpsql.Session) -> None:
    plan = noisy.sql(f"FROM dp_explain($$ {ABOVE} $$, rho := 2.0, delta := 1e-5)").fetchall()
    (price,) = [float(value) for section, name, value in plan if section.startswith("all parts") and name == "rho"]
    answer = noisy.sql(ABOVE, **LEVEL)
    assert _spent(noisy) == pytest.approx(price, abs=1e-9)
    assert receipt_of(answer).charged_rho == pytest.approx(price, abs=1e-9)
    again = noisy.sql(ABOVE, **LEVEL)
    assert again.fetchall() == answer.fetchall()
    assert _spent(noisy) == pytest.approx(price, abs=1e-9)
    (note,) = [note for note in receipt_of(again).notes if note.startswith("rows of part 2 are compared with")]
    assert note.endswith('a noisy number: SELECT avg("amount") FROM "store_sales"')


def test_identity_and_price_do_not_hang_on_the_number(noisy: dpsql.Session) -> None:
    found = []
    for seed in (1, 2):
        with dpsql.connect(threads=1) as session:
            create_tables(session)
            session._runner.noise_source = seeded_noise(seed)
            (number,) = session.sql("SELECT avg(amount) FROM store_sales", rho=0.01).fetchone() or (None,)
            text = ABOVE.replace("SELECT avg", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.01) avg")
            receipt = receipt_of(session.sql(text, **LEVEL))
            found.append((number, receipt.query_hash, receipt.charged_rho))
    (one, *first), (other, *second) = found
    assert one != other
    assert first == second


def test_a_number_of_another_level_makes_another_second_part(noisy: dpsql.Session) -> None:
    text = "SELECT count(*) FROM store_sales WHERE amount > (SELECT {} avg(amount) FROM web_sales)"
    options = [f"WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = {rho})" for rho in (0.1, 0.2)]
    charged = [receipt_of(noisy.sql(text.format(one), rho=1.0, delta=1e-5)).charged_rho for one in options]
    # the first question pays 0.1 for the number, the second its rise; the counts are two statistics
    assert charged == pytest.approx([1.0, 0.9], abs=1e-6)


def test_a_failure_between_both_leaves_a_number_and_an_open_charge(
    noisy: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, parts = StatementRunner.answer_once, list[SelectStatement]()

    def failing(runner: StatementRunner, statement: SelectStatement, *others: Any) -> Result:
        parts.extend([statement] * statement.is_part)
        if len(parts) == 2:
            raise EngineError("the database went away")
        return real(runner, statement, *others)

    monkeypatch.setattr(StatementRunner, "answer_once", failing)
    with pytest.raises(EngineError):
        noisy.sql(ABOVE, **LEVEL)
    monkeypatch.undo()
    spent = _spent(noisy)
    number = noisy.sql("SELECT avg(amount) FROM store_sales", rho=0.1).fetchall()
    assert _spent(noisy) == spent
    answer = noisy.sql(ABOVE, **LEVEL)
    assert _spent(noisy) == spent
    assert answer.fetchall()
    assert noisy.sql("SELECT avg(amount) FROM store_sales", rho=0.1).fetchall() == number


REFUSED = {
    "groups behind a threshold": "SELECT count(*) FROM store_sales WHERE amount > "
    "(SELECT avg(n) FROM (SELECT store, count(*) AS n FROM store_sales GROUP BY store))",
    "a list": "SELECT count(*) FROM store_sales WHERE store IN (SELECT store FROM web_sales GROUP BY store)",
    "a relative error": "SELECT count(*) FROM store_sales WHERE amount > (SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS "
    "(target_relative_error = 0.1, max_rho = 0.5) avg(amount) FROM web_sales)",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_what_follows_from_released_numbers_is_refused_by_name(noisy: dpsql.Session, text: str) -> None:
    with pytest.raises(UnsupportedQueryError, match=r"\[after\] line 1, column \d\d.*private rows (wait|are compared)"):
        noisy.sql(text, **LEVEL)
    assert _spent(noisy) == 0.0


SHARED = {
    "a part beside": "SELECT count(*) * 100 / (SELECT count(*) FROM store_sales) FROM store_sales "
    "WHERE amount > (SELECT avg(amount) FROM store_sales)",
    "two numbers": "SELECT count(*) FROM store_sales WHERE amount > "
    "(SELECT sum(amount) FROM store_sales) / (SELECT count(*) FROM store_sales)",
    "a chain": "SELECT count(*) FROM store_sales WHERE amount > (SELECT avg(amount) FROM store_sales "
    "WHERE amount > (SELECT avg(amount) FROM store_sales)) AND quantity > (SELECT avg(quantity) FROM store_sales)",
}


@pytest.mark.parametrize("text", SHARED.values(), ids=SHARED)
def test_a_statistic_of_a_number_may_be_that_of_another_part(noisy: dpsql.Session, text: str) -> None:
    answer = noisy.sql(text, rho=0.3, delta=1e-5)
    spent = _spent(noisy)
    assert spent == pytest.approx(receipt_of(answer).charged_rho, abs=1e-9)
    assert noisy.sql(text, rho=0.3, delta=1e-5).fetchall() == answer.fetchall()
    assert _spent(noisy) == spent
