"""Questions by a target through every door: on the flights each gives the same numbers, and one of them pays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dpsql
from dpsql.assets import asset
from dpsql.frontends.cli import main
from dpsql.frontends.dbt.model_options import model_options
from tests.end_to_end.receipts import receipt_of
from tests.json_rows import plain_rows
from tests.serving import ask, door, in_background, token_of

FLIGHTS = asset("sample_data", "flights.parquet")
PEOPLE = "SELECT origin, count(DISTINCT tailnum) AS people FROM flights GROUP BY origin"
BOTH = "SELECT origin, count(DISTINCT tailnum) AS people, count(*) AS flights FROM flights GROUP BY origin"
WIDTHS = {"people": 50, "flights": 2000}
STRUCT = "{'people': 50, 'flights': 2000}"
RELATIVE = {"target_relative_error": 0.1, "max_rho": 0.05, "at_least": 0.75}
TARGETS: Mapping[str, Mapping[str, Any]] = {"half width": {"target_half_width": WIDTHS}, "relative error": RELATIVE}
Rows = list[tuple[object, ...]]
Options = Mapping[str, Any]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return pd.read_parquet(FLIGHTS, columns=["origin", "tailnum", "dep_delay"])


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "flights.duckdb"
    with dpsql.connect(path, threads=1) as session:
        session.connection.execute(f"CREATE TABLE flights AS SELECT origin, tailnum, dep_delay FROM '{FLIGHTS}'")
        session.sql("CALL dp_unit('aircraft', epsilon_budget := 3, delta_budget := 1e-6)")
        session.sql(
            "CALL dp_protect('flights', coverage := FALSE, unit := 'aircraft', privacy_unit_column := 'tailnum', "
            "max_groups_contributed := 3, max_rows_per_group := 150)"
        )
        session.sql("CALL dp_analyst('ana')")
    return path


@pytest.fixture
def session(database: Path) -> Iterator[dpsql.Session]:
    with dpsql.connect(database, threads=1) as session:
        yield session


def shown(answer: dpsql.Result) -> Rows:
    return sorted(answer.fetchall())


def in_sql(options: Options, sign: str) -> str:
    """Return options as they are written in a query."""
    return ", ".join(f"{name} {sign} {STRUCT if value is WIDTHS else value}" for name, value in options.items())


def by_dbt(session: dpsql.Session, options: Options) -> Rows:
    # YAML takes 5e1 for a text
    written = {name: {**value, "people": "5e1"} if value is WIDTHS else f"{value:e}" for name, value in options.items()}
    return shown(session.sql(BOTH, **model_options("m", written | {"materialized": "private_table"}, {"materialized"})))


def by_http(session: dpsql.Session, options: Options) -> Rows:
    with in_background(session, door("ana")) as urls:
        ana = dpsql.remote.connect(urls.analysts, token=token_of("ana"))
        answer = ana.sql(BOTH, **options)
        assert receipt_of(answer).columns == receipt_of(session.as_analyst("ana").sql(BOTH, **options)).columns
        posted = ask(urls.analysts, "ana", BOTH, **options)
        assert sorted(tuple(row.values()) for row in plain_rows(posted.json)) == shown(answer)
        for wrong, told in WRONG_IN_JSON:
            refused = ask(urls.analysts, "ana", BOTH, **{**options, next(iter(options)): wrong})
            assert (refused.status, refused.json["error"]) == told, wrong
    return shown(answer)


WRONG_IN_JSON: Sequence[tuple[object, tuple[int, str]]] = (
    ({"people": [50]}, (400, "ParseError")),
    ({"people": "x"}, (422, "UnsupportedQueryError")),
    ("x", (422, "UnsupportedQueryError")),
)
DOORS: Mapping[str, Callable[[dpsql.Session, Options], Rows]] = {
    "SQL": lambda session, options: shown(
        session.sql(f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({in_sql(options, '=')}) {BOTH[6:]}")
    ),
    "dp_query": lambda session, options: shown(session.sql(f"FROM dp_query($$ {BOTH} $$, {in_sql(options, ':=')})")),
    "analyst": lambda session, options: shown(session.as_analyst("ana").sql(BOTH, **options)),
    "dbt": by_dbt,
    "HTTP": by_http,
}


@pytest.mark.parametrize("target", TARGETS)
def test_every_door_gives_the_same_numbers_and_the_first_pays(
    target: str, session: dpsql.Session, database: Path, frame: pd.DataFrame
) -> None:
    paid = session.sql(BOTH, **TARGETS[target])
    receipt = receipt_of(paid)
    spent = session.sql("FROM dp_budget()").df()["rho_spent"].tolist()
    assert spent == [pytest.approx(receipt.rho, abs=1e-9)]
    assert receipt.charged_rho == spent[0]
    for name, answered in DOORS.items():
        assert answered(session, TARGETS[target]) == shown(paid), name
    unit = dpsql.unit("aircraft", state=f"{database}.dpsql", source="flights")
    first, *others = TARGETS[target].items()
    grouped = dpsql.from_frame(frame).groupby("origin", unit=unit, rho=1, as_index=False, **dict(others))
    in_pandas = grouped.at(**dict([first])).agg(people=("tailnum", "nunique"), flights=("tailnum", "size"))
    assert list(in_pandas.itertuples(index=False, name=None)) == shown(paid)
    assert session.sql("FROM dp_budget()").df()["rho_spent"].tolist() == spent


def test_half_widths_are_met_at_the_smallest_rho(session: dpsql.Session) -> None:
    first = receipt_of(session.sql(PEOPLE, target_half_width=50))
    assert first.charged_rho == first.rho > 0
    assert receipt_of(session.sql(PEOPLE, rho=first.rho)).charged_rho == 0
    receipt = receipt_of(session.sql(BOTH, target_half_width=WIDTHS))
    widths = {one.name: one.half_width_95 for one in receipt.columns if one.half_width_95}
    assert all(widths[name] <= most for name, most in WIDTHS.items())
    assert max(widths[name] / most for name, most in WIDTHS.items()) > 0.999


def test_frames_take_half_widths_by_the_columns_of_their_answers(frame: pd.DataFrame) -> None:
    table = pa.Table.from_pandas(frame.iloc[::16])
    unit = dpsql.unit("tails", column="tailnum", epsilon_budget=50, delta_budget=1e-4)
    # a column that is called as the key has another name in the SELECT
    grouped = dpsql.from_frame(table).groupby(
        "origin",
        unit=unit,
        max_groups=3,
        max_rows_per_group=5,
        confidence=0.99,
        target_half_width={"Origin": 90, "n": 300},
    )
    answer = grouped.agg(n=("tailnum", "size"), Origin=("tailnum", "nunique"))
    columns = json.loads(answer.schema.metadata[b"dpsql"])["columns"]
    widths = {one["name"]: one["half_width_95"] * 2.5758 / 1.9600 for one in columns}
    assert 299.9 < widths["n"] < 300.1
    assert widths["Origin_"] < 90
    without = grouped.at(0.5)._question.options
    assert without["rho"] == 0.5
    assert without.keys().isdisjoint({"target_half_width", "confidence", "epsilon"})
    narrower = grouped.at(target_half_width=60)._question.options
    assert (narrower["target_half_width"], narrower["confidence"]) == (60, 0.99)
    assert narrower.keys().isdisjoint({"rho", "epsilon"})


def test_frames_mark_the_numbers_that_are_within_a_relative_error(frame: pd.DataFrame) -> None:
    unit = dpsql.unit("tails", column="tailnum", epsilon_budget=50, delta_budget=1e-4)
    options: Options = {"public_keys": ["EWR", "XXX"], "max_rows_per_group": 5, "max_rho": 0.01, "at_least": 0.5}
    asked = dpsql.from_frame(pl.from_pandas(frame.iloc[::16])).groupby("origin", unit=unit, rho=0.1, **options)
    by_error = asked.at(target_relative_error=0.2)
    marked: Any = by_error.with_within_target().agg(n=("tailnum", "size"), Origin=("tailnum", "nunique"))
    assert marked.columns == ["origin", "n", "n_within", "Origin", "Origin_within"]
    # nobody starts at XXX, so that half of the groups can be within the target
    assert marked["Origin_within"].to_list() == [True, False]
    # noise of rows is within it; a bound of 5 rows leaves out a third of them, so that no number of rows is
    assert marked["n_within"].to_list() == [None, None]
    assert "NULL in truth values about the target: " in str(marked.dpsql)
    assert "noise is within it in 50 % of the groups" in str(marked.dpsql)
    at_level = by_error.at(0.5)._question.options
    assert at_level.keys().isdisjoint({"target_relative_error", "max_rho", "at_least"})
    by_width = by_error.at(target_half_width=60)._question.options
    assert by_width.keys().isdisjoint({"target_relative_error", "at_least"})
    assert by_width["max_rho"] == 0.01


def test_frames_take_the_method_of_the_largest_counts(frame: pd.DataFrame) -> None:
    unit = dpsql.unit("tails", column="tailnum", epsilon_budget=50, delta_budget=1e-4)
    grouped = dpsql.from_frame(frame.iloc[::16]).groupby(
        "origin",
        unit=unit,
        public_keys=["EWR", "JFK", "LGA", "XXX"],
        target_relative_error=0.1,
        max_rho=0.5,
        method="CORRELATED",
    )
    answer: Any = grouped.nunique_units()
    # nobody starts at XXX, so that no noise is within a part of its number
    assert sorted(answer.index) == ["EWR", "JFK", "LGA"]
    receipt = answer.attrs["dpsql"]
    assert "weighted_correlated_gaussian on " in str(receipt)
    assert "the target is not reached: 3 of the 4 groups are within 10 %" in str(receipt)
    assert grouped.at(target_relative_error=0.2)._question.options["method"] == "CORRELATED"
    assert "method" not in grouped.at(0.5)._question.options


def test_refusals_of_frames_are_in_words_of_pandas(frame: pd.DataFrame) -> None:
    unit = dpsql.unit("tails", column="tailnum", epsilon_budget=50, delta_budget=1e-4)
    asked = dpsql.from_frame(frame).groupby("origin", unit=unit, rho=0.1, max_groups=3)
    with pytest.raises(dpsql.UnsupportedQueryError, match=r"Leave confidence out\. It goes with target_half_width"):
        dpsql.from_frame(frame).groupby("origin", unit=unit, rho=0.1, confidence=0.9).nunique_units()
    with pytest.raises(dpsql.UnsupportedQueryError) as refused:
        dpsql.from_frame(frame).groupby("origin", unit=unit, rho=0.1, target_relative_error=0.1, max_rho=0.1).size()
    assert len(refused.value.refusals) == 1
    with pytest.raises(dpsql.UnsupportedQueryError, match=r"groupby\(…, .*max_rho=0.1\)"):
        asked.at(target_relative_error=0.1).nunique_units()
    with pytest.raises(
        dpsql.UnsupportedQueryError, match=r"\.with_within_target\(\) goes with .*groupby\(…, target_rel"
    ):
        asked.with_within_target().nunique_units()


def test_the_command_line_takes_targets(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--target-half-width", "people=50,flights=2000")
    assert main(["explain", str(database), BOTH, *asked, "--format", "csv"]) == 0
    plan = capsys.readouterr().out
    assert main(["query", str(database), PEOPLE, "--target-half-width", "50"]) == 0
    assert "± 50" in capsys.readouterr().out
    with dpsql.connect(database) as session:
        rows = session.sql(f"FROM dp_explain($$ {BOTH} $$, target_half_width := {STRUCT})").fetchall()
        (rho,) = (value for section, name, value in rows if (section, name) == ("mechanism", "rho"))
        assert f"rho,{rho}" in plan
    flags = [text for name, value in RELATIVE.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["explain", str(database), BOTH, *flags, "--confidence", "0.9", "--format", "csv"]) == 0
    told = "at most 10 % for each count, sum and average, in at least 75 % of the groups (90 %)"
    assert told in capsys.readouterr().out
    assert main(["query", str(database), BOTH, *flags, "--receipt"]) == 0
    assert "noise is within it in 100 % of the groups after" in capsys.readouterr().out
    for wrong in ("fifty", "people=x", "people=5,people=6"):
        with pytest.raises(SystemExit):
            main(["query", str(database), PEOPLE, "--target-half-width", wrong])


def test_the_command_line_takes_the_method_of_the_largest_counts(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with dpsql.connect(database, threads=1) as session:
        session.sql("CALL dp_domain('flights', 'origin', keys := ['EWR', 'JFK', 'LGA'])")
    asked = (PEOPLE, "--target-relative-error", "0.1", "--max-rho", "0.05", "--method", "CORRELATED")
    assert main(["explain", str(database), *asked, "--format", "csv"]) == 0
    assert '"0.0125 on all counts, then 0.0375 on the chosen ones"' in capsys.readouterr().out
    assert main(["query", str(database), *asked, "--receipt"]) == 0
    assert "weighted_correlated_gaussian on main.flights" in capsys.readouterr().out


def test_a_part_with_a_level_of_its_own_does_not_take_the_method(session: dpsql.Session) -> None:
    session.sql("CALL dp_domain('flights', 'origin', keys := ['EWR', 'JFK', 'LGA'])")
    text = (
        f"WITH a AS ({PEOPLE.replace('SELECT', 'SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.02)')}), "
        f"b AS ({PEOPLE.replace('SELECT', 'SELECT WITH DIFFERENTIAL_PRIVACY')}) "
        "SELECT origin, a.people, b.people AS others FROM a JOIN b USING (origin)"
    )
    answer = session.sql(text, target_relative_error=0.1, max_rho=0.05, method="CORRELATED")
    assert receipt_of(answer).mechanism == "correlated_gaussian, weighted_correlated_gaussian"
