"""What is imported at its first use: public names, packages of commands, and the accessor of pandas.

Each test runs a new process, because this one has imported everything.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.frontends.cli import COMMANDS, main

PACKAGES_AFTER = """
import json
import sys
before = set(sys.modules)
from dpsql.frontends.cli import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit:
        pass
imported = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(imported - set(sys.stdlib_module_names) - {"dpsql"}))
"""
ONE_PATIENT = "frame = pandas.DataFrame({'patient': [1], 'city': ['Lund']})"
UNIT = "unit = dpsql.unit('patient', epsilon_budget=3, delta_budget=1e-6)"
SIZES = "frame.dp.groupby('city', unit=unit, rho=0.1, max_groups=1, max_rows_per_group=1).size()"
HELP = (["--help"], ["--version"], *([command.name, "--help"] for command in COMMANDS))


def run(code: str, *arguments: str) -> str:
    """Output of Python code in a new process, where warnings are errors."""
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.thorough
def test_a_name_is_there_however_it_is_asked_for_first() -> None:
    names = ["remote", "errors", "unit", "connect", "from_frame", "__version__"]
    asked = f"import dpsql; assert set({names}) <= set(dir(dpsql)); shown = [repr(getattr(dpsql, n)) for n in {names}]"
    imported = f"from dpsql import {', '.join(names)}; print(shown == [repr(one) for one in ({', '.join(names)})])"
    assert run(f"{asked}\n{imported}") == "True\n"
    for name in ("__version__", "from_frame"):
        assert run(f"from dpsql import {name}; print({name} is not None)") == "True\n"


@pytest.mark.thorough
def test_all_public_names_are_there() -> None:
    shown = run("before = {*vars(), 'before'}; from dpsql import *; print(*sorted({*vars()} - before))")
    assert shown.split() == sorted(dpsql.__all__)


def test_a_name_that_is_not_there_is_an_error_of_attributes() -> None:
    name = "conect"
    with pytest.raises(AttributeError, match="module 'dpsql' has no attribute 'conect'"):
        getattr(dpsql, name)


def test_importing_dpsql_imports_no_package() -> None:
    imported = run("import sys; import dpsql; print(*{name.partition('.')[0] for name in sys.modules})").split()
    assert not set(imported) & {"duckdb", "numpy", "pandas", "pyarrow", "scipy", "sqlglot"}


def test_help_imports_no_package() -> None:
    *shown, packages = run(PACKAGES_AFTER, json.dumps(HELP)).splitlines()
    assert sum(line.startswith(("usage: dpsql", "dpsql ")) for line in shown) == len(HELP)
    assert packages == ""


def test_a_stored_answer_imports_what_serves_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = tmp_path / "clinic.duckdb"
    with duckdb.connect(database) as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT i AS patient, 'Lund' AS city, 7 AS cost FROM range(20000) t(i)"
        )
    # AUTO, key rounds and coverage are part of a query that bounds nothing
    asked = ["query", str(database), "SELECT city, count(*) AS n, avg(cost) AS c FROM visits GROUP BY city"]
    asked += ["--rho", "0.1"]
    protect = "CALL dp_protect('visits', privacy_unit_column := 'patient', epsilon_budget := 3, delta_budget := 1e-6)"
    assert main(["query", str(database), protect]) == 0
    assert main(asked) == 0
    capsys.readouterr()
    *shown, packages = run(PACKAGES_AFTER, json.dumps([asked])).splitlines()
    assert any("served as stored" in line for line in shown)
    assert {"duckdb", "numpy", "pyarrow", "sqlglot"} <= set(packages.split())
    assert not {"pandas", "polars", "matplotlib", "h11", "starlette", "uvicorn"} & set(packages.split())


@pytest.mark.thorough
def test_looking_at_the_books_needs_no_scipy_functions() -> None:
    modules = run("import sys; import dpsql.session; print(*sys.modules)").split()
    assert "dpsql.accounting.gaussian" in modules
    assert "scipy.special" not in modules


@pytest.mark.thorough
@pytest.mark.parametrize("imports", ["import dpsql, pandas", "import pandas, dpsql"])
def test_frames_have_their_accessor_in_either_order(imports: str) -> None:
    assert run(f"{imports}\n{ONE_PATIENT}\n{UNIT}\nprint({SIZES}.index.name, len(frame.dp._frame))") == "city 1\n"


@pytest.mark.thorough
def test_the_import_of_pandas_can_be_looked_at_and_repeated() -> None:
    looked = "import copy, importlib.util; spec = copy.copy(importlib.util.find_spec('pandas')); copy.copy(spec.loader)"
    again = "import importlib; importlib.reload(pandas); print(type(pandas.DataFrame().dp).__name__)"
    assert run(f"import dpsql\n{looked}\nimport pandas\n{again}") == "PandasFrame\n"


def test_another_module_may_be_called_pandas(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("mine = 7", encoding="utf-8")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import dpsql; import pandas; print(pandas.mine)"
    assert run(code) == "7\n"
