"""Records of measured groups: stored with their point or not at all, and read back as they were."""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dpsql.errors import ReleaseError, StateError
from dpsql.state import Additions, ChargeItem, MeasuredGroups, Point, State, Threshold, Unit

NO_COLUMNS = pa.table({"x": [1]}).select([])
RECORD = MeasuredGroups("d", 100, -3, 21_912.0, 0.1 + 0.2, np.array([4, 0, 2**62], np.int64), 300, 200)


def new_state(path: Path | None) -> State:
    state = State.open(path, create=True)
    state.declare_unit(Unit("patient", 10**9, 2**99, 1e-6))
    state.side_table.frame_salt("d", "patient", ["main.visits"])
    return state


@pytest.fixture
def state() -> Iterator[State]:
    with new_state(None) as opened:
        yield opened


def charge(state: State, rho_nano: int, statistic: str = "d") -> tuple[int, ...]:
    return state.ledger.charge("patient", [ChargeItem(statistic, rho_nano, 0)], "ana").charge_ids


def point(rho_nano: int, statistic: str = "d", frame: str = "d") -> Point:
    return Point(statistic, rho_nano, frame, np.array([7], np.int64), -20, 2.5, None, 0)


def store(state: State, record: MeasuredGroups, *more: MeasuredGroups, rho_nano: int = 100) -> None:
    """Store records with a new point at a level; the first point brings the key."""
    table = state.side_table
    keys = NO_COLUMNS if table.frame_keys("d") is None else None
    drawn = Additions(keys, [point(rho_nano)], charge(state, rho_nano), measured_groups=(record, *more))
    table.store("d", drawn)


def require_equal(read: MeasuredGroups | None, stored: MeasuredGroups) -> None:
    assert read is not None
    for field in dataclasses.fields(MeasuredGroups):
        if field.name != "key_ids":
            assert getattr(read, field.name) == getattr(stored, field.name), field.name
            assert type(getattr(read, field.name)) is type(getattr(stored, field.name)), field.name
    if stored.key_ids is None:
        assert read.key_ids is None
    else:
        assert read.key_ids is not None
        assert read.key_ids.dtype == np.int64
        assert read.key_ids.tolist() == stored.key_ids.tolist()


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        dataclasses.replace(RECORD, key_ids=None),
        dataclasses.replace(RECORD, key_ids=np.array([], np.int64)),
        dataclasses.replace(RECORD, key_ids=np.arange(6, dtype=np.int64)[::2]),
        dataclasses.replace(RECORD, cut_exponent=40, shown=-3.5, shown_sigma=0.0),
    ],
)
def test_a_record_reads_back_as_stored(state: State, record: MeasuredGroups) -> None:
    assert state.side_table.measured_groups("d", 100) is None
    store(state, record)
    require_equal(state.side_table.measured_groups("d", 100), record)
    for statistic, rho_nano in (("d", 99), ("d", 101), ("e", 100)):
        assert state.side_table.measured_groups(statistic, rho_nano) is None


def test_ids_that_were_read_are_read_only_and_not_printed(state: State) -> None:
    store(state, RECORD)
    read = state.side_table.measured_groups("d", 100)
    assert read is not None
    assert read.key_ids is not None
    with pytest.raises(ValueError, match="read-only"):
        read.key_ids[0] = 1
    assert str(2**62) not in repr(read)


def test_each_point_of_a_chain_has_its_own_record(state: State) -> None:
    store(state, RECORD)
    second = dataclasses.replace(RECORD, rho_nano=200, cut_exponent=5, key_ids=None)
    store(state, second, rho_nano=200)
    require_equal(state.side_table.measured_groups("d", 100), RECORD)
    require_equal(state.side_table.measured_groups("d", 200), second)


def test_a_point_without_a_record_has_none(state: State) -> None:
    state.side_table.store("d", Additions(NO_COLUMNS, [point(100)], charge(state, 100)))
    assert state.side_table.measured_groups("d", 100) is None


@pytest.mark.parametrize(
    "field",
    [
        {"rho_nano": 0},
        {"rho_nano": -1},
        {"rho_nano": 2**63},
        {"rho_nano": 1.0},
        {"rho_nano": True},
        {"cut_exponent": 1.0},
        {"cut_exponent": 1023},
        {"cut_exponent": -1023},
        {"shown": math.nan},
        {"shown": math.inf},
        {"shown_sigma": -0.1},
        {"shown_sigma": math.nan},
        {"shown_sigma": math.inf},
        {"key_ids": np.zeros(3)},
        {"key_ids": np.zeros((3, 1), np.int64)},
        {"key_ids": np.array([-1], np.int64)},
        {"key_ids": np.array([3, 1, 3], np.int64)},
    ],
)
def test_a_record_without_sense_is_refused(field: dict[str, object]) -> None:
    with pytest.raises(ReleaseError):
        dataclasses.replace(RECORD, **field)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "record", [dataclasses.replace(RECORD, rho_nano=99), dataclasses.replace(RECORD, statistic_hash="e")]
)
def test_a_record_without_its_point_is_refused_with_all_beside_it(state: State, record: MeasuredGroups) -> None:
    with pytest.raises(ReleaseError, match="not in the state"):
        store(state, record)
    assert state.side_table.levels("d") == ()
    assert state.side_table.frame_keys("d") is None


