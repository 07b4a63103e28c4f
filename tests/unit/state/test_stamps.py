"""Stamps in lock folders, and the findings that follow from them without a database."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dpsql.errors import StateError
from dpsql.state import ChargeItem, State, Unit
from dpsql.state.stamps import Stamp, StampFile

STAMP = Stamp("d" * 32, "a" * 32, 3, "2026-11-29T00:00:00+00:00", "fingerprint")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "clinic.duckdb.dpsql-locks"


def test_a_stamp_is_read_as_it_was_written(folder: Path) -> None:
    file = StampFile(folder)
    assert file.read() is None
    file.write(STAMP, None)
    assert file.read() == STAMP
    assert [path.name for path in folder.iterdir()] == ["age"]
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("changes", "compares", "stays"),
    [
        ({"charge": 2}, True, True),
        ({"charge": 4}, True, False),
        ({"charge": 2}, False, False),
        ({"charge": 2, "state_id": "b" * 32}, True, False),
    ],
)
def test_a_later_charge_of_the_same_file_stays(
    folder: Path, changes: dict[str, object], compares: bool, stays: bool
) -> None:
    file, other = StampFile(folder), replace(STAMP, **changes)  # type: ignore[arg-type]
    file.write(STAMP, None)
    assert file.write(other, (lambda _: True) if compares else None)
    assert file.read() == (STAMP if stays else other)


def test_a_stamp_stays_that_may_not_be_replaced(folder: Path) -> None:
    file = StampFile(folder)
    file.write(STAMP, None)
    assert not file.write(replace(STAMP, charge=4), lambda met: met != STAMP)
    assert file.read() == STAMP


@pytest.mark.parametrize("content", ["", "[]", '{"charge": 1}', "no stamp"])
def test_a_damaged_stamp_is_one_sentence(folder: Path, content: str) -> None:
    StampFile(folder).write(STAMP, None)
    (folder / "age").write_text(content, encoding="utf-8")
    with pytest.raises(StateError, match="is damaged: it is no stamp") as raised:
        StampFile(folder).read()
    assert str(folder) in str(raised.value)
    assert str(folder) not in str(raised.value.for_analyst())


def test_a_folder_that_cannot_be_written_is_one_sentence(folder: Path) -> None:
    folder.write_bytes(b"")
    assert StampFile(folder).read() is None
    with pytest.raises(StateError, match="File exists"):
        StampFile(folder).write(STAMP, None)


def test_a_state_without_a_database_is_stamped_in_its_lock_folder(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with State.open(path, create=True) as state:
        state.declare_unit(Unit("patient", 1000, 50, 1e-6))
        for statistic in "ab":
            state.ledger.charge("patient", [ChargeItem(statistic, 7, 3)], "ana")
        # it was paid for and nothing was stored, so this is no charge
        state.ledger.charge("patient", [ChargeItem("a", 7, 3)], "ana")
    stamp = StampFile(tmp_path / "s-locks").read()
    assert stamp is not None
    assert (stamp.charge, stamp.database_id, stamp.fingerprint) == (2, None, None)
