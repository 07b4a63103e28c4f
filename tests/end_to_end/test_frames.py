"""Frames of pandas, polars and Arrow: one ledger with SQL, no copy, public keys, and errors that say what to write."""

from __future__ import annotations

import atexit
import copy
import dataclasses
import functools
import gc
import json
import pickle
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dpsql
from dpsql.frontends.frames.rows import create_source, frame_database
from dpsql.frontends.frames.shape import read_listed, typed_keys

# noise may hide all that a spread is computed from
pytestmark = pytest.mark.filterwarnings("ignore:.*NaN in every group:UserWarning")

QUESTION = (
    "SELECT city, count(*) AS n, sum(cost) AS c, avg(age) AS a, count(cost) AS k, count(fee) FROM visits GROUP BY city"
)


def clinic(folder: Path) -> tuple[Any, Path]:
    """A database with a policy, and its table as a frame."""
    frame, made = made_clinic()
    shutil.copytree(made, folder, dirs_exist_ok=True)
    return frame.copy(), folder / "clinic.duckdb.dpsql"


@functools.cache
def made_clinic() -> tuple[Any, Path]:
    """Make the database once, in a folder that is copied from."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    path = folder / "clinic.duckdb"
    with dpsql.connect(path) as session:
        session.connection.execute(
            "CREATE TABLE visits (Patient_ID INTEGER NOT NULL, city VARCHAR, cost DECIMAL(8,2) NOT NULL, day DATE, "
            "kind ENUM('in', 'out'), age SMALLINT, fee DOUBLE)"
        )
        session.connection.execute(
            "INSERT INTO visits SELECT i % 900, ['Lund', 'Oslo', NULL][1 + i % 3], (i % 77) * 1.25, "
            "DATE '2026-11-01' + (i % 3)::INT, ['in', 'out'][1 + i % 2], i % 9, i / 3 FROM range(3000) t(i)"
        )
        session.sql("CALL dp_unit('patient', epsilon_budget := 30, delta_budget := 1e-5)")
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "unit := 'patient', privacy_unit_column := 'patient_id', default_rho := 0.1, "
            "max_groups_contributed := 3, max_rows_per_group := 5)"
        )
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 100])")
        session.sql("CALL dp_domain('visits', 'age', bounds := [0, 9])")
        return session.connection.sql("FROM visits").df(), folder


def charged(answer: Any) -> float:
    return float(answer.attrs["dpsql"]["charged_rho"])


MEASURES: dict[str, Any] = {
    "n": ("Patient_ID", "size"),
    "c": ("cost", "sum"),
    "a": ("age", "mean"),
    "k": ("cost", "count"),
    "f": ("fee", "count"),
}


def summary(frame: Any, unit: dpsql.PrivacyUnit) -> Any:
    return dpsql.from_frame(frame).groupby("city", unit=unit).agg(**MEASURES)


def test_sql_and_frames_of_any_dtype_ask_one_question_and_pay_once(tmp_path: Path) -> None:
    frame, state = clinic(tmp_path)
    unit = dpsql.unit("patient", state=state, source="visits")
    with dpsql.connect(tmp_path / "clinic.duckdb") as session:
        rows = session.sql(QUESTION).fetchall()
    loose = frame.astype({"Patient_ID": "float64", "city": "object", "age": "str", "kind": "str", "day": "str"})
    expected = {city: list(map(float, values)) for city, *values in rows}
    for other in (loose, frame.convert_dtypes(dtype_backend="pyarrow")):
        answer = summary(other, unit)
        assert charged(answer) == 0
        assert {city: list(map(float, row)) for city, row in answer.T.items()} == {
            city: values for city, values in expected.items() if city is not None
        }
    for table in (pl.from_pandas(frame), pa.Table.from_pandas(frame)):
        flat: Any = dpsql.from_frame(table).groupby("city", unit=unit).agg(**MEASURES)
        flat = flat if isinstance(flat, pa.Table) else flat.to_arrow()
        assert {row.pop("city"): list(map(float, row.values())) for row in flat.to_pylist()} == expected
    assert unit.budget()["rho_spent"].item() == pytest.approx(0.1)


def test_what_a_frame_asked_first_is_free_in_sql_and_at_a_lower_level(tmp_path: Path) -> None:
    frame, state = clinic(tmp_path)
    unit = dpsql.unit("patient", state=state, source="visits")
    grouped = frame.dp.groupby(["day", "kind"], unit=unit, rho=0.2, max_groups=6, intervals=None)
    plan = grouped.explain(n=("Patient_ID", "nunique"))
    assert "0.2" in set(plan.loc[plan["name"] == "rho", "value"])
    assert unit.budget()["rho_spent"].item() == 0
    sharp = grouped.nunique_units()
    assert charged(sharp) == pytest.approx(0.2)
    assert charged(grouped.at(0.05).nunique_units()) == 0
    assert charged(grouped.at(0.25).nunique_units()) == pytest.approx(0.05)
    with dpsql.connect(tmp_path / "clinic.duckdb") as session:
        again = session.sql(
            "SELECT kind, day, count(DISTINCT patient_id) FROM visits GROUP BY ALL", rho=0.2, max_groups_contributed=6
        )
    assert again.receipt is not None
    assert again.receipt.reused
    assert sorted(n for _, _, n in again.fetchall()) == sorted(sharp)


def test_versions_are_those_that_are_declared(tmp_path: Path) -> None:
    frame, state = clinic(tmp_path)
    unit = dpsql.unit("patient", state=state, source="visits")
    first = frame.dp.groupby("city", unit=unit).size()
    november = unit.new_version("2026-11")
    assert charged(frame.dp.groupby("city", unit=november).size()) == pytest.approx(0.1)
    assert charged(frame.dp.groupby("city", unit=unit).size()) == 0  # the current one
    before = dpsql.unit("patient", state=state, source="visits", version="1")
    assert frame.dp.groupby("city", unit=before).size().equals(first)
    assert charged(frame.dp.groupby("day", unit=before).size()) > 0  # rows of version 1 are at hand
    with pytest.raises(dpsql.PolicyError, match="no version '2026-12', only '1', '2026-11'"):
        frame.dp.groupby("city", unit=dpsql.unit("patient", state=state, source="visits", version="2026-12")).size()


def test_a_state_file_for_frames_alone(tmp_path: Path) -> None:
    unit = dpsql.unit(
        "person", column="who", state=tmp_path / "new.dpsql", source="people", epsilon_budget=9, delta_budget=1e-6
    )
    answer = grouped(people(), "city", unit=unit).size()
    again = dpsql.unit("person", state=tmp_path / "new.dpsql", source="people")
    same = grouped(people(), "city", unit=again).size()
    assert same.equals(answer)
    assert charged(same) == 0


LOCAL = dpsql.unit("frames test", column="who", epsilon_budget=1000, delta_budget=1e-3)


def people(rows: int = 400) -> Any:
    """200 persons; as Any, because type checkers know nothing of ``df.dp``."""
    return pd.DataFrame(
        {
            "who": np.arange(rows) % 200,
            "city": pd.Categorical(["Lund", "Oslo"] * (rows // 2), categories=["Oslo", "Lund", "Bern"]),
            "shift": ["day", "day", "night", "night"] * (rows // 4),
            "paid": np.linspace(0, 10, rows),
        }
    )


def grouped(frame: Any, keys: Any, unit: Any = LOCAL, **terms: Any) -> Any:
    return frame.dp.groupby(keys, **{"unit": unit, "rho": 1, "max_groups": 2, "max_rows_per_group": 4, **terms})


def test_without_a_source_every_frame_is_one_of_its_own_in_one_ledger(caplog: pytest.LogCaptureFixture) -> None:
    frame = people()
    first = grouped(frame, "city").size()
    assert grouped(frame, "city").size().equals(first)
    assert charged(grouped(frame, "city").size()) == 0
    assert charged(grouped(frame.copy(), "city").size()) == 1
    # the name of a unit is enough once it has a budget
    assert charged(grouped(frame, "city", unit="frames test").size()) == 0
    del frame
    gc.collect()
    assert sum("ends with it" in record.message for record in caplog.records) <= 1
    assert {"frames test"} == set(LOCAL.budget()["unit"])
    assert (LOCAL.releases()["charged_rho"] >= 0).all()


def test_one_source_is_one_table_whatever_frame_holds_it() -> None:
    unit = dpsql.unit("frames test", source="people")
    first = grouped(people(), "shift", unit=dataclasses.replace(LOCAL, source="people")).size()
    assert grouped(people(), "shift", unit=unit).size().equals(first)
    other = dpsql.unit("other", column="city", source="people", epsilon_budget=1, delta_budget=1e-6)
    with pytest.raises(dpsql.PolicyError, match="belong to privacy unit 'frames test': write"):
        grouped(people(), "shift", unit=other).size()
    with pytest.raises(dpsql.PolicyError, match="unit column of 'people' is 'who', not 'city'"):
        grouped(people(), "shift", unit=dpsql.unit("frames test", column="city", source="people")).size()


def test_people_whom_the_same_column_tells_apart_get_no_second_budget_unsaid(tmp_path: Path) -> None:
    one = dpsql.unit("guest", column="who", epsilon_budget=90, delta_budget=1e-3, state=tmp_path / "s", source="stays")
    assert len(grouped(people(), "city", unit=one).size()) > 0
    other = dataclasses.replace(one, name="visitor", source="meals")
    with pytest.raises(dpsql.PolicyError, match=r"main\.stays.*dpsql\.unit\('guest', ….*separate_people=True"):
        grouped(people(), "city", unit=other).size()
    # nor is a budget declared that nobody uses
    assert list(one.budget()["unit"]) == ["guest"]
    assert charged(grouped(people(), "city", unit=dataclasses.replace(other, separate_people=True)).size()) > 0
    # one unit in another spelling is one unit
    same = dataclasses.replace(one, name=" Guest ", source="bills")
    assert charged(grouped(people(), "city", unit=same).size()) > 0
    assert list(one.budget()["unit"]) == ["guest", "visitor"][:1]


def test_public_keys_are_all_shown_and_in_their_order() -> None:
    frame = people()
    listed = grouped(frame, "city", public_keys=["Oslo", "Bern", "Lund"], sort=False, observed=False).size()
    assert list(listed.index) == ["Oslo", "Bern", "Lund"]
    assert list(listed.index.categories) == ["Oslo", "Bern", "Lund"]
    assert abs(listed["Bern"]) < 100 < listed["Lund"]  # the noise of Bern has sigma 2.9
    assert list(grouped(frame, "shift", public_keys=["night", "x", "day"]).size().index) == ["day", "night", "x"]
    pairs = [("Lund", "night"), ("Oslo", "day"), ("Rome", "day")]
    few = grouped(frame, ["city", "shift"], public_keys=pairs, sort=False).nunique_units()
    assert list(few.index) == pairs
    assert few.name == "who"
    arrow = dpsql.from_frame(pa.Table.from_pandas(frame)).groupby("city", unit=LOCAL, rho=1, public_keys=["Rome"])
    assert arrow.nunique_units()["city"].to_pylist() == ["Rome"]


def test_lists_of_keys_have_many_forms() -> None:
    pairs = [("Lund", 1), ("Oslo", 2), ("Lund", 1)]
    forms: list[object] = [pairs, pd.DataFrame(pairs, columns=["city", "floor"]), pd.MultiIndex.from_tuples(pairs)]
    for form in forms:
        read = read_listed(form, ["city", "floor"], dropna=True)
        assert read is not None
        assert read.literals() == (("city", ("'Lund'", "'Oslo'")), ("floor", ("'1'", "'2'")))
        assert read.combinations(["city", "floor"]) == pairs[:2]
    product = read_listed({"city": np.array(["Lund"]), "floor": pd.Series([1, 2])}, ["city", "floor"], dropna=True)
    assert product is not None
    assert product.combinations(["city", "floor"]) == [("Lund", 1), ("Lund", 2)]
    one = read_listed([pd.Timestamp("2026-11-01"), None, np.datetime64("2026-11-02"), 0.1, True], ["k"], dropna=False)
    assert one is not None
    assert one.literals() == (("k", ("'2026-11-01 00:00:00'", "NULL", "'2026-11-02 00:00:00'", "'0.1'", "'True'")),)


def test_categories_that_nobody_was_shown_are_nowhere() -> None:
    frame = people()
    frame["city"] = frame["city"].cat.add_categories("Secret-Town")
    answer = grouped(frame, "city").with_intervals().size()
    assert list(answer.columns) == ["size", "size_low", "size_high"]
    told = [answer.to_string(), repr(answer.index), str(answer.attrs["dpsql"]), repr(grouped(frame, "city").explain())]
    assert not any("Secret" in text for text in told)
    with pytest.raises(dpsql.UnsupportedQueryError, match="categories come from the data") as caught:
        grouped(frame, "city", observed=False).size()
    assert "Secret" not in str(caught.value)


def test_categories_that_are_public_come_in_the_order_of_their_dtype() -> None:
    frame = people()
    assert list(grouped(frame, "city").size().index) == ["Lund", "Oslo"]
    answer = grouped(frame, "city", ordered="city").size()
    assert list(answer.index) == list(answer.index.categories) == ["Oslo", "Lund"]
    listed = {"city": ["Rome", "Lund", "Bern", "Oslo"], "shift": ["day"]}
    answer = grouped(frame, ["shift", "city"], ordered=["city"], public_keys=listed, as_index=False).size()
    assert list(answer["city"]) == ["Oslo", "Lund", "Bern", "Rome"]
    # the flag of the dtype says nothing: pd.cut sets it by itself
    frame["city"] = frame["city"].cat.as_ordered()
    assert list(grouped(frame, "city").size().index) == ["Lund", "Oslo"]
    assert grouped(frame, "city", ordered="city").size().index.ordered
    for key in ("shift", "paid"):
        with pytest.raises(dpsql.PolicyError, match=f"ordered='{key}' is no key with categories"):
            grouped(frame, ["city", "shift"], ordered=key)


def test_keys_that_the_policy_lists_are_public(tmp_path: Path) -> None:
    frame, state = clinic(tmp_path)
    unit = dpsql.unit("patient", state=state, source="visits")
    with dpsql.connect(tmp_path / "clinic.duckdb") as session:
        session.sql("CALL dp_domain('visits', 'kind', keys := ['in', 'out', 'never'])")
        session.connection.execute("CREATE TABLE cities AS SELECT unnest(['Oslo', 'Rome']) AS name")
        session.sql("CALL dp_public('cities')")
        session.sql("CALL dp_domain('visits', 'city', keys_from := 'cities.name')")
        session.sql("SELECT city, count(*) FROM visits GROUP BY city")
    assert list(frame.dp.groupby("kind", unit=unit, observed=False).size().index) == ["in", "never", "out"]
    assert charged(frame.dp.groupby("city", unit=unit, public_keys=["Rome", "Oslo"]).size()) == 0
    with pytest.raises(dpsql.PolicyError, match=r"listed in table 'main\.cities', which a frame is without"):
        frame.dp.groupby("city", unit=unit).size()


def test_an_answer_is_plain_pandas_and_can_be_stored(tmp_path: Path) -> None:
    answer = grouped(people(), "shift").agg(paid=("paid", "sum", (0, 40)), rows=("who", "size"))
    assert type(answer) is pd.DataFrame
    assert "privacy unit frames test" in str(answer.attrs["dpsql"])
    answer.to_parquet(tmp_path / "answer.parquet")
    assert pd.read_parquet(tmp_path / "answer.parquet").attrs["dpsql"]["unit"] == "frames test"
    assert json.loads(json.dumps(answer.attrs))["dpsql"]["max_groups"] == 2


def test_polars_and_arrow_come_back_as_they_went_in() -> None:
    frame = people().assign(hours=lambda one: one["who"] % 8)
    for table, kind in ((pl.from_pandas(frame), pl.DataFrame), (pa.Table.from_pandas(frame), pa.Table)):
        grouping = dpsql.from_frame(table).groupby(["city", "shift"], unit=LOCAL, rho=1, max_groups=4)
        answer: Any = grouping.with_intervals().agg(paid=("paid", "sum", (0, 40)), hours=("hours", "sum", (0, 8)))
        assert isinstance(answer, kind)
        names = answer.column_names if isinstance(answer, pa.Table) else answer.columns
        assert names == ["city", "shift", "paid", "paid_low", "paid_high", "hours", "hours_low", "hours_high"]
        assert len(answer) == 4
        assert str(answer["hours"].type if isinstance(answer, pa.Table) else answer["hours"].dtype).lower() == "int64"
        assert len(grouping.explain(who=("who", "nunique"))) > 5
        mean: Any = grouping["paid"].mean(bounds=(0, 10))
        assert (mean.column_names if isinstance(mean, pa.Table) else mean.columns) == ["city", "shift", "paid"]
        told = mean.schema.metadata[b"dpsql_text"].decode() if isinstance(mean, pa.Table) else str(mean.dpsql)
        assert told.startswith("price    rho ")
        assert "\nerror    paid: " in told
        record = json.loads(mean.schema.metadata[b"dpsql"]) if isinstance(mean, pa.Table) else mean.dpsql
        assert record["unit"] == "frames test"
    with pytest.raises(dpsql.PolicyError, match="collect"):
        dpsql.from_frame(pl.from_pandas(frame).lazy())


def test_columns_are_read_in_place_and_typed_by_their_dtype_alone() -> None:
    paid = np.zeros(400)
    mixed = pd.Series([1, "a", None, 2.5] * 100, dtype=object)
    frame = pd.DataFrame({"paid": pd.Series(paid, copy=False), "mixed": mixed}, copy=False)
    with frame_database(None) as connection:
        create_source(connection, frame, ["paid", "mixed"], ("main", "people"), ())
        paid[:] = 77.0
        assert connection.execute("SELECT DISTINCT paid FROM people").fetchall() == [(77.0,)]
        kinds = connection.execute("SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'people'")
        assert dict(kinds.fetchall()) == {"paid": "DOUBLE", "mixed": "VARCHAR"}
        texts = connection.execute("SELECT DISTINCT mixed FROM people ORDER BY ALL NULLS LAST").fetchall()
        assert texts == [("1",), ("2.5",), ("a",), (None,)]


class Mute:
    def __str__(self) -> str:
        raise RuntimeError


FAR, NEAR = 2**61, 86_400


def zoned(unit: str, *ticks: int) -> Any:
    return pd.Series(np.array(ticks, dtype=f"M8[{unit}]")).dt.tz_localize("UTC")


ONE_VALUE: dict[str, tuple[Any, Any, list[Any]]] = {
    "half a character": (pd.Series(["a", "b"], dtype=object), pd.Series(["a", "\ud800"], dtype=object), ["a", None]),
    "no text": (pd.Series(["a", "b"], dtype=object), pd.Series(["a", Mute()], dtype=object), ["a", None]),
    "NaT": (pd.Series(["a", "b"], dtype=object), pd.Series(["a", pd.NaT], dtype=object), ["a", None]),
    "number": (pd.Categorical([1, 2]), pd.Categorical([1, None], [1, 2]), [1, None]),
    "truth": (pd.Categorical([True, False]), pd.Categorical([True, None], [True, False]), [True, None]),
    "member": (
        pd.Categorical(["a", "b"]),
        pd.Categorical.from_codes([0, 1], pd.Index(["a", Mute()], dtype=object)),
        ["a", None],
    ),
    "seconds": (zoned("s", NEAR, NEAR), zoned("s", NEAR, FAR), [NEAR * 10**6, None]),
    "ms": (zoned("ms", NEAR, NEAR), zoned("ms", NEAR, FAR), [NEAR * 1000, None]),
    "Arrow": (
        pa.array([NEAR, NEAR]).view(pa.timestamp("s", "UTC")),
        pa.array([NEAR, FAR]).view(pa.timestamp("s", "UTC")),
        [NEAR * 10**6, None],
    ),
    "Arrow dictionary": (
        pa.array([NEAR, NEAR]).view(pa.duration("ms")).dictionary_encode(),
        pa.array([NEAR, -FAR]).view(pa.duration("ms")).dictionary_encode(),
        [NEAR * 1000, None],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_VALUE)
def test_no_single_value_makes_an_error_or_another_type(name: str) -> None:
    *both, expected = ONE_VALUE[name]
    kinds = set()
    for column in both:
        frame: Any = pa.table({"x": column}) if isinstance(column, pa.Array) else pd.DataFrame({"x": column})
        with frame_database(None) as connection:
            create_source(connection, frame, ["x"], ("main", "people"), ())
            kind = str(connection.table("people").types[0])
            value = "epoch_us(x)" if kind.startswith(("TIMESTAMP", "INTERVAL")) else "x"
            read = connection.execute(f"SELECT {value} FROM people").fetchall()
            kinds.add("VARCHAR" if kind.startswith("ENUM") else kind)
    assert len(kinds) == 1
    assert [one for (one,) in read] == expected


@pytest.mark.parametrize("kind", ["M8[s]", "M8[ms]", pa.time64("us"), pa.time64("ns"), pa.time32("s")])
@pytest.mark.parametrize("wanted", ["VARCHAR", "TIMESTAMP WITH TIME ZONE", "TIME_NS", "TIMESTAMP_S", "TIMESTAMP"])
def test_no_single_value_makes_an_error_in_a_cast(kind: Any, wanted: str) -> None:
    far = pa.array([NEAR - 1, 2**31 - 1], pa.int32()) if kind == pa.time32("s") else pa.array([NEAR - 1, FAR])
    frame: Any = pa.table({"x": far.view(kind)}) if isinstance(kind, pa.DataType) else None
    frame = pd.DataFrame({"x": far.to_numpy().view(kind)}) if frame is None else frame
    for owner in (None, "x"):
        with frame_database(None) as connection:
            remembered = (("x", wanted, True),)
            create_source(connection, frame, ["x"], ("main", "people"), remembered, owner)
            assert connection.execute("SELECT count(x) FROM people").fetchall()[0][0] <= 2


def test_the_text_false_is_not_true() -> None:
    frame = pd.DataFrame({"sure": pd.Categorical([True, False])})
    keys = typed_keys(pd.DataFrame({"sure": ["true", "false"]}), frame, ["sure"], None)
    assert list(keys["sure"]) == ["true", "false"]


@pytest.mark.parametrize("kind", [pa.time64("ns"), pa.string_view(), pa.float64()])
def test_keys_of_types_that_arrow_cannot_order_are_shown(kind: pa.DataType, tmp_path: Path) -> None:
    values = (
        pa.array([1] * 400, pa.int64()).view(kind) if pa.types.is_time(kind) else pa.array([1] * 400).cast("string")
    )
    table = pa.table({"who": range(400), "key": values.cast(kind)})
    # a state of its own: in that of the process it would be refused, or refuse, the other unit of this column's name
    unit = dpsql.unit(
        "kinds of keys", column="who", epsilon_budget=50, delta_budget=1e-6, state=tmp_path / "s", source="kinds"
    )
    assert dpsql.from_frame(table).groupby("key", unit=unit, rho=1, max_groups=1).nunique_units().num_rows == 1


def test_rows_that_the_table_could_not_hold_are_left_out(tmp_path: Path) -> None:
    frame, state = clinic(tmp_path)
    with frame_database(None) as connection:
        loose = frame.astype({"cost": "str"})
        loose.loc[:9, "cost"] = "dear"
        unit = dpsql.unit("patient", state=state, source="visits")
        with unit.access() as access:
            (remembered,) = access.read().policy().remembered
        loose["Patient_ID"] = loose["Patient_ID"] + np.where(loose.index < 20, 0.25, 0)  # no row of an integer unit
        names = ["cost", "Patient_ID"]
        assert create_source(connection, loose, names, ("main", "visits"), remembered.columns, "Patient_ID") == set(
            names
        )
        assert connection.execute("SELECT count(*), typeof(any_value(cost)) FROM visits").fetchall() == [
            (2980, "DECIMAL(8,2)")
        ]
        # two units as texts, and one as a number, are no unit
        alike = pd.DataFrame({"cost": 1.0, "Patient_ID": pd.Categorical(["1", "01"])})
        connection.execute('DROP VIEW visits; DROP VIEW "dpsql rows"')
        create_source(connection, alike, names, ("main", "visits"), remembered.columns, "Patient_ID")
        assert connection.execute("SELECT Patient_ID FROM visits").fetchall() == [(1,)]


RICHER = dpsql.unit("frames test", column="who", epsilon_budget=2000, delta_budget=1e-3)
Raising = Callable[[Any], object]
ERRORS: dict[str, tuple[type[dpsql.DpsqlError], str, Raising]] = {
    "column": (dpsql.SchemaError, "Did you mean 'city'", lambda df: grouped(df, "ctiy")),
    "case": (dpsql.SchemaError, "Write 'city'", lambda df: grouped(df, "City")),
    "index": (dpsql.SchemaError, "reset_index", lambda df: grouped(df.set_index("city"), "city")),
    "function key": (dpsql.SchemaError, "name of a column in text", lambda df: grouped(df, len)),
    "Series key": (dpsql.SchemaError, "no column of this frame", lambda df: grouped(df, df["city"].str.lower())),
    "measured column": (dpsql.SchemaError, "x: 'pay'", lambda df: grouped(df, "city").agg(x=("pay", "size"))),
    "span of time": (
        dpsql.SchemaError, "spans of time", lambda df: grouped(df.assign(span=pd.Timedelta(1)), "span"),
    ),
    "Series function": (
        dpsql.UnsupportedQueryError, "no private form", lambda df: grouped(df, "city").agg(x=("who", df["who"])),
    ),
    "long bounds": (
        dpsql.PolicyError, "two finite numbers", lambda df: grouped(df, "city").sum("who", bounds=(0, 10**400)),
    ),
    "unit column": (
        dpsql.SchemaError, "the unit column 'who'", lambda df: grouped(df.drop(columns="who"), "city").size(),
    ),
    "bounds": (
        dpsql.UnsupportedQueryError, r"bounds=\(<lowest value>, <highest value>\)",
        lambda df: grouped(df, "city", top_k=3).sum("paid"),
    ),
    "rows": (
        dpsql.UnsupportedQueryError, "max_rows_per_group=<most rows of one unit in one group>",
        lambda df: grouped(df, "city", max_rows_per_group=None, top_k=3).size(),
    ),
    "groups": (
        dpsql.UnsupportedQueryError, "max_groups=<most groups of one unit>",
        lambda df: grouped(df, "city", max_groups=None, other_group="rest").size(),
    ),
    "level": (dpsql.UnsupportedQueryError, "epsilon=0.5", lambda df: grouped(df, "city", rho=None).size()),
    "option": (dpsql.UnsupportedQueryError, "no option maxgroups", lambda df: grouped(df, "city", maxgroups=3).size()),
    "as_of": (dpsql.PolicyError, "version=", lambda df: grouped(df, "city", as_of="1")),
    "text": (
        dpsql.UnsupportedQueryError, "df.astype", lambda df: grouped(df, "city").sum("shift", bounds=(0, 1)),
    ),
    "function": (dpsql.UnsupportedQueryError, "median", lambda df: grouped(df, "city").agg(x=("paid", "max"))),
    "lambda": (dpsql.UnsupportedQueryError, "function of Python", lambda df: grouped(df, "city").agg(x=("paid", len))),
    "method": (dpsql.UnsupportedQueryError, r"\['paid'\]\.quantile", lambda df: grouped(df, "city").max()),
    "method of polars": (dpsql.UnsupportedQueryError, r"\.size\(\)", lambda df: grouped(df, "city").len()),
    "rows of groups": (dpsql.UnsupportedQueryError, r"\.groups\(\)", lambda df: list(grouped(df, "city"))),
    "every column": (dpsql.UnsupportedQueryError, r"\['paid'\]\.mean", lambda df: grouped(df, "city").mean()),
    "every column of agg": (
        dpsql.UnsupportedQueryError, r"\['paid'\]\.sum", lambda df: grouped(df, "city").agg("sum"),
    ),
    "selected column": (dpsql.SchemaError, "Did you mean 'paid'", lambda df: grouped(df, "city")["pai"]),
    "selected twice": (dpsql.PolicyError, "selected already", lambda df: grouped(df, "city")["paid"]["who"]),
    "selected and named": (
        dpsql.PolicyError, r"\.mean\(\)", lambda df: grouped(df, "city")["paid"].mean((0, 10)),
    ),
    "not selected": (
        dpsql.PolicyError, "'who' is not selected", lambda df: grouped(df, "city")[["paid"]].agg({"who": "mean"}),
    ),
    "none selected": (dpsql.PolicyError, "different columns", lambda df: grouped(df, "city")[[]]),
    "functions of a column": (
        dpsql.PolicyError, r"'paid_sum': \('paid', 'sum'\)",
        lambda df: grouped(df, "city").agg({"paid": ["mean", "sum"]}),
    ),
    "functions of columns": (
        dpsql.PolicyError, r"'who_sum': \('who', 'sum'\)",
        lambda df: grouped(df, "city")[["paid", "who"]].agg(["mean", "sum"]),
    ),
    "function twice": (
        dpsql.PolicyError, "different functions", lambda df: grouped(df, "city")["paid"].agg(["sum", "sum"]),
    ),
    "both forms": (
        dpsql.PolicyError, "not both", lambda df: grouped(df, "city")["paid"].agg("sum", bounds=(0, 10)),
    ),
    "dict of one column": (
        dpsql.PolicyError, "dict of columns", lambda df: grouped(df, "city")["paid"].agg({"who": "mean"}),
    ),
    "no function": (dpsql.PolicyError, "named columns", lambda df: grouped(df, "city").agg(len)),
    "expression": (dpsql.PolicyError, "named columns", lambda df: grouped(df, "city").agg(pl.col("paid").mean())),
    "doubled": (
        dpsql.PolicyError, "two columns 'city'",
        lambda df: grouped(df, "city", as_index=False).agg(city=("paid", "count")),
    ),
    "form": (dpsql.PolicyError, "x=", lambda df: grouped(df, "city").agg(x="size")),
    "nothing": (dpsql.PolicyError, "named columns", lambda df: grouped(df, "city").agg()),
    "low bounds": (dpsql.PolicyError, "lower first", lambda df: grouped(df, "city").mean("paid", bounds=(5, 0))),
    "level of at": (dpsql.PolicyError, "a half width or a relative error", lambda df: grouped(df, "city").at()),
    "dtype": (
        dpsql.SchemaError, "'month' have a dtype without",
        lambda df: grouped(df.assign(month=pd.Period("2026-11")), "month").size(),
    ),
    "list": (dpsql.PolicyError, "a list of values", lambda df: grouped(df, "city", public_keys="Lund")),
    "tuples": (dpsql.PolicyError, "of 2 values", lambda df: grouped(df, ["city", "shift"], public_keys=["a"])),
    "no list": (dpsql.PolicyError, "lists no key", lambda df: grouped(df, "city", public_keys=[None])),
    "other list": (dpsql.PolicyError, "which is no key", lambda df: grouped(df, "city", public_keys={"town": ["a"]})),
    "missing list": (
        dpsql.UnsupportedQueryError, "every key in public_keys",
        lambda df: grouped(df, ["city", "shift"], public_keys={"city": ["Lund"]}).size(),
    ),
    "wrong list": (
        dpsql.SchemaError, "must be BIGINT", lambda df: grouped(df, "who", public_keys=["Lund"]).nunique_units(),
    ),
    "unit": (dpsql.PolicyError, "dpsql.unit", lambda df: grouped(df, "city", unit=3)),
    "no budget": (dpsql.PolicyError, "has no budget yet", lambda df: grouped(df, "city", unit="nobody").size()),
    "other budget": (dpsql.PolicyError, "another budget", lambda df: grouped(df, "city", unit=RICHER).size()),
    "over budget": (
        dpsql.BudgetError, "does not cover",
        lambda df: grouped(df, "city", rho=2000, public_keys=["Lund"]).nunique_units(),
    ),
    "no file": (
        dpsql.PolicyError, "there is no state file",
        lambda df: grouped(df, "city", unit=dpsql.unit("patient", state="nowhere.dpsql", source="x")).size(),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("error", "message", "raising"), ERRORS.values(), ids=ERRORS.keys())
def test_errors_say_what_to_write(
    error: type[dpsql.DpsqlError], message: str, raising: Raising, people_frame: Any
) -> None:
    with pytest.raises(error, match=message) as caught:
        raising(people_frame)
    assert "line 1" not in str(caught.value)


@pytest.mark.parametrize("method", ["max", "describe", "value_counts", "unique", "apply", "pivot_table"])
def test_what_a_refused_method_advises_is_accepted(method: str, people_frame: Any) -> None:
    group = functools.partial(grouped, people_frame, max_rows_per_group=4)
    with pytest.raises(dpsql.UnsupportedQueryError) as caught:
        getattr(group("shift")["paid"], method)
    advice = re.search(r"groupby\(.*?\)(\.|\[).*?\(.*?\)(?=,|\.|$)", caught.value.refusals[0].hint)
    assert advice is not None
    text = advice[0].replace("…", "'shift'" if "(…)" in advice[0] else "**{}")
    assert eval(text, {"groupby": group}) is not None  # noqa: S307 — the text is ours


@pytest.mark.parametrize("method", ["pivot_table", "shape", "plot", "T", "attrs", "apply"])
def test_what_pandas_alone_has_is_refused_as_a_missing_attribute(method: str, people_frame: Any) -> None:
    for view in (grouped(people_frame, "shift"), grouped(people_frame, "shift")["paid"], people_frame.dp):
        assert not hasattr(view, method)
        with pytest.raises(dpsql.UnsupportedQueryError) as refused:
            getattr(view, method)
        assert refused.value.refusals[0].hint
        assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)  # noqa: S301 — ours


def test_only_columns_and_methods_are_attributes(people_frame: Any) -> None:
    group = grouped(people_frame, "shift")
    assert not hasattr(group, "nothing")
    assert not hasattr(group["paid"], "who")
    assert copy.copy(group.paid)._selected == "paid"
    # GroupBy of pandas has no such attribute, so a column may be called so
    assert grouped(people_frame.rename(columns={"paid": "name"}), "shift").name._selected == "name"


@pytest.fixture(scope="module")
def people_frame() -> Any:
    """A frame whose unit has its budget."""
    frame = people()
    grouped(frame, "city").explain()
    return frame


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": ""},
        {"name": "a", "state": "x.dpsql"},
        {"name": "a", "version": "1"},
        {"name": "a", "source": "a.b.c"},
        {"name": "a", "epsilon_budget": 1},
    ],
)
def test_a_unit_that_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(dpsql.PolicyError):
        dpsql.unit(**arguments)


def test_a_table_that_finds_its_unit_through_another_is_for_sql(tmp_path: Path) -> None:
    with dpsql.connect(tmp_path / "ward.duckdb") as session:
        session.connection.execute("CREATE TABLE visits (visit_id INTEGER PRIMARY KEY, patient_id INTEGER)")
        session.connection.execute("CREATE TABLE meals (visit_id INTEGER, dish VARCHAR)")
        session.sql("CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6)")
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, unit := 'patient', privacy_unit_column := 'patient_id')"
        )
        session.sql("CALL dp_link('meals', 'visit_id', coverage := FALSE, parent := 'visits.visit_id')")
    meals = pd.DataFrame({"visit_id": [1], "dish": ["soup"]})
    unit = dpsql.unit("patient", state=tmp_path / "ward.duckdb.dpsql", source="meals")
    with pytest.raises(dpsql.PolicyError, match="through another table"):
        grouped(meals, "dish", unit=unit).size()
    with pytest.raises(dpsql.PolicyError, match="is not protected in"):
        grouped(meals, "dish", unit=dataclasses.replace(unit, source="dishes")).size()