def test_a_record_of_a_point_of_another_frame_is_refused(state: State) -> None:
    state.side_table.frame_salt("f", "patient", ["main.visits"])
    other = Additions(NO_COLUMNS, [point(100, "e", "f")], charge(state, 100, "e"))
    state.side_table.store("f", other)
    with pytest.raises(ReleaseError, match="not in the state"):
        store(state, RECORD, dataclasses.replace(RECORD, statistic_hash="e"))
    assert state.side_table.measured_groups("d", 100) is None
    assert state.side_table.measured_groups("e", 100) is None


def test_a_second_record_of_a_point_is_refused(state: State) -> None:
    with pytest.raises(ReleaseError, match="ask again"):
        store(state, RECORD, dataclasses.replace(RECORD, cut_exponent=4))
    assert state.side_table.measured_groups("d", 100) is None
    store(state, RECORD)
    with pytest.raises(ReleaseError, match="ask again"):
        state.side_table.store("d", Additions(measured_groups=[dataclasses.replace(RECORD, cut_exponent=4)]))
    require_equal(state.side_table.measured_groups("d", 100), RECORD)


def test_a_record_is_not_stored_if_the_store_fails_after_it(state: State) -> None:
    unpaid = Additions(NO_COLUMNS, [point(100)], charge(state, 99), measured_groups=[RECORD])
    no_point = [Threshold("e", 100, 2.5, 9)]
    failing = dataclasses.replace(unpaid, charge_ids=charge(state, 100), thresholds=no_point)
    for additions in (unpaid, failing):
        with pytest.raises(ReleaseError, match=r"charge|threshold"):
            state.side_table.store("d", additions)
        with state._database.read() as connection:
            assert connection.execute("SELECT count(*) FROM measured_groups").fetchone() == (0,)
    store(state, RECORD)


def test_a_damaged_record_is_an_error_that_quotes_nothing(state: State) -> None:
    store(state, RECORD)
    with state._database.write() as connection:
        connection.execute("DROP TRIGGER measured_groups_no_update")
        ((blob,),) = connection.execute("SELECT key_ids FROM measured_groups").fetchall()
    for damage in (
        "key_ids = x'00ff00ff'",
        "key_ids = zeroblob(0)",
        "key_ids = substr(key_ids, 1, length(key_ids) / 2)",
        "key_count = 4",
        "shown = 9e999",
        "cut_exponent = 5000",
    ):
        with state._database.write() as connection:
            connection.execute(f"UPDATE measured_groups SET {damage}")
        with pytest.raises(StateError, match="damaged") as raised:
            state.side_table.measured_groups("d", 100)
        assert "ids" not in str(raised.value)
        with state._database.write() as connection:
            whole = "key_ids = ?, key_count = 3, shown = 1.0, cut_exponent = -3"
            connection.execute(f"UPDATE measured_groups SET {whole}", (blob,))
        assert state.side_table.measured_groups("d", 100) is not None


def test_a_point_with_a_record_and_the_record_cannot_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "s.dpsql"
    with new_state(path) as state:
        store(state, RECORD)
        for change in (
            "DELETE FROM closed_charge",
            "DELETE FROM measured_groups",
            "UPDATE measured_groups SET shown = 1",
        ):
            with pytest.raises(StateError, match="never changed"), state._database.write() as connection:
                connection.execute(change)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("DROP TRIGGER closed_charge_no_delete")
        connection.execute("DELETE FROM closed_charge")
        with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
            connection.execute("DELETE FROM point")


def test_a_copy_of_the_state_and_a_second_session_have_the_records(tmp_path: Path) -> None:
    with new_state(tmp_path / "s.dpsql") as state:
        store(state, RECORD)
        with state.copied() as copy:
            require_equal(copy.side_table.measured_groups("d", 100), RECORD)
            second = dataclasses.replace(RECORD, rho_nano=200)
            store(copy, second, rho_nano=200)
        assert state.side_table.measured_groups("d", 200) is None
        with State.open(tmp_path / "s.dpsql", create=False) as other:
            require_equal(other.side_table.measured_groups("d", 100), RECORD)
