"""Declarations that are undone or replaced: freely before a charge; after it, tables are archived and facts stay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.errors import PolicyError, ReleaseError, SchemaError
from dpsql.features import auto
from dpsql.release.runtime import Runtime
from dpsql.session.chosen import Chosen
from dpsql.session.runner import answer
from dpsql.sql.statements import SelectStatement, read_statement
from dpsql.state import ChargeItem
from tests.end_to_end.prepared import with_own_state

BUDGET = "epsilon_budget := 3, delta_budget := 1e-6"
BOUNDS = "max_groups_contributed := 1, max_rows_per_group := 9, coverage := FALSE"
TABLES = """
CREATE TABLE visits (visit_id BIGINT PRIMARY KEY, pid BIGINT, ward BIGINT);
INSERT INTO visits SELECT i, i % 400, i % 4 FROM range(2000) t(i);
CREATE TABLE meals AS SELECT i AS visit_id, i % 400 AS eater, i % 3 AS dish FROM range(2000) t(i);
CREATE TABLE wards AS SELECT i AS ward, i % 2 AS floor FROM range(4) t(i);
CREATE TABLE customers (id BIGINT PRIMARY KEY, city VARCHAR);
CREATE TABLE guests (id BIGINT, city VARCHAR);
CREATE TABLE shop (id INTEGER PRIMARY KEY, name VARCHAR);
CREATE TABLE sales (id INTEGER, price DOUBLE);
CREATE TABLE texts (id VARCHAR, name VARCHAR);
CREATE TABLE patients (pid BIGINT PRIMARY KEY, sex VARCHAR);
CREATE TABLE people (number BIGINT PRIMARY KEY, sex VARCHAR);
CREATE TABLE stays (pid BIGINT REFERENCES people (number), ward BIGINT);
CREATE TABLE bills (visit_id BIGINT, price DOUBLE);
CREATE VIEW billed AS SELECT v.pid AS payer, b.price FROM visits v JOIN bills b USING (visit_id);
CREATE VIEW ward_visits AS SELECT v.pid AS guest, w.floor FROM visits v JOIN wards w ON v.ward = w.ward;
CREATE VIEW upstairs AS SELECT guest AS who FROM ward_visits WHERE floor = 1;
"""
DECLARED = (
    f"CALL dp_unit('patient', {BUDGET})",
    f"CALL dp_unit('person', {BUDGET})",
    f"CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'pid', {BOUNDS})",
)
COUNT = "SELECT ward, count(*) FROM visits GROUP BY ward"
LINK = f"CALL dp_link('meals', 'visit_id', parent := 'visits.visit_id', {BOUNDS}"


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(TABLES)
        for call in DECLARED:
            session.sql(call)
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        yield session


def logged(session: dpsql.Session) -> list[tuple[str, dict[str, Any]]]:
    with session._access.read()._database.read() as connection:
        rows = connection.execute("SELECT noun, declaration FROM policy_log ORDER BY id").fetchall()
    return [(noun, json.loads(declaration)) for noun, declaration in rows]


def facts(session: dpsql.Session, table: str) -> tuple[object, ...]:
    """Whose rows a table holds: its unit and column, or its link; public; or nothing."""
    policy = session._access.read().policy()
    protected, link = policy.protected_table(table), policy.link(table)
    if protected:
        return protected.unit, link.parent if link else protected.privacy_unit_column
    return ("public",) if policy.public_table(table) else ()


DIRECTIONS = {
    "own unit": (f"dp_protect('meals', privacy_unit_column := 'eater', {BUDGET}", ("meals", "eater")),
    "unit": ("dp_protect('meals', unit := 'person', privacy_unit_column := 'eater'", ("person", "eater")),
    "column": ("dp_protect('meals', unit := 'person', privacy_unit_column := 'dish'", ("person", "dish")),
    "link": ("dp_link('meals', 'visit_id', parent := 'visits.visit_id'", ("patient", "main.visits")),
    "public": ("dp_public('meals', public_by_decision := 'a menu'", ("public",)),
}


def test_replace_goes_in_every_direction_before_a_charge(session: dpsql.Session) -> None:
    names = list(DIRECTIONS)
    # from each to each later one and back, then on to the next
    walk = [one for place, name in enumerate(names) for later in names[place + 1 :] for one in (later, name)]
    session.sql(f"CALL {DIRECTIONS[names[0]][0]})")
    last = names[0]
    for name in walk + names:
        call, expected = DIRECTIONS[name]
        if name == "own unit" and last in ("unit", "column", "link"):
            # the table has a unit, so a budget beside it would be that unit's
            session.sql(f"CALL dp_unit('meals', {BUDGET})")
            call = "dp_protect('meals', unit := 'meals', privacy_unit_column := 'eater'"
        if name != last:
            earlier = facts(session, "main.meals")
            with pytest.raises(PolicyError, match="replace := true"):
                session.sql(f"CALL {call})")
            assert facts(session, "main.meals") == earlier
        session.sql(f"CALL {call}, replace := true)")
        assert facts(session, "main.meals") == expected
        # a unit of the table's own goes with it
        assert ("meals" in [unit.name for unit in session._access.read().policy().units]) == (name == "own unit")
        last = name


@pytest.mark.parametrize("declared", DIRECTIONS)
def test_a_declaration_is_undone_as_if_it_had_never_been(session: dpsql.Session, declared: str) -> None:
    before = session._access.read().policy()
    session.sql(f"CALL {DIRECTIONS[declared][0]})")
    session.sql("CALL dp_domain('meals', 'dish', bounds := [0, 9])")
    for _ in range(2):
        undo = "dp_public('meals', public := false" if declared == "public" else "dp_unprotect('meals'"
        session.sql(f"CALL {undo})")
    after = session._access.read().policy()
    assert (after.units, after.tables, after.links, after.public, after.domains, after.remembered) == (
        before.units,
        before.tables,
        before.links,
        before.public,
        before.domains,
        before.remembered,
    )
    assert any(noun != "Domain" and one.get("withdrawn") for noun, one in logged(session))
    # its version may have a name of its own the next time
    session.sql(f"CALL {DIRECTIONS[declared][0]}, version := 'again')")


AFTER_A_CHARGE = (
    "dp_protect('visits', unit := 'person', replace := true",
    "dp_protect('visits', privacy_unit_column := 'visit_id', replace := true",
    "dp_link('visits', 'visit_id', parent := 'others.visit_id', replace := true",
    "dp_public('visits', public_by_decision := 'why', replace := true",
    # of the unit, another table was asked
    "dp_public('meals', public_by_decision := 'why', replace := true",
    "dp_protect('meals', privacy_unit_column := 'eater', replace := true",
)


def test_after_a_charge_replace_changes_bounds_and_domains_alone(session: dpsql.Session) -> None:
    session.connection.execute("CREATE OR REPLACE TABLE others (visit_id BIGINT PRIMARY KEY, pid BIGINT)")
    session.sql("CALL dp_protect('others', unit := 'patient', privacy_unit_column := 'pid')")
    session.sql(f"{LINK})")
    session.sql(COUNT, rho=0.01)
    before = session._access.read().policy()
    for call in AFTER_A_CHARGE:
        with pytest.raises(PolicyError, match="unit 'patient' has paid for answers"):
            session.sql(f"CALL {call})")
        # nor does anybody say that replace would do
        with pytest.raises(PolicyError, match="unit 'patient' has paid for answers"):
            session.sql(f"CALL {call.removesuffix(', replace := true')})")
    assert session._access.read().policy() == before
    session.sql("CALL dp_protect('visits', max_rows_per_group := NULL, replace := true)")
    session.sql("CALL dp_domain('visits', 'ward', bounds := [0, 9])")
    session.sql("CALL dp_domain('visits', 'ward', bounds := NULL, replace := true)")


def test_a_unit_that_reads_the_table_in_a_view_counts_too(session: dpsql.Session) -> None:
    """A view's answers were made of the rows of the tables below it, protected or public."""
    session.sql("CALL dp_public('wards')")
    session.sql(f"CALL dp_protect('ward_visits', privacy_unit_column := 'guest', separate_people := true, {BUDGET})")
    session.sql(
        "SELECT floor, count(DISTINCT guest) FROM ward_visits GROUP BY floor", rho=0.01, max_groups_contributed=1
    )
    for call in (
        "dp_public('wards', public := false)",
        f"dp_protect('wards', privacy_unit_column := 'ward', {BUDGET}, replace := true)",
        "dp_protect('visits', unit := 'person', replace := true)",
    ):
        with pytest.raises(PolicyError, match="unit 'ward_visits' has paid for answers"):
            session.sql(f"CALL {call}")
    assert "is archived" in session.sql("CALL dp_unprotect('visits')").fetchall()[0][0]


