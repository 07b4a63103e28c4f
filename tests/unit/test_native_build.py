"""The source archive that `make native` downloads is read only if it has the known hash; no test uses the network."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import tarfile
from pathlib import Path
from types import ModuleType

import duckdb
import pytest

from dpsql.assets import asset

VERSION = "2.0.1"
# pip asks the archive for its metadata and runs what it names for that
BACKEND = """
import pathlib

def prepare_metadata_for_build_wheel(folder, settings=None):
    pathlib.Path({ran!r}).touch()
    info = pathlib.Path(folder, "duckdb-2.0.1.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: duckdb\\nVersion: 2.0.1\\n")
    return info.name
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """Return the script as a module that writes below a folder of the test."""
    spec = importlib.util.spec_from_file_location("native_build", asset("udfs", "native", "build.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HERE", tmp_path / "udfs" / "native")
    return module


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a small source archive that pip finds where it looks for DuckDB's."""
    index = tmp_path / "index"
    index.mkdir()
    path = index / f"duckdb-{VERSION}.tar.gz"
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: duckdb\nVersion: {VERSION}\n",
        "pyproject.toml": PROJECT,
        "backend.py": BACKEND.format(ran=str(tmp_path / "ran")),
        "src/include/duckdb.h": "/* C API */",
        "src/include/duckdb_extension.h": "/* extensions */",
    }
    with tarfile.open(path, "w:gz") as packed:
        for name, text in files.items():
            member = tarfile.TarInfo(f"duckdb-{VERSION}/{name}")
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text.encode()))
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(index), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return path


def test_an_archive_with_another_hash_is_deleted_unread(build: ModuleType, archive: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as refused:
        build.headers(VERSION)
    for found in (hashlib.sha256(archive.read_bytes()).hexdigest(), build.ARCHIVES[VERSION]):
        assert found in str(refused.value)
    assert not list(tmp_path.rglob("out/*"))
    assert not (tmp_path / "ran").exists()


def test_headers_are_taken_from_the_known_archive(
    build: ModuleType, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(build.ARCHIVES, VERSION, hashlib.sha256(archive.read_bytes()).hexdigest())
    folder = build.headers(VERSION)
    assert sorted(path.name for path in folder.iterdir()) == sorted(build.HEADERS)
    assert (tmp_path / "ran").exists()


def test_an_archive_of_an_unknown_version_is_not_downloaded(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.subprocess, "run", lambda *_, **__: pytest.fail("downloads"))
    with pytest.raises(SystemExit, match=r"DuckDB 9\.9\.9 is unknown"):
        build.headers("9.9.9")


def test_the_hash_of_the_installed_version_is_known(build: ModuleType) -> None:
    assert duckdb.__version__ in build.ARCHIVES
