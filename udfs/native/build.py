"""Build the native aggregate for this machine: python udfs/native/build.py (`make native`).

Needs a C compiler, and pip with its package index once: DuckDB's headers are taken from the source distribution of the
DuckDB that is installed, and kept below out/. What is built works with any DuckDB since 1.2, whose stable C API it is
built against; dpsql works without it, and gives the same results.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import duckdb

HERE = Path(__file__).parent
NAMES = ("dpsql_native", "aggregate", "keep", "unit", "sums", "functions", "helper", "wire")
SOURCES = tuple(HERE / f"{name}.c" for name in NAMES)
LIBRARY = HERE / "dpsql_native.duckdb_extension"
HEADERS = ("duckdb.h", "duckdb_extension.h")

_C_API, _ABI = "v1.2.0", "C_STRUCT"
_FIELD, _SIGNATURE = 32, 256


def headers(version: str) -> Path:
    """The folder with DuckDB's C headers; downloads them where they are not there yet."""
    folder = HERE.parents[1] / "out" / f"duckdb-{version}-headers"
    if all((folder / name).is_file() for name in HEADERS):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--no-binary", "duckdb", "--dest", scratch, f"duckdb=={version}"], check=True)
        (archive,) = Path(scratch).glob("duckdb-*.tar.gz")
        with tarfile.open(archive) as members:
            for member in members:
                name = Path(member.name)
                if name.name in HEADERS and name.parts[-3:-1] == ("src", "include"):
                    content = members.extractfile(member)
                    if content is not None:
                        (folder / name.name).write_bytes(content.read())
    return folder


def with_footer(library: bytes, platform: str) -> bytes:
    """A shared library with the footer by which DuckDB knows an extension: a WebAssembly custom section, unsigned."""
    fields = ["", "", "", _ABI, "0", _C_API, platform, "4"]
    name = b"duckdb_signature"
    # section 0, its size as LEB128, the length of its name, the name, the size of the content as LEB128
    start = bytes([0, 0x93, 0x04, len(name)]) + name + bytes([0x80, 0x04])
    return library + start + b"".join(field.encode().ljust(_FIELD, b"\0") for field in fields) + bytes(_SIGNATURE)


def main() -> None:
    """Compile, append the footer, and put the library where dpsql looks for it."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), "")
    if not compiler:
        sys.exit("make native needs a C compiler (cc, gcc or clang, or the one that CC names); dpsql works without it.")
    with duckdb.connect() as connection:
        ((platform,),) = connection.execute("PRAGMA platform").fetchall()
    include = headers(duckdb.__version__)
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch, "dpsql_native.so")
        strict = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
        shared = ["-shared", "-fPIC", "-pthread", "-fvisibility=hidden"]
        subprocess.run([compiler, *strict, *shared, "-isystem", include, *SOURCES, "-o", built], check=True)
        made = LIBRARY.with_suffix(".new")
        made.write_bytes(with_footer(built.read_bytes(), platform))
        # in one step, so that no process loads half a library
        made.replace(LIBRARY)
    print(f"{LIBRARY.name}: {LIBRARY.stat().st_size / 1000:.0f} kB for {platform}")


if __name__ == "__main__":
    main()
