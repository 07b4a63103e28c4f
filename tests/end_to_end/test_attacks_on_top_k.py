"""Attacks on pre-selection that a hostile reader found, each of which once worked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql

LARGEST_HUGEINT = "170141183460469231731687303715884105727"
BOB = f"CASE WHEN name = 'Bob' THEN {LARGEST_HUGEINT}::HUGEINT ELSE 1::HUGEINT END"


def clinic(*, bob: bool) -> dpsql.Session:
    session = dpsql.connect()
    session.connection.execute(
        "CREATE TABLE visits AS SELECT i AS patient, 'n' || i % 5 AS name, i % 2 AS ward, 10.0::DOUBLE AS cost, "
        "1::HUGEINT AS huge, [1::HUGEINT] AS huges, [DATE 'infinity'] AS days FROM range(500) t(i)"
    )
    if bob:
        session.connection.execute(
            f"INSERT INTO visits VALUES (99999, 'Bob', 0, 10, {LARGEST_HUGEINT}, [{LARGEST_HUGEINT}], NULL)"
        )
    session.connection.execute("CREATE TABLE crowds AS FROM visits")
    session.sql("CALL dp_unit('patient', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)")
    for table, least in (("visits", ""), ("crowds", ", min_privacy_units_per_group := 5")):
        session.sql(
            f"CALL dp_protect('{table}', coverage := FALSE, unit := 'patient', privacy_unit_column := 'patient', "
            f"max_rows_per_group := 1{least})"
        )
        session.sql(f"CALL dp_domain('{table}', 'cost', bounds := [0, 20])")
    return session


@pytest.fixture(scope="module", params=[False, True], ids=["without", "with"])
def session(request: pytest.FixtureRequest) -> Iterator[dpsql.Session]:
    """A clinic without or with Bob, whose key no type of Arrow holds."""
    with clinic(bob=request.param) as session:
        yield session


@pytest.mark.parametrize("key", [BOB, "huge", "huges"])
@pytest.mark.parametrize(("table", "option"), [("visits", "top_k = 4"), ("crowds", "max_groups_contributed = 4")])
def test_a_key_that_arrow_has_no_type_for_tells_of_no_row(
    session: dpsql.Session, key: str, table: str, option: str
) -> None:
    """The second query joins raw keys with held ones; a cast of the raw side would fail on Bob's alone."""
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({option}, rho = 1e-6) {key} AS k, {{}} FROM {table} GROUP BY 1"
    session.sql(text.format("count(DISTINCT patient)"))
    receipt = session.sql(text.format("sum(cost)")).receipt
    assert receipt is not None
    assert receipt.charged_rho > 0


@pytest.mark.parametrize("bob", [False, True])
def test_a_listed_hugeint_tells_of_no_row(*, bob: bool) -> None:
    with clinic(bob=bob) as session:
        session.sql("CALL dp_domain('visits', 'huge', keys := [1, 2])")
        assert len(session.sql("SELECT huge, count(*) FROM visits GROUP BY huge", rho=0.1)) == 2


@pytest.mark.parametrize(
    "option", ["top_k = 4", "top_k = 4, mechanism = GSHM", "mechanism = MISRA_GRIES, sketch_size = 4"]
)
def test_what_is_held_is_served_whatever_delta_is_asked_for_now(option: str) -> None:
    """The stored threshold costs more than the new delta: a guarantee is still stated, and the price is the plan's."""
    with clinic(bob=False) as session:
        options = f"{option}, rho = 1, delta = 1e-6"
        text = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) ward, {{}} FROM visits GROUP BY 1"
        session.sql(text.format("count(DISTINCT patient)"))
        later = text.replace("1e-6", "1e-9")
        asked = ["count(DISTINCT patient)"] + ["sum(cost)"] * ("MISRA" not in option)
        for aggregate in asked:
            plan = {
                row[1]: row[2] for row in session.sql(f"FROM dp_explain($$ {later.format(aggregate)} $$)").fetchall()
            }
            receipt = session.sql(later.format(aggregate)).receipt
            assert receipt is not None
            assert receipt.charged_rho == pytest.approx(float(plan["rho"]))
            assert f"epsilon = {receipt.epsilon:.6g}, delta = {receipt.delta:.6g}" == plan["this query alone"]
            assert receipt.delta > 1e-9


def test_no_guarantee_is_searched_for_after_the_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    with clinic(bob=False) as session:
        text = (
            "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (top_k = 4) ward, count(DISTINCT patient) FROM visits GROUP BY 1"
        )

        def fails(*_: object) -> None:
            raise dpsql.CalibrationError("no guarantee")

        monkeypatch.setattr("dpsql.release.offer._guarantee", fails)
        with pytest.raises(dpsql.CalibrationError):
            session.sql(text, rho=0.1)
        assert session.sql("FROM dp_budget()").df()["rho_spent"].item() == 0.0


def test_a_readers_minimum_on_a_sketch_holds_for_what_is_surely_there() -> None:
    """The floor of a sketch may belong to any key or to none: it helps no count over a reader's line."""
    with clinic(bob=False) as session:
        session.connection.execute(
            "INSERT INTO visits SELECT i, 'x', 10 + i % 40, 10, 1, [1], NULL FROM range(4000) t(i)"
        )
        options = "mechanism = MISRA_GRIES, sketch_size = 8, min_privacy_units_per_group = {}"
        text = (
            f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) ward, count(DISTINCT patient) AS n "
            "FROM visits GROUP BY 1"
        )
        shown = dict(session.sql(text.format(20), rho=5.0).fetchall())
        assert all(count > 20 for count in shown.values())
        answer = session.sql(text.format(20), rho=5.0)
        assert answer.receipt is not None
        assert any("exceeds 20" in note for note in answer.receipt.notes)


def test_the_receipt_states_that_one_group_can_move_all_counts() -> None:
    with clinic(bob=False) as session:
        answer = session.sql(
            "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (top_k = 25, max_groups_contributed = 1) ward, "
            "count(DISTINCT patient) AS n, sum(cost) AS total FROM visits GROUP BY 1",
            rho=1.0,
        )
        assert answer.receipt is not None
        count, total = answer.receipt.columns
        assert (count.linf, count.l2) == (1.0, 5.0)
        assert total.l2 == total.linf


def test_days_beyond_pythons_in_a_list_are_shown_as_text() -> None:
    with clinic(bob=False) as session:
        text = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (top_k = 4) days, count(*) FROM visits GROUP BY 1"
        assert [row[0] for row in session.sql(text, rho=5.0).fetchall()] == ["[infinity]"]
