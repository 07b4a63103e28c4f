"""The page on Spark: every block runs in an environment that has nothing but what the page installs."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

from tests.documents.pages import ROOT, read_page

PAGE = ROOT / "docs" / "spark.md"
SECONDS = 900.0


def run(command: list[str], folder: Path, **variables: str) -> str:
    """Run a command in a folder, with an environment of its own, and return what it prints."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    ran = subprocess.run(
        command, cwd=folder, env={**kept, **variables}, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_every_block_runs_in_an_empty_environment(tmp_path: Path) -> None:
    page = read_page(PAGE)
    installed, *others = [block.text for block in page.blocks if block.language == "sh"]
    assert installed.startswith("pip install '.[spark]'")
    assert others == ["python -m benchmarks.spark\n"]
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    run([python, "-m", "pip", "install", "--quiet", f"{ROOT}[spark]"], tmp_path)
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    program = tmp_path / "page.py"
    program.write_text("\n".join(block.text for block in page.blocks if block.language == "python"))
    printed = run([python, str(program)], tmp_path, PYSPARK_PYTHON=python, SPARK_LOCAL_IP="127.0.0.1")
    assert "visits" in printed
    assert "bills" in printed
    assert printed.count("price") >= 2


def test_the_benchmark_of_the_page_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.spark", "--rows", "20000", "--repeats", "1"]
    printed = run(command, ROOT, PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT))
    assert printed.count("at most") == 2
