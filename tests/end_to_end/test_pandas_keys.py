"""Keys of ``df.dp.groupby`` that are no names, and quantiles: answers are those of pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpsql
from dpsql.frontends.frames.key_terms import cut
from dpsql.session import runner
from tests.noise_sources import NoNoise

PEOPLE = dpsql.unit("pandas keys", column="person", epsilon_budget=100_000, delta_budget=0.3)


def people(rows: int = 3_000) -> Any:
    generator = np.random.default_rng(4)
    frame = pd.DataFrame(
        {
            "person": np.arange(rows) % 1_000,
            "city": pd.Series(generator.choice(["Bern", "Lund", "Oslo"], rows), dtype="str"),
            "kind": pd.Categorical(generator.choice(["in", "out"], rows)),
            "age": generator.integers(0, 121, rows),
            "cost": np.where(generator.random(rows) < 0.1, np.nan, np.round(generator.random(rows) * 100, 1)),
            "when": pd.Timestamp("2026-01-01") + pd.to_timedelta(generator.integers(0, 200 * 1440, rows), unit="min"),
        }
    )
    frame.loc[:20, "when"] = pd.NaT
    frame.loc[30:40, "cost"] = [0.0, 18.0, 65.0, 100.0, -1.0, np.inf, -np.inf, 18.000001, 17.9, 64.9, 200.0]
    return frame


FRAME = people()


@pytest.fixture(autouse=True)
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "NoiseSource", lambda _: NoNoise())


def asked(by: Any, frame: Any = FRAME, **terms: Any) -> Any:
    # what was stored with a level is served at all lower ones, so each question has rows of its own
    return frame.dp.groupby(by, unit=PEOPLE, rho=5, delta=1e-3, max_groups=3, max_rows_per_group=3, **terms)


def plain(answer: Any) -> Any:
    """Return an answer without what a private one cannot have: the freq of an index, and sizes of 0 beside others."""
    answer = answer.copy()
    if isinstance(answer.index, pd.DatetimeIndex):
        answer.index = pd.DatetimeIndex(answer.index.to_numpy(), name=answer.index.name)
    answer.attrs.clear()
    return answer[answer != 0]


SERIES = ("city", "kind", "age", "cost", "when")


@pytest.mark.parametrize("column", SERIES)
def test_a_series_that_is_a_column_is_its_name(column: str) -> None:
    assert asked(FRAME[column])._question.keys == (column,)
    assert asked([FRAME[column], "person"])._question.keys == (column, "person")


@pytest.mark.parametrize(
    "other",
    [
        # values of Arrow never change, so a copy of a text column holds the same ones
        *(FRAME[column].copy(deep=True) for column in SERIES if column != "city"),
        FRAME["city"].str.lower(),
        FRAME["age"] > 3,
        FRAME["when"].dt.year,
        FRAME["age"].rank(),
        FRAME["age"][::-1],
        FRAME["age"].head(100),
        FRAME["age"].rename("cost"),
        FRAME["age"].rename(None),
        pd.cut(FRAME["age"], 3),
        pd.qcut(FRAME["age"], 3),
        people()["age"],
        people()["city"],
    ],
    ids=str,
)
def test_any_other_series_is_refused_whatever_its_values_are(other: Any) -> None:
    with pytest.raises(dpsql.SchemaError, match="no column of this frame") as refused:
        asked(other)
    assert "df.dp" in refused.value.hint or "df.assign" in refused.value.hint


CUTS: tuple[dict[str, Any], ...] = (
    {"bins": [0, 18, 65, 120]},
    {"bins": [0, 18, 65, 120], "right": False},
    {"bins": [0, 18, 65, 120], "include_lowest": True},
    {"bins": [0, 18, 65, 120], "labels": ["young", "middle", "old"]},
    {"bins": (18.0, 64.9, np.inf), "labels": False},
    {"bins": [-np.inf, 18, 65, np.inf], "right": False},
)


@pytest.mark.parametrize(
    ("column", "arguments"),
    [
        ("age", CUTS[0]),
        *(("cost", CUTS[place]) for place in (2, 5)),
        *(pytest.param("age", one, marks=pytest.mark.long) for one in CUTS[1:]),
        *(pytest.param("cost", CUTS[place], marks=pytest.mark.long) for place in (0, 1, 3, 4)),
    ],
    ids=str,
)
def test_bins_are_those_of_pandas(column: str, arguments: dict[str, Any]) -> None:
    finite = FRAME.assign(cost=FRAME["cost"].where(FRAME["cost"].abs() != np.inf))
    for by, beside in (((), ()), (("city",), ("city",))):
        private = asked([*by, finite.dp.cut(column, **arguments)], finite).size()
        exact = finite.groupby([*beside, pd.cut(finite[column], **arguments)], observed=True).size()
        if not by:
            private.index = pd.Index(private.index)
            exact = finite.groupby(pd.cut(finite[column], **arguments), observed=True).size()
        assert dict(zip(private.index, private, strict=True)) == dict(zip(exact.index, exact, strict=True))
        assert private.index.names == exact.index.names
        if "labels" not in arguments:
            assert private.index.get_level_values(-1).dtype == exact.index.get_level_values(-1).dtype


def test_bins_are_public_keys_and_need_no_threshold() -> None:
    answer = asked(FRAME.dp.cut("age", [0, 18, 500, 600])).size()
    assert answer.tolist()[2] == 0
    assert "threshold" not in str(answer.attrs["dpsql"])
    both = asked(["city", FRAME.dp.cut("age", [0, 18, 120])], public_keys={"city": ["Bern", "Rom"]}).size()
    assert both["Rom"].tolist() == [0, 0]
    with pytest.raises(dpsql.PolicyError, match="public_keys is a dict"):
        asked(FRAME.dp.cut("age", [0, 18]), public_keys=[1, 2])


def test_public_keys_are_not_texts_and_numbers() -> None:
    with pytest.raises(dpsql.PolicyError, match="texts and numbers for one key"):
        asked("city", public_keys={"city": ["Bern", 3]}).size()


def test_other_bins_are_another_question() -> None:
    first = asked(FRAME.dp.cut("age", [0, 50, 120])).size()
    again = asked(FRAME.dp.cut("age", [0, 50.0, 120], labels=["a", "b"])).size()
    other = asked(FRAME.dp.cut("age", [0, 49, 120])).size()
    assert again.attrs["dpsql"]["charged_rho"] == 0
    assert first.tolist() == again.tolist()
    assert other.attrs["dpsql"]["charged_rho"] > 0
    assert other.tolist() != first.tolist()


@pytest.mark.parametrize(
    "bins",
    [
        3,
        "auto",
        [1],
        [],
        [3, 2, 1],
        [1, 1],
        [1, float("nan")],
        ["a", "b"],
        FRAME["age"],
        None,
        [True, 2],
        {1, 2},
        [0, 10**400],
    ],
)
def test_edges_that_are_not_given_are_refused(bins: Any) -> None:
    with pytest.raises(dpsql.PolicyError):
        FRAME.dp.cut("age", bins)
    with pytest.raises(dpsql.SchemaError):
        FRAME.dp.cut("city", [1, 2])


def test_each_value_has_its_bin_whatever_the_others_are() -> None:
    """The SQL of a bin reads one value alone, so that a row of another person moves nobody's bin."""
    term = cut(FRAME, "age", [0, 18, 65], right=True, labels=None, include_lowest=False)
    assert not {"OVER", "SELECT"} & set(term.sql.split())
    fewer = FRAME[FRAME["person"] != 7]
    with_seven = asked(FRAME.dp.cut("age", [0, 18, 65, 120])).size()
    without = asked(fewer.dp.cut("age", [0, 18, 65, 120]), fewer).size()
    assert (with_seven - without).abs().sum() <= 3
    assert list(with_seven.index) == list(without.index)