def test_a_mistake_after_a_charge_can_be_taken_back(session: dpsql.Session) -> None:
    """A charge from before a table was public was for no answer that rests on that."""
    session.sql("CALL dp_unprotect('visits')")
    session.sql(f"CALL dp_protect('billed', privacy_unit_column := 'payer', {BUDGET})")
    asked = "SELECT count(DISTINCT payer) FROM billed"
    session.sql(asked, rho=0.01)
    with pytest.raises(PolicyError, match=r"lend its unit to the protected 'main\.billed'.*_by_decision"):
        session.sql("CALL dp_public('visits')")
    # the key of the visits is no sign of people
    session.sql("CALL dp_public('bills')")
    mistake = "CALL dp_public('visits', public_by_decision := 'why')"
    session.sql(mistake)
    # its people would have two budgets
    protect = "CALL dp_protect('visits', unit := 'person', privacy_unit_column := 'pid', replace := true"
    with pytest.raises(PolicyError, match="separate_people := true"):
        session.sql(f"{protect})")
    with with_own_state(session) as other:
        other.sql(f"{protect}, separate_people := true)")
    session.sql("CALL dp_public('visits', public := false)")
    assert facts(session, "main.visits") == ()
    # an answer while it is public rests on that, whatever decision is named later
    session.sql(mistake)
    session.sql(asked, rho=0.02)
    session.sql(mistake.replace("why", "another"))
    for call in ("CALL dp_public('visits', public := false)", f"{protect})"):
        with pytest.raises(PolicyError, match="unit 'billed' has paid for answers"):
            session.sql(call)


