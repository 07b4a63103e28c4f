"""Frames, keys, points, releases: stored together or not at all, and read back as they were."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import dpsql.errors
from dpsql.errors import DpsqlError, ReleaseError, StateError
from dpsql.state import (
    Additions,
    AutoChoice,
    ChargeItem,
    Point,
    ProtectedTable,
    Release,
    SideTable,
    Snapshot,
    State,
    Threshold,
    Unit,
    arrow_vectors,
)
from tests.unit.state.stored_points import top_point

ROOT = Path(dpsql.errors.__file__).parents[1]
NOW = datetime(2026, 11, 22, tzinfo=UTC)
THRESHOLD_DELTA = 2**80 + 1
CITIES = pa.table({"city": ["Ulm", None, "Bonn"]})
MORE_CITIES = pa.table({"city": ["Kiel"]})
RELEASE = Release(
    analyst="ana",
    query_hash="query",
    at=datetime(2026, 11, 21, 9, 30, tzinfo=UTC),
    statistics=("a", "b"),
    levels=((100, 0), (50, 0)),
    mechanism="gaussian",
    rho_nano=150,
    epsilon=0.1 + 0.2,
    delta=1e-9,
    charged_rho_nano=150,
    charged_delta_units=2**90 + 1,
    reused=False,
    table_versions=(("main.visits", "1"),),
)


def new_state(path: Path | None) -> State:
    state = State.open(path, create=True)
    for name in ("patient", "doctor"):
        state.declare_unit(Unit(name, 10**9, 2**99, 1e-6))
    state.declare_protected(ProtectedTable("main.visits", "patient", "patient_id"))
    state.side_table.frame_salt("frame", "patient", ["main.visits"])
    return state


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    with new_state(tmp_path / "s.dpsql") as opened:
        yield opened


def charge(state: State, statistic: str, rho_nano: int, unit: str = "patient") -> tuple[int, ...]:
    return state.ledger.charge(unit, [ChargeItem(statistic, rho_nano, THRESHOLD_DELTA)], "ana").charge_ids


def point(statistic: str, rho_nano: int, values: list[int]) -> Point:
    return Point(statistic, rho_nano, "frame", np.array(values, np.int64), -3, 2.5, 7.25, THRESHOLD_DELTA)


def made(statistic: str, rho_nano: int, values: list[int], source_rho_nano: int) -> Point:
    """A point that was made of a stored one, without a threshold of its own."""
    own = point(statistic, rho_nano, values)
    return dataclasses.replace(own, tau=None, threshold_delta_units=0, source_rho_nano=source_rho_nano)


def snapshot(values: list[int], floor: int) -> Snapshot:
    return Snapshot(np.array(values, np.int64), floor)


def top_values(state: State, statistic: str) -> list[int] | None:
    top = top_point(state.side_table, statistic)
    return None if top is None else top.values.tolist()


def test_a_frame_keeps_its_secret_salt(state: State) -> None:
    first = state.side_table.frame_salt("f", "patient", ["main.visits", "main.bills"])
    again = state.side_table.frame_salt("f", "patient", ["main.visits", "main.bills"])
    assert first == again
    assert len(first) == 16
    assert first != state.side_table.frame_salt("g", "patient", ["main.visits", "main.bills"])
    for unit, tables in (("doctor", ["main.visits", "main.bills"]), ("patient", ["main.visits"])):
        with pytest.raises(StateError):
            state.side_table.frame_salt("f", unit, tables)
    with pytest.raises(StateError):
        state.side_table.frame_salt("h", "nobody", [])


def test_threads_that_meet_a_new_frame_agree_on_its_salt(state: State) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: state.side_table.frame_salt("new", "patient", []), range(40)))) == 1


def test_keys_are_numbered_in_the_order_of_their_arrival(state: State) -> None:
    assert state.side_table.frame_keys("frame") is None
    state.side_table.store("frame", Additions(CITIES, (), ()))
    state.side_table.store("frame", Additions(MORE_CITIES, (), ()))
    keys = state.side_table.frame_keys("frame")
    assert keys is not None
    assert keys.to_pylist() == [*CITIES.to_pylist(), *MORE_CITIES.to_pylist()]


def test_keys_come_back_in_their_own_types(state: State) -> None:
    keys = pa.table(
        {
            "day": pa.array([datetime(2026, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "Europe/Berlin")),
            "cost": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
            "kind": pa.array(["x", None]).dictionary_encode(),
            "pair": pa.array([{"a": [1, 2]}, None], pa.struct([("a", pa.list_(pa.int8()))])),
            "raw": pa.array([b"\x00\xff", b""]),
            "huge": pa.array([math.inf, -0.0]),
        }
    )
    state.side_table.store("frame", Additions(keys, (), ()))
    stored = state.side_table.frame_keys("frame")
    assert stored is not None
    assert stored.equals(keys)


def test_a_frame_without_group_by_has_a_key_without_columns(state: State) -> None:
    state.side_table.store("frame", Additions(pa.table({"x": [1]}).select([]), (), ()))
    keys = state.side_table.frame_keys("frame")
    assert keys is not None
    assert (keys.num_rows, keys.num_columns) == (1, 0)
    state.side_table.store("frame", Additions(None, [point("a", 5, [1])], charge(state, "a", 5)))


def test_an_empty_list_of_keys_is_known_to_be_empty(state: State) -> None:
    state.side_table.store("frame", Additions(CITIES.slice(0, 0), [point("a", 5, [])], charge(state, "a", 5)))
    keys = state.side_table.frame_keys("frame")
    assert keys is not None
    assert keys.schema == CITIES.schema
    assert keys.num_rows == 0
    state.side_table.store("frame", Additions(CITIES, (), ()))
    assert state.side_table.frame_keys("frame") == CITIES


def test_new_keys_must_look_like_the_old_ones(state: State) -> None:
    state.side_table.store("frame", Additions(CITIES, (), ()))
    for other in (pa.table({"city": [1]}), pa.table({"town": ["Ulm"]})):
        with pytest.raises(ReleaseError):
            state.side_table.store("frame", Additions(other, (), ()))


def test_a_point_reads_back_as_stored(state: State) -> None:
    assert top_point(state.side_table, "a") is None
    stored = point("a", 100, [2**63 - 1, -(2**63), 0])
    state.side_table.store("frame", Additions(CITIES, [stored], charge(state, "a", 100)))
    read = top_point(state.side_table, "a")
    assert read is not None
    assert read.values.dtype == np.int64
    for field in dataclasses.fields(Point):
        if field.name != "values":
            assert getattr(read, field.name) == getattr(stored, field.name)
    assert read.values.tolist() == stored.values.tolist()
    assert "9223372036854775807" not in repr(read)
    with pytest.raises(ValueError, match="read-only"):
        read.values[0] = 1


SHAPES: tuple[dict[str, float | None], ...] = (
    {},
    {"correlation": 0.1, "floor": 18 << 20},
    {"correlation": 1.0 / 3.0, "floor": (18 << 20) - 1, "floor_correlation": 0.1 + 0.2},
    {"correlation": 0.0, "floor": -(2**62), "floor_correlation": 0.0},
    {"tau": None},
    {"tau": 0.1 + 0.2},
)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shape_of_a_points_noise_reads_back_to_the_last_digit(state: State, shape: dict[str, float | None]) -> None:
    stored = dataclasses.replace(point("a", 100, [1, 2, 3]), **shape)  # type: ignore[arg-type]
    state.side_table.store("frame", Additions(CITIES, [stored], charge(state, "a", 100)))
    read = top_point(state.side_table, "a")
    assert read is not None
    for name in ("tau", "correlation", "floor", "floor_correlation"):
        assert getattr(read, name) == getattr(stored, name)
        assert type(getattr(read, name)) is type(getattr(stored, name))


def test_the_plain_shape_is_noise_of_every_keys_own_without_a_floor() -> None:
    plain = point("a", 100, [1])
    assert (plain.correlation, plain.floor, plain.floor_correlation) == (0.0, 0, None)


def test_the_top_point_is_the_one_with_the_highest_rho(state: State) -> None:
    state.side_table.store("frame", Additions(CITIES, (), ()))
    for rho_nano in (100, 300):
        values = [rho_nano] * 3
        state.side_table.store("frame", Additions(None, [point("a", rho_nano, values)], charge(state, "a", rho_nano)))
    state.side_table.store("frame", Additions(None, [made("a", 200, [200] * 3, 300)], ()))
    assert top_values(state, "a") == [300] * 3


@pytest.mark.parametrize(
    "field",
    [
        {"rho_nano": 0},
        {"rho_nano": 2**63},
        {"rho_nano": 1.0},
        {"sigma": 0.0},
        {"sigma": math.nan},
        {"sigma": math.inf},
        {"tau": math.nan},
        {"tau": math.inf},
        {"correlation": -0.1},
        {"correlation": math.nan},
        {"correlation": math.inf},
        {"floor": 2.0},
        {"floor": math.nan},
        {"floor": -math.inf},
        {"floor": True},
        {"floor_correlation": -0.1},
        {"floor_correlation": math.nan},
        {"floor_correlation": math.inf},
        {"threshold_delta_units": -1},
        {"threshold_delta_units": 1e-9},
        {"values": np.zeros(3)},
        {"values": np.zeros((3, 1), np.int64)},
    ],
)
def test_a_point_without_noise_or_sense_is_refused(field: dict[str, object]) -> None:
    with pytest.raises(ReleaseError):
        dataclasses.replace(point("a", 1, [1, 2, 3]), **field)  # type: ignore[arg-type]


def test_store_is_all_or_nothing(state: State) -> None:
    ids = charge(state, "a", 100)
    good = point("a", 100, [1, 2, 3])
    other_unit = charge(state, "a", 100, unit="doctor")
    faults: list[tuple[list[Point], tuple[int, ...], str]] = [
        ([point("a", 100, [1, 2])], ids, "frame"),
        ([point("a", 100, [1, 2, 3, 4])], ids, "frame"),
        ([good, good], ids, "frame"),
        ([good, point("b", 1, [1, 2, 3])], ids, "frame"),
        ([good], (), "frame"),
        ([good], (*ids, *ids), "frame"),
        ([good], other_unit, "frame"),
        ([good], (99,), "frame"),
        ([good], (*ids, *charge(state, "never stored", 1)), "frame"),
        ([point("a", 101, [1, 2, 3])], ids, "frame"),
        ([good], ids, "another frame"),
        ([dataclasses.replace(good, frame_hash="another frame")], ids, "another frame"),
    ]
    for points, charge_ids, frame_hash in faults:
        with pytest.raises(DpsqlError):
            state.side_table.store(frame_hash, Additions(CITIES, points, charge_ids, RELEASE, snapshot([5, 6, 7], 4)))
        assert state.side_table.frame_keys("frame") is None
        assert state.side_table.snapshot("frame") is None
        assert top_point(state.side_table, "a") is None
        assert state.history.releases() == ()
    broken = dataclasses.replace(RELEASE, delta=math.nan)
    with pytest.raises(StateError):
        state.side_table.store("frame", Additions(CITIES, [good], ids, broken, snapshot([5, 6, 7], 4)))
    assert top_point(state.side_table, "a") is None
    assert state.side_table.snapshot("frame") is None
    state.side_table.store("frame", Additions(CITIES, [good], ids, RELEASE))
    assert top_values(state, "a") == [1, 2, 3]
    assert state.history.releases() == (RELEASE,)
    assert charge(state, "a", 100) != ids


def test_a_snapshot_reads_back_as_stored_with_what_was_drawn_from_it(state: State) -> None:
    assert state.side_table.snapshot("frame") is None
    stored = snapshot([2**63 - 1, -(2**63), 0], 2**62)
    state.side_table.store(
        "frame", Additions(CITIES, [point("a", 100, [1, 2, 3])], charge(state, "a", 100), None, stored)
    )
    read = state.side_table.snapshot("frame")
    assert read is not None
    assert read.values.dtype == np.int64
    assert (read.values.tolist(), read.floor) == (stored.values.tolist(), 2**62)
    assert top_values(state, "a") == [1, 2, 3]
    assert state.side_table.snapshot("another frame") is None
    for digits in ("9223372036854775807", str(2**62)):
        assert digits not in repr(read)
    with pytest.raises(ValueError, match="read-only"):
        read.values[0] = 1


def test_a_snapshot_of_no_key_is_not_the_same_as_none(state: State) -> None:
    state.side_table.store("frame", Additions(CITIES.slice(0, 0), (), (), None, snapshot([], 19)))
    read = state.side_table.snapshot("frame")
    assert read is not None
    assert (read.values.tolist(), read.floor) == ([], 19)


MEANWHILE = "the frame was released by another process meanwhile; ask again"


def test_a_snapshot_is_written_once_whatever_keys_a_second_one_has(state: State) -> None:
    state.side_table.store("frame", Additions(CITIES, (), (), None, snapshot([1, 2, 3], 4)))
    good, ids = point("a", 100, [1, 2, 3]), charge(state, "a", 100)
    for new_keys, second in (
        (None, snapshot([1, 2, 3], 4)),
        (CITIES, snapshot([7, 8, 9], 0)),
        (pa.table({"age": [1]}), snapshot([7], 0)),
    ):
        with pytest.raises(ReleaseError, match=f"^{MEANWHILE}$"):
            state.side_table.store("frame", Additions(new_keys, [good], ids, RELEASE, second))
        assert top_point(state.side_table, "a") is None
        assert state.history.releases() == ()
    read = state.side_table.snapshot("frame")
    assert read is not None
    assert (read.values.tolist(), read.floor) == ([1, 2, 3], 4)
    state.side_table.store("frame", Additions(None, [good], ids, RELEASE))
    assert top_values(state, "a") == [1, 2, 3]


@pytest.mark.parametrize("rho_nano", [100, 60, 150])
def test_what_is_drawn_once_is_not_drawn_again_whatever_keys_it_has(state: State, rho_nano: int) -> None:
    first = point("a", 100, [1, 2, 3])
    state.side_table.store("frame", Additions(CITIES, [first], charge(state, "a", 100), drawn_once=True))
    ids = charge(state, "a", 150)
    for new_keys, values in ((None, [4, 5, 6]), (None, [4]), (MORE_CITIES, [4, 5, 6, 7])):
        additions = Additions(new_keys, [point("a", rho_nano, values)], ids, drawn_once=True)
        with pytest.raises(ReleaseError, match=f"^{MEANWHILE}$"):
            state.side_table.store("frame", additions)
    # a point that is made of the first one is no draw
    state.side_table.store("frame", Additions(points=[made("a", 50, [1, 2, 3], 100)], drawn_once=True))
    assert [level.rho_nano for level in state.side_table.levels("a")] == [100, 50]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE snapshot SET floor = 0",
        "DELETE FROM snapshot",
        "INSERT OR REPLACE INTO snapshot VALUES ('frame', 0, 0, x'00')",
    ],
)
def test_the_file_itself_keeps_a_snapshot_as_it_is(state: State, change: str) -> None:
    state.side_table.store("frame", Additions(CITIES, (), (), None, snapshot([1, 2, 3], 4)))
    with pytest.raises(StateError, match="never changed"), state._database.write() as connection:
        connection.execute(change)


@pytest.mark.parametrize(
    ("values", "floor"),
    [
        (np.array([1, 2, 3], np.int64), -1),
        (np.array([1, 2], np.int64), 0),
        (np.array([1, 2, 3, 4], np.int64), 0),
        (np.array([1.0, 2.0, 3.0]), 0),
    ],
    ids=["negative floor", "a key too few", "a key too many", "fractions"],
)
def test_a_snapshot_that_is_no_histogram_of_its_frame_is_refused(
    state: State, values: npt.NDArray[np.int64], floor: int
) -> None:
    with pytest.raises(DpsqlError):
        state.side_table.store("frame", Additions(CITIES, (), (), None, Snapshot(values, floor)))
    assert state.side_table.snapshot("frame") is None
    assert state.side_table.frame_keys("frame") is None


def test_a_snapshot_needs_its_frame(state: State) -> None:
    with pytest.raises(DpsqlError):
        state.side_table.store("unknown", Additions(CITIES, (), (), None, snapshot([1, 2, 3], 0)))
    assert state.side_table.snapshot("unknown") is None


def test_a_damaged_snapshot_is_an_error_that_quotes_nothing(state: State) -> None:
    state.side_table.store("frame", Additions(CITIES, (), (), None, snapshot([1, 2, 3], 4)))
    with state._database.write() as connection:
        connection.execute("DROP TRIGGER snapshot_no_update")
    for damage in ("exact_values = x'00ff00ff'", "exact_values = zeroblob(0)"):
        with state._database.write() as connection:
            connection.execute(f"UPDATE snapshot SET {damage}")
        with pytest.raises(StateError, match="damaged"):
            state.side_table.snapshot("frame")


def test_a_charge_pays_for_the_rise_over_the_stored_level(state: State) -> None:
    state.side_table.store("frame", Additions(CITIES, (), ()))
    state.side_table.store("frame", Additions(None, [point("a", 100, [1, 2, 3])], charge(state, "a", 100)))
    state.side_table.store("frame", Additions(None, [made("a", 60, [4, 5, 6], 100)], ()))
    rise = charge(state, "a", 50)
    with pytest.raises(ReleaseError):
        state.side_table.store("frame", Additions(None, [point("a", 151, [7, 8, 9])], rise))
    state.side_table.store("frame", Additions(None, [point("a", 150, [7, 8, 9])], rise))
    assert top_values(state, "a") == [7, 8, 9]


def test_a_charge_can_close_on_a_point_that_is_there(state: State) -> None:
    state.side_table.store("frame", Additions(CITIES, [point("a", 100, [1, 2, 3])], charge(state, "a", 100)))
    shown_more = state.ledger.charge("patient", [ChargeItem("a", 0, 9)], "ana").charge_ids
    state.side_table.store("frame", Additions(None, [], shown_more, RELEASE))
    assert state.ledger.charge("patient", [ChargeItem("a", 0, 9)], "ana").delta_units == 9


def test_levels_are_listed_from_the_highest_and_each_is_found_by_its_rho(state: State) -> None:
    state.side_table.store("frame", Additions(CITIES, (), ()))
    assert state.side_table.levels("a") == ()
    for rho_nano, rise in ((100, 100), (300, 200), (200, 0)):
        ids = charge(state, "a", rise) if rise else ()
        values = [rho_nano] * 3
        drawn = point("a", rho_nano, values) if rise else made("a", rho_nano, values, 300)
        state.side_table.store("frame", Additions(None, [dataclasses.replace(drawn, sigma=1.0 / rho_nano)], ids))
    levels = state.side_table.levels("a")
    assert [
        (level.rho_nano, level.sigma, level.tau, level.threshold_delta_units, level.value_count, level.source_rho_nano)
        for level in levels
    ] == [
        (300, 1.0 / 300, 7.25, THRESHOLD_DELTA, 3, None),
        (200, 1.0 / 200, None, 0, 3, 300),
        (100, 1.0 / 100, 7.25, THRESHOLD_DELTA, 3, None),
    ]
    assert {(level.correlation, level.floor_correlation) for level in levels} == {(0.0, None)}
    for level in levels:
        found = state.side_table.point("a", level.rho_nano)
        assert found is not None
        assert (found.rho_nano, found.values.tolist()) == (level.rho_nano, [level.rho_nano] * 3)
    assert state.side_table.point("a", 101) is None
    assert state.side_table.point("b", 100) is None


def test_releases_are_listed_for_one_analyst_or_for_all(state: State) -> None:
    other = dataclasses.replace(RELEASE, analyst="bob", reused=True, epsilon=math.inf, table_versions=())
    for release in (RELEASE, other):
        state.side_table.store("frame", Additions(None, (), (), release))
    assert state.history.releases() == (RELEASE, other)
    assert state.history.releases("bob") == (other,)
    assert state.history.releases("eve") == ()


def test_damaged_values_are_an_error_that_quotes_nothing(state: State) -> None:
    state.side_table.store("frame", Additions(CITIES, [point("a", 100, [1, 2, 3])], charge(state, "a", 100)))
    for damage in ("substr(noisy_values, 1, length(noisy_values) / 2)", "x'00ff00ff'", "zeroblob(0)"):
        with state._database.write() as connection:
            connection.execute(f"UPDATE point SET noisy_values = {damage}")
        with pytest.raises(StateError, match="damaged"):
            top_point(SideTable(state._database), "a")


def test_a_shorter_vector_than_promised_is_damage(state: State) -> None:
    state.side_table.store("frame", Additions(CITIES, [point("a", 100, [1, 2, 3])], charge(state, "a", 100)))
    with state._database.write() as connection:
        connection.execute("UPDATE point SET value_count = 4")
    with pytest.raises(StateError, match="damaged"):
        top_point(SideTable(state._database), "a")


def test_what_was_stored_a_moment_ago_is_not_read_again(state: State) -> None:
    """Its vector; whether it has a threshold is read each time."""
    drawn = np.array([1, 2, 3], np.int64)
    first = dataclasses.replace(point("a", 100, [0, 0, 0]), values=drawn, tau=None, threshold_delta_units=0)
    state.side_table.store("frame", Additions(CITIES, [first], charge(state, "a", 100)))
    drawn[0] = 99
    with state._database.write() as connection:
        connection.execute("UPDATE point SET noisy_values = x'00ff00ff'")
    again = top_point(state.side_table, "a")
    assert again is not None
    assert (again.values.tolist(), again.tau) == ([1, 2, 3], None)
    with pytest.raises(ValueError, match="read-only"):
        again.values[0] = 0
    other = SideTable(state._database)
    other.store("frame", Additions(None, [], charge(state, "a", 0), thresholds=[Threshold("a", 100, 2.5, 9)]))
    changed = top_point(state.side_table, "a")
    assert changed is not None
    assert (changed.values.tolist(), changed.tau) == ([1, 2, 3], 2.5)


def test_only_so_much_is_kept_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_vectors, "_MOST_BYTES", 80)
    kept = arrow_vectors.Decoded()
    read: list[int] = []

    def ask(rho_nano: int, count: int = 4, at: datetime = NOW) -> bool:
        """Whether the vector was at hand."""
        before = len(read)

        def values() -> npt.NDArray[np.int64]:
            read.append(rho_nano)
            return np.full(count, rho_nano, np.int64)

        assert kept.vector(("a", rho_nano, 0, at, count), values).tolist() == [rho_nano] * count
        return len(read) == before

    for rho_nano in (1, 2, 3):
        ask(rho_nano)
        ask(1)
    assert [ask(1), ask(3)] == [True, True]
    assert not ask(2)
    assert not ask(2, at=NOW + timedelta(1))
    assert not ask(1, count=10)
    assert not ask(3)


def test_a_file_that_was_restored_is_read_and_not_remembered(tmp_path: Path) -> None:
    """What is at hand is of the point that this process saw; another one may stand in its place now."""
    path = tmp_path / "s.dpsql"
    with new_state(path) as first:
        first.side_table.store("frame", Additions(CITIES, [point("a", 100, [1, 2, 3])], charge(first, "a", 100)))
        with new_state(tmp_path / "other.dpsql") as other:
            other.side_table.store("frame", Additions(CITIES, [point("a", 100, [7, 8, 9])], charge(other, "a", 100)))
            ((blob, at),) = _rows(other, "SELECT noisy_values, created_at FROM point")
        assert top_values(first, "a") == [1, 2, 3]
        with first._database.write() as connection:
            connection.execute("UPDATE point SET noisy_values = ?, created_at = ?", (blob, at))
        assert top_values(first, "a") == [7, 8, 9]


def _rows(state: State, sql: str) -> list[tuple[object, ...]]:
    with state._database.read() as connection:
        return connection.execute(sql).fetchall()


STORE_UNTIL_KILLED = """
import sys
import numpy as np, pyarrow as pa
from datetime import UTC, datetime, timedelta
from dpsql.state import Additions, AutoChoice, ChargeItem, Point, Release, State

