"""A query that is too large to plan is refused at once, with the limit and what to write instead."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import dpsql
from dpsql.errors import UnsupportedQueryError
from dpsql.sql.statements import MOST_APART, MOST_LISTED, MOST_NODES, MOST_STATISTICS

SECONDS = 60.0
"""Of processor time; far more than any takes, and far less than what each took before there were limits."""


def in_list(count: int) -> str:
    return f"SELECT count(*) FROM t WHERE n IN ({', '.join(map(str, range(count)))})"


def medians(count: int) -> str:
    listed = (f"median(n + {i}, contribution_bounds_per_row => (0, 9)) AS m{i}" for i in range(count))
    return f"SELECT {', '.join(listed)} FROM t"


def distinct_counts(count: int) -> str:
    listed = (f"count(DISTINCT n + {i}, contribution_bounds_per_group => (0, 9)) AS m{i}" for i in range(count))
    return f"SELECT {', '.join(listed)} FROM t"


def sums(count: int) -> str:
    listed = (f"sum(n + {i}, contribution_bounds_per_group => (0, 9)) AS m{i}" for i in range(count))
    return f"SELECT {', '.join(listed)} FROM t"


def chain(count: int) -> str:
    return f"SELECT count(*) FROM t WHERE {' + '.join(['n'] * count)} > 3"


def lists(count: int) -> str:
    listed = f"n IN ({', '.join(map(str, range(MOST_LISTED)))})"
    return f"SELECT count(*) FROM t WHERE {' OR '.join([listed] * count)}"


def cases(count: int) -> str:
    branches = " ".join(f"WHEN n = {i} AND n < {i} THEN {i}" for i in range(count))
    return f"SELECT count(*) FROM t WHERE CASE {branches} END > 3"


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute("CREATE TABLE t (pid INTEGER, n INTEGER)")
        session.sql("CALL dp_unit('person', rho_budget := 10, delta_threshold := 0.1, delta_conversion := 1e-6)")
        session.sql(
            "CALL dp_protect('t', coverage := FALSE, "
            "unit := 'person', privacy_unit_column := 'pid', max_groups_contributed := 2, "
            "max_rows_per_group := 3, default_rho := 0.1)"
        )
        yield session


def planned(session: dpsql.Session, text: str) -> float:
    """Processor seconds that it takes to explain a query."""
    began = time.process_time()
    session.sql(f"FROM dp_explain($${text}$$)")
    return time.process_time() - began


@pytest.mark.parametrize(
    "text",
    [
        in_list(MOST_LISTED // 4),
        medians(3),
        distinct_counts(MOST_APART),
        sums(30),
        chain(60),
        cases(100),
        pytest.param(in_list(MOST_LISTED), marks=pytest.mark.long),
        pytest.param(medians(MOST_APART), marks=pytest.mark.long),
        pytest.param(sums(MOST_STATISTICS), marks=pytest.mark.long),
    ],
    ids=lambda text: f"{len(text)}",
)
def test_what_is_below_the_limits_is_planned(text: str, session: dpsql.Session) -> None:
    assert planned(session, text) < SECONDS


@pytest.mark.parametrize(
    ("text", "limit", "hint"),
    [
        (in_list(6_000), "at most 2,000 values, and this one 6,000", "a public table"),
        (medians(100), "at most 10 together, and this one 100", "a query of their own"),
        (distinct_counts(11), "at most 10 together, and this one 11", "a query of their own"),
        (sums(201), "at most 200 different statistics, and this one 201", "a query of their own"),
        (chain(200), "at most 20,000 columns", "columns of a subquery"),
        (lists(MOST_NODES // MOST_LISTED + 1), "at most 20,000 columns", "a public table"),
    ],
    ids=["list", "medians", "distinct", "sums", "chain", "nodes"],
)
def test_what_is_beyond_is_refused_before_anything_is_computed_of_it(
    text: str, limit: str, hint: str, session: dpsql.Session
) -> None:
    """The refusal names the limit, what the query has, and what to write."""
    began = time.process_time()
    with pytest.raises(UnsupportedQueryError) as caught:
        session.sql(text)
    (refusal,) = caught.value.refusals
    assert refusal.code == "size"
    assert refusal.span is not None
    assert limit in refusal.message
    assert hint in refusal.hint
    assert time.process_time() - began < SECONDS


def test_all_quantiles_of_one_value_count_once(session: dpsql.Session) -> None:
    shares = ", ".join(
        f"quantile_cont(n, 0.{i:02}, contribution_bounds_per_row => (0, 9)) AS q{i}" for i in range(1, 20)
    )
    planned(session, f"SELECT {shares} FROM t")