OFTEN = ("D", "W")
SELDOM = ("ME", "QS", "W-SUN", "MS", "QE", "YS", "YE", "h", "min", "s")


@pytest.mark.parametrize("freq", [*OFTEN, *(pytest.param(one, marks=pytest.mark.long) for one in SELDOM)])
def test_periods_are_those_of_pandas(freq: str) -> None:
    few = FRAME.assign(when=FRAME["when"].dt.floor("50D" if freq in ("D", "h", "min", "s") else "min"))
    private = asked(pd.Grouper(key="when", freq=freq), few).size()
    pd.testing.assert_series_equal(plain(private), plain(few.groupby(pd.Grouper(key="when", freq=freq)).size()))


def test_periods_stand_beside_other_keys() -> None:
    keys = ["city", pd.Grouper(key="when", freq="QE")]
    private, exact = asked(keys).size(), FRAME.groupby(keys).size()
    pd.testing.assert_series_equal(plain(private), plain(exact))
    flat = asked(keys, as_index=False)["age"].count()
    assert list(flat.columns) == ["city", "when", "age"]
    assert asked(pd.Grouper(key="city"))._question.keys == ("city",)


@pytest.mark.parametrize(
    "grouper",
    [
        pd.Grouper(key="when", freq="15min"),
        pd.Grouper(key="when", freq="W-MON"),
        pd.Grouper(key="when", freq="3D"),
        pd.Grouper(key="when", freq="B"),
        pd.Grouper(key="when", freq="D", origin="start"),
        pd.Grouper(key="when", freq="D", closed="right"),
        pd.Grouper(key="when", freq="ME", label="left"),
        pd.Grouper(key="when", freq="h", offset="5min"),
        pd.Grouper(key="age", freq="D"),
        pd.Grouper(key="nothing", freq="D"),
        pd.Grouper(freq="D"),
        pd.Grouper(level=0),
    ],
    ids=lambda one: f"{one.key} {getattr(one, 'freq', '')}",
)
def test_other_groupers_are_refused(grouper: Any) -> None:
    with pytest.raises((dpsql.PolicyError, dpsql.SchemaError)):
        asked(grouper)