state = State.open(sys.argv[1], create=False)
for number in range(int(sys.argv[2]), 10**9):
    statistic = f"s{number}"
    with state.locks.exclusive("frame"):
        ids = state.ledger.charge("patient", [ChargeItem(statistic, 10, 1)], "ana").charge_ids
        keys = state.side_table.frame_keys("frame")
        count = 1 if keys is None else keys.num_rows + 1
        values = np.full(count, number, np.int64)
        point = Point(statistic, 10, "frame", values, 0, 1.0, None, 1)
        at = datetime.now(UTC)
        release = Release("ana", statistic, at, (statistic,), ((10, 0),), "m", 10, 1.0, 0.0, 10, 1, False, ())
        state.side_table.store("frame", Additions(pa.table({"key": [number]}), [point], ids, release))
    print(number, flush=True)
"""


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.long)])
def test_killed_at_any_moment_a_release_is_whole_and_charged_once(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "s.dpsql"
    moments = np.random.default_rng(20261121)
    with new_state(path) as state:
        number = 0
        for _ in range(kills):
            with subprocess.Popen(
                [sys.executable, "-c", STORE_UNTIL_KILLED, path, str(number)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            ) as writer:
                assert writer.stdout is not None
                assert writer.stdout.readline()
                time.sleep(float(moments.uniform(0.0, 0.05)))
                writer.kill()
                writer.wait(timeout=300)
            releases = state.history.releases()
            number = len(releases)
            keys = state.side_table.frame_keys("frame")
            assert keys is not None
            assert keys["key"].to_pylist() == list(range(number))
            assert [release.query_hash for release in releases] == [f"s{i}" for i in range(number)]
            for i in (0, number - 1):
                assert top_values(state, f"s{i}") == [i] * (i + 1)
            # Only the interrupted one may be charged and not stored; asking again takes nothing for it.
            assert state.ledger.spent("patient").rho_nano - 10 * number in {0, 10}
            state.ledger.charge("patient", [ChargeItem(f"s{number}", 10, 1)], "ana")
            assert state.ledger.spent("patient").rho_nano == 10 * (number + 1)


@pytest.mark.parametrize(
    ("key_count", "seconds"), [(20_000, 2.0), pytest.param(1_000_000, 8.0, marks=pytest.mark.long)]
)
def test_large_frames_are_stored_and_read_within_seconds(state: State, key_count: int, seconds: float) -> None:
    noise = np.random.default_rng(7)
    keys = pa.table({"key": np.arange(key_count)})
    points = [
        Point(f"s{i}", 100, "frame", noise.integers(-(2**20), 2**20, key_count), 0, 1.0, None, 0) for i in range(5)
    ]
    ids = state.ledger.charge("patient", [ChargeItem(f"s{i}", 100, 0) for i in range(5)], "ana").charge_ids
    began = time.process_time()
    state.side_table.store("frame", Additions(keys, points, ids))
    stored = time.process_time()
    for written in points:
        read = top_point(state.side_table, written.statistic_hash)
        assert read is not None
        assert np.array_equal(read.values, written.values)
    stored_keys = state.side_table.frame_keys("frame")
    ended = time.process_time()
    assert stored_keys is not None
    assert stored_keys.num_rows == key_count
    print(f"{key_count} keys x 5 points: stored in {stored - began:.2f} s, read in {ended - stored:.2f} s")  # noqa: T201
    assert ended - began < seconds


def shown(analyst: str, *levels: tuple[str, int, int]) -> Release:
    """Of each statistic the level, and the independent release that it stems from."""
    told = tuple((rho_nano, source) for _, rho_nano, source in levels)
    names = tuple(name for name, _, _ in levels)
    return dataclasses.replace(RELEASE, analyst=analyst, statistics=names, levels=told, rho_nano=1)


def test_a_coalition_holds_the_most_of_its_members_and_of_several_statistics_the_sum(state: State) -> None:
    for statistic in "abc":
        charge(state, statistic, 100)
    charge(state, "other", 100, unit="doctor")
    for release in (
        shown("ana", ("a", 10, 0), ("b", 5, 0)),
        shown("ana", ("a", 4, 0)),
        shown("bob", ("a", 7, 0), ("c", 20, 0)),
        shown("eve", ("other", 50, 0)),
    ):
        state.side_table.store("frame", Additions(None, [], (), release))
    held = state.history.held
    assert (held("patient", ["ana"]), held("patient", ["bob"])) == (15, 27)
    assert held("patient", ["ana", "bob"]) == held("patient") == 35
    assert (held("doctor"), held("doctor", ["ana"]), held("patient", [])) == (50, 0, 0)


def test_independent_releases_of_one_statistic_add_up(state: State) -> None:
    charge(state, "a", 100)
    for release in (
        shown("ana", ("a", 10, 10)),
        shown("ana", ("a", 20, 20)),
        shown("bob", ("a", 20, 20)),
        shown("bob", ("a", 40, 40)),
    ):
        state.side_table.store("frame", Additions(None, [], (), release))
    held = state.history.held
    assert (held("patient", ["ana"]), held("patient", ["bob"]), held("patient")) == (30, 60, 70)
    assert state.history.releases_held("a", "ana") == {10: 10, 20: 20}
    assert state.history.releases_held("b", "ana") == {}


def test_what_is_held_is_found_in_steps_that_grow_with_the_releases_and_no_faster(state: State) -> None:
    """Counted in steps of SQLite, which are the same on every machine."""
    steps = {}
    for count in (100, 2000):
        statistics = [f"{count} {number}" for number in range(count)]
        state.ledger.charge("patient", [ChargeItem(name, 1, 0) for name in statistics], "ana")
        with state._database.write() as connection:
            connection.executemany(
                "INSERT INTO release (analyst, query_hash, at, statistics, mechanism, rho_nano, epsilon, delta, "
                "charged_rho_nano, charged_delta_units, reused, table_versions, levels) "
                "VALUES ('ana', '', '', ?, '', 5, 0.0, 0.0, 5, '0', 0, '[]', '[[5, 0]]')",
                [(json.dumps([name]),) for name in statistics],
            )
        expected = 5 * (count if count == 100 else 2100)
        steps[count] = steps_of(state, lambda: state.history.held("patient", ["Ana"]), expected)
    assert steps[2000] < 40 * steps[100]


def steps_of(state: State, asked: Callable[[], int], expected: int) -> int:
    """How many hundreds of steps SQLite takes for an answer."""
    taken = 0

    def step() -> int:
        nonlocal taken
        taken += 1
        return 0

    with state._database.read() as connection:
        connection.set_progress_handler(step, 100)
    assert asked() == expected
    with state._database.read() as connection:
        connection.set_progress_handler(None, 0)
    return taken


def test_what_is_not_made_of_another_point_is_paid_below_the_top_too(state: State) -> None:
    state.side_table.store("frame", Additions(CITIES, [point("a", 100, [1, 2, 3])], charge(state, "a", 100)))
    fresh = point("a", 40, [4, 5, 6])
    with pytest.raises(ReleaseError, match="without a charge"):
        state.side_table.store("frame", Additions(None, [fresh], charge(state, "a", 39)))
    state.side_table.store("frame", Additions(None, [fresh], charge(state, "a", 40)))
    # a ceiling, and what is made of it, at once
    both = [point("b", 50, [1, 2, 3]), made("b", 20, [1, 2, 3], 50)]
    state.side_table.store("frame", Additions(None, both, charge(state, "b", 50)))


def test_a_threshold_is_set_once_and_only_with_a_charge_that_pays_for_it(state: State) -> None:
    table = state.side_table
    state.side_table.store("frame", Additions(CITIES, [point("a", 40, [1, 2, 3])], charge(state, "a", 40)))
    state.side_table.store("frame", Additions(None, [made("a", 30, [1, 2, 3], 40)], ()))
    paid = state.ledger.charge("patient", [ChargeItem("a", 0, 9)], "ana").charge_ids
    with pytest.raises(ReleaseError, match="threshold"):
        table.store("frame", Additions(None, [], paid, thresholds=[Threshold("a", 30, 2.5, 10)]))
    with pytest.raises(ReleaseError, match="threshold"):
        table.store("frame", Additions(None, [], paid, thresholds=[Threshold("a", 20, 2.5, 9)]))
    table.store("frame", Additions(None, [], paid, thresholds=[Threshold("a", 30, 2.5, 9)]))
    assert [(level.tau, level.threshold_delta_units) for level in table.levels("a")][1:] == [(2.5, 9)]
    more = state.ledger.charge("patient", [ChargeItem("a", 0, 9)], "ana").charge_ids
    with pytest.raises(ReleaseError, match="threshold"):
        table.store("frame", Additions(None, [], more, thresholds=[Threshold("a", 30, 1.5, 9)]))


def test_a_refreshed_frame_is_another_one_with_its_own_salt(state: State) -> None:
    table = state.side_table
    first = table.frame_salt("frame", "patient", ["main.visits"])
    second = table.frame_salt("again", "patient", ["main.visits"], "frame", 1)
    assert first != second
    assert table.generation("frame") is None
    table.store("frame", Additions(CITIES, [point("a", 30, [1, 2, 3])], charge(state, "a", 30)))
    assert table.generation("frame") == 0
    of_second = dataclasses.replace(point("b", 30, [1, 2, 3]), frame_hash="again")
    table.store("again", Additions(CITIES, [of_second], charge(state, "b", 30)))
    assert table.generation("frame") == 1
    assert table.generation("again") is None


def choice(share_nano: int, rho_nano: int, analyst: str = "ana", rho_limit: int | None = None) -> AutoChoice:
    return AutoChoice("a", analyst, share_nano, rho_nano, rho_limit)


def test_what_auto_chose_by_first_is_kept_for_its_reader_and_level(state: State) -> None:
    table = state.side_table
    table.store(
        "frame", Additions(CITIES, [point("a", 100, [1, 2, 3])], charge(state, "a", 100), choices=[choice(7, 100)])
    )
    assert state.history.auto_level("a", "Ana", 7, None) == 100
    for statistic, analyst, share_nano in (("a", "ana", 8), ("a", "bob", 7), ("b", "ana", 7)):
        assert state.history.auto_level(statistic, analyst, share_nano, None) is None
    # the same once more adds nothing; another one is refused, with all that was to be stored with it
    table.store("frame", Additions(None, [made("a", 50, [1, 2, 3], 100)], (), choices=[choice(7, 100)]))
    with pytest.raises(ReleaseError, match="ask again"):
        table.store("frame", Additions(None, [made("a", 20, [1, 2, 3], 50)], (), RELEASE, choices=[choice(7, 50)]))
    assert [level.rho_nano for level in table.levels("a")] == [100, 50]
    assert state.history.releases() == ()


def test_a_choice_above_a_limit_that_came_later_is_out_of_sight_until_it_is_lifted(state: State) -> None:
    table = state.side_table
    points = [point("a", 100, [1, 2, 3]), made("a", 50, [1, 2, 3], 100)]
    table.store("frame", Additions(CITIES, points, charge(state, "a", 100), choices=[choice(7, 100)]))
    assert state.history.auto_level("a", "ana", 7, 60) is None
    table.store("frame", Additions(None, (), (), choices=[choice(7, 50, rho_limit=60)]))
    assert (state.history.auto_level("a", "ana", 7, 60), state.history.auto_level("a", "ana", 7, None)) == (50, 100)


def test_a_choice_is_by_a_stored_point(state: State) -> None:
    with pytest.raises(StateError):
        state.side_table.store(
            "frame", Additions(CITIES, [point("a", 100, [1, 2, 3])], charge(state, "a", 100), choices=[choice(7, 99)])
        )
    assert state.side_table.levels("a") == ()
