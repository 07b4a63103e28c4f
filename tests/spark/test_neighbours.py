"""Without one person's rows, numbers over Spark move by no more than the bounds say: 20 random texts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import functions as of

import dpsql
from dpsql.engine.spark.cluster import PySparkCluster
from dpsql.engine.spark.frames import UNIT
from tests.end_to_end.test_parts import POLICY, SMALL, TABLES, answered, declare
from tests.spark.conftest import to_spark
from tests.spark.test_answers import ALL

TEXTS = 20
GROUPS, ROWS, MOST = 4, 3, 80
DOMAINS = (
    "CALL dp_domain('visits', 'city', keys_from := 'cities.city')",
    "CALL dp_domain('visits', 'code', keys := [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])",
)
BOUNDS = {
    "count(*)": ROWS,
    "count(DISTINCT patient)": 1,
    "count(cost)": ROWS,
    "count(*) FILTER (WHERE cost > 20)": ROWS,
    "sum(cost)": ROWS * MOST,
}
"""What one person may add to a number."""
CONDITIONS = ("", "WHERE cost > 5", "WHERE code < 30", "WHERE city <> 'city 3' AND code <> 7")


@pytest.fixture(scope="module")
def neighbours(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dpsql.Session]]:
    """Two databases of Spark; the second one lacks person 1, who has more rows than any other."""
    sessions = []
    for name in ("all", "fewer"):
        folder = tmp_path_factory.mktemp(name)
        spark.sql(f"CREATE DATABASE {name}")
        spark.sql(f"USE {name}")
        with dpsql.connect() as whole:
            whole.connection.execute(TABLES.format(rows=SMALL[0], people=SMALL[1]))
            if name == "fewer":
                whole.connection.execute("DELETE FROM visits WHERE patient = 1")
            to_spark(whole.connection, spark, folder / "files", ALL)
        sessions.append(dpsql.connect(spark=spark, state=folder / "state.dpsql"))
        declare(sessions[-1])
        for statement in DOMAINS:
            sessions[-1].sql(statement)
    assert POLICY[1].count(f"max_groups_contributed := {GROUPS}")
    yield sessions
    for session in sessions:
        session.close()
    spark.sql("USE default")


def texts() -> Iterator[tuple[str, list[str]]]:
    """Yield random questions with their numbers."""
    chance = random.Random(59)
    for _ in range(TEXTS):
        key, numbers = chance.choice(("city", "code")), chance.sample(sorted(BOUNDS), chance.randint(1, 3))
        listed = ", ".join(f"{sql} AS n_{place}" for place, sql in enumerate(numbers))
        yield f"SELECT {key}, {listed} FROM visits {chance.choice(CONDITIONS)} GROUP BY {key}", numbers


def movement(sessions: list[dpsql.Session], text: str, numbers: list[str]) -> tuple[int, float]:
    """Return the number of groups that differ, and the largest difference in units of its bound."""
    found = []
    for session in sessions:
        table: Any = answered(session, text)[0]
        rows = [tuple(row.values()) for row in table.to_pylist()]
        found.append({row[0]: [value or 0 for value in row[1:]] for row in rows})
    whole, fewer = found
    assert whole.keys() == fewer.keys()
    moved = [
        [abs(one - other) / BOUNDS[sql] for one, other, sql in zip(whole[key], fewer[key], numbers, strict=True)]
        for key in whole
    ]
    return sum(any(one) for one in moved), max(max(one) for one in moved)


@pytest.mark.parametrize(("text", "numbers"), list(texts()))
def test_a_person_moves_no_more_than_the_bounds_say(
    text: str, numbers: list[str], neighbours: list[dpsql.Session]
) -> None:
    groups, most = movement(neighbours, text, numbers)
    assert groups <= GROUPS
    assert most <= 1 + 1e-9


def test_a_person_in_two_parts_moves_more(neighbours: list[dpsql.Session], monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: rows go to parts whoever they are of."""
    in_parts = PySparkCluster._in_parts

    def scattered(own: PySparkCluster, frames: Any) -> Any:
        return in_parts(own, [frame.withColumn(UNIT, of.monotonically_increasing_id()) for frame in frames])

    monkeypatch.setattr(PySparkCluster, "_in_parts", scattered)
    numbers = ["count(*)"]
    groups, most = movement(
        neighbours, "SELECT city, count(*) AS n_0 FROM visits WHERE code < 49 GROUP BY city", numbers
    )
    assert groups > GROUPS or most > 1
