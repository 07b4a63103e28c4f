"""Other spellings of aggregates through SQL: percentiles, lists of quantiles, extremes, dp_ forms, keys."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest

import dpsql
from tests.noise_sources import silence


@pytest.fixture(scope="module")
def shop() -> Iterator[dpsql.Session]:
    """600 customers of three cities with three orders each, as a session without noise."""
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE orders AS SELECT p AS customer, 'city ' || (p % 3) AS city, (p * 7 + v * 13) % 100 AS price, "
            "DATE '2026-01-01' + ((p + v) % 90)::int AS day FROM range(600) u(p), range(3) w(v)"
        )
        session.sql("CALL dp_unit('customer', rho_budget := 10000, delta_threshold := 0.5, delta_conversion := 1e-6)")
        session.sql(
            "CALL dp_protect('orders', unit := 'customer', privacy_unit_column := 'customer', "
            "max_groups_contributed := 1, max_rows_per_group := 3, default_rho := 1, default_delta := 1e-3)"
        )
        session.sql("CALL dp_domain('orders', 'price', bounds := [0, 100])")
        session.connection.execute(
            "CREATE TABLE region AS SELECT 'city ' || i AS city, 'R' || i AS name FROM range(3) r(i)"
        )
        session.connection.execute("CREATE TABLE twice AS FROM region")
        session.connection.execute("ALTER TABLE region ADD PRIMARY KEY (city)")
        session.sql("CALL dp_public('region')")
        session.sql("CALL dp_public('twice')")
        silence(session)
        yield session


SPELLINGS = [
    ("percentile_cont(0.25) WITHIN GROUP (ORDER BY price)", "quantile_cont(price, 0.25)"),
    ("percentile_disc(0.25) WITHIN GROUP (ORDER BY price DESC)", "quantile_disc(price, 0.75)"),
    (
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY price) FILTER (WHERE price > 9)",
        "quantile_cont(price, 0.5) FILTER (WHERE price > 9)",
    ),
    ("quantile_cont(0.5) WITHIN GROUP (ORDER BY price)", "quantile_cont(price, 0.5)"),
    ("approx_count_distinct(price)", "count(DISTINCT price)"),
    ("approx_count_distinct(price) FILTER (WHERE price < 50)", "count(DISTINCT price) FILTER (WHERE price < 50)"),
    ("any_value(city)", "city"),
    ("any_value(upper(city))", "upper(city)"),
    ("dp_median(price, 0, 100)", "median(price)"),
    ("dp_quantile_cont(price, 0.1, 0, 100)", "quantile_cont(price, 0.1)"),
    ("dp_stddev_samp(price, 0, 100)", "stddev(price)"),
    ("dp_count_if(price > 3)", "count_if(price > 3)"),
    ("dp_bool_or(price > 98)", "bool_or(price > 98)"),
]


@pytest.mark.parametrize(("text", "known"), SPELLINGS)
def test_another_spelling_is_the_same_statistic(shop: dpsql.Session, text: str, known: str) -> None:
    answers = [shop.sql(f"SELECT city, {one} FROM orders GROUP BY city ORDER BY city") for one in (known, text)]
    assert answers[0].fetchall() == answers[1].fetchall()
    assert answers[1].receipt is not None
    assert answers[1].receipt.charged_rho == 0.0


@pytest.mark.parametrize(
    "lists",
    [
        "quantile_cont(price, [0.25, 0.5, 0.75])",
        "percentile_cont([0.25, 0.5, 0.75]) WITHIN GROUP (ORDER BY price)",
        "percentile_cont([0.75, 0.5, 0.25]) WITHIN GROUP (ORDER BY price DESC)",
        "approx_quantile(price, [0.25, 0.5, 0.75])",
        "dp_quantile_cont(price, [0.25, 0.5, 0.75], 0, 100)",
    ],
)
def test_a_list_of_quantiles_is_one_histogram_at_one_price(shop: dpsql.Session, lists: str) -> None:
    apart = ", ".join(f"quantile_cont(price, {share})" for share in (0.25, 0.5, 0.75))
    numbers = shop.sql(f"SELECT city, {apart} FROM orders GROUP BY city ORDER BY city").fetchall()
    listed = shop.sql(f"SELECT city, {lists} AS q FROM orders GROUP BY city ORDER BY city")
    assert listed.fetchall() == [(city, quantiles) for city, *quantiles in numbers]
    assert listed.receipt is not None
    assert listed.receipt.charged_rho == 0.0
    assert "no interval for q" in str(listed)


def test_a_list_of_quantiles_of_no_rows_is_null(shop: dpsql.Session) -> None:
    assert shop.sql("SELECT quantile_cont(price, [0.1, 0.9]) FILTER (WHERE price > 1000) FROM orders")[0] == (None,)


def test_a_column_keeps_the_name_that_it_has_in_the_text(shop: dpsql.Session) -> None:
    answer = shop.sql("SELECT any_value(city), approx_count_distinct(price) FROM orders GROUP BY city")
    assert answer.columns == ["any_value(city)", "approx_count_distinct(price)"]


def test_extremes_are_quantiles_and_every_reader_is_told(shop: dpsql.Session) -> None:
    text = "SELECT min(price) AS least, max(price) AS most, count(*) AS n FROM orders"
    with pytest.raises(dpsql.UnsupportedQueryError) as refused:
        shop.sql(text)
    assert {refusal.code for refusal in refused.value.refusals} == {"aggregate"}
    answer = shop.sql(text, extremes="quantile")
    exact = shop.connection.sql("SELECT quantile_cont(price, 0.01), quantile_cont(price, 0.99) FROM orders").fetchall()
    assert answer[0][:2] == pytest.approx(exact[0], abs=2.0)
    assert "least: 1 %, most: 99 % quantile of the rows, not the minimum and maximum" in str(answer)
    assert answer.receipt is not None
    told = "most: 99 % quantile of the rows, not the maximum; values outside [0, 100] are cut"
    assert told in answer.receipt.sections["error"]
    assert answer.receipt.columns[0].aggregate == "quantile_cont(price, 0.010) in place of min(price)"


def test_the_extremes_of_dates_are_dates(shop: dpsql.Session) -> None:
    bounds = "contribution_bounds_per_row => (DATE '2025-12-01', DATE '2026-12-01')"
    answer = shop.sql(f"SELECT min(day, {bounds}) AS a, max(day, {bounds}) AS b FROM orders", extremes="quantile")
    low, high = answer[0]
    assert abs((low - dt.date(2026, 1, 1)).days) <= 2
    assert abs((high - dt.date(2026, 3, 31)).days) <= 2
    assert "quantile of the rows, not the minimum and maximum" in str(answer)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("quantile_cont(price, [])", "aggregate_argument"),
        ("quantile_cont(price, [0.5, 2])", "aggregate_argument"),
        ("percentile_cont('x') WITHIN GROUP (ORDER BY price)", "aggregate_argument"),
        ("any_value(price)", "aggregate"),
        ("any_value(city || price::VARCHAR)", "aggregate"),
        ("dp_median(price)", "aggregate_argument"),
        ("dp_quantile_cont(price, 0.5)", "aggregate_argument"),
    ],
)
def test_what_is_no_such_call_is_refused(shop: dpsql.Session, call: str, code: str) -> None:
    with pytest.raises(dpsql.UnsupportedQueryError) as refused:
        shop.sql(f"SELECT city, {call} FROM orders GROUP BY city")
    assert {refusal.code for refusal in refused.value.refusals} == {code}


def test_a_unique_key_of_a_public_table_decides_any_value(shop: dpsql.Session) -> None:
    text = (
        "SELECT o.city, any_value(r.name) AS name, count(*) AS n FROM orders o JOIN {} r ON r.city = o.city GROUP BY {}"
    )
    found = shop.sql(text.format("region", "o.city") + " ORDER BY 1").fetchall()
    assert found == [(f"city {i}", f"R{i}", 600) for i in range(3)]
    for table, keys in (("twice", "o.city"), ("region", "o.day")):
        with pytest.raises(dpsql.UnsupportedQueryError):
            shop.sql(text.replace("o.city, any", "any").format(table, keys))


def test_any_value_adds_no_key_to_group_by_all(shop: dpsql.Session) -> None:
    with pytest.raises(dpsql.UnsupportedQueryError):
        shop.sql("SELECT city, any_value(price), count(*) FROM orders GROUP BY ALL")
    answer = shop.sql("SELECT city, any_value(city), count(*) AS n FROM orders GROUP BY ALL ORDER BY ALL")
    assert answer.fetchall() == [(f"city {i}", f"city {i}", 600) for i in range(3)]


def test_aggregates_around_an_answer_are_those_of_duckdb(shop: dpsql.Session) -> None:
    outer = (
        "SELECT string_agg(city || '=' || n, ', ' ORDER BY city) AS t, list(n ORDER BY city) AS l, stddev(n) AS s, "
        "quantile_cont(n, 0.5) AS q, percentile_cont(0.5) WITHIN GROUP (ORDER BY n) AS p, arg_max(city, n) AS a, "
        "mode(n) AS m, corr(n, n) AS c, any_value(city ORDER BY city) AS v FROM {}"
    )
    answer = "SELECT city, count(*) AS n FROM orders WHERE price > 7 OR city <> 'city 1' GROUP BY city"
    shop.connection.sql(f"CREATE OR REPLACE TEMP TABLE answer AS {answer}")
    known = shop.connection.sql(outer.format("answer")).fetchall()
    assert shop.sql(outer.format(f"({answer})")).fetchall() == known


def test_truths_counts_and_elements_around_an_answer_are_those_of_duckdb(shop: dpsql.Session) -> None:
    outer = (
        "SELECT bool_and(n > 10), bool_or(n > 10) FILTER (WHERE city = 'city 1'), count_if(n > 10), "
        "first(city ORDER BY city), last(city ORDER BY city), list(n ORDER BY city)[2] FROM {}"
    )
    answer = "SELECT city, count(*) AS n FROM orders WHERE price > 7 OR city <> 'city 1' GROUP BY city"
    shop.connection.sql(f"CREATE OR REPLACE TEMP TABLE answer AS {answer}")
    known = shop.connection.sql(outer.format("answer"))
    found = shop.sql(outer.format(f"({answer})"))
    assert found.fetchall() == known.fetchall()
    assert found.arrow().column_names[:5] == known.columns[:5]


@pytest.mark.parametrize("value", ["city", "n"])
def test_a_value_that_is_no_truth_is_refused_around_an_answer(shop: dpsql.Session, value: str) -> None:
    with pytest.raises(dpsql.SchemaError):
        shop.sql(f"SELECT bool_and({value}) FROM (SELECT city, count(*) AS n FROM orders GROUP BY city)")
