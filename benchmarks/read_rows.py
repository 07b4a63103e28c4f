"""Measure questions beside plain queries on the same rows: python -m benchmarks.read_rows [--rows N] [--forms all].

A question on a table takes processor time for its rows, and time that it takes on an empty copy of the table as well:
plan, trial queries, noise, state file. What is left without the latter is the question's *own* time. Each line compares
own with the plain query on the same rows. Coverage is on, as it is by default. Each answer is the first one of a new
state file and session, so that nothing is stored or remembered. Plain and private queries take turns in one process.
A table has one of five forms: keys of type VARCHAR, INTEGER or ENUM in memory, a file of DuckDB (VARCHAR keys, which it
compresses), or a view of a Parquet file. All but the first make the plain query faster. VARCHAR has all lines, and
``--forms all`` measures lines with sums and medians in the others, too.

Limits are for a million rows (a line of ten million may have its own), two threads, and the aggregate in C, which `make
native` builds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb

import dpsql
from benchmarks.make_zipf import write_zipf
from dpsql.assets import native_library

RHO, DELTA = 0.1, 1e-6
MANY_ROWS = 10_000_000
UNIT = "CALL dp_unit('person', rho_budget := 1000, delta_threshold := 0.5, delta_conversion := 1e-6)"
BOUNDS = ", max_groups_contributed := 8, max_rows_per_group := 5"
OF_ONE_ROW = ", max_groups_contributed := 1, max_rows_per_group := 1"
FORMS = ("VARCHAR", "INTEGER", "ENUM", "file", "Parquet")
MOST_ON_EMPTY = {"named": 0.3, "nothing": 0.8}
"""Processor seconds that a question may take on an empty copy of its table, by what is named."""


@dataclass(frozen=True)
class Line:
    """A question, the bounds that the policy names, and how many times the plain query it may take.

    Attributes:
        name: what is asked.
        table: ``zipf`` or ``people``.
        selected: what is selected beside the key.
        bounds: parameters of ``dp_protect``; empty if nothing is named.
        most: largest ratio of own to plain; None for no limit.
        most_of_many: the same with ten million rows.
        most_of_form: the same for other forms of tables; forms that it lacks have no limit.
        plain: the plain form of what is selected; empty if it is the same.

    """

    name: str
    table: str
    selected: str
    bounds: str
    most: float | None
    most_of_many: float | None = None
    most_of_form: Mapping[str, float] | None = None
    plain: str = ""

    @property
    def sql(self) -> str:
        """The question."""
        return f"SELECT key, {self.selected} FROM {self.table} GROUP BY key"

    @property
    def plain_sql(self) -> str:
        """The plain query."""
        return f"SELECT key, {self.plain or self.selected} FROM {self.table} GROUP BY key"

    def limit(self, form: str, rows: int) -> float | None:
        """Return the largest ratio for a form and a number of rows."""
        if form != FORMS[0]:
            return self.most_of_form.get(form) if self.most_of_form else None
        return self.most_of_many if self.most_of_many and rows >= MANY_ROWS else self.most

    @property
    def named(self) -> str:
        """The key of its limit on an empty table."""
        return "named" if self.bounds else "nothing"


PEOPLE, ROWS, BOTH = "count(DISTINCT unit) AS people", "count(*) AS n", "count(*) AS n, sum(value) AS total"
LINES = (
    Line("people, named bounds", "zipf", PEOPLE, BOUNDS, 2.2, 1.9),
    Line("rows and sum, named bounds", "zipf", BOTH, BOUNDS, 10.0, most_of_form={"INTEGER": 12.0, "file": 10.0}),
    Line("median, named bounds", "zipf", "dp_median(value, 0, 100) AS m", BOUNDS, 60.0, plain="median(value) AS m"),
    Line("people, nothing named", "zipf", PEOPLE, "", 3.5),
    Line("rows, nothing named", "zipf", ROWS, "", 14.0),
    Line("rows and sum, nothing named", "zipf", BOTH, "", 20.0),
    Line("one row a person, named bounds", "people", BOTH, OF_ONE_ROW, 8.0),
    Line("one row a person, rows, nothing named", "people", ROWS, "", 8.0),
    Line("one row a person, nothing named", "people", BOTH, "", 8.0),
)
IN_ALL_FORMS = ("rows and sum, named bounds", "rows and sum, nothing named", "median, named bounds")
"""Lines that are measured in each form."""


def fill(connection: duckdb.DuckDBPyConnection, parquet: Path, people: int, form: str, *, is_empty: bool) -> None:
    """Make both tables; a person of ``people`` has one row, by a primary key."""
    connection.execute("CREATE TABLE people (unit INTEGER PRIMARY KEY, key VARCHAR, value DOUBLE)")
    rows = f"(FROM '{parquet}'{' LIMIT 0' * is_empty})"
    if form == "ENUM":
        connection.execute(f"CREATE TYPE keys AS ENUM (SELECT DISTINCT key FROM '{parquet}' ORDER BY key)")
    # different texts stay different numbers but for a few
    key = {"ENUM": "key::keys", "INTEGER": "(hash(key) % 2000000000)::INTEGER"}.get(form, "key")
    made = "VIEW" if form == "Parquet" and not is_empty else "TABLE"
    connection.execute(f"CREATE {made} zipf AS SELECT unit, {key} AS key, value FROM {rows}")
    if not is_empty:
        connection.execute(
            "INSERT INTO people SELECT i, 'city ' || hash(i) % 1000, (hash(i, 1) % 10000) / 100 FROM range(?) r(i)",
            [people],
        )


def processor_seconds(action: Callable[[], object]) -> float:
    """Return the processor time of an action, of all threads."""
    began = time.process_time()
    action()
    return time.process_time() - began


class Databases:
    """A database of full tables and one of empty copies."""

    def __init__(self, folder: Path, people: int, threads: int, form: str) -> None:
        native = str(native_library() is not None)
        names = [str(folder / f"{name}.duckdb") if form == "file" else ":memory:" for name in ("full", "empty")]
        self.full, self.empty = (
            duckdb.connect(name, config={"threads": str(threads), "allow_unsigned_extensions": native})
            for name in names
        )
        fill(self.full, folder / "zipf.parquet", people, form, is_empty=False)
        fill(self.empty, folder / "zipf.parquet", people, form, is_empty=True)
        self._states = folder / f"states of {form}"
        self._states.mkdir()
        self._number = 0

    def private(self, connection: duckdb.DuckDBPyConnection, line: Line) -> float:
        """Return the processor time of a first answer."""
        self._number += 1
        with dpsql.Session(connection.cursor(), self._states / f"{self._number}.dpsql") as session:
            session.sql(UNIT)
            table = f"'{line.table}', unit := 'person', privacy_unit_column := 'unit'"
            session.sql(f"CALL dp_protect({table}{line.bounds})")
            session.sql(f"CALL dp_domain('{line.table}', 'value', bounds := [0, 100])")
            # a file of DuckDB knows the state file of the question before
            session.sql("CALL dp_accept_state()")
            return processor_seconds(lambda: session.sql(line.sql, rho=RHO, delta=DELTA))

    def plain(self, line: Line) -> float:
        """Return the processor time of the plain query."""
        return processor_seconds(lambda: self.full.sql(line.plain_sql).to_arrow_table())


def measure(databases: Databases, line: Line, repeats: int) -> tuple[float, float, float]:
    """Return the medians of the plain, the whole private and the empty question."""
    found = [
        (databases.plain(line), databases.private(databases.full, line), databases.private(databases.empty, line))
        for _ in range(repeats)
    ]
    plain, whole, empty = (statistics.median(side) for side in zip(*found, strict=True))
    return plain, whole, empty


def verdict(value: float, most: float | None) -> str:
    """Return a limit and whether it holds, in words."""
    return "no limit" if most is None else f"at most {most:g}: {value <= most}"


def main() -> None:
    """Fill the tables, and print a line for each question."""
    parser = argparse.ArgumentParser(description="What the rows of a question cost beside the plain query.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="Zipf rows (1,000,000)")
    parser.add_argument("--people", type=int, default=4_000_000, help="people with one row (4,000,000)")
    parser.add_argument("--rows-per-unit", type=int, default=20, help="Zipf rows of a person (20)")
    parser.add_argument("--keys", type=int, default=100_000, help="keys of the Zipf rows (100,000)")
    parser.add_argument("--forms", default=FORMS[0], help=f"all, or some of {','.join(FORMS)} ({FORMS[0]})")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="lines whose name holds this")
    arguments = parser.parse_args()
    forms = FORMS if arguments.forms == "all" else tuple(arguments.forms.split(","))
    with tempfile.TemporaryDirectory() as folder:
        units = arguments.rows // arguments.rows_per_unit
        sizes = {"rows": arguments.rows, "units": units, "keys": arguments.keys}
        write_zipf(Path(folder, "zipf.parquet"), **sizes, exponent=1.05, seed=1)
        native = "native" if native_library() else "pure SQL"
        print(f"{arguments.rows:,} Zipf rows, {arguments.people:,} people with one row; {native};", end=" ")
        print(f"threads = {arguments.threads}, medians of {arguments.repeats}, processor seconds")
        print(
            f"{'':<46} {'plain':>7} {'private':>8} {'empty':>6} {'own':>7} {'own / plain':>12}   {'limit':<16}  empty"
        )
        for form in forms:
            print_form(Databases(Path(folder), arguments.people, arguments.threads, form), form, arguments)


def print_form(databases: Databases, form: str, arguments: argparse.Namespace) -> None:
    """Print the lines of a form."""
    # modules are imported with the first answers
    for line in (LINES[1], LINES[5]):
        databases.private(databases.empty, line)
    for line in LINES:
        if arguments.only not in line.name or (form != FORMS[0] and line.name not in IN_ALL_FORMS):
            continue
        plain, whole, empty = measure(databases, line, arguments.repeats)
        own, ratio = whole - empty, (whole - empty) / plain
        print(
            f"{form:<8}{line.name:<38} {plain:>7.3f} {whole:>8.3f} {empty:>6.3f} {own:>7.3f} {ratio:>12.2f}   "
            f"{verdict(ratio, line.limit(form, arguments.rows)):<16}  {verdict(empty, MOST_ON_EMPTY[line.named])}",
            flush=True,
        )


if __name__ == "__main__":
    main()
