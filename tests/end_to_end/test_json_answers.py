"""Answers and refusals as JSON: one document in the command line, by HTTP and of a result, and valid by its schema."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import jsonschema  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

import dpsql
from dpsql.errors import BudgetError, DpsqlError, UnsupportedQueryError
from dpsql.frontends.cli import main
from dpsql.frontends.server.doors import Urls
from dpsql.remote.documents import answer_document, answer_rows, answer_schema, document_text, refusal_document
from tests.end_to_end import kind_questions
from tests.end_to_end.receipts import receipt_of
from tests.serving import ask, door, in_background, token_of

VALID = jsonschema.Draft202012Validator(answer_schema())
OPTIONS = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.5)"
WITHIN = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_relative_error = 0.5, max_rho = 2.0)"
COUNT = "count(*) AS n"
TABLES = f"""
{kind_questions.TABLES};
CREATE TABLE sales (customer INTEGER, shop VARCHAR, article VARCHAR, note VARCHAR, sold DATE, amount DOUBLE,
    pieces INTEGER);
CREATE TABLE codes AS SELECT i AS patient, 9007199254740993 + i % 2 AS code, 1000000000000000 + i AS large,
    DATE '2026-11-01' + (i % 2)::INTEGER AS day, CASE i % 2 WHEN 0 THEN 0.10::DECIMAL(9, 2) END AS dear
    FROM range(3000) t(i);
CREATE TABLE wards AS SELECT 'w' || i AS ward, 10 + i AS beds FROM range(4) t(i)
"""
DECLARED = (
    *kind_questions.DECLARED,
    "CALL dp_protect('sales', unit := 'patient', privacy_unit_column := 'customer', max_groups_contributed := 2, "
    "max_rows_per_group := 3)",
    "CALL dp_domain('sales', 'amount', bounds := [0, 500])",
    "CALL dp_protect('codes', unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 1, "
    "max_rows_per_group := 1)",
    "CALL dp_domain('codes', 'large', bounds := [0, 2000000000000000])",
    "CALL dp_domain('visits', 'cost', bounds := [0, 10])",
    "CALL dp_public('wards', readable := true)",
    "CALL dp_analyst('ana', rho_limit := 30)",
    "CALL dp_analyst('cyn')",
    "CALL dp_analyst('bea', rho_limit := 5, budget_part := 0.01)",
)
PRIVATE = {
    **{name: question.text for name, question in kind_questions.QUESTIONS.items()},
    "within": f"{WITHIN} sex, {COUNT}, count(DISTINCT patient) p, dp_within_target(p) ok FROM visits GROUP BY sex",
    "ends": f"{OPTIONS} ward, {COUNT}, dp_interval_low(n) AS lo, dp_interval_high(n) AS hi FROM visits GROUP BY ward",
    "computed": f"{OPTIONS} ward, {COUNT}, n * 2 AS d, 'x' AS x FROM visits GROUP BY ward",
    "one row": f"{OPTIONS} count(*), count(DISTINCT patient) FROM visits",
    "coverage": f"{OPTIONS} code, {COUNT}, avg(large) AS a, count(DISTINCT patient) AS p FROM codes GROUP BY code",
    "large": f"{OPTIONS} code, sum(large) AS s FROM codes GROUP BY code",
    "days": f"{OPTIONS} day, {COUNT} FROM codes GROUP BY day",
    "decimals": f"{OPTIONS} dear, {COUNT} FROM codes GROUP BY dear",
    "median": f"{OPTIONS} ward, median(cost) AS m FROM visits GROUP BY ward",
    "little": f"{OPTIONS} ward, avg(cost) AS a FROM visits WHERE doctor = 'none' GROUP BY ward",
    "too low": f"{OPTIONS} ward, sum(cost, contribution_bounds_per_group => (0, 4)) AS s FROM visits GROUP BY ward",
    "histogram": f"{OPTIONS} histogram(ward) AS h FROM visits",
    "having": f"{OPTIONS} ward, {COUNT} FROM visits GROUP BY ward HAVING n > 1000 ORDER BY n DESC LIMIT 2",
    "parts": "SELECT 'a' AS c, count(*) AS n FROM visits UNION ALL SELECT 'b', count(*) FROM stays WHERE cost > 4",
    "joined": f"SELECT beds, n FROM wards JOIN (SELECT ward, {COUNT} FROM visits GROUP BY ward) v USING (ward)",
}
FREE = (
    "SHOW TABLES",
    "FROM dp_tables()",
    "FROM dp_budget()",
    "FROM wards",
    "SELECT 1 AS x UNION ALL SELECT 2",
    "FROM dp_describe($$SELECT ward, count(*) AS n FROM visits GROUP BY ward$$, rho := 0.1)",
    "FROM dp_explain($$SELECT ward, count(*) AS n FROM visits GROUP BY ward$$, rho := 0.1)",
)
_RECORDS = Path(__file__).with_name("refused_texts.txt").read_text(encoding="utf-8").strip().split("\n\n")[1:]
REFUSED = (
    *[text for text in (record.splitlines()[0] for record in _RECORDS) if "FROM sales" in text][:18],
    "SELECT (ward FROM visits",
    "SELECT max(cost), min(cost) FROM visits",
    "SELECT count(*) FROM nowhere",
    f"{OPTIONS.replace('0.5', '29')} patient % 7 AS k, {COUNT} FROM visits GROUP BY k ORDER BY nothing",
    f"{OPTIONS.replace('0.5', '50')} {COUNT} FROM visits",
    f"{OPTIONS.replace('0.5', '1e-12')} ward, {COUNT} FROM visits GROUP BY ward",
    "CALL dp_public('visits')",
    "DROP TABLE visits",
    "SELECT count(*) FROM visits",
)


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(TABLES)
        for declaration in DECLARED:
            session.sql(declaration)
        yield session


@pytest.fixture(scope="module")
def urls(session: dpsql.Session) -> Iterator[Urls]:
    with in_background(session, door("ana", "bea", "cyn")) as urls:
        yield urls


def options_of(text: str) -> dict[str, Any]:
    """Return the level of a text that names none."""
    return {} if "OPTIONS" in text or "SELECT" not in text or text in FREE else {"rho": 0.5}


def reader_of(name: str) -> str:
    """Return who asks: a reader with a limit, if such a reader may ask it."""
    return "cyn" if name == "WithOtherGroup" else "ana"


def checked(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document that is valid, and comes back from its text."""
    VALID.validate(document)
    assert json.loads(document_text(document)) == document
    return document


