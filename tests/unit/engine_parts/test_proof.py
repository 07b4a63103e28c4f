"""A check of a folder of parts finds rows, files and tables that are not those of the split."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from dpsql.engine.connection import LocalConnection
from dpsql.engine.parts.manifest import HEAD, MANIFEST, PartFile, file_digest, read_manifest, write_manifest
from dpsql.engine.parts.proof import check_parts
from dpsql.engine.parts.unit_part import SplitError
from dpsql.errors import PolicyError
from tests.parts import split_of

UNIT = 31_337
CLINIC = f"""
CREATE TABLE patients(id BIGINT PRIMARY KEY, name VARCHAR);
CREATE TABLE visits(visit BIGINT PRIMARY KEY, pid BIGINT);
CREATE TABLE lines(visit BIGINT, code VARCHAR);
CREATE TABLE cities(city VARCHAR);
INSERT INTO patients SELECT {UNIT} + i, 'secret' FROM range(40) rows(i);
INSERT INTO visits SELECT i, {UNIT} + i % 40 FROM range(100) rows(i);
INSERT INTO lines SELECT i % 130, 'secret' FROM range(300) rows(i);
INSERT INTO cities VALUES ('Lund'), ('Bern'), (NULL);
"""
UNITS = {"patients": "id", "visits": "pid", "lines": "pid"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    with duckdb.connect() as connection:
        connection.execute(CLINIC)
        for name in ("parts", "others"):
            links = {"lines": [(("visit",), "main.visits", ("visit",))]}
            split_of(connection, folder / name, 3, units=UNITS, links=links, public=["cities"])
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A fresh copy of a split."""
    shutil.copytree(made / "parts", tmp_path / "parts")
    return tmp_path / "parts"


def check(folder: Path) -> int:
    with duckdb.connect() as connection:
        return len(check_parts(LocalConnection(connection, None), folder).parts)


def change(folder: Path, number: int, *statements: str, admitted: bool = True) -> str:
    """Change a part, with the manifest if it shall not notice by the digest, and return the part's name."""
    split = read_manifest(folder)
    path = folder / split.parts[number].name
    with duckdb.connect(path) as connection:
        for place, part in enumerate(split.parts):
            if place != number:
                connection.execute(f"ATTACH '{folder / part.name}' AS part_{place} (READ_ONLY)")
        for statement in statements:
            connection.execute(statement)
    if admitted:
        parts = (*split.parts[:number], PartFile(path.name, file_digest(path)), *split.parts[number + 1 :])
        write_manifest(folder, dataclasses.replace(split, parts=parts))
    return path.name


def test_a_split_is_proved(folder: Path) -> None:
    assert check(folder) == 3


def test_a_changed_file_is_found(folder: Path) -> None:
    name = change(folder, 1, "INSERT INTO cities VALUES ('Rome')", admitted=False)
    with pytest.raises(SplitError, match=f"{name} was changed"):
        check(folder)


@pytest.mark.parametrize(
    ("number", "statements", "message"),
    [
        (1, ["INSERT INTO patients SELECT * FROM part_2.patients LIMIT 1"], r"{} has rows of main\.patients"),
        (0, ["INSERT INTO visits SELECT visit + 1000, pid FROM part_1.visits"], r"{} has rows of main\.visits"),
        # one that has a parent, in another part: without it, its unit has none
        (1, ["INSERT INTO lines SELECT * FROM part_2.lines LIMIT 1"], r"{} has rows of main\.lines"),
        (0, ["INSERT INTO lines SELECT * FROM part_2.lines LIMIT 1"], r"first part has rows of main\.lines"),
        (1, ["UPDATE cities SET city = 'Oslo' WHERE city = 'Lund'"], r"{} has other rows of the public table"),
        (1, ["DELETE FROM cities WHERE city IS NULL"], r"{} has other rows of the public table main\.cities"),
        (2, ["DROP TABLE lines"], r"{} has no table main\.lines"),
        (2, ["ALTER TABLE lines ADD COLUMN more INTEGER"], r"{} has other definitions"),
    ],
)
def test_a_row_in_the_wrong_part_is_found(folder: Path, number: int, statements: list[str], message: str) -> None:
    name = change(folder, number, *statements)
    with pytest.raises(SplitError, match=message.format(name)) as found:
        check(folder)
    assert "secret" not in str(found.value)
    assert str(UNIT)[:3] not in re.sub(r"part-[0-9a-f]+-\d+\.duckdb", "", str(found.value))


def test_rows_of_units_in_the_head_are_found(folder: Path) -> None:
    with duckdb.connect(folder / HEAD) as connection:
        connection.execute(f"INSERT INTO patients VALUES ({UNIT}, 'secret')")
    with pytest.raises(SplitError, match=r"head\.duckdb has rows of main\.patients"):
        check(folder)


def exchange_parts(folder: Path, _: Path) -> None:
    split = read_manifest(folder)
    paths = [folder / part.name for part in split.parts[:2]]
    texts = [path.read_bytes() for path in paths]
    for path, text in zip(paths, reversed(texts), strict=True):
        path.write_bytes(text)
    parts = tuple(PartFile(part.name, file_digest(folder / part.name)) for part in split.parts)
    write_manifest(folder, dataclasses.replace(split, parts=parts))


def take_from_another_split(folder: Path, made: Path) -> None:
    other = made / "others" / read_manifest(made / "others").parts[1].name
    shutil.copy(other, folder / read_manifest(folder).parts[1].name)


def damage_a_part(folder: Path, _: Path) -> None:
    split = read_manifest(folder)
    path = folder / split.parts[1].name
    path.write_bytes(b"no database" * 2000)
    part = PartFile(path.name, file_digest(path))
    write_manifest(folder, dataclasses.replace(split, parts=(split.parts[0], part, split.parts[2])))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda folder, _: (folder / read_manifest(folder).parts[2].name).unlink(), "is missing"),
        (lambda folder, _: (folder / HEAD).unlink(), "cannot be read"),
        (lambda folder, _: (folder / MANIFEST).unlink(), "no folder of parts"),
        (take_from_another_split, "was changed"),
        (exchange_parts, "belong to other parts"),
        (damage_a_part, "cannot be read"),
    ],
)
def test_files_of_others_are_found(made: Path, folder: Path, fault: Callable[[Path, Path], None], message: str) -> None:
    fault(folder, made)
    with pytest.raises(PolicyError, match=message) as found:
        check(folder)
    assert found.value.__context__ is None or not isinstance(found.value.__context__, duckdb.Error)
