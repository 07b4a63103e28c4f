"""Write the golden files: python -m tests.golden.make [aggregates.test …].

All of them are written, in some minutes, or those of the files of records that are named. Everything is asked twice,
with other salts and noise, and golden records and TPC-H with other rows, too. If the two runs differ, nothing is
written. Read the difference before you commit it: users see what it holds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.golden import files, tpch
from tests.golden.facts import Entry
from tests.golden.records import fresh_session, key_of, outcome
from tests.sql.golden_records import Clinic, records

Made = dict[str, dict[str, list[Entry]]]

_OTHER_ROWS = Path(__file__).with_name("other_rows.sql")
_ROOT = Path(__file__).parents[2]
_PAGES = (
    "tests/end_to_end/test_documents.py::test_a_page_runs_as_it_is_written",
    "tests/end_to_end/test_readme.py::test_the_first_example_prints_what_stands_below_it",
)


def made(clinic_rows: str = "", tpch_rows: str = "") -> Made:
    """Return the entries of every source."""
    files.MADE = {}
    tests = [str(_ROOT / page) for page in _PAGES]
    if pytest.main([*tests, "-q", "-p", "no:randomly", "-p", "no:xdist", "-p", "no:cacheprovider"]):
        sys.exit("the pages do not run; nothing was written")
    found, files.MADE = files.MADE, None
    found |= made_of_records(sorted({record.file for record in records()}), clinic_rows)
    found[tpch.SOURCE] = tpch.answers(tpch_rows)
    return found


def made_of_records(names: Sequence[str], clinic_rows: str = "") -> Made:
    """Return the entries of some files of records, with more rows in their tables if SQL for them is given."""
    found: Made = {}
    clinic, answers = Clinic(rows=clinic_rows), fresh_session(clinic_rows)
    for record in records():
        seen = outcome(record, clinic, answers)[1] if record.file in names else []
        if seen:
            found.setdefault(record.file, {})[key_of(record)] = seen
    clinic.close()
    answers.close()
    return found


def main(names: Sequence[str]) -> None:
    """Write the files, if two runs agree."""
    clinic_rows, tpch_rows = _OTHER_ROWS.read_text(encoding="utf-8").split("-- TPC-H\n")
    unknown = set(names) - {record.file for record in records()}
    if unknown:
        sys.exit(f"there are no records in {', '.join(sorted(unknown))}")
    first = made_of_records(names) if names else made()
    second = made_of_records(names, clinic_rows) if names else made(clinic_rows, tpch_rows)
    other = [
        f"{source}: {key}\n{line}"
        for source in sorted(first | second)
        for key in sorted(first.get(source, {}) | second.get(source, {}))
        for line in files.lines_that_differ(first.get(source, {}).get(key, []), second.get(source, {}).get(key, []))
    ]
    if other:
        sys.exit("\n".join(["two runs differ; nothing was written", *other]))
    for path in () if names else files.FOLDER.glob("*.json"):
        path.unlink()
    for source, parts in first.items():
        files.write(source, parts)


if __name__ == "__main__":
    main(sys.argv[1:])
