"""mode(x) and histogram(x): equal to DuckDB without noise, priced as their counts, refused of private values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.errors import UnsupportedQueryError
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise, silence

LEVEL: dict[str, Any] = {"rho": 8, "delta": 1e-3}
VISITS = (
    "CREATE TABLE visits AS SELECT (i % 500)::INT AS patient, (['Lund', 'Oslo', 'Ystad'])[1 + i % 3] AS city, "
    "(['a', 'b', 'c', 'd'])[1 + (i * i + i // 7) % 4] AS kind, i % 7 = 0 AS urgent, (i * 13 % 50)::INT AS cost, "
    "DATE '2024-01-01' + (i % 90)::INT AS day FROM range(4000) r(i)"
)


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(VISITS)
        session.sql("CALL dp_unit('patient', rho_budget := 1e6, delta_threshold := 0.4, delta_conversion := 0.1)")
        session.sql(
            "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', "
            "max_groups_contributed := 60, max_rows_per_group := 60)"
        )
        session.sql("CALL dp_domain('visits', 'kind', keys := ['a', 'b', 'c', 'd'])")
        session.sql("CALL dp_domain('visits', 'urgent', keys := [true, false])")
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 50])")
        yield session


def public_cities(session: dpsql.Session) -> None:
    session.sql("CALL dp_domain('visits', 'city', keys := ['Lund', 'Oslo', 'Ystad'])")


EQUAL = {
    "one row": "SELECT mode(kind), histogram(kind) FROM visits",
    "groups": "SELECT city, mode(kind) AS m FROM visits GROUP BY city",
    "beside others": "SELECT city, count(*) AS n, mode(kind), sum(cost) FROM visits GROUP BY city",
    "several values": "SELECT city, mode(kind), mode(urgent) AS u, histogram(urgent) FROM visits GROUP BY 1",
    "FILTER": "SELECT city, mode(kind) FILTER (WHERE urgent) AS m, histogram(kind) FROM visits GROUP BY city",
    "HAVING and ORDER BY": "SELECT upper(city) AS c, mode(kind) || '!' AS m, count(*) AS n FROM visits WHERE cost > 3 "
    "GROUP BY c HAVING mode(kind) = 'a' AND n > 5 ORDER BY m, n DESC LIMIT 2",
    "an alias like a key": "SELECT mode(kind) AS city, city AS c, count(*) AS n FROM visits GROUP BY city",
    "an alias like a key in HAVING": "SELECT mode(kind) AS city, count(*) FROM visits GROUP BY city "
    "HAVING city = 'Lund' ORDER BY city, lower(city)",
    "an alias like a value": "SELECT histogram(cost, [10, 20]) AS cost, sum(cost) AS day FROM visits GROUP BY city "
    "HAVING sum(cost) > 9 AND (day > 9 OR cost IS NULL) ORDER BY day LIMIT 2",
    "HAVING alone": "SELECT mode(urgent) AS m FROM visits HAVING count(*) > 10 AND NOT mode(urgent)",
    "HAVING of a mode": "SELECT city FROM visits GROUP BY city HAVING mode(kind) = 'a' ORDER BY mode(kind), city "
    "LIMIT 1",
    "a condition that is a mode": "SELECT count(*) AS n FROM visits WHERE urgent HAVING mode(urgent)",
    "no key is shown": "SELECT histogram(kind) AS h FROM visits GROUP BY city",
    "GROUP BY ALL": "SELECT city, date_trunc('month', day) AS day, mode(urgent) FROM visits GROUP BY ALL",
    "bins": "SELECT histogram(cost, [30, 10, 20, 10]) FROM visits",
    "bins of groups": "SELECT city, histogram(cost, [10, 20.5]) AS h, mode(kind) FROM visits GROUP BY city",
    "bins of an expression": "SELECT histogram(v.cost * 2 - 5, [-1, 10, 40]) AS h FROM visits v",
    "bins of dates": "SELECT histogram(day, [DATE '2024-01-15', DATE '2024-02-01']) AS h FROM visits",
    "bins up to the last value": "SELECT city, histogram(cost, [10, 2147483647]) AS h FROM visits GROUP BY city",
    "bins of a huge type": "SELECT histogram(cost::HUGEINT, [9, 170141183460469231731687303715884105727]) AS h "
    "FROM visits",
    "bins up to infinity": "SELECT histogram(cost::DOUBLE, [10, 1e400]) AS h FROM visits",
    "bins that are one": "SELECT histogram(cost::FLOAT + 16777200, [16777216, 16777217, 16777240]) AS h FROM visits",
    "bins of timestamps": "SELECT histogram(day::TIMESTAMP, [TIMESTAMP '2024-01-15 12:00:00', DATE '2024-02-01']) AS h "
    "FROM visits",
    "bins of dates at times": "SELECT city, histogram(day, [TIMESTAMP '2024-02-01']) AS h FROM visits GROUP BY city",
    "a subquery": "SELECT mode(k), histogram(c, [10, 20]) FROM (SELECT kind AS k, cost + 1 AS c FROM visits)",
    "inside another": "SELECT c, m FROM (SELECT city AS c, mode(kind) AS m FROM visits GROUP BY city) "
    "WHERE c <> 'Oslo'",
    "WITH": "WITH x AS (SELECT * FROM visits WHERE urgent) SELECT mode(kind), count(*), (SELECT count(*) FROM visits) "
    "AS n FROM x",
    "beside another": "SELECT 'mode' AS what, mode(kind) AS m FROM visits UNION ALL SELECT 'urgent', mode(kind) "
    "FROM visits WHERE urgent",
}


@pytest.mark.parametrize("text", EQUAL.values(), ids=EQUAL.keys())
def test_an_answer_is_that_of_duckdb_without_noise(session: dpsql.Session, text: str) -> None:
    silence(session)
    if "GROUP BY city" in text:
        public_cities(session)
    _check_equal(session, text)


@pytest.mark.parametrize("name", ["groups", "beside others", "FILTER", "bins of groups", "inside another"])
def test_an_answer_of_private_cities_is_that_of_duckdb_without_noise(session: dpsql.Session, name: str) -> None:
    silence(session)
    _check_equal(session, EQUAL[name])


def _check_equal(session: dpsql.Session, text: str) -> None:
    answer = session.sql(text, **LEVEL)
    plain = session.connection.execute(text)
    if "(" not in "".join(answer.columns):
        assert [name for name, *_ in plain.description] == answer.columns
    assert sorted(answer.fetchall(), key=repr) == sorted(plain.fetchall(), key=repr)


def test_columns_have_the_names_of_duckdb(session: dpsql.Session) -> None:
    text = "SELECT mode(kind), histogram(kind), mode(urgent) AS u FROM visits"
    found = session.connection.execute(text).description
    assert session.sql(text, **LEVEL).columns == [name for name, *_ in found]


def test_a_histogram_has_all_values_and_a_mode_only_one_that_is_there(session: dpsql.Session) -> None:
    silence(session)
    text = "SELECT mode(kind) AS m, histogram(kind) AS h, histogram(cost, [10]) AS b FROM visits WHERE cost > 99"
    assert session.sql(text, **LEVEL).fetchall() == [(None, dict.fromkeys("abcd", 0), {10: 0, 2147483647: 0})]


@pytest.mark.parametrize(
    "call",
    [
        "histogram(cost, [2147483647])",
        "histogram(day, [DATE '9999-12-31'])",
        "histogram(cost::DOUBLE, [1e309])",
        "histogram(cost::HUGEINT, [5, 170141183460469231731687303715884105728])",
        "histogram(day, [DATE '2024-01-15', 'infinity'::DATE])",
    ],
)
def test_bins_outside_of_their_type_are_refused_with_bins_that_are_taken(session: dpsql.Session, call: str) -> None:
    before = session.sql("FROM dp_budget()").fetchall()
    with pytest.raises(UnsupportedQueryError) as caught:
        session.sql(f"SELECT {call} FROM visits", **LEVEL)
    (refusal,) = caught.value.refusals
    assert session.sql("FROM dp_budget()").fetchall() == before
    cure = refusal.hint.partition("as in ")[2].removesuffix(".")
    assert session.sql(f"SELECT {cure} FROM visits", **LEVEL).fetchall()


def test_bins_with_a_zone_are_in_the_order_of_utc(session: dpsql.Session) -> None:
    silence(session)
    text = (
        "SELECT histogram(day::TIMESTAMPTZ, [TIMESTAMPTZ '2024-02-01 00:00:00+00', TIMESTAMP '2024-01-15']) FROM visits"
    )
    ((found,),) = session.sql(text, **LEVEL).fetchall()
    ((plain,),) = session.connection.execute(
        text.replace("::TIMESTAMPTZ", "").replace("TIMESTAMPTZ", "DATE")
    ).fetchall()
    assert list(found.values()) == list(plain.values())


def test_ties_go_by_the_order_of_the_keys(session: dpsql.Session) -> None:
    silence(session)
    session.connection.execute("DELETE FROM visits WHERE kind IN ('a', 'd') OR patient > 100")
    session.connection.execute("INSERT INTO visits (patient, kind) SELECT patient, 'd' FROM visits WHERE kind = 'c'")
    session.connection.execute("DELETE FROM visits WHERE kind = 'b'")
    assert session.sql("SELECT mode(kind) FROM visits", **LEVEL).fetchall() == [("c",)]
    session.sql("CALL dp_domain('visits', 'kind', keys := ['d', 'it''s {', 'c'])")
    assert session.sql("SELECT mode(kind) FROM visits", **LEVEL).fetchall() == [("d",)]


def test_no_line_of_the_screen_is_cut(session: dpsql.Session) -> None:
    text = (
        "SELECT city, mode(kind) AS m, count(DISTINCT patient) AS n FROM visits GROUP BY city HAVING n > 5 "
        "ORDER BY n DESC LIMIT 2"
    )
    printed = str(session.sql(text, rho=1))
    assert "none for some; values may be hidden" in printed
    assert not any(line.endswith("…") for line in printed.splitlines())


def test_a_number_that_is_not_known_has_a_line_beside_mode(session: dpsql.Session) -> None:
    session.sql("CALL dp_domain('visits', 'city', keys := ['Lund', 'Oslo', 'Ystad', 'Nowhere'])")
    text = (
        "SELECT city, mode(kind) AS m, corr(cost, 50 - cost, contribution_bounds_per_row => ((0, 50), (0, 50))) AS c, "
        "count(*) AS n FROM visits GROUP BY city"
    )
    printed = str(session.sql(text, rho=1))
    assert "NULL" in printed.split("error", maxsplit=1)[0]
    assert "NULL: no value is known" in printed


def test_the_price_is_that_of_the_counts(session: dpsql.Session) -> None:
    public_cities(session)
    first = session.sql("SELECT city, mode(kind), histogram(kind) FROM visits GROUP BY city", rho=0.5)
    assert receipt_of(first).charged_rho == pytest.approx(0.5)
    again = session.sql("SELECT city, kind, count(*) FROM visits GROUP BY city, kind", rho=0.5)
    assert receipt_of(again).charged_rho == 0.0
    counts = {(city, kind): n for city, kind, n in again.fetchall()}
    for city, mode, histogram in first.fetchall():
        assert histogram == {kind: counts[city, kind] for kind in "abcd"}
        assert mode == max("abcd", key=lambda kind: counts[city, kind])


def test_the_receipt_has_the_error_of_the_counts_and_no_interval(session: dpsql.Session) -> None:
    session._runner.noise_source = seeded_noise(1)
    answer = session.sql(
        "SELECT city, count(*) AS n, mode(kind) AS m, histogram(kind) AS h FROM visits GROUP BY city", **LEVEL
    )
    notes = receipt_of(answer).notes
    assert [one.name for one in receipt_of(answer).columns] == ["n", "count(*) by kind"]
    assert "no interval is known of m and h, which the text computes from released numbers" in notes
    assert any("a value whose count passed no threshold is left out" in note for note in notes)
    public_cities(session)
    answer = session.sql("SELECT city, mode(kind) AS m FROM visits GROUP BY city", rho=0.1)
    assert not any("threshold" in note for note in receipt_of(answer).notes)


COUNTS = "SELECT city, cost, count(*) FROM visits GROUP BY city, cost"
REFUSED = {
    "private values": ("SELECT city, mode(cost) FROM visits GROUP BY city", "aggregate", f"Write {COUNTS}."),
    "private values beside others": (
        "SELECT city, count(*), histogram(cost) FROM visits GROUP BY city",
        "aggregate",
        f"Write {COUNTS}.",
    ),
    "an alias": (
        "SELECT upper(city) AS c, mode(cost) FILTER (WHERE urgent) FROM visits WHERE day > '2024-02-01' "
        "GROUP BY c ORDER BY c",
        "aggregate",
        "Write SELECT upper(city) AS c, cost, count(*) FROM visits WHERE day > '2024-02-01' AND urgent "
        "GROUP BY c, cost.",
    ),
    "an expression": (
        "SELECT histogram(upper(kind)) FROM visits",
        "aggregate",
        "Write SELECT upper(kind), count(*) FROM visits GROUP BY upper(kind).",
    ),
    "DISTINCT": (
        "SELECT mode(DISTINCT kind) FROM visits",
        "aggregate_argument",
        "Leave DISTINCT out, as in mode(kind).",
    ),
    "ORDER BY": (
        "SELECT mode(kind ORDER BY cost) FROM visits",
        "aggregate_argument",
        "Leave ORDER BY out, as in mode(kind).",
    ),
    "a star": ("SELECT mode(*) FROM visits", "aggregate_argument", "Write mode(x)."),
    "an interval": (
        "SELECT city, mode(kind) AS m, dp_interval_low(m) FROM visits GROUP BY city",
        "aggregate_argument",
        "Write SELECT city, kind, count(*) FROM visits GROUP BY city, kind.",
    ),
    "a window": (
        "SELECT city, lag(mode(kind)) OVER (ORDER BY city) FROM visits GROUP BY city",
        "after",
        "Give it an alias in a subquery, and write the window around it, over that alias.",
    ),
    "WITHIN GROUP": (
        "SELECT mode() WITHIN GROUP (ORDER BY kind) FROM visits",
        "aggregate",
        "Write mode(kind).",
    ),
    "bins of a column": (
        "SELECT histogram(cost, [cost]) FROM visits",
        "aggregate_argument",
        "Write the upper end of each, as in histogram(cost, [10, 20, 30]).",
    ),
    "bins of two kinds": (
        "SELECT histogram(cost, [1, DATE '2024-01-01']) FROM visits",
        "aggregate_argument",
        "Write the upper end of each, as in histogram(cost, [10, 20, 30]).",
    ),
    "grouping sets": (
        "SELECT city, mode(kind) FROM visits GROUP BY ROLLUP (city)",
        "group_by_form",
        "Group by plain keys, in a query for each set.",
    ),
    "QUALIFY": (
        "SELECT city, mode(kind) FROM visits GROUP BY city QUALIFY mode(kind) = 'a'",
        "after",
        "Filter in a query around this one.",
    ),
    "an option of a subquery": (
        "SELECT m FROM (SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (other_group = 'o') city, mode(kind) AS m FROM visits "
        "GROUP BY city)",
        "option",
        "Leave other_group out.",
    ),
    "options of several": (
        "SELECT n FROM (SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 1) count(*) AS n, mode(kind) FROM visits)",
        "option",
        "Write OPTIONS in the first SELECT of the text.",
    ),
}


@pytest.mark.parametrize(("text", "code", "hint"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_is_free_and_its_hint_is_accepted(session: dpsql.Session, text: str, code: str, hint: str) -> None:
    before = session.sql("FROM dp_budget()").fetchall()
    with pytest.raises(UnsupportedQueryError) as caught:
        session.sql(text, **LEVEL)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.hint) == (code, hint)
    assert session.sql("FROM dp_budget()").fetchall() == before
    if hint.startswith("Write SELECT"):
        assert session.sql(hint.removeprefix("Write ").removesuffix("."), **LEVEL).columns[-1] == "count_star()"


def test_messages_and_plans_name_columns_by_the_text(session: dpsql.Session) -> None:
    assert session.sql("SELECT histogram(kind)['a'] FROM visits", **LEVEL).columns[0] == "histogram(kind)['a']"
    with pytest.raises(UnsupportedQueryError, match=r"as in histogram\(cost, \[10, 20, 30\]\)"):
        session.sql("SELECT city, histogram(cost) FROM visits GROUP BY city", **LEVEL)
    text = "SELECT city, mode(kind), count(*), sum(cost) / count(*) AS r FROM visits GROUP BY city"
    plan = session.sql(f"CALL dp_explain('{text}', rho := 1)").fetchall()
    assert "dpsql_" not in str(plan)
    assert "count(*)" in [name for section, name, _ in plan if section == "part 1: expected error"]
    assert "dpsql_" not in str(receipt_of(session.sql(text, rho=1)))


def test_a_unit_within_groups_has_no_mode(session: dpsql.Session) -> None:
    with pytest.raises(UnsupportedQueryError):
        session.sql(
            "SELECT k, count(*) FROM (SELECT patient, mode(kind) AS k FROM visits GROUP BY patient) GROUP BY k", **LEVEL
        )


def test_the_bins_of_a_text_are_no_keys_of_another(session: dpsql.Session) -> None:
    """A key that is written like a bin needs a threshold, whatever was asked before."""
    session.sql("SELECT histogram(cost, [10]) FROM visits", **LEVEL)
    text = (
        "SELECT CASE WHEN NOT cost IS NULL THEN CASE WHEN cost <= 10 THEN 0 ELSE 1 END END AS b, count(*) FROM visits "
        "GROUP BY b"
    )
    assert receipt_of(session.sql(text, **LEVEL)).threshold is not None