def numbers_in(value: object) -> set[object]:
    """Return all numbers and texts below a JSON value."""
    match value:
        case dict():
            return set().union(*map(numbers_in, value.values()))
        case list():
            return set().union(*map(numbers_in, value))
    return {value}


@pytest.mark.parametrize("name", PRIVATE)
def test_http_gives_the_document_of_the_local_result(session: dpsql.Session, urls: Urls, name: str) -> None:
    text, reader = PRIVATE[name], reader_of(name)
    handle = session.as_analyst(reader)
    first = handle.sql(text, **options_of(text))
    # the second answer is stored, and so is that of the server
    result = handle.sql(text, **options_of(text))
    reply = ask(urls.analysts, reader, text, **options_of(text))
    assert reply.status == 200, reply.everything
    document = checked(answer_document(result))
    assert reply.json == document
    assert document["rows"] == answer_document(first)["rows"]
    receipt = receipt_of(result)
    assert [column["name"] for column in document["columns"]] == result.columns
    assert document["price"]["charged"] == receipt.charged_rho == 0
    assert checked(answer_document(first))["price"]["charged"] == receipt_of(first).charged_rho
    assert (document["epsilon"], document["delta"], document["unit"]) == (receipt.epsilon, receipt.delta, "patient")
    assert (document["notes"], document["kept"]) == (list(receipt.notes), list(receipt.kept))
    assert len(document["parts"]) == len(receipt.sets)
    assert_released(result)


@pytest.mark.parametrize("name", ["within", "histogram", "parts", "too low"])
def test_a_client_of_the_server_has_the_same_document(session: dpsql.Session, urls: Urls, name: str) -> None:
    text = PRIVATE[name]
    session.as_analyst("ana").sql(text, **options_of(text))
    with dpsql.remote.connect(urls.analysts, token=token_of("ana")) as ana:
        document = answer_document(ana.sql(text, **options_of(text)))
    assert document == answer_document(session.as_analyst("ana").sql(text, **options_of(text)))


def assert_released(result: dpsql.Result) -> None:
    """Check that the rows of a document have the numbers and texts of the result and its intervals alone."""
    layout = result.layout
    tables = [result.arrow(), *([layout.ends] if layout else [])]
    released = {
        value if not isinstance(value, float) or math.isfinite(value) else None
        for table in tables
        for column in table.columns
        for value in map(_plain, column.to_pylist())
        if not isinstance(value, list | dict)
    }
    rows = [{key: one for key, one in row.items() if key != "h"} for row in answer_rows(result)]
    assert numbers_in(rows) <= released | {None}


