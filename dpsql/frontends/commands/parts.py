"""The command split: tables as a folder of parts."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from dpsql.errors import PolicyError
from dpsql.session import SplitOrder, SplitReport, check_split, make_split, state_beside, text_literal


def split(arguments: argparse.Namespace) -> None:
    """Write a folder of parts and print what to declare next; or check one.

    Raises:
        PolicyError: the split cannot be made, or a folder of parts is not what its manifest says.
        KeyboardInterrupt: the curator stopped it; nothing that it wrote is left.

    """
    try:
        _split_or_check(arguments)
    except RuntimeError as error:
        # so DuckDB says that Ctrl-C was pressed
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from None
        raise


def _split_or_check(arguments: argparse.Namespace) -> None:
    if arguments.check is not None:
        if arguments.sources or arguments.out is not None:
            raise PolicyError("--check takes no other arguments: dpsql split --check folder")
        found = check_split(arguments.check)
        print(f"{arguments.check}: no privacy unit is in two of the {len(found.parts)} parts")
        return
    if arguments.out is None:
        raise PolicyError("--out FOLDER is missing: dpsql split visits.parquet --by patient_id --out folder")
    report = make_split(
        SplitOrder(
            tuple(arguments.sources),
            arguments.out,
            arguments.parts,
            tuple(arguments.by),
            tuple(arguments.table),
            tuple(arguments.public),
            arguments.state,
            arguments.unit,
        )
    )
    print("\n".join(_lines(report, arguments.out)))


def _lines(report: SplitReport, folder: Path) -> list[str]:
    written = report.written
    names = ", ".join(table.table for table in written.split.tables)
    lines = [f"left out, though declared: {', '.join(report.left_out)}"] if report.left_out else []
    if report.unused_state is not None:
        lines.append(
            f"{report.unused_state} has a budget for tables of this database: if you declare these people again, they "
            "have a second budget. To keep theirs, split without --table"
        )
    lines += written.notes
    number = len(written.split.parts)
    lines.append(f"{names} in {number} {'part' if number == 1 else 'parts'}: {folder}")
    if written.gone:
        lines.append(
            f"no longer in {folder}: {', '.join(written.gone)}; if one of them is declared, all questions fail"
        )
    return lines + _next_steps(report, folder)


def _next_steps(report: SplitReport, folder: Path) -> list[str]:
    """Return the commands that the curator runs next."""
    tables = [(table.table.removeprefix("main."), table.unit_column) for table in report.written.split.tables]
    if report.written.replaced and _has_state(folder):
        calls = [f"CALL dp_new_version({text_literal(table)})" for table, _ in tables]
        return ["declare the new version of each table whose rows changed:", *_commands(folder, calls)]
    if report.state is not None:
        place = shlex.quote(str(folder / "head.duckdb.dpsql"))
        return [
            "the rows keep their budget: move the state file (a copy is a second budget), and accept it:",
            f"  mv {shlex.quote(str(report.state))} {place}",
            *_commands(folder, ["CALL dp_accept_state()"]),
            f"ask the folder alone from now on; a later split of the database takes --state {place}",
        ]
    calls = ["CALL dp_unit('patient', epsilon_budget := 3, delta_budget := 1e-6)"]
    for table, column in tables:
        calls.append(
            f"CALL dp_protect({text_literal(table)}, unit := 'patient', privacy_unit_column := {text_literal(column)})"
            if column
            else f"CALL dp_public({text_literal(table)})"
        )
    return ["declare the privacy unit (choose its name and budget) and each table:", *_commands(folder, calls)]


def _has_state(folder: Path) -> bool:
    state = state_beside(folder)
    return state is not None and state.is_file()


def _commands(folder: Path, calls: list[str]) -> list[str]:
    # inside double quotes a shell reads these four
    texts = [re.sub(r'([\\"$`])', r"\\\1", call) for call in calls]
    return [f'  dpsql query {shlex.quote(str(folder))} "{text}"' for text in texts]