def test_a_view_may_be_undone_whatever_was_asked_of_the_tables_below_it(session: dpsql.Session) -> None:
    session.sql(COUNT, rho=0.01)
    protect = f"CALL dp_protect('ward_visits', privacy_unit_column := 'guest', separate_people := true, {BUDGET})"
    session.sql(protect)
    session.sql(
        "CALL dp_protect('ward_visits', privacy_unit_column := 'floor', replace := true, separate_people := true)"
    )
    session.sql("CALL dp_unprotect('ward_visits')")
    assert facts(session, "main.ward_visits") == ()
    # but not after an answer of a view that reads it
    session.sql(protect)
    session.sql(f"CALL dp_protect('upstairs', privacy_unit_column := 'who', separate_people := true, {BUDGET})")
    session.sql("SELECT count(DISTINCT who) FROM upstairs", rho=0.01)
    with pytest.raises(PolicyError, match="unit 'upstairs' has paid for answers"):
        session.sql("CALL dp_protect('ward_visits', privacy_unit_column := 'floor', replace := true)")


def test_an_archived_table_serves_what_is_stored_and_nothing_else(session: dpsql.Session) -> None:
    first = session.sql(COUNT, rho=0.01).fetchall()
    session.sql("CALL dp_new_version('visits')")
    second = session.sql(COUNT, rho=0.01).fetchall()
    assert "is archived" in session.sql("CALL dp_unprotect('visits')").fetchall()[0][0]
    assert session.sql(COUNT, rho=0.01).fetchall() == second
    assert session.sql(COUNT, rho=0.01, as_of="1").fetchall() == first
    assert ("protected table", "main.visits", "archived", "True") in session.sql("FROM dp_policy()").fetchall()
    spent = session._access.read().ledger.spent("patient")
    for text, options in (
        (COUNT, {"rho": 0.02}),
        ("SELECT count(DISTINCT pid) FROM visits", {"rho": 0.001}),
        ("SELECT v.ward, count(*) FROM visits v WHERE pid IN (SELECT pid FROM visits) GROUP BY v.ward", {"rho": 0.001}),
        (
            "SELECT ward, count(DISTINCT pid) FROM visits GROUP BY ward",
            {"rho": 0.001, "max_groups_contributed": "AUTO"},
        ),
    ):
        with pytest.raises(ReleaseError, match="archived"):
            session.sql(text, **options)
        with pytest.raises(ReleaseError, match="archived"):
            session.as_analyst("ana").sql(text, **options)
    with pytest.raises(PolicyError, match="archived, so no table can be linked"):
        session.sql(f"{LINK})")
    assert session._access.read().ledger.spent("patient") == spent
    # it keeps the people known: no second budget, and no public copy
    with pytest.raises(PolicyError, match="public_by_decision"):
        session.sql("CALL dp_public('patients')")
    # the same declaration ends it, with all its settings; another one does not
    end = r"archived.*CALL dp_protect\('main\.visits', replace := true\) ends that"
    with pytest.raises(PolicyError, match=f"has paid for answers.*{end}"):
        session.sql("CALL dp_protect('visits', unit := 'person', replace := true)")
    # a new version would hide what is stored
    with pytest.raises(PolicyError, match=end):
        session.sql("CALL dp_new_version('visits')")
    assert session.sql(COUNT, rho=0.01).fetchall() == second
    # nor does a script that declares it at every start
    with pytest.raises(PolicyError, match=r"archived from true to false; add replace := true"):
        session.sql("CALL dp_protect('visits')")
    session.sql("CALL dp_protect('visits', replace := true)")
    assert session.sql(COUNT, rho=0.02).receipt is not None
    assert session._access.read().policy().tables[-1].max_rows_per_group == 9


