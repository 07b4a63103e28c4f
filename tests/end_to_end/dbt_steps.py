"""Runs dbt in a process of its own, step by step, and says after each what it printed, what is spent, what is built.

Usage: ``dbt_steps.py STEPS.json`` in the folder of a project. A step is a list of dbt's arguments, ``{"sql": text}``
for the database, ``{"change": [file, old, new]}`` for a file of the project, ``{"write": [file, text]}`` for a new one,
or ``{"ask": text, "options": {…}}`` for a
session of dpsql on the same database. Writes one JSON list.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import duckdb
from dbt.cli.main import dbtRunner

import dpsql

DATABASE = "clinic.duckdb"


def run(step: Any) -> dict[str, Any]:
    if isinstance(step, list):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            result = dbtRunner().invoke([*step, "--no-use-colors"])
        return {"success": result.success, "printed": printed.getvalue() + str(result.exception or "")}
    if "change" in step:
        path, old, new = step["change"]
        text = Path(path).read_text(encoding="utf-8")
        assert old in text
        Path(path).write_text(text.replace(old, new), encoding="utf-8")
        return {}
    if "write" in step:
        path, text = step["write"]
        Path(path).write_text(text, encoding="utf-8")
        return {}
    if "sql" in step:
        with duckdb.connect(DATABASE) as connection:
            connection.execute(step["sql"])
        return {}
    with dpsql.connect(DATABASE) as session:
        answer = session.sql(step["ask"], **step["options"])
        assert answer.receipt is not None
        return {"rows": sorted(answer.fetchall(), key=str), "charged_rho": answer.receipt.charged_rho}


def state() -> dict[str, Any]:
    if not Path(f"{DATABASE}.dpsql").exists():
        return {"spent": None, "tables": {}}
    with dpsql.connect(DATABASE) as session:
        spent = {row["unit"]: row["rho_spent"] for row in session.sql("FROM dp_budget()").arrow().to_pylist()}
        names = [row[0] for row in session.connection.execute("SHOW TABLES").fetchall()]
        wanted = [name for name in names if not name.startswith(("raw_", "visits_raw"))]
        tables = {name: session.connection.execute(f'FROM "{name}" ORDER BY ALL').fetchall() for name in wanted}
    tables.pop("visits", None)
    return {"spent": spent, "tables": tables}


if __name__ == "__main__":
    steps = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.stdout.write(json.dumps([{**run(step), **state()} for step in steps], default=str))
