"""From a table to its sketch through DuckDB: equal to plain Python, and the same for any order, threads or storage."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from dpsql.bound.shards import SHARDS, sketch_sql
from dpsql.errors import EngineError
from dpsql.model.frame import Frame
from dpsql.release.sketch import Sketch, sketched
from tests.frames import with_bounding, with_relation
from tests.unit.bound.exact_runs import SALT, Laboratory
from tests.unit.bound.plain_reference import spelled
from tests.unit.bound.query_descriptions import literal
from tests.unit.bound.typed_keys import KEY_TYPES
from tests.unit.release.sketch_reference import (
    Keys,
    Plain,
    absorbed,
    are_neighbours,
    broken_bounds,
    by_shard,
    reference_step,
)

_UNITS, _ROWS, _SIZE = 300, 6000, 12
_FEW_SHARDS = 24
_QUERY = "SELECT city, level, count(DISTINCT pid) FROM {table} GROUP BY city, level"


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    yield opened
    opened.close()


def _protect(laboratory: Laboratory, *tables: str) -> None:
    for table in tables:
        laboratory.session.sql(
            f"CALL dp_protect('{table}', coverage := FALSE, "
            "unit := 'u', privacy_unit_column := 'pid', max_groups_contributed := 3)"
        )


def _frame(laboratory: Laboratory, table: str, *, bounded: bool = False) -> Frame:
    frame = laboratory.plan(_QUERY.format(table=table)).first.frame
    return frame if bounded else with_bounding(frame, max_groups=None)


def _sketch(
    laboratory: Laboratory, frame: Frame, size: int = _SIZE, rewrite: Callable[[str], str] = str, salt: bytes = SALT
) -> Sketch:
    pieces = laboratory.engine.pieces(rewrite(sketch_sql(frame, salt)), timeout_seconds=60)
    return sketched(size, (piece.reveal() for piece in pieces), laboratory.session._runner.sandbox.run)


def _in_few_shards(sql: str) -> str:
    """Less to wait for, where the number of shards is not what is tested."""
    assert sql.count(f" % {SHARDS} AS") == 1
    return sql.replace(f" % {SHARDS} AS", f" % {_FEW_SHARDS} AS")


def _plain(sketch: Sketch) -> Plain:
    *keys, units = (column.to_pylist() for column in sketch.counters.columns)
    counters = zip((spelled(key) for key in zip(*keys, strict=True)), units, strict=True)
    return Plain(frozenset(counters), sketch.floor)


def _bits(sketch: Sketch) -> tuple[object, ...]:
    """Everything a sketch holds, in its order; floats as their bits, since a NaN equals nothing."""
    columns = [
        [None if v is None else struct.pack("d", v) if isinstance(v, float) else v for v in column.to_pylist()]
        for column in sketch.counters.columns
    ]
    return sketch.counters.schema, columns, sketch.floor


@pytest.fixture(scope="module")
def visits(laboratory: Laboratory, tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    """One content (units and keys that are NULL, repeated rows, zeros and NaNs of both signs) in several orders."""
    connection = laboratory.session.connection
    connection.execute(
        f"CREATE TABLE visits AS SELECT nullif((hash(i) % {_UNITS + 1})::INTEGER, {_UNITS}) AS pid, "
        "CASE hash(i, 1) % 9 WHEN 0 THEN '' WHEN 1 THEN 'c' WHEN 2 THEN 'd' ELSE NULL END AS city, "
        "CASE hash(i, 3) % 9 WHEN 0 THEN NULL WHEN 1 THEN 0.0 WHEN 2 THEN -0.0 WHEN 3 THEN 'nan'::DOUBLE "
        "WHEN 4 THEN -('nan'::DOUBLE) WHEN 5 THEN 'inf'::DOUBLE ELSE sqrt(hash(i, 4) % 20) END AS level "
        f"FROM range({_ROWS}) r(i)"
    )
    connection.execute("CREATE TABLE reversed AS SELECT * FROM visits ORDER BY rowid DESC")
    connection.execute("CREATE TABLE shuffled AS SELECT * FROM visits ORDER BY hash(rowid, 'shuffle')")
    path: Path = tmp_path_factory.mktemp("stored") / "visits.parquet"
    connection.execute(f"COPY shuffled TO '{path}' (ROW_GROUP_SIZE 500)")
    connection.execute(f"CREATE VIEW stored AS SELECT * FROM read_parquet('{path}')")
    _protect(laboratory, "visits", "reversed", "shuffled", "stored")
    return laboratory


def _rows_by_unit(laboratory: Laboratory, frame: Frame) -> dict[int, Keys]:
    """The groups of each unit, in the order of the frame's keys, by plain Python."""
    names = [key.sql.strip('"') for key in frame.keys]
    rows = laboratory.session.connection.execute("SELECT pid, city, level FROM visits").fetchall()
    found: dict[int, set[object]] = {}
    for pid, city, level in rows:
        if pid is not None:
            value = {"city": city, "level": level}
            found.setdefault(pid, set()).add(spelled([value[name] for name in names]))
    if frame.bounding.max_groups is not None:
        found = {
            pid: _lowest(laboratory, frame, pid, groups, frame.bounding.max_groups) for pid, groups in found.items()
        }
    return {pid: frozenset(groups) for pid, groups in found.items()}


