"""The rooms of dpsql, from the ground up: the purpose of each, and its imports.

    python -m tests.structure.rooms    writes the table of rooms into the pages that show it

``tests/unit/test_imports.py`` checks every import against this list; ``tests/structure/test_rooms.py`` checks pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.documents.pages import with_block

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "docs" / "architecture.md",)
BEGINS, ENDS = "<!-- rooms: python -m tests.structure.rooms -->\n", "<!-- end of rooms -->\n"


@dataclass(frozen=True, slots=True)
class Room:
    """A folder or a module of dpsql.

    Attributes:
        name: dotted, below dpsql; a folder inside a folder is a room of its own.
        purpose: the things in the room, in a few words.
        imports: rooms whose modules it may import.
        packages: packages of others that it may import.

    """

    name: str
    purpose: str
    imports: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


NOUNS = ("errors", "operations", "model")
READING = (*NOUNS, "sql", "sql.source")
ARRAYS = ("numpy", "pyarrow")
RELEASING = (*NOUNS, "state", "noise", "mechanism", "cascade", "engine")
ASKING = ("errors", "session")
BY_DOOR = "session"
"""Other rooms import the names of this room's ``__init__``, and none of its modules."""

ROOMS = (
    Room("errors", "one tree of errors"),
    Room("assets", "files that a wheel carries beside the code"),
    Room("accounting", "privacy loss: profiles, calibration, conversions", ("errors",), ("numpy", "scipy")),
    Room("operations", "the SQL dialect; expressions that never fail and have one spelling", ("errors",), ("sqlglot",)),
    Room("pictures", "pictures of bars, cascades and budgets; printed tables", ("errors",), ("matplotlib", "numpy")),
    Room(
        "state",
        "the state file: policy, ledger, side table, locks; folders for temporary files",
        ("errors",),
        (*ARRAYS, "sqlite3", "filelock"),
    ),
    Room(
        "model",
        "nouns: frame, statistic, keys, options, refusals, hashes; things that do not go together",
        ("errors", "operations"),
        ("sqlglot",),
    ),
    Room(
        "noise",
        "draws of noise on arrays, and their laws: draw, rise, bridge, step down",
        ("errors", "accounting"),
        ("numpy", "scipy"),
    ),
    Room(
        "noise.divisible",
        "noise that many parties draw in shares: laws, exact samplers, choice",
        ("errors", "accounting", "noise"),
        ("numpy", "scipy"),
    ),
    Room("sql", "statements, clauses and names of a text; row expressions and their bounds", NOUNS, ("sqlglot",)),
    Room("sql.source", "FROM and WITH as one relation with a unit", (*NOUNS, "sql"), ("sqlglot",)),
    Room("bound", "the bounded aggregation, in SQL", NOUNS),
    Room(
        "mechanism",
        "laws of noise and what they cost; presence counts: choice, calibration, guarantee",
        ("errors", "accounting", "model", "noise"),
        ("numpy",),
    ),
    Room("plan.aggregates", "from aggregate calls to bounded statistics", (*READING, "bound"), ("sqlglot",)),
    Room(
        "plan.features",
        "buckets, grouping sets, other group and AUTO in a text",
        (*READING, "bound", "plan.aggregates"),
        ("sqlglot",),
    ),
    Room(
        "plan",
        "from a SELECT to a private query, or to every refusal at once",
        (*READING, "plan.aggregates", "plan.features"),
        ("sqlglot",),
    ),
    Room(
        "plan.composition",
        "a text taken apart into private queries, public values, and one outer statement",
        READING,
        ("sqlglot",),
    ),
    Room(
        "engine",
        "the only way from raw rows into the program; an empty DuckDB for noisy tables",
        (*NOUNS, "sql", "bound"),
        ("duckdb", "pyarrow"),
    ),
    Room(
        "engine.parts",
        "tables in many parts: the split, its manifest, processes that read parts, sums of what they read",
        (*NOUNS, "bound", "engine"),
        ("duckdb", "pyarrow"),
    ),
    Room(
        "engine.spark",
        "tables of Spark: their head, snapshots of rows in parts of whole units, and a task on each part",
        (*NOUNS, "assets", "bound", "engine", "engine.parts"),
        ("duckdb", "pyarrow", "pyspark"),
    ),
    Room(
        "cascade",
        "points of a statistic at many levels: the point that serves a reader, and new points",
        (*NOUNS, "state", "noise", "mechanism"),
        ("numpy",),
    ),
    Room(
        "release",
        "the stages of a release: offers, exact values, points, shown groups; intervals and what bounds leave out",
        (*RELEASING, "bound", "pictures"),
        ARRAYS,
    ),
    Room(
        "receipts",
        "what is printed of a release: receipt, words, screen, layout, result",
        (*RELEASING, "bound", "pictures", "release"),
        (*ARRAYS, "duckdb", "matplotlib", "pandas", "polars"),
    ),
    Room(
        "plan.environment",
        "policy and schemas as the planner reads them",
        (*NOUNS, "state", "engine", "mechanism", "cascade", "release"),
        ARRAYS,
    ),
    Room(
        "features",
        "a file for each kind of query, with the stages of its release; AUTO",
        (*RELEASING, "accounting", "bound", "plan.features", "release", "receipts"),
        ARRAYS,
    ),
    Room(
        "session.declarations",
        "declarations of the curator",
        (
            *NOUNS,
            "accounting",
            "noise",
            "state",
            "engine",
            "sql",
            "sql.source",
            "bound",
            "plan.aggregates",
            "plan.environment",
            "release",
            "receipts",
        ),
    ),
    Room(
        "session",
        "Session and Analyst: statements in, results out; look-ups",
        (
            *RELEASING,
            "assets",
            "engine.parts",
            "engine.spark",
            "accounting",
            "pictures",
            "sql",
            "sql.source",
            "plan",
            "plan.composition",
            "plan.environment",
            "release",
            "receipts",
            "features",
            "session.declarations",
        ),
        ("duckdb", "matplotlib", "pyarrow"),
    ),
    Room(
        "remote",
        "an analyst's session with a server, and the format between the two; answers and refusals as JSON",
        ("errors", "release", "receipts", "session"),
        ("pyarrow",),
    ),
    Room(
        "dbapi",
        "PEP 249: connections, cursors, a level for texts that name none, a cap of spending",
        (*ASKING, "remote"),
    ),
    Room(
        "access",
        "many analysts at once: tokens, turns, limits, answers at fixed times",
        ASKING,
    ),
    Room("frontends.dbt", "the plugin for dbt, and its package", ASKING, ("dbt", "dbt_common", "duckdb")),
    Room(
        "frontends.frames",
        "df.dp: data frames",
        ASKING,
        (*ARRAYS, "duckdb", "pandas", "polars"),
    ),
    Room(
        "frontends.server",
        "dpsql serve: HTTP, TLS, metrics, an OpenAPI description",
        (*ASKING, "access", "remote", "frontends", "dpsql"),
        ("h11", "prometheus_client", "starlette", "uvicorn"),
    ),
    Room(
        "frontends.shell",
        "the helper process of the DuckDB shell",
        (*ASKING, "assets", "remote"),
        (*ARRAYS, "duckdb"),
    ),
    Room(
        "frontends.commands",
        "a function for each command, imported when the command is run",
        (*ASKING, "access", "frontends", "frontends.dbt", "frontends.server", "frontends.shell"),
        ("duckdb",),
    ),
    Room(
        "frontends",
        "the command line and the demo",
        (
            *ASKING,
            "assets",
            "pictures",
            "remote",
            "dpsql",
            "frontends.commands",
            "frontends.frames",
            "frontends.server",
        ),
        ("duckdb", "pandas", "polars", "pyarrow"),
    ),
    Room(
        "dpsql",
        "the names of `import dpsql`",
        ("errors", "session", "remote", "dbapi", "frontends", "frontends.frames"),
    ),
    Room("__main__", "`python -m dpsql`", ("frontends",)),
)

BY_NAME = {room.name: room for room in ROOMS}


def room_of(module: str) -> str:
    """Return the room of a module of dpsql: the longest name of a room that leads to it."""
    name = module.removeprefix("dpsql.")
    while name not in BY_NAME and "." in name:
        name = name.rpartition(".")[0]
    return name


def table(rooms: Sequence[Room] = ROOMS) -> str:
    """Return the rooms as a Markdown table, from the ground up."""
    lines = ["| room | purpose | packages of others |", "| --- | --- | --- |"]
    for room in rooms:
        packages = ", ".join(dict.fromkeys(room.packages)) or "none"
        lines.append(f"| `{room.name.replace('.', '/')}` | {room.purpose} | {packages} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Return a page with the table between its two marks."""
    return with_block(page, BEGINS, table(), ENDS)


def main() -> None:
    """Write the table into the pages that show it."""
    for page in PAGES:
        page.write_text(with_table(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
