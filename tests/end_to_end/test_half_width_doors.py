"""Questions by half width through every door: on the flights each gives the same numbers, and one of them pays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

import dpsql
from dpsql.assets import asset
from dpsql.frontends.cli import main
from dpsql.frontends.dbt.model_options import model_options
from tests.end_to_end.receipts import receipt_of
from tests.serving import ask, door, in_background, token_of

FLIGHTS = asset("sample_data", "flights.parquet")
PEOPLE = "SELECT origin, count(DISTINCT tailnum) AS people FROM flights GROUP BY origin"
BOTH = "SELECT origin, count(DISTINCT tailnum) AS people, count(*) AS flights FROM flights GROUP BY origin"
WIDTHS = {"people": 50, "flights": 2000}
STRUCT = "{'people': 50, 'flights': 2000}"
Rows = list[tuple[object, ...]]


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


def by_dbt(session: dpsql.Session, width: object) -> Rows:
    options = model_options("m", {"target_half_width": width, "materialized": "private_table"}, {"materialized"})
    return shown(session.sql(BOTH, **options))


def by_http(session: dpsql.Session) -> Rows:
    with in_background(session, door("ana")) as urls:
        ana = dpsql.remote.connect(urls.analysts, token=token_of("ana"))
        remote = shown(ana.sql(BOTH, target_half_width=WIDTHS))
        posted = ask(urls.analysts, "ana", BOTH, target_half_width=WIDTHS)
        assert sorted(tuple(row.values()) for row in posted.json) == remote
        refused = ask(urls.analysts, "ana", BOTH, target_half_width={"people": [50]})
        assert (refused.status, refused.json["error"]) == (400, "ParseError")
        refused = ask(urls.analysts, "ana", BOTH, target_half_width={"people": "x"})
        assert (refused.status, refused.json["error"]) == (422, "UnsupportedQueryError")
    return remote


DOORS: Mapping[str, Callable[[dpsql.Session], Rows]] = {
    "SQL": lambda session: shown(
        session.sql(f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_half_width = {STRUCT}) {BOTH[6:]}")
    ),
    "dp_query": lambda session: shown(session.sql(f"FROM dp_query($$ {BOTH} $$, target_half_width := {STRUCT})")),
    "analyst": lambda session: shown(session.as_analyst("ana").sql(BOTH, target_half_width=WIDTHS)),
    "dbt": lambda session: by_dbt(session, {"people": "5e1", "flights": 2000}),
    "HTTP": by_http,
}


def test_every_door_gives_the_same_numbers_and_the_first_pays(
    session: dpsql.Session, database: Path, frame: pd.DataFrame
) -> None:
    first = receipt_of(session.sql(PEOPLE, target_half_width=50))
    assert first.charged_rho == first.rho > 0
    assert receipt_of(session.sql(PEOPLE, rho=first.rho)).charged_rho == 0
    paid = session.sql(BOTH, target_half_width=WIDTHS)
    receipt = receipt_of(paid)
    widths = {one.name: one.half_width_95 for one in receipt.columns if one.half_width_95}
    assert all(widths[name] <= most for name, most in WIDTHS.items())
    assert max(widths[name] / most for name, most in WIDTHS.items()) > 0.999
    spent = session.sql("FROM dp_budget()").df()["rho_spent"].tolist()
    assert spent == [receipt.rho]
    for name, answered in DOORS.items():
        assert answered(session) == shown(paid), name
    unit = dpsql.unit("aircraft", state=f"{database}.dpsql", source="flights")
    grouped = dpsql.from_frame(frame).groupby("origin", unit=unit, rho=1, as_index=False).at(target_half_width=WIDTHS)
    in_pandas = grouped.agg(people=("tailnum", "nunique"), flights=("tailnum", "size"))
    assert list(in_pandas.itertuples(index=False, name=None)) == shown(paid)
    assert session.sql("FROM dp_budget()").df()["rho_spent"].tolist() == spent


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


def test_refusals_of_frames_are_in_words_of_pandas(frame: pd.DataFrame) -> None:
    unit = dpsql.unit("tails", column="tailnum", epsilon_budget=50, delta_budget=1e-4)
    with pytest.raises(dpsql.UnsupportedQueryError, match=r"groupby\(…, target_half_width=50, confidence=0.99\)"):
        dpsql.from_frame(frame).groupby("origin", unit=unit, rho=0.1, confidence=0.9).nunique_units()


def test_the_command_line_takes_half_widths(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--target-half-width", "people=50,flights=2000")
    assert main(["explain", str(database), BOTH, *asked, "--format", "csv"]) == 0
    plan = capsys.readouterr().out
    assert main(["query", str(database), PEOPLE, "--target-half-width", "50"]) == 0
    assert "people: ± 50.0 (95 %)" in capsys.readouterr().out
    with dpsql.connect(database) as session:
        rows = session.sql(f"FROM dp_explain($$ {BOTH} $$, target_half_width := {STRUCT})").fetchall()
        (rho,) = (value for section, name, value in rows if (section, name) == ("mechanism", "rho"))
        assert f"rho,{rho}" in plan
    for wrong in ("fifty", "people=x", "people=5,people=6"):
        with pytest.raises(SystemExit):
            main(["query", str(database), PEOPLE, "--target-half-width", wrong])