def test_times_at_the_ends_of_their_type_have_no_error() -> None:
    far = FRAME.assign(when=FRAME["when"].astype("datetime64[s]"))
    far.loc[50:60, "when"] = np.datetime64(-(2**61), "s")
    assert int(asked(pd.Grouper(key="when", freq="W"), far).size().sum()) > 0


FAR = ("-0044-03-15", "2024-02-29", "9999-12-31", "12000-01-31", "294247-01-09")


@pytest.mark.parametrize("freq", ["MS", "ME", "W", *(pytest.param(one, marks=pytest.mark.long) for one in SELDOM)])
def test_periods_of_far_years_are_those_of_pandas(freq: str) -> None:
    far = FRAME.assign(when=np.array([FAR[place % len(FAR)] for place in range(len(FRAME))], dtype="datetime64[s]"))
    private = plain(asked(pd.Grouper(key="when", freq=freq), far).size())
    # pandas lists all periods in between
    alone = [far[["when"]].iloc[[place]] for place in range(len(FAR))]
    exact = {one.groupby(pd.Grouper(key="when", freq=freq)).size().index[0] for one in alone}
    assert set(private.index) == exact
    assert private.index.dtype == "datetime64[s]"


@pytest.mark.parametrize("freq", ["MS", "YE"])
def test_periods_at_the_ends_of_nanoseconds_have_labels(freq: str) -> None:
    ends = [pd.Timestamp.min, pd.Timestamp.max, *(pd.Timestamp.max - pd.Timedelta(days=one) for one in (0, 1, 2))]
    near = FRAME.assign(when=pd.Series([ends[place % len(ends)] for place in range(len(FRAME))]))
    assert str(near["when"].dtype) == "datetime64[ns]"
    private = asked(pd.Grouper(key="when", freq=freq), near).size()
    assert [one.year for one in private.index] == [2262]


QUANTILES: tuple[Any, ...] = (
    lambda g, **bounds: g["age"].quantile(0.9, **bounds),
    lambda g, **bounds: g[["age", "cost"]].quantile([0.9, 0.1], **bounds),
    lambda g, **bounds: g["age"].quantile(**bounds),
    lambda g, **bounds: g["age"].quantile([0.25, 0.5, 0.75], **bounds),
    lambda g, **bounds: g[["age", "cost"]].quantile(0.5, **bounds),
    lambda g, **bounds: g["age"].agg(("quantile", bounds["bounds"]) if bounds else "quantile"),
)


@pytest.mark.parametrize(
    ("question", "by"),
    [
        *((one, "city") for one in QUANTILES[1:2]),
        *(pytest.param(one, ["city", "kind"], marks=pytest.mark.long) for one in QUANTILES),
    ],
)
def test_quantiles_have_the_shape_and_nearly_the_values_of_pandas(question: Any, by: Any) -> None:
    frame = FRAME.assign(cost=FRAME["cost"].clip(0, 100))
    private, exact = question(asked(by, frame), bounds=(0, 120)), question(frame.groupby(by, observed=True))
    assert type(private) is type(exact)
    assert private.index.names == exact.index.names
    assert set(private.index) == set(exact.index)
    if isinstance(exact, pd.Series):
        assert (private.name, private.dtype) == (exact.name, exact.dtype)
        private, exact = private.to_frame(), exact.to_frame()
    assert list(private.columns) == list(exact.columns)
    # ranks are read from bins, which are at most a few years and euros wide
    assert np.abs(private - exact.loc[private.index]).to_numpy().max() < 4


def test_a_list_of_quantiles_costs_as_much_as_one() -> None:
    frame = FRAME.copy()
    several = asked("city", frame)["age"].quantile([0.25, 0.5], bounds=(0, 120))
    one = asked("city", frame)["age"].quantile(0.9, bounds=(0, 120))
    assert several.attrs["dpsql"]["charged_rho"] == pytest.approx(5)
    assert one.attrs["dpsql"]["charged_rho"] == 0


def test_a_list_of_quantiles_has_intervals_and_flat_rows() -> None:
    flat = asked("city", as_index=False)["age"].quantile([0.25, 0.5], bounds=(0, 120))
    assert list(flat.columns) == ["city", "level_1", "age"]
    wide = asked("city").with_intervals()["age"].quantile([0.25, 0.5], bounds=(0, 120))
    assert list(wide.columns) == ["age", "age_low", "age_high"]
    assert wide.index.get_level_values(1).tolist() == [0.25, 0.5] * 3
    arrow = dpsql.from_frame(pa.Table.from_pandas(FRAME[["person", "city", "age"]], preserve_index=False))
    group = arrow.groupby("city", unit=PEOPLE, rho=5, delta=1e-3, max_groups=3, max_rows_per_group=3)["age"]
    assert group.quantile(0.5, bounds=(0, 120)).column_names == ["city", "age"]
    with pytest.raises(dpsql.PolicyError, match="one share"):
        group.quantile([0.1, 0.9])
