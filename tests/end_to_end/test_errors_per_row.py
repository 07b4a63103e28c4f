"""One row on which an expression fails changes nothing but what that row's own person counts, wherever it stands.

For every expression that could fail, and every place where a query computes one: with the row and without it, the same
queries are answered, and the bounded results differ by no more than one person.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from dpsql.errors import EngineError
from tests.end_to_end.bench import Bench

# faults are planted in planning, in databases that the tests of this file share
pytestmark = pytest.mark.usefixtures("plans_each_time")

POISON = """
INSERT INTO t VALUES (99, 0, 'x', 'nan', 170141183460469231731687303715884105727, '5881580-07-10', -128),
    (99, 0, '99999999999', -1, -170141183460469231731687303715884105727, '290309-12-22 (BC)', 127),
    (99, 2147483647, '', 'inf', 0, NULL, NULL)
"""
EXPRESSIONS = (
    "10 / n", "10 // n", "10 % n", "mod(10, n)", "CAST(s AS INTEGER)", "n + 1", "n * 2", "-small", "abs(small)",
    "small - 1::TINYINT", "big + 1", "big * big", "-big", "ln(d)", "sqrt(d)", "log10(d)", "CAST(d AS INTEGER)",
    "round(d)::BIGINT", "exp(d * 1000)", "power(d, 1000)", "CASE WHEN n = 0 THEN 1 // n ELSE power(10.0, 400) END",
    "date_diff('day', day, DATE '5881580-07-10')", "year(day + INTERVAL 1 YEAR)", "epoch(day)", "CAST(s AS DATE)",
    "date_trunc('century', day)", "make_date(n * 100000, 1, 1)", "length(substring(s, n, 9))", "CAST(s || s AS BIGINT)",
    "coalesce(1 // nullif(n, 0), CAST(s AS INTEGER))", "greatest(CAST(s AS INTEGER), 1 // n)",
    "CAST(d AS DECIMAL(3, 1))", "CAST(big AS INTEGER)", "CAST(n AS UTINYINT) - 1::UTINYINT", "acos(d)", "error('x')",
    "repeat(s, n)", "random()", "regexp_matches(s, '[ab]*a[ab]{20}c')", "nextval('q')", "getenv('HOME')",
    "read_text('/etc/hostname')",
)  # fmt: skip
PLACES = (
    "SELECT count(*) AS c FROM t WHERE ({e}) IS NOT NULL",
    "SELECT count(*) AS c FROM t WHERE n = 1 OR ({e}) > 0",
    "SELECT {e} AS k, count(*) AS c FROM t GROUP BY k",
    "SELECT sum({e}, contribution_bounds_per_group => (0, 10)) AS c FROM t",
    "SELECT count(*) FILTER (WHERE ({e}) > 0) AS c FROM t",
    "SELECT k, count(*) AS c FROM (SELECT {e} AS k FROM t) GROUP BY k",
    "SELECT k, count(*) AS c FROM (SELECT pid, sum({e}) AS k FROM t GROUP BY pid) GROUP BY k",
    "SELECT k, count(*) AS c FROM (SELECT pid, max({e}) AS k FROM t GROUP BY pid HAVING avg({e}) > 0) GROUP BY k",
    "SELECT a, count(*) AS c FROM (SELECT pid, {e} AS k, avg({e}) AS a FROM t GROUP BY pid, k) GROUP BY a",
    "SELECT count(*) AS c FROM names LEFT JOIN t ON names.n = t.n AND ({e}) > 0",
    "SELECT count(*) AS c FROM t u WHERE EXISTS (FROM (SELECT pid, {e} AS k FROM t) w WHERE w.pid = u.pid AND k > 0)",
    "SELECT count(*) AS c FROM (SELECT pid, {e} AS k FROM t UNION SELECT pid, {e} FROM t)",
    "SELECT count(*) AS c FROM t JOIN (SELECT {e} AS k, pid FROM t) w USING (pid) WHERE k > 0",
)  # fmt: skip


@pytest.fixture(scope="module")
def benches() -> Iterator[tuple[Bench, Bench]]:
    pair = Bench(), Bench(POISON)
    yield pair
    for bench in pair:
        with contextlib.closing(bench.session):
            pass


def check(benches: tuple[Bench, Bench], expression: str, place: str) -> bool:
    """Compare both databases; whether the query is answered."""
    clean, poisoned = (bench.outcome(place.format(e=expression)) for bench in benches)
    if isinstance(clean, str) or isinstance(poisoned, str):
        assert clean == poisoned, "whether a query is refused does not depend on rows"
        return False
    # a person touches two groups at most, each of which may be new, gone, or changed
    assert len(clean - poisoned) <= 2
    assert len(poisoned - clean) <= 2
    return True


@pytest.mark.parametrize("number", range(len(EXPRESSIONS)))
def test_a_row_that_fails_tells_nothing(number: int, benches: tuple[Bench, Bench]) -> None:
    """Two places for each expression; all of them in the long run."""
    for step in (0, 1):
        check(benches, EXPRESSIONS[number], PLACES[(2 * number + step) % len(PLACES)])


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
def test_a_row_that_fails_tells_nothing_anywhere(place: str, benches: tuple[Bench, Bench]) -> None:
    answered = [check(benches, expression, place) for expression in EXPRESSIONS]
    assert sum(answered) >= len(EXPRESSIONS) // 3


@pytest.mark.parametrize("expression", EXPRESSIONS[-7:])
def test_what_is_not_total_is_refused_by_name(expression: str, benches: tuple[Bench, Bench]) -> None:
    for place in PLACES[:7]:
        outcome = benches[1].outcome(place.format(e=expression))
        assert isinstance(outcome, str)
        assert "row_function" in outcome or "[row_syntax]" in outcome


@pytest.mark.parametrize("name", ["shielded", "total_condition_sql"])
def test_an_expression_in_the_open_is_caught(
    name: str, benches: tuple[Bench, Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"dpsql.sql.source.projections.{name}", lambda sql, *_: sql)
    inner = {"shielded": "SELECT {e} AS k FROM t", "total_condition_sql": "SELECT n AS k FROM t WHERE {e} > 0"}[name]
    with pytest.raises(EngineError):
        check(benches, "CAST(s AS INTEGER)", f"SELECT k, count(*) AS c FROM ({inner}) GROUP BY k")
