"""Build the native aggregate for this machine: python udfs/native/build.py (`make native`).

Needs a C compiler, and pip with its package index once: DuckDB's headers are taken from the source distribution of the
DuckDB that is installed, and kept below out/. An archive whose SHA-256 is not the known one is deleted unread.

The library works with any DuckDB since 1.2, whose stable C API it is built against; dpsql works without it, and gives
the same results.
"""

from __future__ import annotations

import os
import re
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

ARCHIVES = {
    "2.0.0": "09de511ef0dc76a5213e8d3d87a8b89bb4d3e8a6fe73a9f60dc001269946b44f",
    "2.0.1": "5b3f493140e35b75298ee0fc606d98e3065e8601e64fe81b09326de7a6fd68e0",
}
"""SHA-256 of DuckDB's source distribution, by version."""
_GOT = re.compile(r"\bGot\s+([0-9a-f]{64})")
"""The hash of a refused archive, in the words of pip."""

_C_API, _ABI = "v1.2.0", "C_STRUCT"
_FIELD, _SIGNATURE = 32, 256


def headers(version: str) -> Path:
    """The folder with DuckDB's C headers; downloads them where they are not there yet."""
    folder = HERE.parents[1] / "out" / f"duckdb-{version}-headers"
    if all((folder / name).is_file() for name in HEADERS):
        return folder
    with tempfile.TemporaryDirectory() as scratch:
        archive = download(version, Path(scratch))
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as members:
            for member in members:
                name = Path(member.name)
                if name.name in HEADERS and name.parts[-3:-1] == ("src", "include"):
                    content = members.extractfile(member)
                    if content is not None:
                        (folder / name.name).write_bytes(content.read())
    return folder


def download(version: str, folder: Path) -> Path:
    """Download DuckDB's source distribution and return its path.

    Pip compares the hash before it reads the archive, because it runs a part of what is in there.

    Raises:
        SystemExit: the hash is unknown or another one, or pip fails. The folder has no archive then.

    """
    expected = ARCHIVES.get(version)
    if expected is None:
        sys.exit(
            f"make native: the SHA-256 of the source archive of DuckDB {version} is unknown. Add it to ARCHIVES in "
            f"udfs/native/build.py, or install DuckDB {' or '.join(ARCHIVES)}; dpsql works without the aggregate."
        )
    wanted = folder / "wanted.txt"
    wanted.write_text(f"duckdb=={version} --hash=sha256:{expected}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    hashed = ["--require-hashes", "--no-binary", "duckdb", "--dest", str(folder), "--requirement", str(wanted)]
    done = subprocess.run([*pip, *hashed], stderr=subprocess.PIPE, text=True, check=False)
    archive = next(folder.glob("duckdb-*.tar.gz"), None)
    if done.returncode == 0 and archive:
        return archive
    if archive:
        archive.unlink()
    if got := _GOT.search(done.stderr):
        sys.exit(
            f"make native: the source archive of DuckDB {version} has SHA-256 {got[1]}, and should have {expected}. It "
            "was deleted and nothing was built. Find out who changed the archive or the package index; dpsql works "
            "without the aggregate."
        )
    sys.exit(f"make native: pip could not download the source archive of DuckDB {version}.\n{done.stderr}")


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
