"""Receipts of frames advise in the words of pandas, and what they advise is accepted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dpsql
from tests.cures import filled

SQL = re.compile(r"=> |:=|OPTIONS|contribution_bounds|max_groups_contributed|= FALSE|(avg|sum|median)\(")
"""What nobody writes in pandas."""


def visits() -> Any:
    """Visits of 2,000 people, each in all of ten towns; AUTO cannot tell how far they came."""
    rows = np.arange(20_000)
    return pd.DataFrame(
        {
            "who": rows % 2_000,
            "town": (rows // 2_000).astype(str),
            "cost": 10.0 + rows % 90,
            "far": np.full(20_000, 2.0**70),
            "Über all": np.full(20_000, 2.0**70),
        }
    )


UNIT = dpsql.unit("who of advice", column="who", epsilon_budget=100_000, delta_budget=0.01)


def receipt_of(answer: Any) -> tuple[str, Any]:
    record = answer.attrs["dpsql"]
    assert not SQL.search(str(record)), str(record)
    return str(record), record


def test_advice_of_a_receipt_is_accepted_where_it_is_pasted() -> None:
    frame = visits()
    few = frame.dp.groupby("town", unit=UNIT, rho=5, max_groups=2)
    with pytest.warns(UserWarning, match="every group") as warned:
        text, record = receipt_of(
            few.agg(
                seen=("who", "nunique"),
                far=("far", "mean"),
                same=("far", "mean"),
                costs=("cost", "sum", (5, 100)),
                middle=("cost", "median", (0, 100)),
                **{"how far": ("Über all", "sum", "auto")},
            )
        )
    # one warning an answer, at the line that asked, with the receipt's reason for each column
    (one,) = warned
    assert one.filename == __file__
    reason = "NaN in every group, and not paid for: AUTO found no bounds, because its values are out of the range"
    lines = str(one.message).splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["far, same", "how far"]
    assert all(reason in line for line in lines)
    (groups,) = re.findall(r"groupby\(…, (max_groups=\d+)\) keeps about 95 %", text)
    (bounds,) = re.findall(r"of costs is counted: .*; write (bounds=\(.*\))$", text, re.MULTILINE)
    assert bounds == "bounds=(0, 100)"
    assert "middle: read from" in text
    means, sums = sorted({cure for note in record["notes"] for cure in re.findall(r"write (agg\(.*\))$", note)})
    assert means.startswith("agg(**{'how far': ")
    ends = "(<lowest value>, <highest value>)"
    assert sums == f"agg(far=('far', 'mean', {ends}), same=('far', 'mean', {ends}))"
    names = {"few": few, "frame": frame, "unit": UNIT}
    for pasted in (f"few.{means}", f"few.{sums}", f"few.sum('cost', {bounds})"):
        answer = eval(filled(pasted), names)  # noqa: S307 — the receipt is ours
        receipt_of(answer)
        assert not answer.isna().any(axis=None), pasted
    wider = eval(f"frame.dp.groupby('town', unit=unit, rho=5, {groups}).nunique_units()", names)  # noqa: S307
    assert "groupby(" not in receipt_of(wider)[0]


@pytest.mark.parametrize("convert", [pl.from_pandas, pa.Table.from_pandas])
def test_a_table_without_an_index_warns_of_empty_columns_too(convert: Any) -> None:
    question = dpsql.from_frame(convert(visits())).groupby("town", unit=UNIT, rho=5, max_groups=2)
    with pytest.warns(UserWarning, match="far: null in every group, and not paid for: AUTO found no bounds"):
        question.agg(far=("far", "mean"), costs=("cost", "sum", (5, 100)))


def test_the_unit_column_is_counted_and_not_averaged() -> None:
    with pytest.raises(dpsql.UnsupportedQueryError, match=r"names of privacy units.*Ask for nunique_units\(\)"):
        visits().dp.groupby("town", unit=UNIT, rho=1, max_groups=1).mean("who")


def test_an_option_that_switches_coverage_off_is_called_as_it_was_written() -> None:
    quiet = visits().dp.groupby("town", unit=UNIT, rho=1, max_groups=2, max_rows_per_group=1, coverage=False).size()
    assert "groupby says coverage=False; leave it out" in receipt_of(quiet)[0]


def test_a_bound_that_only_a_curator_can_change_is_told_without_sql(tmp_path: Path) -> None:
    frame = visits()
    with dpsql.connect(tmp_path / "visits.duckdb") as session:
        session.connection.execute("CREATE TABLE visits AS SELECT 0 AS who, '' AS town LIMIT 0")
        session.sql("CALL dp_unit('who', epsilon_budget := 9, delta_budget := 1e-5)")
        session.sql(
            "CALL dp_protect('visits', unit := 'who', privacy_unit_column := 'who', max_groups_contributed := 2, "
            "max_rows_norm := 2, max_rows_per_unit := 3)"
        )
    stored = dpsql.unit("who", state=tmp_path / "visits.duckdb.dpsql", source="visits")
    few = frame[["who", "town"]].dp.groupby("town", unit=stored, epsilon=1, bounding="NORM").size()
    assert "the curator can declare the table with no max_rows_per_unit" in receipt_of(few)[0]


def test_what_a_unit_has_no_budget_for_is_said_in_words_of_pandas() -> None:
    terms: dict[str, Any] = {"epsilon_budget": 9, "delta_budget": 1e-6}
    listed = dpsql.unit("guest", thresholds=False, **terms)
    exact = {"unit": listed, "rho": 0.1, "max_groups": 2, "max_rows_per_group": 1}
    frame = visits().rename(columns={"who": "guest"})
    with pytest.raises(dpsql.UnsupportedQueryError) as refused:
        frame.dp.groupby("town", **exact).size()
    assert "(thresholds=False)" in str(refused.value)
    assert "List the values of every key in public_keys=." in str(refused.value)
    with pytest.raises(dpsql.UnsupportedQueryError, match=r"\(thresholds=False\)\. Leave guest out\."):
        frame.dp.groupby("guest", **exact).size()
    assert listed.budget()["rho_spent"].item() == 0
    towns = {"public_keys": ["1", "2"]}
    assert frame.dp.groupby("town", **exact, **towns).size().attrs["dpsql"]["charged_rho"] == 0.1
    with pytest.raises(dpsql.UnsupportedQueryError, match=r"new unit, as dpsql\.unit\(…, composition='zcdp'\)"):
        frame.dp.groupby("town", **exact, **towns, mechanism="DISCRETE_CORRELATED_GAUSSIAN").size()
    with pytest.raises(dpsql.UnsupportedQueryError, match=r"new unit, as dpsql\.unit\(…, .*, composition='pure'\)"):
        frame.dp.groupby("town", **exact, **towns, mechanism="LAPLACE").size()
    discrete = dpsql.unit("host", composition="zcdp", **terms)
    frame = visits().rename(columns={"who": "host"})
    asked = frame.dp.groupby("town", **{**exact, "unit": discrete}, **towns, mechanism="DISCRETE_CORRELATED_GAUSSIAN")
    assert asked.nunique_units().attrs["dpsql"]["mechanism"] == "discrete_correlated_gaussian"