def test_a_parent_goes_after_its_children(session: dpsql.Session) -> None:
    session.sql(f"{LINK})")
    for call in ("dp_unprotect('visits')", "dp_protect('visits', privacy_unit_column := 'ward', replace := true)"):
        with pytest.raises(PolicyError, match=r"linked to 'main.visits'; first CALL dp_unprotect\('main.meals'\)"):
            session.sql(f"CALL {call}")
    session.sql(COUNT, rho=0.01)
    with pytest.raises(PolicyError, match=r"first CALL dp_unprotect\('main.meals'\)"):
        session.sql("CALL dp_unprotect('visits')")
    session.sql("CALL dp_unprotect('main.meals')")
    session.sql("CALL dp_unprotect('visits')")
    with pytest.raises(PolicyError, match="archived, so no table can be linked"):
        session.sql(f"{LINK})")


def test_the_parent_of_an_archived_table_keeps_its_facts(session: dpsql.Session) -> None:
    """A view paid for the answers of the child: the parent's unit has paid for nothing."""
    session.connection.execute("CREATE OR REPLACE VIEW eaters AS SELECT eater AS gourmet FROM meals")
    session.sql(f"{LINK})")
    session.sql(f"CALL dp_protect('eaters', privacy_unit_column := 'gourmet', separate_people := true, {BUDGET})")
    session.sql("SELECT count(DISTINCT gourmet) FROM eaters", rho=0.01)
    assert "is archived" in session.sql("CALL dp_unprotect('meals')").fetchall()[0][0]
    for call in (
        "dp_protect('visits', unit := 'person', replace := true)",
        "dp_public('visits', public_by_decision := 'why', replace := true)",
    ):
        with pytest.raises(PolicyError, match=r"archived table 'main\.meals' is linked to 'main\.visits'"):
            session.sql(f"CALL {call}")
    assert "is archived" in session.sql("CALL dp_unprotect('visits')").fetchall()[0][0]
    with pytest.raises(PolicyError, match=r"CALL dp_link\('main\.meals', 'visit_id', replace := true\) ends that"):
        session.sql("CALL dp_new_version('meals')")
    session.sql("CALL dp_protect('visits', replace := true)")
    session.sql(f"{LINK}, replace := true)")


