"""A second table of a unit: it may give people of another unit a second budget, as the first table may."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import dpsql
from dpsql.errors import PolicyError
from tests.end_to_end.prepared import with_declarations, with_own_state

BUDGET = "epsilon_budget := 3, delta_budget := 1e-6"
TABLES = """
CREATE TABLE visits (visit_id INTEGER PRIMARY KEY, patient_id INTEGER, city INTEGER);
CREATE TABLE meals (visit_id INTEGER, dish INTEGER);
CREATE TABLE others (doctor_id INTEGER, city INTEGER);
CREATE TABLE lab (patient_id INTEGER, doctor_id INTEGER, visit_id INTEGER, cost INTEGER);
CREATE TABLE beds (visit_id INTEGER);
CREATE VIEW slept AS SELECT visit_id FROM (SELECT 1 AS visit_id);
CREATE TABLE scans (patient_id INTEGER, cost INTEGER);
CREATE TABLE homes (patient_id INTEGER PRIMARY KEY, household INTEGER);
CREATE TABLE shops (shop INTEGER, city INTEGER);
CREATE TABLE orders (order_no INTEGER, shop INTEGER, customer INTEGER, PRIMARY KEY (order_no, shop));
CREATE TABLE lines (order_no INTEGER, shop INTEGER);
CREATE VIEW eaten AS SELECT visit_id AS eater FROM meals;
"""
UNITS = ("patient", "doctor", "household", "shop", "customer")
DECLARED = (
    *(f"CALL dp_unit('{unit}', {BUDGET})" for unit in UNITS),
    "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient_id')",
    "CALL dp_protect('others', unit := 'doctor', privacy_unit_column := 'doctor_id')",
)
LAB = "CALL dp_protect('lab', unit := 'doctor', privacy_unit_column := 'patient_id', max_groups_contributed := 4)"
LAB_SEPARATE = LAB.replace(")", ", separate_people := true)")


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with with_declarations(TABLES, DECLARED) as session:
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        yield session


def refused(session: dpsql.Session, call: str) -> str:
    """Return what a refused declaration says; nothing is declared."""
    before = session._access.read().policy()
    with pytest.raises(PolicyError, match="seems to hold the people of") as caught:
        session.sql(call)
    assert session._access.read().policy() == before
    return str(caught.value)


def cured(call: str, message: str) -> tuple[str, str]:
    """Return the call as the cure for the same people gives it, and as the one for other people does."""
    found = re.search(
        r"the same people, (?:first )?write (.*?)(?: in place of ([^;]*))?; if they are others, add", message
    )
    assert found
    other = call.replace(", separate_people := false", "").removesuffix(")") + ", separate_people := true)"
    if found[1].startswith("CALL"):
        return found[1], other
    for given in (found[2] or "").split(" and "):
        call = re.sub(rf", {given}" + ("" if ":=" in given else r" := [^,)]+"), "", call)
    return f"{call.removesuffix(')')}, {found[1]})", other


def unit_of(session: dpsql.Session, table: str) -> str | None:
    protected = session._access.read().policy().protected_table(f"main.{table}")
    return protected.unit if protected else None


def test_a_second_table_gives_nobody_a_second_budget_unsaid(session: dpsql.Session) -> None:
    message = refused(session, LAB)
    assert message == (
        "'main.lab' seems to hold the people of 'main.visits', which has the budget of unit 'patient': its unit column "
        "is called 'patient_id', too. If these are the same people, write unit := 'patient' in place of unit := "
        "'doctor'; if they are others, add separate_people := true"
    )
    same, other = cured(LAB, message)
    session.sql(same)
    assert unit_of(session, "lab") == "patient"
    session.sql("CALL dp_unprotect('lab')")
    session.sql(other)
    assert unit_of(session, "lab") == "doctor"


def test_a_table_that_another_session_declares_meanwhile_is_seen(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.sql("CALL dp_unprotect('visits')")
    state = type(session._access.read())
    change = state.declare_protected

    def late(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        session.sql(DECLARED[-2])
        change(*arguments, **options)

    monkeypatch.setattr(state, "declare_protected", late)
    with pytest.raises(PolicyError, match="changed meanwhile; ask again"):
        session.sql(LAB)
    assert unit_of(session, "lab") is None
    refused(session, LAB)


def test_the_unit_that_came_first_is_asked_as_well(session: dpsql.Session) -> None:
    call = "CALL dp_protect('lab', unit := 'patient', privacy_unit_column := 'doctor_id')"
    assert "write unit := 'doctor' in place of unit := 'patient'" in refused(session, call)


def test_a_unit_of_the_tables_own_is_replaced_with_its_budget(session: dpsql.Session) -> None:
    call = f"CALL dp_protect('lab', privacy_unit_column := 'patient_id', {BUDGET})"
    same, other = cured(call, refused(session, call))
    session.sql(same)
    assert unit_of(session, "lab") == "patient"
    session.sql("CALL dp_unprotect('lab')")
    session.sql(other)
    assert unit_of(session, "lab") == "lab"


@pytest.mark.parametrize("decided", ["lab", "visits"])
def test_a_decision_about_two_units_is_asked_for_once(session: dpsql.Session, decided: str) -> None:
    """Whichever table of the two it was said of, it covers more tables of both units, and no third unit."""
    if decided == "visits":
        session.sql("CALL dp_unprotect('visits')")
        session.sql(LAB)
        visits = DECLARED[-2].replace(")", ", separate_people := true)")
        refused(session, DECLARED[-2])
        session.sql(visits)
    else:
        session.sql(LAB_SEPARATE)
    for call in (LAB, LAB_SEPARATE, *DECLARED):
        session.sql(call)
    for unit in ("doctor", "patient"):
        session.sql(f"CALL dp_protect('scans', unit := '{unit}', privacy_unit_column := 'PATIENT_ID')")
        session.sql("CALL dp_unprotect('scans')")
    for unit in ("household", "customer"):
        refused(session, f"CALL dp_protect('scans', unit := '{unit}', privacy_unit_column := 'patient_id')")


def test_a_decision_ends_with_its_declaration(session: dpsql.Session) -> None:
    session.sql(LAB_SEPARATE)
    session.sql("CALL dp_unprotect('lab')")
    refused(session, LAB)
    session.sql(LAB_SEPARATE)
    # taken back, or said of another unit
    message = refused(session, f"{LAB[:-1]}, separate_people := false)")
    same, _ = cured(f"{LAB[:-1]}, separate_people := false)", message)
    session.sql(same)
    assert unit_of(session, "lab") == "patient"
    refused(session, f"{LAB[:-1]}, replace := true)")
    refused(session, "CALL dp_protect('lab', unit := 'household', replace := true)")


def test_the_people_of_an_archived_table_stay_known(session: dpsql.Session) -> None:
    session.sql("SELECT count(DISTINCT patient_id) FROM visits", rho=0.001)
    session.sql("CALL dp_unprotect('visits')")
    assert session._access.read().policy().is_archived("main.visits")
    refused(session, LAB)
    session.sql(LAB_SEPARATE)
    session.sql("CALL dp_unprotect('lab')")
    session.sql("CALL dp_protect('visits', replace := true)")
    refused(session, LAB)


HOMES = "CALL dp_protect('homes', unit := 'household', privacy_unit_column := 'household')"
LAB_OF_HOMES = "CALL dp_link('lab', 'patient_id', parent := 'homes.patient_id')"
MEALS = "CALL dp_link('meals', 'visit_id', parent := 'visits.visit_id')"
BY_VISIT = "CALL dp_protect('lab', unit := 'doctor', privacy_unit_column := 'visit_id')"
LINK_OF_BEDS = "CALL dp_link('main.beds', 'visit_id', parent := 'main.visits.visit_id')"
BY_PATIENT = "CALL dp_protect('main.lab', unit := 'patient', privacy_unit_column := 'patient_id')"


@pytest.mark.parametrize(
    ("first", "call", "cure"),
    [
        (HOMES, LAB_OF_HOMES, BY_PATIENT),
        (MEALS, BY_VISIT, BY_PATIENT),
        (
            MEALS,
            BY_VISIT.replace("lab", "beds"),
            "CALL dp_link('main.beds', 'visit_id', parent := 'main.visits.visit_id')",
        ),
        (
            "CALL dp_protect('eaten', unit := 'doctor', privacy_unit_column := 'eater')",
            MEALS,
            "CALL dp_protect('main.eaten', unit := 'patient', replace := true)",
        ),
        (MEALS, "CALL dp_protect('eaten', unit := 'doctor', privacy_unit_column := 'eater')", None),
    ],
    ids=["link by a unit column", "unit column and link", "unit column of a link", "rows of a view", "view of rows"],
)
def test_links_of_another_unit_are_seen(session: dpsql.Session, first: str, call: str, cure: str | None) -> None:
    session.sql(first)
    same, other = cured(call, refused(session, call))
    assert cure in (same, None)
    session.sql(same)
    if "eaten" not in first:
        table = re.findall(r"'(?:main\.)?(\w+)'", same)[0]
        assert unit_of(session, table) == "patient"
        session.sql(f"CALL dp_unprotect('{table}')")
        session.sql(other)
    session.sql(call)


def test_a_view_cannot_be_linked(session: dpsql.Session) -> None:
    session.sql(MEALS)
    message = refused(session, BY_VISIT.replace("lab", "slept"))
    assert "the same people, give it a column 'patient_id' with the unit, and protect it by that column;" in message


def test_a_link_that_came_first_is_seen(session: dpsql.Session) -> None:
    session.sql("CALL dp_unprotect('visits')")
    session.sql(HOMES)
    session.sql(LAB_OF_HOMES)
    message = refused(session, DECLARED[-2])
    assert "it is linked by 'patient_id', too" in message
    session.sql(DECLARED[-2].replace(")", ", separate_people := true)"))
    # a link by a column that was decided about
    session.sql("CALL dp_link('scans', 'patient_id', parent := 'homes.patient_id')")


def test_a_part_of_a_key_is_no_sign(session: dpsql.Session) -> None:
    session.sql("CALL dp_protect('shops', unit := 'shop', privacy_unit_column := 'shop')")
    session.sql("CALL dp_protect('orders', unit := 'customer', privacy_unit_column := 'customer')")
    session.sql("CALL dp_link('lines', ['order_no', 'shop'], parent := ['orders.order_no', 'orders.shop'])")


def test_a_new_unit_that_looks_like_another_one_is_warned_of(session: dpsql.Session) -> None:
    warning = (
        "; the name of this unit looks like that of unit 'patient', and each has a budget of its own: the new name has "
        "CYRILLIC SMALL LETTER A, the other one has LATIN SMALL LETTER A. For the same people name unit := 'patient'"
    )
    name = "p\u0430tient"
    ((told,),) = session.sql(f"CALL dp_unit('{name}', {BUDGET})").fetchall()
    assert told == f"unit {name} has its budget{warning}"
    # nothing more is said of a unit that is known, or of one that looks like no other
    for call in (f"dp_unit('{name}', {BUDGET})", f"dp_unit('PATIENT', {BUDGET})", f"dp_unit('nurse', {BUDGET})"):
        ((told,),) = session.sql(f"CALL {call}").fetchall()
        assert "looks like" not in told
    session.connection.execute('CREATE OR REPLACE TABLE "h\u043eusehold" (tenant INTEGER)')
    call = f"CALL dp_protect('h\u043eusehold', privacy_unit_column := 'tenant', {BUDGET})"
    ((told,),) = session.sql(call).fetchall()
    assert "looks like that of unit 'household', and each has a budget of its own" in told
    ((told,),) = session.sql(call).fetchall()
    assert "looks like" not in told


def test_a_unit_of_a_data_frame_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows: Any = pd.DataFrame({"patient_id": range(300), "doctor_id": range(300), "city": [0, 1, 2] * 100})
    names = {"patient": "patient_id", "p\u0430tient": "doctor_id"}
    for name, column in names.items():
        unit = dpsql.unit(name, column=column, state=tmp_path / "s", source=column, epsilon_budget=9, delta_budget=1e-4)
        for _ in range(2):
            rows.dp.groupby("city", unit=unit, rho=0.01, max_groups=1).size()
    assert sum("looks like that of unit 'patient'" in record.getMessage() for record in caplog.records) == 1


def test_a_data_frame_is_a_second_table_too(tmp_path: Path) -> None:
    rows: Any = pd.DataFrame({"patient_id": range(300), "doctor_id": range(300), "city": [0, 1, 2] * 100})
    patients = dpsql.unit(
        "patient", column="patient_id", state=tmp_path / "s", source="visits", epsilon_budget=9, delta_budget=1e-4
    )
    doctors = dataclasses.replace(patients, name="doctor", column="doctor_id", source="others")
    lab = dataclasses.replace(doctors, column="patient_id", source="lab")

    def asked(unit: dpsql.PrivacyUnit) -> None:
        rows.dp.groupby("city", unit=unit, rho=0.01, max_groups=1).size()

    asked(patients)
    asked(doctors)
    with pytest.raises(PolicyError, match=r"write dpsql\.unit\('patient', …\); .*add separate_people=True$"):
        asked(lab)
    asked(dataclasses.replace(lab, separate_people=True))
    asked(lab)
    asked(dataclasses.replace(lab, source="scans"))