def _lowest(laboratory: Laboratory, frame: Frame, pid: int, groups: set[object], bound: int) -> set[object]:
    listed = list(groups)
    values = [(pid, *(math.nan if v == "NaN" else v for v in group)) for group in listed]  # type: ignore[attr-defined]
    numbers = laboratory.hashes(values, ["INTEGER", *(key.type for key in frame.keys)])
    return {group for _, group in sorted(zip(numbers, listed, strict=True), key=lambda entry: entry[0])[:bound]}


@pytest.mark.parametrize("bounded", [False, True])
def test_a_sketch_equals_plain_python(visits: Laboratory, bounded: bool) -> None:
    frame = _frame(visits, "visits", bounded=bounded)
    data = _rows_by_unit(visits, frame)
    assert len(data) == _UNITS
    hashes = dict(zip(data, visits.hashes([(pid,) for pid in data], ["INTEGER"]), strict=True))
    expected = absorbed(by_shard(data, lambda pid: hashes[pid] % SHARDS), reference_step(_SIZE))
    found = _plain(_sketch(visits, frame))
    assert found == expected
    assert broken_bounds(found, data, _SIZE) == []
    assert found.floor > 0
    if not bounded:
        counts = [key for key, _ in found.counters]
        assert any("NaN" in key for key in counts), "the frequent keys are those that are hard to spell"  # type: ignore[operator]
        assert any(None in key for key in counts)  # type: ignore[operator]


def test_with_room_for_every_key_a_sketch_is_the_exact_histogram(visits: Laboratory) -> None:
    frame = _frame(visits, "visits")
    data = _rows_by_unit(visits, frame)
    truth: dict[object, int] = {}
    for groups in data.values():
        for group in groups:
            truth[group] = truth.get(group, 0) + 1
    assert _plain(_sketch(visits, frame, size=len(truth))) == Plain(frozenset(truth.items()), 0)


@pytest.fixture(scope="module")
def expected(visits: Laboratory) -> Sketch:
    return _sketch(visits, _frame(visits, "visits"))


@pytest.mark.thorough
@pytest.mark.parametrize(("table", "threads"), [("reversed", 1), ("shuffled", 4), ("stored", 2)])
def test_order_storage_and_threads_change_no_bit(
    visits: Laboratory, expected: Sketch, table: str, threads: int
) -> None:
    connection = visits.session.connection
    connection.execute(f"SET threads = {threads}; SET default_order = 'DESC'; SET default_null_order = 'NULLS FIRST'")
    try:
        found = _sketch(visits, _frame(visits, table))
    finally:
        connection.execute("RESET threads; RESET default_order; RESET default_null_order")
    assert _bits(found) == _bits(expected)


@pytest.mark.thorough
def test_where_pieces_end_means_nothing(visits: Laboratory) -> None:
    frame = _frame(visits, "visits")
    run = visits.session._runner.sandbox.run
    sql = _in_few_shards(sketch_sql(frame, SALT))
    whole = pa.concat_tables(p.reveal() for p in visits.engine.pieces(sql, timeout_seconds=None))
    expected = _sketch(visits, frame, rewrite=_in_few_shards)
    for length in (7, 100, whole.num_rows):
        starts = [*range(0, whole.num_rows, length), whole.num_rows]
        pieces = [whole.slice(0, 0), *(whole.slice(a, b - a) for a, b in pairwise(starts)), whole.slice(0, 0)]
        found = sketched(_SIZE, pieces, run)
        assert _bits(found) == _bits(expected)


def _without(frame: Frame, pid: int) -> Frame:
    return with_relation(frame, f"(SELECT * FROM {frame.rows_sql.relation} WHERE pid IS DISTINCT FROM {pid})")


def _steps(laboratory: Laboratory, rewrite: Callable[[str], str] = str) -> Iterator[bool]:
    """Whether the sketches with and without a unit are neighbours, for some units."""
    frame = _frame(laboratory, "visits")

    def sketch(rows: Frame) -> Plain:
        return _plain(_sketch(laboratory, rows, rewrite=lambda sql: rewrite(_in_few_shards(sql))))

    larger = sketch(frame)
    for pid in range(0, _UNITS, 60):
        yield are_neighbours(larger, sketch(_without(frame, pid)))


@pytest.mark.thorough
def test_a_unit_moves_the_sketch_of_a_table_by_one_step(visits: Laboratory) -> None:
    assert all(_steps(visits))


@pytest.mark.thorough
def test_the_check_catches_shards_that_a_row_decides(visits: Laboratory) -> None:
    sound = f"hash(hash(unit, '{SALT.hex()}'))"
    assert sketch_sql(_frame(visits, "visits"), SALT).count(sound) == 1
    assert not all(_steps(visits, lambda sql: sql.replace(sound, sound.replace("unit", "unit, key_0, key_1"))))