def test_a_list_of_keys_goes_after_the_columns_that_have_it(session: dpsql.Session) -> None:
    session.sql("CALL dp_public('wards')")
    session.sql("CALL dp_domain('visits', 'ward', keys_from := 'wards.ward')")
    with pytest.raises(PolicyError, match=r"first CALL dp_domain\('main.visits', 'ward', keys_from := NULL\)"):
        session.sql(f"CALL dp_protect('wards', privacy_unit_column := 'ward', {BUDGET}, replace := true)")
    with pytest.raises(PolicyError, match=r"dp_public\('main.wards', public := false\)"):
        session.sql("CALL dp_unprotect('wards')")


def test_what_was_said_of_one_unit_is_asked_again_for_another(session: dpsql.Session) -> None:
    """A decision about people is no setting that stays: a second budget, or people in a public table, is said anew."""
    session.sql("CALL dp_protect('patients', unit := 'person', privacy_unit_column := 'pid', separate_people := true)")
    session.sql(f"CALL dp_unit('third', {BUDGET})")
    with pytest.raises(PolicyError, match="separate_people := true"):
        session.sql("CALL dp_protect('patients', unit := 'third', replace := true)")
    with pytest.raises(PolicyError, match="public_by_decision"):
        session.sql("CALL dp_public('patients', replace := true)")
    # settings that nobody names stay
    session.sql("CALL dp_protect('patients', min_privacy_units_per_group := 20, rho_ceiling := 1)")
    session.sql("CALL dp_protect('patients', unit := 'patient', replace := true)")
    kept = session._access.read().policy().protected_table("main.patients")
    assert kept is not None
    assert (kept.unit, kept.min_units, kept.rho_ceiling, kept.separate_people) == ("patient", 20, 10**9, False)


@pytest.mark.parametrize("histogram", [False, True])
def test_a_plan_from_before_a_change_is_never_charged(session: dpsql.Session, histogram: bool) -> None:
    """Rows would be bounded by the old column, and paid for after the change: one transaction sees both."""
    options = {"rho": 0.01} | ({"max_groups_contributed": "AUTO"} if histogram else {})
    statement = read_statement(COUNT)
    assert isinstance(statement, SelectStatement)
    runner = session._runner
    query, state, reader = runner.plan(statement, options, CURATOR)
    session.sql("CALL dp_protect('visits', privacy_unit_column := 'visit_id', replace := true)")
    runtime = Runtime(state, runner.engine, runner.sandbox, runner.noise_source)

    def charge() -> None:
        if histogram:
            auto.release_histograms(query.first, runtime, reader, None, ChargeItem("later", 0, 0))
        else:
            answer(Chosen(query, reader), runtime, timeout_seconds=None)

    with runtime.until_end, pytest.raises(ReleaseError, match="undid or replaced"):
        charge()
    assert state.ledger.spent("patient").rho_nano == 0
    # bounds and domains are no facts
    _, _, reader = runner.plan(statement, options, CURATOR)
    session.sql("CALL dp_domain('visits', 'ward', bounds := [0, 9])")
    session.sql("CALL dp_domain('visits', 'ward', bounds := NULL, replace := true)")
    assert session._access.read().policy().undone == reader.planned_at


