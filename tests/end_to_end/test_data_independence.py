"""Plans, prices, types, receipts and refusals come from policy and text: unrelated data change no byte of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

import dpsql
from dpsql.errors import DpsqlError
from tests.end_to_end.receipts import of_the_text, receipt_of

SCHEMA = (
    "CREATE TABLE visits (patient BIGINT, city VARCHAR, ward INTEGER NOT NULL, cost DOUBLE, fee DECIMAL(9, 2), "
    "whole SMALLINT NOT NULL, day DATE, seen TIMESTAMP, mood mood)"
)
DATA = {
    "empty": "SELECT 1 WHERE false",
    "one_row": "INSERT INTO visits VALUES (NULL, '', 0, 'nan', 0, 0, '1999-12-31', NULL, NULL)",
    "large": (
        "INSERT INTO visits SELECT u % 900, 'city ' || u % 300, u % 40, u * 1e300, (u % 99)::DECIMAL(9, 2), "
        "u % 30_000, DATE '2026-01-01' + (u % 400)::INTEGER, TIMESTAMP '2026-01-01' + INTERVAL (u * 6) MINUTE, 'good' "
        "FROM range(9_000) t(u)"
    ),
}
ANSWERED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("SELECT count(*) FROM visits", {}),
    ("SELECT count(DISTINCT patient), sum(cost), avg(cost) FROM visits", {"rho": 0.2}),
    ("SELECT city, count(*) AS n, dp_interval_low(n) FROM visits GROUP BY city ORDER BY n DESC LIMIT 5", {}),
    ("SELECT city, ward, sum(fee) AS f, avg(fee) FROM visits WHERE cost > 5 GROUP BY ALL", {"epsilon": 0.5}),
    ("SELECT ward, count(cost), sum(whole, contribution_bounds_per_group => (0, 9)) FROM visits GROUP BY 1", {}),
    (
        "SELECT day, mood, count(*) FILTER (WHERE ward = 1) FROM visits GROUP BY day, mood",
        {"epsilon": 1, "delta": 1e-8},
    ),
    ("SELECT date_trunc('month', seen) AS m, count(*) FROM visits GROUP BY m HAVING count(*) > 7", {"rho": 1}),
    ("SELECT cost / ward AS r, count(*) FROM visits GROUP BY r", {"max_groups_contributed": 9}),
    ("SELECT kind, count(*) FROM listed GROUP BY kind", {}),
    ("SELECT DISTINCT city FROM visits", {"rho": 0.3}),
    ("SELECT day, CAST(city AS INT) AS c FROM visits GROUP BY ALL", {"epsilon": 0.5}),
    (
        "SELECT CAST(CAST(city AS INT) + ward AS VARCHAR) AS k, cost * 10 AS c, count(*), sum(fee) FROM visits "
        "GROUP BY k, c",
        {"other_group": "other", "max_groups_contributed": 2},
    ),
    ("SELECT ward, count(DISTINCT patient) FROM visits GROUP BY ward", {"top_k": 3}),
    (
        "SELECT city, count(*), avg(fee) FROM visits GROUP BY city",
        {"mechanism": "KEYS_FIRST", "max_groups_contributed": 4},
    ),
    ("SELECT city, count(DISTINCT patient) FROM visits GROUP BY city", {"mechanism": "MISRA_GRIES", "sketch_size": 4}),
)
REFUSED = (
    "SELECT city, cost FROM visits GROUP BY city",
    "SELECT city, max(cost), sum(ward) FROM visits GROUP BY city",
    "SELECT nothing FROM visits",
    "SELECT count(*) FROM elsewhere",
    "SELECT mood + 1 AS m, count(*) FROM visits GROUP BY m",
    "SELECT count(*) FROM visits WHERE city > (SELECT 1)",
)


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dpsql.Session]]:
    """Databases in files of different names with one policy and unrelated data, ENUM members included."""
    folder = tmp_path_factory.mktemp("independence")
    with contextlib.ExitStack() as stack:
        opened = []
        for data, sql in DATA.items():
            session = stack.enter_context(dpsql.connect(folder / f"of {data}.duckdb"))
            session.connection.execute(f"CREATE TYPE mood AS ENUM ('good', 'of {data}')")
            session.connection.execute(SCHEMA)
            session.connection.execute(sql)
            session.connection.execute(
                f"CREATE TABLE listed AS SELECT 1 AS patient, 'x' AS kind WHERE {data == 'large'}"
            )
            session.connection.execute("CREATE TABLE kinds AS SELECT 'kind ' || u AS name FROM range(3) t(u)")
            session.sql("CALL dp_unit('patient', epsilon_budget := 100, delta_budget := 1e-3)")
            for table in ("visits", "listed"):
                session.sql(
                    f"CALL dp_protect('{table}', coverage := FALSE, "
                    "unit := 'patient', privacy_unit_column := 'patient', "
                    "max_groups_contributed := 4, max_rows_per_group := 3, default_rho := 0.1)"
                )
            for column in ("cost", "fee"):
                session.sql(f"CALL dp_domain('visits', '{column}', bounds := [0, 100])")
            session.sql("CALL dp_public('kinds')")
            session.sql("CALL dp_domain('listed', 'kind', keys_from := 'kinds.name')")
            opened.append(session)
        yield opened


def require_equal(found: Sequence[object], text: str = "") -> None:
    """Of all databases."""
    assert all(one == found[0] for one in found[1:]), text


def serialised(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    content: bytes = sink.getvalue().to_pybytes()
    return content


def explained(session: dpsql.Session, text: str, options: dict[str, Any]) -> bytes:
    listed = "".join(f", {name} := {value}" for name, value in options.items())
    return serialised(session.as_analyst("ana").sql(f"FROM dp_explain($$ {text} $$ {listed})").arrow())


def test_explain_receipts_prices_and_types_are_the_same(sessions: list[dpsql.Session]) -> None:
    for text, options in ANSWERED:
        require_equal([explained(session, text, options) for session in sessions], text)
        answers = [session.as_analyst("ana").sql(text, None, **options) for session in sessions]
        receipts = [receipt_of(answer) for answer in answers]
        # whether a receipt says why nothing is shown follows from what is shown; what it says then does not
        require_equal([receipt.nothing_shown for receipt in receipts if receipt.nothing_shown], text)
        receipts = [of_the_text(answer) for answer in answers]
        require_equal(receipts, text)
        require_equal([str(receipt) for receipt in receipts])
        for answer in answers[1:]:
            assert answers[0].arrow().schema.equals(answer.arrow().schema, check_metadata=True), text
        # after the release too: prices fall to what is not held yet
        require_equal([explained(session, text, options) for session in sessions], text)
    for text in ("FROM dp_budget()", "SHOW TABLES", "FROM dp_tables()", "DESCRIBE visits"):
        require_equal([serialised(session.as_analyst("ana").sql(text).arrow()) for session in sessions], text)
    releases = [session.as_analyst("ana").sql("FROM dp_releases()").arrow() for session in sessions]
    require_equal([serialised(table.drop_columns(["at"])) for table in releases])


def test_refusals_are_the_same(sessions: list[dpsql.Session]) -> None:
    for text in REFUSED:
        refusals = []
        for session in sessions:
            with pytest.raises(DpsqlError) as refused:
                session.as_analyst("ana").sql(text)
            refusals.append((type(refused.value), str(refused.value)))
        require_equal(refusals, text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT kind, count(*) AS n FROM listed GROUP BY kind",
        "SELECT city, avg(fee) AS f FROM visits GROUP BY city",
        "SELECT sum(whole) AS w, count(*) AS n FROM visits",
    ],
)
def test_plans_and_refusals_of_targets_are_the_same(sessions: list[dpsql.Session], text: str) -> None:
    """Where steps end follows from released numbers; what is said before the first one does not."""
    target = {"target_relative_error": 0.2, "max_rho": 0.3}
    require_equal([explained(session, text, target) for session in sessions])
    refusals = []
    for session in sessions:
        with pytest.raises(DpsqlError) as refused:
            session.as_analyst("ana").sql(text, None, **target | {"max_rho": 1e5})
        refusals.append((type(refused.value), str(refused.value)))
    require_equal(refusals)


def test_a_plan_that_depends_on_data_is_seen(sessions: list[dpsql.Session]) -> None:
    """The planted fault: the number of rows in a query's bounds, as a planner would put it that reads statistics."""
    plans = []
    for session in sessions:
        row = session.connection.execute(
            "SELECT estimated_size FROM duckdb_tables() WHERE table_name = 'visits'"
        ).fetchone()
        assert row is not None
        text = f"SELECT sum(cost, contribution_bounds_per_group => (0, {row[0] + 1})) FROM visits"
        plans.append(explained(session, text, {}))
    with pytest.raises(AssertionError):
        require_equal(plans)
    assert len(set(plans)) == len(plans)


def test_public_keys_decide_the_rows_of_an_answer(sessions: list[dpsql.Session]) -> None:
    for session in sessions:
        answer = session.sql("SELECT kind, count(*) FROM listed GROUP BY kind ORDER BY kind")
        assert [kind for kind, _ in answer.fetchall()] == ["kind 0", "kind 1", "kind 2"]
