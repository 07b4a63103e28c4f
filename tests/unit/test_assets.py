"""The files that travel with the package are found, are what their data cards say, and can be made again."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from dpsql import assets
from dpsql.assets import asset

# SHA-256 of the rows, in file order, as DuckDB writes them to CSV: independent of the Parquet writer.
ROWS_SHA256 = {
    "flights": "c789875c5f58d8c5fef9345196bbb19cf69c470daf1fc19ec79a7a0f4ea3e420",
    "clinic/cities": "cecaf7a0d0b87ca2aeb564b41ab1a23f4b6ed232c9de952579c00cc32f99afa7",
    "clinic/patients": "a72e08c50994e76abfc97065408a18f0aac58175a2d699533104d4aa0fa29513",
    "clinic/visits": "52948b49b8109235173e01b37c7e1a2aa206602ec69e07ac31d84d6b916783d7",
    "clinic/bills": "0d877a07210cd0ac9b9518006d2c82e86e2d8f6f9e3169f673a6357b4298148f",
}
FIVE_MEGABYTES = 5_000_000


def rows_sha256(parquet: Path, scratch: Path) -> str:
    text = scratch / "rows.csv"
    with duckdb.connect() as connection:
        connection.sql(f"FROM '{parquet}'").write_csv(str(text))
    return hashlib.sha256(text.read_bytes()).hexdigest()


def numbers(query: str, **tables: Path) -> tuple[object, ...]:
    with duckdb.connect() as connection:
        for name, path in tables.items():
            connection.sql(f"CREATE VIEW {name} AS FROM '{path}'")
        row = connection.execute(query).fetchone()
    assert row is not None
    return tuple(row)


def installed_package(root: Path, *, as_wheel: bool) -> Path:
    """A package folder whose assets lie where a wheel, or a checkout, would have them."""
    package = root / "dpsql"
    holder = package / "_assets" if as_wheel else root
    (holder / "udfs").mkdir(parents=True)
    (holder / "udfs" / "marker.sql").write_text("wheel" if as_wheel else "checkout")
    package.mkdir(exist_ok=True)
    return package


@pytest.mark.parametrize("as_wheel", [True, False])
def test_an_asset_is_found_in_both_layouts(as_wheel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "PACKAGE", installed_package(tmp_path, as_wheel=as_wheel))
    assert asset("udfs", "marker.sql").read_text() == ("wheel" if as_wheel else "checkout")
    assert asset("udfs").is_dir()


def test_a_wheel_never_reads_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside an installed package are other people's packages, one of which may be called sample_data."""
    package = installed_package(tmp_path, as_wheel=True)
    (tmp_path / "sample_data").mkdir()
    monkeypatch.setattr(assets, "PACKAGE", package)
    with pytest.raises(FileNotFoundError, match="sample_data is missing from this installation"):
        asset("sample_data")


@pytest.mark.parametrize("parts", [(), ("dpsql", "errors.py"), ("udfs", "..", "LICENSE"), ("udfs", "a/../../b")])
def test_only_assets_are_assets(parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="an asset is a path below udfs or sample_data"):
        asset(*parts)


@pytest.mark.parametrize("name", ROWS_SHA256)
def test_shipped_rows_are_the_pinned_ones(name: str, tmp_path: Path) -> None:
    assert rows_sha256(asset("sample_data", f"{name}.parquet"), tmp_path) == ROWS_SHA256[name]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("script", "made"),
    [
        pytest.param("make_flights.py", {"flights": "flights"}, marks=pytest.mark.long),
        ("make_clinic.py", {name.removeprefix("clinic/"): name for name in ROWS_SHA256 if "/" in name}),
    ],
)
def test_generators_make_the_shipped_rows_again(script: str, made: dict[str, str], tmp_path: Path) -> None:
    copy = shutil.copy(asset("sample_data", script), tmp_path)
    subprocess.run([sys.executable, copy, tmp_path], check=True, cwd=tmp_path, capture_output=True)
    again = {name: rows_sha256(tmp_path / f"{file}.parquet", tmp_path) for file, name in made.items()}
    assert again == {name: ROWS_SHA256[name] for name in again}


