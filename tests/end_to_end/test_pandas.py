"""``df.dp.groupby`` beside ``df.groupby``: the same shape, index, dtypes and names; values within intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpsql

# noise may hide all that a spread is computed from
pytestmark = pytest.mark.filterwarnings("ignore:.*NaN in every group:UserWarning")

CITIES = ["Bern", "Lund", "Oslo"]
PATIENTS = dpsql.unit("pandas test", column="patient_id", epsilon_budget=10_000, delta_budget=0.01)
BOUNDS = {"cost": (0, 2000), "age": (0, 1800), "stay": (0, 60), "urgent": (0, 20), "score": (0, 40)}
"""Of what one unit adds to one group, which has 20 rows at most; of one value, a twentieth."""


def visits(rows: int = 6_000) -> Any:
    """Visits of 1,500 patients, in the dtypes that frames have."""
    generator = np.random.default_rng(20)
    city = generator.choice(CITIES, rows)
    frame = pd.DataFrame(
        {
            "patient_id": generator.integers(0, 1_500, rows),
            "city": pd.Series(city, dtype="str"),
            "ward": pd.Series(generator.choice(["east", "west"], rows), dtype=object),
            "kind": pd.Categorical(generator.choice(["in", "out"], rows), categories=["out", "in", "never"]),
            "floor": generator.integers(1, 4, rows).astype("int16"),
            "day": pd.to_datetime("2026-11-01") + pd.to_timedelta(generator.integers(0, 3, rows), unit="D"),
            "urgent": generator.random(rows) < 0.3,
            "cost": np.where(generator.random(rows) < 0.1, np.nan, generator.random(rows) * 100),
            "age": generator.integers(0, 90, rows),
            "stay": pd.array(generator.integers(0, 3, rows), dtype="Int64"),
            "score": pd.Series(generator.random(rows) * 2, dtype=pd.ArrowDtype(pa.float64())),
            "room": generator.choice(np.array(["a", "b", None]), rows),
        }
    )
    frame.loc[::7, "stay"] = pd.NA
    return frame


FRAME = visits()
KEYS: list[str | list[str]] = ["ward", "kind", "floor", "day", "urgent"]
KEYS += [["city"], ["kind", "ward"], ["day", "urgent", "room"]]
Asked = Callable[[Any], Any]


SUMMED = ("cost", "stay", "urgent", "score")


METHODS: dict[str, tuple[Asked, Asked]] = {
    "size": (lambda g: g.size(), lambda g: g.size()),
    "units": (lambda g: g.nunique_units(), lambda g: g["patient_id"].nunique()),
    "sum": (lambda g: g["age"].sum(bounds=BOUNDS["age"]), lambda g: g["age"].sum()),
    "mean": (lambda g: g.cost.mean(bounds=(0, 100)), lambda g: g["cost"].mean()),
    "agg": (
        lambda g: g.agg(
            visits=("patient_id", "size"), cost=("cost", "sum", BOUNDS["cost"]), stay=("stay", "mean", (0, 3))
        ),
        lambda g: g.agg(visits=("patient_id", "size"), cost=("cost", "sum"), stay=("stay", "mean")),
    ),
}
VALUES: dict[str, tuple[Asked, Asked]] = {
    **METHODS,
    "sum of booleans": (lambda g: g.sum("urgent", bounds=BOUNDS["urgent"]), lambda g: g["urgent"].sum()),
    "sums": (
        lambda g: g.agg(**{f"all_{column}": (column, "sum", BOUNDS[column]) for column in SUMMED}),
        lambda g: g.agg(**{f"all_{column}": (column, "sum") for column in SUMMED}),
    ),
    "count of a column": (lambda g: g["cost"].count(), lambda g: g["cost"].count()),
    "count of Int64": (lambda g: g.count("stay"), lambda g: g["stay"].count()),
    "count of Arrow": (lambda g: g.count("score"), lambda g: g["score"].count()),
    "every count": (lambda g: g.count(), lambda g: g.count()),
    "mean of score": (lambda g: g.mean("score", bounds=(0, 2)), lambda g: g["score"].mean()),
    "std": (
        lambda g: g["age"].agg(a=("std", (0, 90)), b=("age", "var", (0, 90))),
        lambda g: g["age"].agg(a="std", b="var"),
    ),
    "by column": (
        lambda g: g.agg({"age": ("mean", (0, 90)), "stay": ("sum", BOUNDS["stay"])}),
        lambda g: g.agg({"age": "mean", "stay": "sum"}),
    ),
    "list": (lambda g: g["age"].agg([("mean", (0, 90)), "count"]), lambda g: g["age"].agg(["mean", "count"])),
    "selected columns": (lambda g: g[["age", "floor"]].mean(bounds=(0, 90)), lambda g: g[["age", "floor"]].mean()),
    "NamedAgg": (lambda g: g.agg(n=pd.NamedAgg("cost", "count")), lambda g: g.agg(n=pd.NamedAgg("cost", "count"))),
}


def asked(keys: str | list[str], frame: Any = FRAME, **terms: Any) -> Any:
    return frame.dp.groupby(keys, unit=PATIENTS, rho=2, max_groups=18, max_rows_per_group=20, **terms)


def assert_alike(private: Any, exact: Any) -> None:
    """The same but for the values; of a categorical index the private one has only categories that are shown."""
    assert type(private) is type(exact)
    assert private.shape == exact.shape
    if isinstance(exact, pd.Series):
        assert private.name == exact.name
        private, exact = private.to_frame("value"), exact.to_frame("value")
    assert list(private.columns) == list(exact.columns)
    assert private.dtypes.map(plain).to_dict() == exact.dtypes.map(plain).to_dict()
    assert type(private.index) is type(exact.index)
    assert private.index.names == exact.index.names
    if isinstance(exact.index, pd.MultiIndex):
        assert private.index.dtypes.map(plain).to_dict() == exact.index.dtypes.map(plain).to_dict()
    else:
        assert plain(private.index.dtype) == plain(exact.index.dtype)
    assert set(private.index) == set(exact.index)


def plain(dtype: Any) -> str:
    return "category" if isinstance(dtype, pd.CategoricalDtype) else str(dtype)


def assert_near(private: pd.DataFrame, exact: Any) -> None:
    """Within ten times the 95 % half width: a Gaussian value is further away with probability below 1e-80."""
    exact = exact.to_frame("value") if isinstance(exact, pd.Series) else exact
    for place, name in enumerate(exact.columns):
        shown, low, high = (private.iloc[:, 3 * place + i].to_numpy(float, na_value=np.nan) for i in range(3))
        assert np.all(low < high)
        true = exact.loc[private.index, name].to_numpy(float, na_value=np.nan)
        assert np.all(np.abs(shown - true) <= 5 * (high - low))


SINGLE = ("size", "units", "sum")
CASES = [(keys, name) for place, keys in enumerate(KEYS) for name in ("agg", SINGLE[place % 3])]
CASES += [("ward", "units"), ("ward", "sum"), (["kind", "ward"], "size"), (["kind", "ward"], "units")]
"""A frame and a series by every kind of keys, and each series by one key and by two."""


@pytest.mark.parametrize(("keys", "name"), CASES, ids=str)
def test_answers_have_the_shape_of_pandas(keys: str | list[str], name: str) -> None:
    private, exact = METHODS[name]
    true = exact(FRAME.groupby(keys, observed=True))
    shown = private(asked(keys))
    assert_alike(shown, true)
    assert list(shown.index) == sorted(true.index)


ONE_TEXT = (
    'groupby("city")["age"].mean()',
    'groupby("city")["age"].sum()',
    'groupby("city")["age"].count()',
    'groupby("city")["age"].size()',
    'groupby("city")["room"].nunique()',
    'groupby(["ward", "floor"]).size()',
    'groupby(["ward", "floor"])[["age"]].agg("mean")',
    'groupby("city").agg({"age": "mean"})',
    'groupby("city")[["age", "cost"]].agg("size")',
)


@pytest.mark.parametrize("text", ONE_TEXT)
def test_a_text_of_pandas_needs_no_other_words(text: str) -> None:
    true = eval(text, {"groupby": FRAME.groupby})  # noqa: S307 — the text is ours
    assert_alike(eval(text, {"groupby": asked}), true)  # noqa: S307 — the text is ours


@pytest.mark.parametrize(("private", "exact"), VALUES.values(), ids=VALUES.keys())
def test_columns_of_every_dtype_come_back_as_in_pandas(private: Asked, exact: Asked) -> None:
    true = exact(FRAME.groupby("city"))
    shown = private(asked("city"))
    assert_alike(shown, true)
    # the intervals of spreads follow no Gaussian
    if not isinstance(true, pd.DataFrame) or "b" not in true:
        assert_near(private(asked("city").with_intervals()), true)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        *(("kind", name) for name in ("size", "sum", "agg")),
        *((["city", "urgent"], name) for name in ("units", "mean", "agg")),
    ],
    ids=str,
)
def test_keys_become_columns_without_as_index(keys: str | list[str], name: str) -> None:
    private, exact = METHODS[name]
    true = exact(FRAME.groupby(keys, observed=True, as_index=False))
    shown = private(asked(keys, as_index=False))
    assert_alike(shown, true)


@pytest.mark.parametrize("keys", ["room", ["city", "room"]], ids=str)
def test_missing_keys_are_shown_without_dropna(keys: str | list[str]) -> None:
    true = FRAME.groupby(keys, dropna=False).size()
    shown = asked(keys, dropna=False).size()
    assert shown.shape == true.shape
    assert shown.index.names == true.index.names
    assert shown.index.to_frame().isna().sum().to_dict() == true.index.to_frame().isna().sum().to_dict()
    # one release serves both
    assert asked(keys).size().attrs["dpsql"]["charged_rho"] == 0


@pytest.mark.parametrize("keys", ["kind", ["city", "urgent"], ["day", "room"]], ids=str)
def test_keys_alone_are_a_frame_of_them(keys: str | list[str]) -> None:
    names = [keys] if isinstance(keys, str) else keys
    true = FRAME[names].dropna().drop_duplicates()
    shown = FRAME.dp.groupby(keys, unit=PATIENTS, rho=2).groups()
    assert shown.dtypes.map(plain).to_dict() == true.dtypes.map(plain).to_dict()
    assert shown.astype(object).to_numpy().tolist() == sorted(true.astype(object).to_numpy().tolist())
    assert [one["keys"] for one in shown.attrs["dpsql"]["sets"]] == [("round 1",), ("round 2",)]


def test_keys_alone_of_an_arrow_table_are_a_table() -> None:
    table = pa.Table.from_pandas(FRAME[["patient_id", "city", "floor"]])
    shown = dpsql.from_frame(table).groupby(["city", "floor"], unit=PATIENTS, rho=2).groups()
    assert shown.column_names == ["city", "floor"]
    assert shown.num_rows == 9