@pytest.mark.thorough
def test_the_check_catches_shards_that_the_size_of_the_table_decides(visits: Laboratory) -> None:
    cut = f"% {_FEW_SHARDS} AS"
    assert not all(
        _steps(visits, lambda sql: sql.replace(cut, "% (SELECT 1 + count(DISTINCT unit) // 30 FROM kept) AS"))
    )


def test_a_table_without_rows_has_an_empty_sketch(visits: Laboratory, expected: Sketch) -> None:
    frame = _frame(visits, "visits")
    nothing = _sketch(visits, with_relation(frame, f"(SELECT * FROM {frame.rows_sql.relation} WHERE false)"))
    assert (nothing.counters.num_rows, nothing.floor) == (0, 0)
    assert nothing.counters.schema == expected.counters.schema


def test_another_salt_makes_other_shards(visits: Laboratory, expected: Sketch) -> None:
    assert _plain(_sketch(visits, _frame(visits, "visits"), salt=bytes(16))) != _plain(expected)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("DOUBLE", ("0.0", "-0.0", "nan", "inf")),
        ("FLOAT", ("-0.0", "0.0", "1.5")),
        ("INTERVAL", ("30 days", "1 month", "720:00:00", "-1 month", "-30 days")),
        ("VARCHAR", ("", "short", "longer than twelve bytes", "LONGER than twelve bytes")),
        ("DECIMAL(38,10)", ("1", "1.0000000001")),
    ],
)
def test_a_unit_is_in_one_shard_however_it_is_spelled(
    laboratory: Laboratory, kind: str, values: tuple[str, ...]
) -> None:
    connection = laboratory.session.connection
    listed = ", ".join(f"({literal(value)})" for value in values)
    connection.execute(
        f"CREATE OR REPLACE TABLE spelled AS SELECT CAST(v AS {kind}) AS pid, k AS city, 0 AS level "
        f"FROM (VALUES {listed}) t(v), range(40) r(k)"
    )
    if kind in ("DOUBLE", "FLOAT"):
        connection.execute("INSERT INTO spelled SELECT -pid, city + 40, level FROM spelled WHERE isnan(pid)")
    _protect(laboratory, "spelled")
    prefix, place, select = sketch_sql(_frame(laboratory, "spelled"), SALT).rpartition("\nSELECT ")
    assert place
    shard = select.partition(" AS shard")[0]
    sql = f"{prefix}\nSELECT count(DISTINCT {shard}) AS shards, count(DISTINCT unit) AS units FROM kept GROUP BY unit"
    rows = pa.concat_tables(p.reveal() for p in laboratory.engine.pieces(sql, timeout_seconds=None)).to_pylist()
    assert rows == [{"shards": 1, "units": 1}] * len(rows)
    distinct = connection.execute("SELECT count(DISTINCT pid) FROM spelled").fetchall()[0][0]
    assert len(rows) == distinct


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KEY_TYPES)
def test_keys_of_every_type_keep_their_type_and_stay_apart(laboratory: Laboratory, kind: str) -> None:
    values = (*KEY_TYPES[kind], None)
    connection = laboratory.session.connection
    listed = ", ".join(f"({literal(value)})" for value in values)
    connection.execute(
        f"CREATE OR REPLACE TABLE typed AS SELECT u AS pid, CAST(v AS {kind}) AS city, 0 AS level "
        f"FROM range(3) us(u), (VALUES {listed}) vs(v)"
    )
    _protect(laboratory, "typed")
    frame = _frame(laboratory, "typed")
    sketch = _sketch(laboratory, frame, size=9)
    assert sketch.counters.column("units").to_pylist() == [3] * len(values)
    assert sketch.floor == 0
    (name,) = [f"key_{i}" for i, key in enumerate(frame.keys) if key.sql == '"city"']
    shown = laboratory.session._runner.sandbox.run(
        f"SELECT CAST(CAST({name} AS {kind}) AS VARCHAR) AS key FROM t", {"t": sketch.counters}
    )
    expected = connection.execute("SELECT DISTINCT CAST(city AS VARCHAR) FROM typed").fetchall()
    assert set(shown.column("key").to_pylist()) == {row[0] for row in expected}


def test_public_keys_and_no_keys_are_not_sketched(visits: Laboratory) -> None:
    with pytest.raises(ValueError, match="private"):
        sketch_sql(replace(_frame(visits, "visits"), keys=()), SALT)


@pytest.mark.parametrize("shards", [[[3, 2]], [[0, 5], [4]], [[63], [], [0]]])
def test_shards_out_of_order_are_refused(visits: Laboratory, shards: list[list[int]]) -> None:
    pieces = [
        pa.table(
            {"shard": pa.array(s, pa.uint8()), "key_0": ["a"] * len(s), "units": pa.array([1] * len(s), pa.int64())}
        )
        for s in shards
    ]
    with pytest.raises(EngineError, match="order"):
        sketched(2, pieces, visits.session._runner.sandbox.run)


def test_no_piece_at_all_is_refused(visits: Laboratory) -> None:
    with pytest.raises(EngineError, match="columns"):
        sketched(2, [], visits.session._runner.sandbox.run)