def test_sizes_stay_small() -> None:
    clinic = [path.stat().st_size for path in asset("sample_data", "clinic").glob("*.parquet")]
    assert asset("sample_data", "flights.parquet").stat().st_size < FIVE_MEGABYTES
    assert len(clinic) == 4
    assert sum(clinic) < FIVE_MEGABYTES


def test_flights_are_what_their_card_says() -> None:
    flights = asset("sample_data", "flights.parquet")
    assert numbers(
        """SELECT count(*), count(*) FILTER (tailnum IS NULL), count(DISTINCT tailnum), count(DISTINCT dest),
                  count(*) FILTER (dep_time IS NULL), count(*) FILTER (arr_delay IS NULL) FROM flights""",
        flights=flights,
    ) == (336_776, 2_512, 4_043, 105, 8_255, 9_430)
    assert numbers(
        """SELECT count(*) FILTER (dests > 8), median(dests)::INT, max(dests), max(rows)
           FROM (SELECT count(DISTINCT dest) AS dests, count(*) AS rows
                 FROM flights WHERE tailnum IS NOT NULL GROUP BY tailnum)""",
        flights=flights,
    ) == (1_860, 8, 47, 575)


def test_flights_are_sorted_by_time() -> None:
    flights = asset("sample_data", "flights.parquet")
    assert numbers(
        f"""SELECT count(*) FILTER (moment < earlier), count(*) FILTER (moment > earlier) > 0
            FROM (SELECT (year, month, day, sched_dep_time) AS moment,
                         lag(moment) OVER (ORDER BY file_row_number) AS earlier
                  FROM read_parquet('{flights}', file_row_number = true))"""
    ) == (0, True)


def test_the_clinic_is_what_its_card_says() -> None:
    folder = asset("sample_data", "clinic")
    tables = {path.stem: path for path in folder.glob("*.parquet")}
    assert numbers(
        """SELECT (SELECT count(*) FROM patients), (SELECT count(*) FROM visits),
                  (SELECT count(*) FROM bills),
                  (SELECT count(*) FROM patients ANTI JOIN visits USING (patient_id)),
                  (SELECT count(*) FROM cities ANTI JOIN visits ON name = visits.city),
                  (SELECT count(*) FROM visits ANTI JOIN cities ON name = visits.city)""",
        **tables,
    ) == (20_000, 200_000, 213_874, 411, 4, 0)
    assert numbers(
        """SELECT count(*), max(patients), median(patients)::INT, count(*) FILTER (patients < 20),
                  count(*) FILTER (patients >= 100)
           FROM (SELECT count(DISTINCT patient_id) AS patients
                 FROM visits WHERE diagnosis IS NOT NULL GROUP BY diagnosis)""",
        **tables,
    ) == (3_912, 10_127, 5, 3_340, 124)
    assert numbers(
        """SELECT max(rows), median(rows)::INT, count(*) FILTER (rows >= 100)
           FROM (SELECT count(*) AS rows FROM visits WHERE patient_id IS NOT NULL GROUP BY patient_id)""",
        **tables,
    ) == (702, 5, 189)


def test_the_clinic_has_the_missing_values_of_its_card() -> None:
    folder = asset("sample_data", "clinic")
    tables = {path.stem: path for path in folder.glob("*.parquet")}
    assert numbers(
        """SELECT (SELECT count(*) FROM visits WHERE patient_id IS NULL),
                  (SELECT count(*) FROM visits WHERE diagnosis IS NULL),
                  (SELECT count(*) FROM visits WHERE cost IS NULL),
                  (SELECT count(*) FROM bills WHERE visit_id IS NULL),
                  (SELECT count(*) FROM bills WHERE paid IS NULL),
                  (SELECT count(*) FROM patients WHERE birth_year IS NULL),
                  (SELECT count(*) FROM patients WHERE sex IS NULL)""",
        **tables,
    ) == (1_956, 1_033, 3_988, 635, 2_118, 210, 389)