def test_a_charge_between_check_and_change_is_seen(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    state = session._access.read()
    monkeypatch.setattr(type(state), "require_unpaid", lambda *_: session.sql(COUNT, rho=0.01))
    with pytest.raises(PolicyError, match="has paid for answers"):
        session.sql("CALL dp_protect('visits', privacy_unit_column := 'visit_id', replace := true)")
    assert facts(session, "main.visits") == ("patient", "pid")


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("unprotect", "dp_unprotect('visits')"),
        ("declare_protected", "dp_protect('visits', unit := 'third', replace := true)"),
        ("declare_public", "dp_public('visits', public_by_decision := 'why', replace := true)"),
    ],
)
def test_a_unit_that_another_session_declares_meanwhile_is_seen(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch, method: str, call: str
) -> None:
    """Otherwise the charge of that unit would not count, and the people had a second budget."""
    session.sql(f"CALL dp_unit('third', {BUDGET})")
    state = type(session._access.read())
    change = getattr(state, method)

    def late(*arguments: Any, **options: Any) -> object:
        monkeypatch.undo()
        session.sql("CALL dp_protect('visits', unit := 'person', replace := true)")
        session.sql(COUNT, rho=0.01)
        return change(*arguments, **options)

    monkeypatch.setattr(state, method, late)
    with pytest.raises(PolicyError, match="changed meanwhile"):
        session.sql(f"CALL {call}")
    assert facts(session, "main.visits") == ("person", "pid")


def test_a_dropped_table_is_undone_by_its_name(session: dpsql.Session) -> None:
    session.connection.execute("CREATE TABLE brief (pid BIGINT)")
    session.sql("CALL dp_protect('brief', unit := 'patient', privacy_unit_column := 'pid')")
    session.connection.execute("DROP TABLE brief")
    session.sql("CALL dp_unprotect('brief')")
    assert facts(session, "main.brief") == ()
    with pytest.raises(PolicyError, match="there is no table or view 'brief'"):
        session.sql("CALL dp_unprotect('brief')")
    with pytest.raises(PolicyError, match="takes the name of a table alone"):
        session.sql("CALL dp_unprotect('visits', replace := true)")


@pytest.mark.parametrize(
    ("protected", "column", "public", "refused"),
    [
        ("customers", "id", "shop", None),
        # no constraint says so, and a column `id` numbers its own rows
        ("guests", "id", "shop", None),
        ("customers", "id", "sales", "has a column 'id', which is the unit column of 'main.customers'"),
        ("customers", "id", "texts", None),
        # the key of people, which the protected table holds
        ("visits", "pid", "patients", "has a column 'pid', which is the unit column of 'main.visits'"),
        ("stays", "pid", "people", "is the table that 'pid' of the protected 'main.stays' refers to"),
    ],
)
def test_a_public_table_has_no_column_that_leads_to_people(
    session: dpsql.Session, protected: str, column: str, public: str, refused: str | None
) -> None:
    protect = f"CALL dp_protect('{protected}', unit := 'patient', privacy_unit_column := '{column}')"
    session.sql(protect)
    if refused:
        with pytest.raises(PolicyError, match=refused):
            session.sql(f"CALL dp_public('{public}')")
        return
    session.sql(f"CALL dp_public('{public}')")
    # nor in the other order
    session.sql(f"CALL dp_unprotect('{protected}')")
    session.sql(protect)


def test_a_lookup_table_that_nobody_declared_is_public_first_for_the_curator(session: dpsql.Session) -> None:
    def refusal(text: str, door: dpsql.Session | dpsql.Analyst) -> SchemaError:
        with pytest.raises(SchemaError) as caught:
            door.sql(text, rho=0.01)
        return caught.value

    join = "SELECT floor, count(*) FROM visits JOIN {} USING (ward) GROUP BY floor"
    told = refusal(join.format("wards"), session)
    assert told.hint is not None
    assert told.hint.startswith("Write CALL dp_public('wards')")
    assert "dp_protect" in told.hint
    session.sql("CALL dp_public('wards')")
    assert session.sql(join.format("wards"), rho=0.01).receipt is not None
    # a table by itself is protected, and an analyst learns nothing of what is not declared
    assert "dp_public" not in str(refusal("SELECT count(*) FROM people", session))
    ana = session.as_analyst("ana")
    shown = [str(refusal(join.format(table), ana)) for table in ("people", "nobody")]
    assert shown[0].replace("people", "nobody") == shown[1]
