"""The golden records of exact rows, over parts of the tiny tables: what parts hand on is merged into the same rows."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

import dpsql
from tests.parts import split_of
from tests.sql.golden_records import POLICY, TABLES, Clinic, Record, records

pytestmark = pytest.mark.thorough

RECORDS = [record for record in records() if record.directive == "exact"]
UNITS = dict.fromkeys(("visits", "bills", "stays", "meals"), "patient_id")
LINKS = {"meals": [(("stay_id",), "main.stays", ("stay_id",))]}
EVERY = 8
"""One record in so many is asked in each run of the tests."""


@pytest.fixture(
    scope="module",
    params=[3, *(pytest.param(parts, marks=pytest.mark.long) for parts in (1, 16))],
    ids="parts={}".format,
)
def clinic(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    folder = tmp_path_factory.mktemp("parts") / "folder"
    with duckdb.connect() as connection:
        connection.execute(TABLES)
        split_of(connection, folder, request.param, units=UNITS, links=LINKS, public=("cities", "kinds"))
    opened = Clinic(*POLICY, session=dpsql.connect(parts=folder, processes=2))
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "record",
    [pytest.param(one, marks=[pytest.mark.long] * bool(place % EVERY)) for place, one in enumerate(RECORDS)],
    ids=str,
)
def test_parts_give_the_rows_of_the_record(record: Record, clinic: Clinic) -> None:
    assert clinic.outcome(record) == record.expected
