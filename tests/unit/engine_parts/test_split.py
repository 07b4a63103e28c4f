"""A split puts every row into one part, by its unit, and keeps names, types, constraints and views."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpsql.engine.connection import LocalConnection
from dpsql.engine.parts.manifest import HEAD, file_digest, read_manifest
from dpsql.engine.parts.sources import SplitSource, file_source, table_source, views_of
from dpsql.engine.parts.split import split_tables
from dpsql.engine.parts.unit_part import SplitError, part_sql
from tests.parts import split_of

CLINIC = """
CREATE SCHEMA care;
CREATE TABLE patients(id INTEGER PRIMARY KEY, mood ENUM('low', 'high'), name VARCHAR COLLATE nocase NOT NULL,
    next INTEGER GENERATED ALWAYS AS (id + 1), mentor INTEGER REFERENCES patients(id));
CREATE TABLE visits(visit BIGINT UNIQUE, pid INTEGER REFERENCES patients(id), cost DOUBLE);
CREATE TABLE care.lines(visit HUGEINT, code VARCHAR);
CREATE TABLE cities(city VARCHAR PRIMARY KEY);
CREATE TABLE staff(x INTEGER);
INSERT INTO patients SELECT i, 'low', 'n' || i, NULL FROM range(50) rows(i);
INSERT INTO visits SELECT i, i % 50, i / 7 FROM range(200) rows(i);
INSERT INTO visits VALUES (900, NULL, 1);
INSERT INTO care.lines SELECT i % 260, 'c' FROM range(600) rows(i);
INSERT INTO care.lines VALUES (900, 'd'), (NULL, 'e');
INSERT INTO cities VALUES ('Lund'), ('Bern');
CREATE VIEW seen AS SELECT * FROM patients JOIN visits ON id = pid;
CREATE VIEW care.both AS SELECT * FROM main.seen, main.cities;
CREATE VIEW others AS SELECT * FROM staff;
"""
LINKS = {"care.lines": [(("visit",), "main.visits", ("visit",))]}
UNITS = {"patients": "id", "visits": "PID", "care.lines": "pid"}
TABLES = ("patients", "visits", "care.lines")


@pytest.fixture(scope="module")
def clinic() -> Iterator[duckdb.DuckDBPyConnection]:
    """Rows of a clinic with links, public rows and views, which no test changes."""
    with duckdb.connect() as connection:
        connection.execute(CLINIC)
        yield connection


def rows_of(folder: Path, tables: Sequence[str]) -> dict[str, list[Counter[tuple[Any, ...]]]]:
    """Return the rows of each table in each part of a folder."""
    found: dict[str, list[Counter[tuple[Any, ...]]]] = {table: [] for table in tables}
    for part in read_manifest(folder).parts:
        with duckdb.connect(folder / part.name, read_only=True) as connection:
            for table in tables:
                found[table].append(Counter(connection.execute(f"FROM {table}").fetchall()))
    return found


def test_every_row_is_in_one_part_and_units_are_whole(clinic: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    folder = split_of(clinic, tmp_path / "parts", 3, units=UNITS, links=LINKS, public=["cities"])
    parts = rows_of(folder, [*TABLES, "cities"])
    for table in TABLES:
        assert sum(parts[table], Counter()) == Counter(clinic.execute(f"FROM {table}").fetchall())
        assert all(parts[table]), table
    assert parts["cities"] == [Counter([("Lund",), ("Bern",)])] * 3
    units = [{row[0] for row in part} for part in parts["patients"]]
    visits = [{row[0]: row[1] for row in part} for part in parts["visits"]]
    for number in range(3):
        assert {unit for unit in visits[number].values() if unit is not None} <= units[number]
        lines = {visit for visit, _ in parts["care.lines"][number] if visit is not None}
        assert {visit for visit in lines if visit < 200} <= set(visits[number])
    # rows without a unit, and those without a parent
    assert 900 in visits[0]
    assert (None, "e") in parts["care.lines"][0]
    assert not any(visit > 200 for part in parts["care.lines"][1:] for visit, _ in part)
    split = read_manifest(folder)
    assert [(one.table, one.unit_column) for one in split.tables] == [
        ("main.patients", "id"),
        ("main.visits", "pid"),
        ("care.lines", "pid"),
        ("main.cities", ""),
    ]
    assert [one.most_rows for one in split.tables[:3]] == [max(map(Counter.total, parts[table])) for table in TABLES]


def test_parts_and_head_have_one_definition(clinic: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    folder = split_of(clinic, tmp_path / "parts", 2, units=UNITS, links=LINKS, public=["cities"])
    split = read_manifest(folder)
    assert {path.name for path in folder.iterdir()} == {HEAD, "parts.json", *(part.name for part in split.parts)}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [file_digest(folder / part.name) for part in split.parts] == [part.digest for part in split.parts]
    texts = set()
    for name in (HEAD, *(part.name for part in split.parts)):
        with duckdb.connect(folder / name, read_only=True) as connection:
            rows = connection.execute(
                "SELECT sql FROM duckdb_tables() UNION ALL SELECT sql FROM duckdb_views() WHERE NOT internal ORDER BY 1"
            ).fetchall()
            texts.add("\n".join(sql for (sql,) in rows))
            for table, most in (("cities", 2), ("patients", 50), ("care.both", 400)):
                ((count,),) = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
                assert count <= most
                assert (count == 0) == (name == HEAD and table != "cities")
    (text,) = texts
    assert '"name" VARCHAR COLLATE nocase NOT NULL' in text
    assert "ENUM('low', 'high')" in text
    assert "FOREIGN KEY (pid) REFERENCES patients(id)" in text
    assert "UNIQUE(visit)" in text
    # a key that leads to other units, and a view of another table
    assert "(mentor)" not in text
    assert "others" not in text


def test_notes_name_views_and_constraints_that_are_left_out(clinic: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    opened = LocalConnection(clinic, None)
    sources = [table_source(opened, ["patients"], "id")]
    written = split_tables(opened, sources, parts=1, folder=tmp_path / "parts", views=views_of(opened))
    key, views = written.notes
    assert "(mentor) of main.patients" in key
    assert views.endswith(": care.both, main.others, main.seen")


@pytest.mark.parametrize("number", ["7", "-7", "0"])
def test_a_number_is_in_one_part_whatever_its_width(number: str) -> None:
    kinds = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
    wide = ("DECIMAL(9,0)",)
    with duckdb.connect() as connection:
        parts = {
            connection.execute(f"SELECT {part_sql(f'{number}::{kind}', kind, 1024)}").fetchone()
            for kind in (*kinds, *wide)
        }
    assert len(parts) == 1


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("DOUBLE", ("0.0", "-0.0")),
        ("DOUBLE", ("'nan'", "-('nan'::DOUBLE)")),
        ("INTERVAL", ("'30 days'", "'1 month'")),
        ("TIMESTAMP WITH TIME ZONE", ("'2026-01-01 00:00+00'", "'2026-01-01 01:00+01'")),
    ],
)
def test_values_that_group_by_holds_equal_are_in_one_part(kind: str, values: Sequence[str]) -> None:
    with duckdb.connect() as connection:
        rows = connection.execute(
            f"SELECT count(DISTINCT {part_sql('v', kind, 1024)}), count(DISTINCT v) FROM "
            f"(SELECT unnest([{', '.join(f'({value})::{kind}' for value in values)}]) AS v)"
        ).fetchall()
    assert rows == [(1, 1)]


def test_the_part_of_a_unit_is_fixed() -> None:
    """Parts of an earlier version are read by a later one, so the hash must not change."""
    with duckdb.connect() as connection:
        sql = f"SELECT {part_sql('v', 'VARCHAR', 1000)} FROM (VALUES ('ann'), ('bob'), (NULL)) rows(v)"
        # the first 8 digits of md5, modulo 1000
        assert connection.execute(sql).fetchall() == [(0x7E0D7F8A % 1000,), (0x9F9D51BC % 1000,), (0,)]


def test_files_are_tables_with_their_types(tmp_path: Path) -> None:
    csv = tmp_path / "year=2026" / "my visits[1].csv"
    csv.parent.mkdir()
    # the last row has no number: types are those of all rows
    csv.write_text("pid,code\n" + "".join(f"{i % 40},{i}\n" for i in range(30_000)) + "3,x\n", encoding="utf-8")
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE stays AS SELECT i::TINYINT AS pid, {'a': i} AS s FROM range(90) rows(i)")
        connection.execute(f"COPY stays TO '{tmp_path / 'stays.parquet'}'")
        opened = LocalConnection(connection, None)
        sources = [file_source(opened, path, "pid") for path in (csv, tmp_path / "stays.parquet")]
        split_tables(opened, sources, parts=4, folder=tmp_path / "parts")
        tables = ('main."my visits[1]"', "stays")
        parts = rows_of(
            tmp_path / "parts",
            [f"(SELECT pid, {name} FROM {table})" for table, name in zip(tables, ("code", "s::VARCHAR"), strict=True)],
        )
    texts, structs = parts.values()
    assert sum(texts, Counter()) == Counter([*((i % 40, str(i)) for i in range(30_000)), (3, "x")])
    assert sum(map(Counter.total, structs)) == 90
    for number, part in enumerate(structs):
        assert {unit for unit, _ in part if unit < 40} == {unit for unit, _ in texts[number]}


def test_rows_of_a_part_keep_their_order(tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE visits AS SELECT i % 7 AS pid, i AS place FROM range(150000) rows(i)")
        folder = split_of(connection, tmp_path / "parts", 2, units={"visits": "pid"})
    for part in read_manifest(folder).parts:
        with duckdb.connect(folder / part.name, read_only=True) as connection:
            places = [place for (place,) in connection.execute("SELECT place FROM visits").fetchall()]
        assert len(places) > 40_000
        assert places == sorted(places)


Tables = Callable[[LocalConnection], tuple[list[SplitSource], list[SplitSource]]]


@pytest.mark.parametrize(
    ("tables", "parts", "message"),
    [
        (lambda one: ([table_source(one, ["patients"], "nobody")], []), 2, "no column 'nobody'"),
        (lambda one: ([table_source(one, ["patients"], "name")], []), 2, "has the collation nocase"),
        (lambda one: ([table_source(one, ["nothing"], "id")], []), 2, "no table 'nothing'"),
        (lambda one: ([table_source(one, ["seen"], "id")], []), 2, "is a view"),
        (lambda one: ([table_source(one, ["patients"], "id")] * 2, []), 2, "is twice"),
        (lambda one: ([table_source(one, ["patients"], "id")], []), 0, "1 to 1024"),
        (lambda one: ([table_source(one, ["patients"], "id")], []), 1025, "1 to 1024"),
        (lambda one: ([], [table_source(one, ["cities"])]), 2, "needs a table"),
        (
            lambda one: ([table_source(one, ["patients"], "id"), table_source(one, ["visits"], "cost")], []),
            2,
            "have different types",
        ),
        (lambda one: ([table_source(one, ["care", "lines"], "pid", LINKS["care.lines"])], []), 2, "which is not split"),
        (
            lambda one: (
                [
                    table_source(one, ["visits"], "pid"),
                    table_source(one, ["care", "lines"], "pid", [(("code",), "main.visits", ("pid",))]),
                ],
                [],
            ),
            2,
            "no PRIMARY KEY or UNIQUE",
        ),
    ],
)
def test_what_cannot_be_split_is_refused_before_anything_is_written(
    clinic: duckdb.DuckDBPyConnection, tmp_path: Path, tables: Tables, parts: int, message: str
) -> None:
    def split() -> None:
        opened = LocalConnection(clinic, None)
        split_tables(opened, *tables(opened), parts=parts, folder=tmp_path / "parts")

    with pytest.raises(SplitError, match=message):
        split()
    assert not (tmp_path / "parts").exists()


def test_a_default_collation_is_refused(tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE lines(code VARCHAR); SET GLOBAL default_collation = 'nocase'")
        with pytest.raises(SplitError, match="has the collation nocase"):
            split_of(connection, tmp_path / "parts", 2, units={"lines": "code"})


@pytest.mark.parametrize("name", ["visits.txt", "visits.csv", "visits.parquet"])
def test_a_file_that_is_no_source_is_refused_without_its_values(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe secret,\x00\n" * 3)
    with duckdb.connect() as connection, pytest.raises(SplitError, match=r"cannot be read|is no source") as refused:
        file_source(LocalConnection(connection, None), tmp_path / name)
    assert "secret" not in str(refused.value)
    assert refused.value.__context__ is None


def test_a_folder_with_other_things_is_refused(clinic: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").touch()
    with pytest.raises(SplitError, match="is not empty"):
        split_of(clinic, tmp_path, 2, units={"patients": "id"})
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_second_split_keeps_the_head_as_a_file(clinic: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    folder = split_of(clinic, tmp_path / "parts", 3, units=UNITS, links=LINKS, public=["cities"])
    first = read_manifest(folder)
    with duckdb.connect(folder / HEAD) as head:
        head.execute("CREATE SCHEMA dpsql_hidden; CREATE TABLE dpsql_hidden.state_file AS SELECT 42 AS charge")
    place = (folder / HEAD).stat().st_ino
    # a split that was killed left it
    (folder / f"rows-{'0' * 16}.duckdb").touch()
    with duckdb.connect() as later:
        later.execute(CLINIC)
        later.execute("INSERT INTO cities VALUES ('Rome'); INSERT INTO patients VALUES (77, 'high', 'n', 1)")
        split_of(later, folder, 2, units=UNITS, links=LINKS, public=["cities"])
    second = read_manifest(folder)
    assert second.identity != first.identity
    assert second.definitions == first.definitions
    assert {path.name for path in folder.iterdir()} == {HEAD, "parts.json", *(part.name for part in second.parts)}
    assert sum(map(Counter.total, rows_of(folder, ["patients"])["patients"])) == 51
    assert (folder / HEAD).stat().st_ino == place
    with duckdb.connect(folder / HEAD, read_only=True) as head:
        assert head.execute("FROM dpsql_hidden.state_file").fetchall() == [(42,)]
        assert head.execute("SELECT count(*) FROM cities").fetchall() == [(3,)]


@pytest.mark.parametrize("again", [False, True])
def test_a_split_that_fails_leaves_what_was_there(
    clinic: duckdb.DuckDBPyConnection, tmp_path: Path, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "parts"
    if again:
        split_of(clinic, folder, 2, units={"patients": "id"})
    before = {path: path.read_bytes() for path in folder.iterdir()} if again else {}
    monkeypatch.setattr("dpsql.engine.parts.split.create_view", lambda *_: clinic.execute("SELECT nothing"))
    with pytest.raises(SplitError, match="could not write") as refused:
        split_of(clinic, folder, 2, units=UNITS, links=LINKS, public=["cities"])
    assert refused.value.__context__ is None
    assert ({path: path.read_bytes() for path in folder.iterdir()} if again else {}) == before
    assert folder.exists() == again
    monkeypatch.undo()
    # nothing stays attached
    split_of(clinic, folder, 2, units=UNITS, links=LINKS, public=["cities"])
