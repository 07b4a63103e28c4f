"""Norms by AUTO, and a table of which nothing but the unit is declared: what is chosen, paid, refused and kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dpsql
from dpsql.features import keys_first
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise


@pytest.fixture(scope="module")
def shared() -> Iterator[dpsql.Session]:
    """4,000 people with 9 rows over 3 or 9 of 12 shops, and one with 50,000 rows in one."""
    with dpsql.connect(threads=2) as opened:
        opened.connection.execute(
            "CREATE TABLE sales AS SELECT u, (u + i % (CASE WHEN u % 2 = 0 THEN 3 ELSE 9 END)) % 12 AS shop, "
            "(10 + hash(u, i) % 10) / 1.0 AS cost FROM range(4000) r(u), range(9) s(i) "
            "UNION ALL SELECT 4000, 3, 1e6 FROM range(50000)"
        )
        opened.sql("CALL dp_unit('buyer', rho_budget := 200, delta_threshold := 1e-3, delta_conversion := 1e-6)")
        opened.sql("CALL dp_protect('sales', coverage := FALSE, unit := 'buyer', privacy_unit_column := 'u')")
        opened.connection.execute("CREATE TABLE single AS FROM sales WHERE shop = u % 12")
        opened.sql("CALL dp_protect('single', coverage := FALSE, unit := 'buyer', privacy_unit_column := 'u')")
        yield opened


@pytest.fixture
def session(shared: dpsql.Session) -> dpsql.Session:
    """Return the sales under versions that nobody has asked about."""
    for table in ("sales", "single"):
        shared.sql(f"CALL dp_new_version('{table}')")
    shared._runner.noise_source = seeded_noise(4)
    return shared


def total_spent(session: dpsql.Session) -> float:
    return float(session.sql("FROM dp_budget('buyer')").df().rho_spent[0])


Spent = Callable[[], float]


@pytest.fixture
def spent(session: dpsql.Session) -> Spent:
    """Return what tells how much rho a test has spent so far."""
    before = total_spent(session)
    return lambda: round(total_spent(session) - before, 9)


ROWS = "SELECT shop, count(*) AS n FROM sales GROUP BY shop ORDER BY shop"
BY_NORM: dict[str, Any] = {"rho": 0.32, "delta": 1e-6, "max_groups_contributed": 12, "bounding": "NORM"}
LEVEL: dict[str, Any] = {"rho": 0.32, "delta": 1e-6}


def test_a_norm_is_chosen_once_and_is_the_named_one(session: dpsql.Session) -> None:
    """Norms are the root of 27 and 3; the next half of a row is chosen, and who has 50,000 raises nothing."""
    first, again = session.sql(ROWS, **BY_NORM), session.sql(ROWS, **BY_NORM)
    one, other = receipt_of(first), receipt_of(again)
    assert again.fetchall() == first.fetchall()
    assert one.charged_rho == pytest.approx(0.32, abs=1e-12) == one.rho
    assert (other.charged_rho, other.query_hash) == (0.0, one.query_hash)
    (note,) = (note for note in one.notes if "AUTO" in note)
    assert note.startswith("AUTO chose a norm of 6 for count(*) from a noisy histogram of units by their norms over")
    assert "at rho = 0.01" in note
    named = ROWS.replace("count(*)", "count(*, contribution_norm => 6)")
    receipt = receipt_of(session.sql(named, **{**BY_NORM, "rho": 0.31}))
    assert (receipt.query_hash, receipt.charged_rho) == (one.query_hash, 0.0)


def test_in_any_order_it_costs_what_the_levels_cost(session: dpsql.Session, spent: Spent) -> None:
    for rho in (0.064, 0.32, 0.16):
        session.sql(ROWS, **{**BY_NORM, "rho": rho})
    # sure at the first level, so that it is never drawn again
    assert spent() == pytest.approx(0.002 + 0.31, abs=1e-8)


def test_rows_of_few_units_are_answered_all_the_same(session: dpsql.Session) -> None:
    receipt = receipt_of(session.sql(ROWS.replace("FROM sales", "FROM sales WHERE u < 3"), **BY_NORM))
    (note,) = (note for note in receipt.notes if "AUTO" in note)
    assert "too noisy for a choice that lasts" in note


def test_what_nobody_has_is_not_found_and_is_paid_once(session: dpsql.Session, spent: Spent) -> None:
    few = ROWS.replace("FROM sales", "FROM sales WHERE u < 3").replace("count(*)", "sum(cost)")
    for _ in range(2):
        answer = session.sql(few, **BY_NORM)
        assert {value for _, value in answer.fetchall()} <= {None}
        # the count of units has half of what AUTO leaves; the other half, of the sum, is not paid
        assert spent() == pytest.approx(0.01 + 0.31 / 2, abs=1e-8) == receipt_of(answer).rho


# -- nothing is declared but the unit ---------------------------------------------------------------------------------

PEOPLE = (
    "SELECT shop, count(DISTINCT u) AS people, count(*) AS n, sum(cost) AS paid, avg(cost) AS mean FROM {} "
    "GROUP BY shop"
)


def test_a_first_query_needs_no_number_but_the_unit(session: dpsql.Session, spent: Spent) -> None:
    answer = session.sql(PEOPLE.format("sales"), rho=0.64, delta=1e-6)
    receipt, table = receipt_of(answer), answer.df().set_index("shop").sort_index()
    exact = (
        session.connection.sql(
            "SELECT shop, count(DISTINCT u) AS people, count(*) AS n, sum(cost) AS paid FROM sales WHERE u < 4000 "
            "GROUP BY shop ORDER BY shop"
        )
        .df()
        .set_index("shop")
    )
    assert receipt.mechanism == "keys_first"
    assert receipt.rho == receipt.charged_rho == pytest.approx(0.64, abs=1e-12) == spent()
    assert len(table) == 12
    for column in ("people", "n", "paid"):
        assert (table[column] / exact[column] - 1.0).abs().max() < 0.1
    assert (table["mean"] - 14.5).abs().max() < 1.5
    said = " ".join(receipt.notes)
    for word in ("AUTO chose max_groups", "a norm of 6 for count(*)", "for sum(cost)", "found bounds [8, 32]"):
        assert word in said
    again = receipt_of(session.sql(PEOPLE.format("sales"), rho=0.64, delta=1e-6))
    assert (again.charged_rho, again.query_hash) == (0.0, receipt.query_hash)


def test_by_epsilon_it_keeps_what_was_asked(session: dpsql.Session) -> None:
    for text in (PEOPLE.format("sales"), PEOPLE.format("single"), "SELECT count(*), sum(cost) FROM single"):
        receipt = receipt_of(session.sql(text, epsilon=2.0, delta=1e-6))
        assert 2.0 - 1e-6 <= receipt.epsilon <= 2.0
        assert receipt.delta <= 1e-6


def test_rounds_of_key_selection_are_for_units_with_several_keys(session: dpsql.Session) -> None:
    receipt = receipt_of(session.sql(PEOPLE.format("single"), **LEVEL))
    assert (receipt.mechanism, receipt.max_groups) == ("gshm", 1)
    assert receipt.charged_rho == pytest.approx(0.32, abs=1e-12) == receipt.rho
    again = receipt_of(session.sql(PEOPLE.format("single"), **LEVEL))
    assert (again.charged_rho, again.query_hash) == (0.0, receipt.query_hash)


def test_totals_and_public_keys_need_no_number_either(session: dpsql.Session) -> None:
    total = session.sql("SELECT count(*) AS n, sum(cost) AS paid FROM sales", **LEVEL).df()
    # the person with 50,000 rows of a million each is scaled down to what the others have
    assert total.n[0] == pytest.approx(36_000, rel=0.02)
    assert total.paid[0] == pytest.approx(36_000 * 14.5, rel=0.1)
    session.connection.execute("CREATE OR REPLACE TABLE listed AS FROM sales")
    session.sql("CALL dp_protect('listed', coverage := FALSE, unit := 'buyer', privacy_unit_column := 'u')")
    session.sql("CALL dp_domain('listed', 'shop', keys := [1, 2, 99])")
    listed = session.sql(ROWS.replace("sales", "listed"), **LEVEL)
    assert listed.df().shop.tolist() == [1, 2, 99]
    assert receipt_of(listed).mechanism != "keys_first"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT shop, count(*) AS n, sum(count(*)) OVER () AS all_of_them FROM sales GROUP BY shop",
        "SELECT shop, count(*) AS n, dp_unbounded(n), dp_interval_low(n) FROM sales GROUP BY shop HAVING n > 9",
        "WITH t AS (SELECT shop, count(*) AS n FROM sales GROUP BY ALL) SELECT sum(n) FROM t",
        "SELECT shop, avg(cost), bool_or(cost > 5) FROM sales GROUP BY shop QUALIFY rank() OVER (ORDER BY shop) < 3",
    ],
)
def test_what_stands_around_numbers_works_as_ever(session: dpsql.Session, text: str) -> None:
    receipt = receipt_of(session.sql(text, **LEVEL))
    assert receipt.mechanism == "keys_first"
    assert receipt.charged_rho == pytest.approx(0.32, abs=1e-12)
    assert receipt_of(session.sql(text, **LEVEL)).charged_rho == 0.0


def test_explaining_draws_nothing_and_does_not_depend_on_the_data(session: dpsql.Session, spent: Spent) -> None:
    session.connection.execute("CREATE OR REPLACE TABLE emptied AS FROM sales")
    session.sql("CALL dp_protect('emptied', coverage := FALSE, unit := 'buyer', privacy_unit_column := 'u')")
    explain = f"FROM dp_explain($${PEOPLE.format('emptied')}$$, rho := 0.32, delta := 1e-6)"
    before = session.sql(explain).fetchall()
    told = {(section, name): value for section, name, value in before}
    assert told["mechanism", "rho"] == "0.32"
    assert told["price", "rho"] == "0.32, or less where an answer is stored"
    assert told["price", "threshold delta"] == "9.75e-07"
    assert any("norm of what they have in all groups" in value for _, _, value in before)
    session.connection.execute("DELETE FROM emptied")
    assert session.sql(explain).fetchall() == before
    assert spent() == 0.0


def test_a_plan_is_explained_after_it_was_chosen(session: dpsql.Session) -> None:
    receipt = receipt_of(session.sql(PEOPLE.format("sales"), **LEVEL))
    rows = session.sql(f"FROM dp_explain($${PEOPLE.format('sales')}$$, rho := 0.32, delta := 1e-6)").fetchall()
    told = {(section, name): value for section, name, value in rows}
    assert told["keys and numbers", "rho"] == f"{receipt.rho:.9g}" == "0.32"
    assert told["price", "rho"] == "0"
    assert told["price", "query hash"] == receipt.query_hash


@pytest.mark.parametrize(
    ("unit", "rho", "threshold"), [("poor", 3.1, 1e-3), ("poorer", 0.32, 3e-7)], ids=["rho", "threshold"]
)
def test_what_could_not_be_answered_is_not_paid(
    session: dpsql.Session, unit: str, rho: float, threshold: float
) -> None:
    session.sql(f"CALL dp_unit('{unit}', rho_budget := 3, delta_threshold := {threshold}, delta_conversion := 1e-6)")
    session.connection.execute(f"CREATE TABLE {unit} AS FROM sales")
    session.sql(
        f"CALL dp_protect('{unit}', coverage := FALSE, unit := '{unit}', privacy_unit_column := 'u', "
        "separate_people := TRUE)"
    )
    with pytest.raises(dpsql.BudgetError):
        session.sql(ROWS.replace("sales", unit), rho=rho, delta=1e-6)
    assert session.sql(f"FROM dp_budget('{unit}')").df().rho_spent[0] == 0.0
    # thresholds cost 3.125e-7 of it; of units with one group they would cost up to 1e-6
    session.sql(f"CALL dp_unit('{unit}', delta_threshold := 3.2e-7, replace := TRUE)")
    with pytest.raises(dpsql.BudgetError):
        session.sql(ROWS.replace("sales", unit), **LEVEL)
    assert session.sql(f"FROM dp_budget('{unit}')").df().rho_spent[0] == 0.0
    session.sql(f"CALL dp_unit('{unit}', delta_threshold := 1.1e-6, replace := TRUE)")
    assert len(session.sql(ROWS.replace("sales", unit), **LEVEL)) == 12


def test_a_reader_with_a_limit_holds_what_the_receipt_says(session: dpsql.Session, spent: Spent) -> None:
    session.sql("CALL dp_analyst('cleo', rho_limit := 0.2)")
    cleo = session.as_analyst("cleo")
    with pytest.raises(dpsql.AccessError):
        cleo.sql(ROWS, **LEVEL)
    assert spent() == 0.0
    receipt = receipt_of(cleo.sql(ROWS, rho=0.16, delta=1e-6))
    assert receipt.rho == pytest.approx(0.16, abs=1e-12)
    held = session.sql("FROM dp_budget('buyer', analysts := ['cleo'])").df().rho_held[0]
    assert held == pytest.approx(0.16, abs=1e-9)


def test_histograms_that_others_paid_for_add_up_to_no_more_than_a_reader_s_limit_leaves(
    session: dpsql.Session,
) -> None:
    """Five questions of one query, stored at 20/32 by the curator: readers have points of theirs, at 0.05/32."""
    several = "SELECT shop, count(*) AS n, count(cost) AS m, sum(cost) AS s, avg(cost) AS a FROM sales GROUP BY shop"
    session.sql(several, rho=20, delta=1e-6)
    for reader, rho in (("ana", 0.05), ("eve", 0.02)):
        session.sql(f"CALL dp_analyst('{reader}', rho_limit := 0.05)")
        notes = receipt_of(session.as_analyst(reader).sql(several, rho=rho, delta=1e-6)).notes
        stated = [float(level) for note in notes for level in re.findall(r"^AUTO .* at rho = ([0-9.e-]+)", note)]
        assert len(stated) == 5
        assert sum(stated) <= 0.05 / 32 + 1e-12


def test_a_crash_after_auto_pays_nothing_twice(
    session: dpsql.Session, spent: Spent, monkeypatch: pytest.MonkeyPatch
) -> None:

    def crash(*_: object, **__: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(keys_first.KeysFirstKind, "release", crash)
        with pytest.raises(RuntimeError):
            session.sql(ROWS, **LEVEL)
    # AUTO, and the first round of keys, which is 0.06 of the rest
    assert spent() == pytest.approx(0.01 + 0.0186, abs=1e-8)
    session.sql(ROWS, **LEVEL)
    assert spent() == pytest.approx(0.32, abs=1e-12)


@pytest.mark.parametrize("value", ["1e25", "0.0"])
def test_sums_of_which_auto_tells_no_size_are_null(session: dpsql.Session, spent: Spent, value: str) -> None:
    session.connection.execute(f"CREATE OR REPLACE TABLE odd AS SELECT u, shop, {value}::DOUBLE AS cost FROM sales")
    session.sql("CALL dp_protect('odd', unit := 'buyer', privacy_unit_column := 'u', coverage := FALSE)")
    session.sql("CALL dp_new_version('odd')")
    for _ in range(2):
        answer = session.sql("SELECT shop, count(DISTINCT u) AS n, sum(cost) AS c FROM odd GROUP BY shop", **LEVEL)
        rows = answer.df()
        assert len(rows) == 12
        assert rows.n.min() > 0
        assert rows.c.isna().all()
    # the share of the sum is not paid, and the second answer costs nothing
    assert spent() == pytest.approx(receipt_of(answer).rho, abs=1e-8)
    assert spent() < 0.3


def test_rows_whose_noise_cannot_be_drawn_are_not_paid(spent: Spent, session: dpsql.Session) -> None:
    """A norm of 70,000 rows is known, and its noise is too wide at a low level: the column is NULL, not refused."""
    text = "SELECT shop, count(*) AS n, count(DISTINCT u) AS people FROM large GROUP BY shop"
    session.connection.execute(
        "CREATE OR REPLACE TABLE large AS SELECT u, 1 AS shop FROM range(40) r(u), range(70000) s(i)"
    )
    session.sql("CALL dp_protect('large', coverage := FALSE, unit := 'buyer', privacy_unit_column := 'u')")
    session.sql("CALL dp_domain('large', 'shop', keys := [1])")
    known = session.sql(text, rho=16.0, delta=1e-6, bounding="NORM").df()
    assert known.n[0] == pytest.approx(40 * 70_000, rel=0.5)
    before = spent()
    low = session.sql(text, rho=1e-6, delta=1e-6, bounding="NORM")
    assert low.df().n.isna().all()
    assert low.df().people.notna().all()
    # the count of units is made of the stored one
    assert spent() == before
    assert any("count(*) is NULL" in note and "cannot be drawn" in note for note in receipt_of(low).notes)
