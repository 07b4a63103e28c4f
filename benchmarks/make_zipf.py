"""Generate the large table of the benchmarks: python benchmarks/make_zipf.py [FOLDER] [--rows N …].

One file, zipf.parquet: ``unit`` INTEGER (uniform), ``key`` VARCHAR (Zipf), ``value`` DOUBLE (skewed).
Rows of one unit lie far apart, which is the hard case for bounding contributions.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

ROWS_PER_PIECE = 1_000_000


def write_zipf(path: Path, *, rows: int, units: int, keys: int, exponent: float, seed: int) -> None:
    """Write ``rows`` rows of ``units`` units over ``keys`` keys of frequency rank**(-exponent)."""
    generator = np.random.default_rng(seed)
    names = pa.array([f"key_{rank:06d}" for rank in range(1, keys + 1)])
    edges = np.cumsum(np.arange(1, keys + 1, dtype=np.float64) ** -exponent)
    schema = pa.schema({"unit": pa.int32(), "key": pa.string(), "value": pa.float64()})
    with pa.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for start in range(0, rows, ROWS_PER_PIECE):
            count = min(ROWS_PER_PIECE, rows - start)
            rank = np.searchsorted(edges, generator.random(count) * edges[-1], side="right")
            columns = {
                "unit": pa.array(generator.integers(1, units + 1, count, dtype=np.int32)),
                "key": names.take(pa.array(np.minimum(rank, keys - 1))),
                "value": pa.array(100.0 * generator.random(count) ** 3),
            }
            writer.write_table(pa.table(columns, schema=schema), row_group_size=122_880)


def main() -> None:
    """Read the sizes from the command line, write the file, and say how long it took."""
    parser = argparse.ArgumentParser(description="Generate the large table of the benchmarks.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("out"), help="where to write (out)")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--units", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--exponent", type=float, default=1.05)
    parser.add_argument("--seed", type=int, default=1)
    sizes = vars(parser.parse_args())
    folder: Path = sizes.pop("folder")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "zipf.parquet"
    began = time.perf_counter()
    write_zipf(path, **sizes)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