def _plain(value: object) -> object:
    """Return a value of a table as a document writes it: an oracle of its own."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else str(value)
    return value.isoformat() if isinstance(value, dt.date) else value


@pytest.mark.parametrize("text", FREE)
def test_tables_have_plain_values_and_no_price(session: dpsql.Session, urls: Urls, text: str) -> None:
    result = session.as_analyst("ana").sql(text)
    document = checked(answer_document(result))
    assert set(document) == {"schema", "columns", "rows"}
    assert {column["kind"] for column in document["columns"]} == {"value"}
    assert [list(row) for row in document["rows"]] == [result.columns] * len(result)
    if "budget" not in text:
        assert ask(urls.analysts, "ana", text).json == document


@pytest.mark.parametrize("text", REFUSED)
def test_http_gives_the_refusal_of_the_local_error(session: dpsql.Session, urls: Urls, text: str) -> None:
    # the last text names no level
    options = options_of(text) if text != REFUSED[-1] else {}
    with pytest.raises(DpsqlError) as refused:
        session.as_analyst("ana").sql(text, **options)
    document = checked(refusal_document(refused.value))
    reply = ask(urls.analysts, "ana", text, **options)
    assert reply.status >= 400
    assert {name: reply.json[name] for name in document} == document
    VALID.validate(reply.json)
    if isinstance(refused.value, UnsupportedQueryError):
        assert [one["code"] for one in document["reasons"]] == [one.code for one in refused.value.refusals]
        assert all(one["cure"] for one in document["reasons"])
    for one in document["reasons"]:
        assert one["reason"] + one["cure"]
        assert not one["place"] or not one["reason"].startswith("line ")
        if one["place"]:
            begin = len("".join(text.splitlines(keepends=True)[: one["place"]["line"] - 1]))
            assert one["place"]["start"] == begin + one["place"]["column"] - 1


def test_a_reader_with_a_limit_gets_no_amount_of_the_unit(session: dpsql.Session, urls: Urls) -> None:
    text = "SELECT ward, count(*) AS n FROM visits WHERE cost > 3 GROUP BY ward"
    bea = session.as_analyst("bea")
    for _ in range(5):
        try:
            result = bea.sql(text, rho=4.9)
        except BudgetError as error:
            document = checked(refusal_document(error))
            assert document["reasons"][0]["code"] == "budget_error"
            assert document["amounts"]["unit"] == "patient"
            shown = {name: getattr(error, name) for name in document["amounts"]}
            assert document["amounts"] == shown
            break
        document = checked(answer_document(result))
        assert "spent" not in " ".join(document["lines"])
        text = text.replace("cost > ", "cost > 1")
    else:
        pytest.fail("the part of the budget covers all questions")


def test_intervals_are_those_of_the_screen(session: dpsql.Session) -> None:
    ana = session.as_analyst("ana")
    result = ana.sql(PRIVATE["ends"])
    for row in answer_rows(result):
        assert (row["n"]["low"], row["n"]["high"]) == (row["lo"], row["hi"])
    printed = ana.sql(PRIVATE["OneSet, private keys"])
    texts = dict(re.findall(r"│ (d\d)\s+│\s+([\d,.]+ ± [\d,.]+) ", printed.printed()))
    assert len(texts) == 4
    for row in answer_rows(printed):
        value, half = (float(one.replace(",", "")) for one in texts.get(row["doctor"], "0 ± inf").split(" ± "))
        assert value - half <= row["n"]["low"] + 1.0
        assert row["n"]["high"] - 1.0 <= value + half
        assert half == math.inf or half - (row["n"]["high"] - row["n"]["low"]) / 2 < 1.5


def test_a_number_that_says_nothing_is_null_as_on_the_screen(session: dpsql.Session) -> None:
    rows = list(answer_rows(session.as_analyst("ana").sql(PRIVATE["little"])))
    says_nothing = [(row["a"]["low"], row["a"]["high"]) == (0.0, 10.0) for row in rows]
    assert [row["a"]["value"] is None for row in rows] == says_nothing
    assert True in says_nothing


def test_within_is_the_truth_value_of_the_column(session: dpsql.Session) -> None:
    rows = list(answer_rows(session.as_analyst("ana").sql(PRIVATE["within"])))
    assert [row["p"]["within"] for row in rows] == [row["ok"] for row in rows]
    assert True in [row["ok"] for row in rows]
    assert {row["n"]["within"] for row in rows} == {None}


def test_columns_say_what_bounds_keep(session: dpsql.Session) -> None:
    document = answer_document(session.as_analyst("ana").sql(PRIVATE["coverage"]))
    kept = {column["name"]: column["kept"] for column in document["columns"]}
    assert kept["code"] is None
    assert kept["n"]["too_low"] is False
    assert 0.5 < kept["n"]["low"] <= 1.0
    assert kept["a"]["low"] > 0.5


def test_large_numbers_keep_their_digits(session: dpsql.Session) -> None:
    result = session.as_analyst("ana").sql(PRIVATE["large"])
    document = json.loads(document_text(answer_document(result)))
    assert {row["code"] for row in document["rows"]} == {2**53 + 1, 2**53 + 2}
    assert [row["s"]["value"] for row in document["rows"]] == [row[1] for row in result]
    assert all(row["s"]["value"] > 2**53 for row in document["rows"])
    assert [column["type"] for column in document["columns"]] == ["BIGINT", "HUGEINT"]


def test_every_value_has_a_spelling_in_json() -> None:
    noon = dt.datetime(2026, 11, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    table = pa.table(
        {
            "whole": pa.array([2**63 - 1, None], pa.int64()),
            "huge": pa.array([Decimal(10**37 + 1), None], pa.decimal128(38, 0)),
            "decimal": pa.array([Decimal("0.0000001"), None], pa.decimal128(9, 7)),
            "double": [math.nan, -math.inf],
            "day": [dt.date(2026, 11, 1), None],
            "moment": [dt.datetime(2026, 11, 1, 12, 0, 0, 5), None],
            "zoned": [noon, None],
            "blob": [b"\x00\xff", None],
            "nested": [{"a": [Decimal("1.5"), None]}, None],
            "map": pa.array([[(dt.date(2026, 11, 1), 1.5)], None], pa.map_(pa.date32(), pa.float64())),
        }
    )
    document = checked(answer_document(dpsql.Result(table)))
    first, second = document["rows"]
    assert first == {
        "whole": 2**63 - 1,
        "huge": 10**37 + 1,
        "decimal": "0.0000001",
        "double": None,
        "day": "2026-11-01",
        "moment": "2026-11-01T12:00:00.000005",
        "zoned": "2026-11-01T10:00:00+00:00",
        "blob": "AP8=",
        "nested": {"a": ["1.5", None]},
        "map": {"2026-11-01": 1.5},
    }
    assert set(second.values()) == {None}
    types = {column["name"]: column["type"] for column in document["columns"]}
    assert (types["huge"], types["decimal"], types["blob"]) == ("HUGEINT", "DECIMAL(9,7)", "BLOB")


def test_the_schema_refuses_what_is_no_document(session: dpsql.Session) -> None:
    """Planted faults: a number without its interval, another version, an answer without a price."""
    jsonschema.Draft202012Validator.check_schema(answer_schema())
    document = answer_document(session.as_analyst("ana").sql(PRIVATE["having"]))
    faults: list[dict[str, Any]] = [
        {**document, "rows": [{"n": {"value": 1, "low": "0", "high": 2, "within": None}}], "kept": None},
        {**document, "schema": "dpsql-answer-0"},
        {name: value for name, value in document.items() if name != "price"},
        {**document, "columns": [{**document["columns"][0], "kind": "noise"}]},
        {"schema": document["schema"], "error": "X", "detail": "", "reasons": [], "amounts": {}},
    ]
    assert VALID.is_valid(document)
    assert not any(map(VALID.is_valid, faults))


def test_the_command_line_prints_the_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "clinic.duckdb"
    with duckdb.connect(path) as connection:
        connection.execute(TABLES)
    with dpsql.connect(path) as session:
        for declaration in DECLARED:
            session.sql(declaration)
        results = {name: session.as_analyst("ana").sql(PRIVATE[name]) for name in ("computed", "GroupingSets, sums")}
    for name, result in results.items():
        capsys.readouterr()
        assert main(["query", str(path), PRIVATE[name], "--analyst", "ana", "--format", "json"]) == 0
        printed = checked(json.loads(capsys.readouterr().out))
        assert printed["price"]["reused"]
        stored = {"price", "parts", "lines"}
        assert {key: value for key, value in printed.items() if key not in stored} == {
            key: value for key, value in answer_document(result).items() if key not in stored
        }
    for text, code in ((REFUSED[0], 2), ("SELECT (ward FROM visits", 2), (REFUSED[-5], 2)):
        for form in ("json", "jsonl"):
            asked = ["query", str(path), text, "--analyst", "ana", "--format", form]
            assert main([*asked, "--rho", "0.5"] if "OPTIONS" not in text else asked) == code
            shown = capsys.readouterr()
            document = checked(json.loads(shown.out))
            assert shown.err == f"dpsql: {document['detail']}\n"
            assert shown.out.count("\n") == 1 or form == "json"
