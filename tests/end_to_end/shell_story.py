"""An hour at the DuckDB shell, every step asserted: python -m tests.end_to_end.shell_story (`make demo-shell`).

The same steps are what `test_shell.py` runs.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from tests.end_to_end.shell_terminal import QUIET, Terminal

PROGRAM = str(Path(sys.executable).with_name("dpsql"))
QUESTION = "SELECT city, count(DISTINCT patient) AS patients, sum(cost) AS cost FROM visits GROUP BY city ORDER BY city"
NEARBY = "SELECT city, count(DISTINCT patient) AS patients FROM visits GROUP BY city"

_CELL = re.compile(r"^│ (.*) │$", re.MULTILINE)


def rows_of(screen: str) -> list[list[str]]:
    """The rows of the last box on a screen, without its head."""
    _, _, body = screen.rpartition("├")
    return [[cell.strip() for cell in line.split("│")] for line in _CELL.findall(body)]


def asked(question: str, options: str) -> str:
    """The text of a private query at the prompt."""
    return f"FROM dp_query($$ {question} $$, {options})"


def spent(terminal: Terminal) -> float:
    """What the unit has spent, as dp_budget says."""
    (((value,),),) = [rows_of(terminal.ask("SELECT rho_spent FROM dp_budget(unit := 'patient');"))]
    return float(value)


def play(database: Path, *, shown: bool = False) -> list[list[str]]:
    """Protect, explain, ask, ask again, ask for more than is left; returns the answer to ``QUESTION`` at rho = 0.02."""
    with Terminal([PROGRAM, "shell", str(database), *QUIET], shown=shown) as terminal:
        terminal.ask(
            "CREATE TABLE visits AS SELECT u % 2000 AS patient, ['Aarhus', 'Bergen', 'Cadiz'][1 + u % 3] AS city, "
            "(u % 90)::DOUBLE AS cost FROM range(6000) t(u);"
        )
        _declare(terminal)
        _nothing_is_charged_for_binding(terminal)
        answer = _answers(terminal)
        _refusals(terminal)
    return answer


def _declare(terminal: Terminal) -> None:
    sentence = terminal.ask(
        "CALL dp_unit('patient', rho_budget := 0.05, delta_threshold := 1e-6, delta_conversion := 1e-6);"
    )
    assert "unit patient has its budget" in sentence
    sentence = terminal.ask(
        "CALL dp_protect('visits', coverage := FALSE, unit := 'patient', privacy_unit_column := 'patient', "
        "max_groups_contributed := 3, max_rows_per_group := 5, default_delta := 1e-8);"
    )
    assert "its privacy unit is patient" in sentence
    assert "is declared" in terminal.ask("CALL dp_domain('visits', 'cost', bounds := [0, 100]);")


def _nothing_is_charged_for_binding(terminal: Terminal) -> None:
    query = asked(QUESTION, "rho := 0.01")
    assert "mechanism" in terminal.ask(f"FROM dp_explain($$ {QUESTION} $$, rho := 0.01);")
    assert re.search(r"patients\s+bigint", terminal.ask(f"DESCRIBE {query};"))
    assert "DP_QUERY" in terminal.ask(f"EXPLAIN {query};")
    terminal.ask(f"PREPARE later AS {query};")
    terminal.ask(f"CREATE VIEW by_city AS {query};")
    assert spent(terminal) == 0.0


def _answers(terminal: Terminal) -> list[list[str]]:
    first = rows_of(terminal.ask("FROM by_city;"))
    assert [row[0] for row in first] == ["Aarhus", "Bergen", "Cadiz"]
    assert all(abs(int(row[1]) - 2000) < 400 for row in first)
    assert rows_of(terminal.ask("SELECT DISTINCT heading FROM dp_receipt() WHERE heading = 'price';")) == [["price"]]
    once = spent(terminal)
    assert 0 < once <= 0.0100001
    # a view, a prepared statement, both sides of a join, another question with the same counts: the same release
    assert rows_of(terminal.ask("EXECUTE later;")) == first
    joined = rows_of(terminal.ask("SELECT a.patients - b.patients AS less FROM by_city a JOIN by_city b USING (city);"))
    assert joined == [["0"]] * 3
    sharper = rows_of(terminal.ask(f"{asked(QUESTION, 'rho := 0.02')};"))
    twice = spent(terminal)
    assert once < twice <= 0.0200001
    counts = [row[:2] for row in rows_of(terminal.ask(f"{asked(QUESTION, 'rho := 0.01')};"))]
    assert counts == [row[:2] for row in first]
    assert (
        rows_of(terminal.ask(f"FROM dp('SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.02) {QUESTION[7:]}');"))
        == sharper
    )
    assert spent(terminal) == twice
    return sharper


def _refusals(terminal: Terminal) -> None:
    before = spent(terminal)
    assert "budget" in terminal.ask(f"{asked(NEARBY, 'rho := 1')};")
    assert "is neither grouped nor aggregated" in terminal.ask(
        f"{asked('SELECT cost FROM visits GROUP BY city', 'rho := 1')};"
    )
    assert "is private and has no number here" in terminal.ask("SELECT city, dp_count(*) FROM visits GROUP BY city;")
    assert "is private" in terminal.ask("SELECT dp_sum(DISTINCT cost, 0, 9) FILTER (WHERE cost > 1) FROM visits;")
    assert spent(terminal) == before


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        play(Path(folder, "clinic.duckdb"), shown=True)
    print("every step was as it should be")
