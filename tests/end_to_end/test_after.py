"""What stands around a private query, when it runs: it has the answer's types, fails without loss, and ends in time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.engine import limits
from dpsql.errors import ReleaseError
from tests.end_to_end.receipts import receipt_of

ANSWER = "(SELECT city, count(*) AS n FROM visits GROUP BY city)"


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT i % 500 AS who, 'city ' || i % 5 AS city, (i % 4)::HUGEINT AS big, "
            "i % 4 AS small, i % 2000 AS spot, md5((i % 3)::VARCHAR)::UUID AS id FROM range(5000) t(i)"
        )
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'who', max_groups_contributed := 4, default_rho := 0.3, "
            "max_rows_per_group := 5, rho_budget := 100, delta_threshold := 1e-3, delta_conversion := 1e-6)"
        )
        yield session


def test_a_type_that_arrow_lacks_is_that_of_the_plan(session: dpsql.Session) -> None:
    grouped = "(SELECT big, count(*) AS n FROM visits GROUP BY big)"
    rows = session.sql(f"SELECT big & 1 AS odd, big // 2 AS half FROM {grouped} ORDER BY big").fetchall()
    assert [(int(odd), int(half)) for odd, half in rows] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    ids = session.sql("SELECT id = id::UUID AS same FROM (SELECT id, count(*) AS n FROM visits GROUP BY id)").fetchall()
    assert ids == [(True,)] * 3


def test_a_median_of_the_answer(session: dpsql.Session) -> None:
    ((found,),) = session.sql(f"SELECT median(n) FROM {ANSWER}").fetchall()
    assert found == sorted(n for (n,) in session.sql(f"SELECT n FROM {ANSWER}").fetchall())[2]


def test_a_subquery_with_several_rows_takes_one(session: dpsql.Session) -> None:
    rows = session.sql(f"WITH r AS {ANSWER} SELECT n, (SELECT n FROM r) AS one FROM r").fetchall()
    assert len({one for _, one in rows}) == 1


def test_what_fails_on_an_answer_says_so_and_loses_nothing(session: dpsql.Session) -> None:
    with pytest.raises(ReleaseError, match="TRY_CAST") as caught:
        session.sql(f"SELECT city::INTEGER AS c FROM {ANSWER}", rho=0.4)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    again = session.sql(f"SELECT TRY_CAST(city AS INTEGER) AS c FROM {ANSWER}", rho=0.4)
    assert receipt_of(again).charged_rho == 0.0


@pytest.mark.parametrize("frame", ["RANGE 2 PRECEDING", "RANGE BETWEEN CURRENT ROW AND 9223372036854775807 FOLLOWING"])
@pytest.mark.parametrize("kind", ["UTINYINT", "BIGINT"])
def test_a_range_may_reach_beyond_a_type(session: dpsql.Session, kind: str, frame: str) -> None:
    """An overflow there comes after the charge, and no TRY stands around a window."""
    key = f"CAST(small AS {kind})"
    query = f"SELECT {key} AS k, sum(count(*)) OVER (ORDER BY {key} {frame}) AS t FROM visits GROUP BY k"
    assert len(session.sql(query).fetchall()) == 4


def test_what_takes_long_is_stopped_and_others_go_on(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_SECONDS", 0.2)
    session.sql(f"CALL dp_domain('visits', 'spot', keys := [{', '.join(map(str, range(2000)))}])")
    cube = (
        "WITH r AS (SELECT spot, count(*) AS n FROM visits GROUP BY spot) SELECT sum((SELECT sum((SELECT count(*) FROM "
        "r AS c WHERE c.n + b.n > a.n AND c.spot <> b.spot)) FROM r AS b WHERE b.spot <> a.spot)) AS t FROM r AS a"
    )
    with pytest.raises(ReleaseError, match="takes more than"):
        session.sql(cube)
    # a busy machine may take its time over what takes no time
    monkeypatch.undo()
    assert len(session.sql(f"SELECT n FROM {ANSWER}").fetchall()) == 5
