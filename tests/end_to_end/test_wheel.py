"""The wheel alone is enough: built, installed far from the checkout, it finds its data and runs the demo."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = (
    "py.typed",
    "_assets/udfs/dp_functions.sql",
    "_assets/sample_data/flights.parquet",
    "_assets/sample_data/FLIGHTS.md",
    "_assets/sample_data/make_flights.py",
    "_assets/sample_data/clinic/cities.parquet",
    "_assets/sample_data/clinic/patients.parquet",
    "_assets/sample_data/clinic/visits.parquet",
    "_assets/sample_data/clinic/bills.parquet",
    "_assets/sample_data/CLINIC.md",
    "_assets/sample_data/make_clinic.py",
    "remote/answer.schema.json",
    "frontends/dbt/package/dbt_project.yml",
    "frontends/dbt/package/macros/plugin.sql",
    "frontends/dbt/package/macros/private_table.sql",
    "frontends/dbt/package/macros/tests.sql",
)


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Output of a command run in ``folder`` as from a fresh shell that knows nothing of the checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        env=kept | {"PYTHONUTF8": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=1200,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel; only its dependencies are borrowed from the tests' own.

    A path file lends the folder of the dependencies, but not what path files in there point to: a checkout
    that is installed as editable stays out of reach.
    """
    home = tmp_path_factory.mktemp("elsewhere") / "environment"
    venv.create(home, symlinks=True)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", home / "bin" / "python"]
    run([*pip, "install", "--quiet", "--no-index", "--no-deps", wheel], home)
    (site_packages,) = home.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return home


def assert_demo_is_complete(output: str) -> None:
    """The demo shows the true values beside the private ones, price and intervals."""
    lowered = output.lower()
    for word in ("carrier", "dl", "true", "rho", "epsilon", "delta", "price", "interval"):
        assert re.search(rf"\b{word}", lowered), f"the demo never mentions {word!r}:\n{output}"
    assert re.search(r"95 ?%", output)


def test_the_wheel_carries_its_assets_and_no_leftovers(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        # A file that is there but empty would be found and yet be of no use.
        empty = {name for name in SHIPPED if name != "py.typed" and not archive.getinfo(f"dpsql/{name}").file_size}
    assert {f"dpsql/{name}" for name in SHIPPED} <= names
    assert not empty
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".dpsql"))]
    assert all(name.startswith(("dpsql/", "dpsql-")) for name in names)


OWN_FILES = """
import dpsql.assets as a
from dpsql.frontends.cli import main
print(a.__file__)
print(a.asset('sample_data', 'flights.parquet'))
main(['demo', '--help'])
"""


def test_the_installed_package_uses_its_own_files_and_explains_its_demo(elsewhere: Path, tmp_path: Path) -> None:
    *files, usage = run([elsewhere / "bin" / "python", "-c", OWN_FILES], tmp_path).split("\n", 2)
    assert all(Path(file).is_relative_to(elsewhere) for file in files)
    assert "usage" in usage.lower()


def test_the_demo_runs_from_the_wheel_alone(elsewhere: Path, tmp_path: Path) -> None:
    assert_demo_is_complete(run([elsewhere / "bin" / "dpsql", "demo"], tmp_path))
    assert list(tmp_path.iterdir()) == [], "the demo leaves files behind"


@pytest.mark.long
def test_the_wheel_brings_its_dependencies(wheel: Path, tmp_path: Path) -> None:
    """The same with nothing borrowed: pip resolves and installs what the wheel asks for."""
    venv.create(tmp_path / "environment", symlinks=True, with_pip=True)
    run([tmp_path / "environment" / "bin" / "python", "-m", "pip", "install", "--quiet", wheel], tmp_path)
    assert_demo_is_complete(run([tmp_path / "environment" / "bin" / "dpsql", "demo"], tmp_path))
