"""Everyday texts of pandas: each has an answer of its shape, or an error of dpsql that says what to write."""

from __future__ import annotations

import ast
import functools

import pandas as pd
import pytest

import dpsql
from tests.end_to_end.test_pandas import FRAME, PATIENTS, asked, assert_alike

ANSWERED = (
    'groupby("city")["age"].mean(numeric_only=True)',
    'groupby("city")["age"].sum(min_count=0)',
    'groupby("city")["age"].quantile(0.9)',
    'groupby("city")["age"].quantile([0.25, 0.5])',
    'groupby(df["city"]).size()',
    'groupby([df["city"], "floor"])["age"].count()',
    'groupby(pd.Grouper(key="day", freq="D")).size()',
)
MORE_ANSWERED = (
    'groupby(["city", pd.Grouper(key="day", freq="ME")]).size()',
    'groupby(["city", "floor"]).size().unstack()',
    'groupby("city").size().reset_index(name="n")',
    'groupby("city")["age"].std(ddof=1)',
    'groupby("city")["age"].median(numeric_only=False)',
    'groupby("city")["room"].nunique(dropna=True)',
    'groupby("city")[["age", "cost"]].quantile(0.5)',
    'groupby("city")[["age", "cost"]].quantile([0.1, 0.9])',
    'groupby("city")["age"].agg("quantile")',
    'groupby("city", as_index=False)["age"].count()',
    'groupby(df["day"], sort=False).size().sort_index()',
)
REFUSED = (
    'df.dp["A"].value_counts()',
    'df.dp["age"].mean()',
    'df.dp[["age", "cost"]].sum()',
    "df.dp.age",
    "df.dp.mean(numeric_only=True)",
    "df.dp.sum()",
    "df.dp.count()",
    "df.dp.max()",
    "df.dp.quantile(0.5)",
    'df.dp.agg("mean")',
    'df.dp.value_counts("city")',
    'df.dp.pivot_table(index="city", columns="kind", values="age")',
    "df.dp.describe()",
    "df.dp.corr()",
    "df.dp.head()",
    "df.dp.sample(3)",
    "df.dp.shape",
    "df.dp.columns",
    "len(df.dp)",
    "list(df.dp)",
    "df.dp.loc[0]",
    "df.dp.iloc[0]",
    'df.dp.query("age > 3")',
    "df.dp.drop_duplicates()",
    'df.dp.resample("D").sum()',
    "df.dp.rolling(3)",
    "df.dp.iterrows()",
    "df.dp.to_csv()",
    'df.dp.groupby("city").size()',
    "df.dp.groupby()",
    'df.dp.groupby(level=0, unit="person")',
    'groupby("city").mean(numeric_only=True)',
    'groupby("city").mean()',
    'groupby("city").max()',
    'groupby("city")["age"].min()',
    'groupby("city")["age"].nlargest(3)',
    'groupby("city").first()',
    'groupby("city").head(3)',
    'groupby("city").describe()',
    'groupby("city")["age"].value_counts(normalize=True)',
    'groupby("city")["kind"].unique()',
    'groupby("city").apply(len)',
    'groupby("city")["age"].transform("mean")',
    'groupby("city")["age"].cumsum()',
    'groupby("city").get_group("Bern")',
    'groupby("city").filter(len)',
    'groupby("city")["age"].rolling(3)',
    'groupby("city").resample("D")',
    'groupby("city").pipe(len)',
    'len(groupby("city"))',
    '[name for name, rows in groupby("city")]',
    'groupby("city")["age"].std(ddof=0)',
    'groupby("city")["age"].mean(engine="numba")',
    'groupby("city")["age"].sum(min_count=1)',
    'groupby("city")["age"].nunique(dropna=False)',
    'groupby("city")["age"].quantile(2)',
    'groupby("city")["age"].quantile("0.5")',
    'groupby("city")["age"].quantile(0.5, interpolation="lower")',
    'groupby("city")["age"].agg("max")',
    'groupby("city")["age"].agg(len)',
    'groupby("city").agg({"age": ["mean", "max"]})',
    'groupby(df["city"].str.upper()).size()',
    'groupby(df["age"] > 30).size()',
    'groupby(pd.cut(df["age"], 3)).size()',
    'groupby(pd.cut(df["age"], [0, 18, 65])).size()',
    "groupby(lambda row: row).size()",
    'groupby(pd.Grouper(key="day", freq="15min")).size()',
    'groupby("city", group_keys=False).size()',
    'groupby("city", axis=1).size()',
)
NAMES = {"df": FRAME, "pd": pd, "dpsql": dpsql}
TERMS = {"unit": PATIENTS, "rho": 0.1, "max_groups": 18, "max_rows_per_group": 20}


@pytest.fixture(autouse=True, scope="module")
def with_budget() -> None:
    """Declare the unit, which a refused text does not."""
    asked("city").explain()


@pytest.mark.parametrize("text", [*ANSWERED, *(pytest.param(text, marks=pytest.mark.long) for text in MORE_ANSWERED)])
def test_a_text_of_pandas_has_an_answer_of_its_shape(text: str) -> None:
    exact = eval(text, {**NAMES, "groupby": functools.partial(FRAME.groupby, observed=True)})  # noqa: S307 — ours
    assert_alike(eval(text, {**NAMES, "groupby": asked}), exact)  # noqa: S307 — ours


@pytest.mark.parametrize("text", REFUSED)
def test_a_text_without_a_private_form_says_what_to_write(text: str) -> None:
    spent = PATIENTS.budget()
    with pytest.raises(dpsql.DpsqlError) as refused:
        eval(text, {**NAMES, "groupby": asked})  # noqa: S307 — ours
    error = refused.value
    advice = error.refusals[0].hint if isinstance(error, dpsql.UnsupportedQueryError) else str(error)
    assert any(word in advice.lower() for word in ("write", "ask", "take", "leave", "as in", "list", "options are"))
    assert PATIENTS.budget().equals(spent)


def _advised(hint: str) -> str:
    """Return the longest text after "Write" that is an expression of Python, with terms in the place of "…"."""
    text = hint.partition("Write ")[2].replace("', …], ", "', 'floor'], ").replace("…", "**TERMS")
    text = text.replace("(unit=", "(")
    ends = [end for end in range(len(text), 0, -1) if text[end - 1] in ")]"]
    for end in ends:
        try:
            ast.parse(text[:end], mode="eval")
        except SyntaxError:
            continue
        return text[:end]
    return ""


CALLED = [
    text for text in REFUSED if "df.dp" in text and not any(one in text for one in ("groupby", "columns", "list("))
]


@pytest.mark.parametrize("text", [CALLED[0], *(pytest.param(one, marks=pytest.mark.long) for one in CALLED[1:])])
def test_what_is_advised_is_answered(text: str) -> None:
    with pytest.raises(dpsql.UnsupportedQueryError) as refused:
        eval(text, NAMES)  # noqa: S307 — ours
    advised = _advised(refused.value.refusals[0].hint)
    assert "groupby" in advised
    advised = advised.replace("'A'", "'age'").replace("'when'", "'day'").replace("df.query(**TERMS)", "df")
    assert len(eval(advised, {**NAMES, "TERMS": TERMS})) > 0  # noqa: S307 — ours


def test_attributes_that_are_none_stay_unknown() -> None:
    assert not hasattr(FRAME.dp, "nothing")
    assert not hasattr(FRAME.dp, "_repr_html_")
