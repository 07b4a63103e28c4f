"""The page docs/reference.md, generated from the program's own lists: python -m tests.documents.reference writes it."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb

from dpsql.mechanism.registry import MECHANISMS
from dpsql.model.private_query import OPTION_NAMES
from dpsql.model.refusals import COMBINATIONS, Refusals
from dpsql.plan.aggregates.registry import AGGREGATES
from dpsql.session.declare import ARGUMENTS, BUDGET, TABLE_RULES
from dpsql.sql.clauses import INTERVAL_FUNCTIONS, PRIVATE_AGGREGATES
from dpsql.sql.options import _check_option
from dpsql.sql.row_rules import _CAST_TARGETS, FUNCTION_EXAMPLES
from dpsql.sql.statements import DECLARATIONS, TABLE_FUNCTIONS
from dpsql.sql.windows import RESULT_FUNCTIONS
from tests.documents.pages import ROOT

PAGE = ROOT / "docs" / "reference.md"
ROW = {
    "x": "12",
    "y": "3",
    "z": "5",
    "s": "'Malmö'",
    "t": "'m'",
    "c": "true",
    "d": "DATE '2026-11-21'",
    "e": "DATE '2026-12-24'",
    "ts": "TIMESTAMP '2026-11-21 10:30:00'",
}


def page() -> str:
    """Return the page as it has to be."""
    return "\n".join([_HEAD, *_functions(), *_casts(), *_options(), *_combinations(), *_calls()])


_HEAD = """# Which functions, options and statements are there?

`python -m tests.documents.reference` writes these lists from the lists that the program checks. [SQL](sql.md) explains
them, and [Refusals](sql-refusals.md#codes) lists the codes of refusals.
"""


def _functions() -> list[str]:
    row = ", ".join(f"`{name}` = {value}" for name, value in ROW.items())
    lines = [
        "## Functions of a row",
        "",
        "They may be in [row expressions](sql.md#row-expressions) (WHERE, GROUP BY, arguments of aggregates) and over "
        "the noisy result. DuckDB's other names for them work, too. The examples compute with the row",
        f"{row}.",
        "",
        "| example | gives |",
        "| --- | --- |",
    ]
    columns = ", ".join(f"{value} AS {name}" for name, value in ROW.items())
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for example in sorted(FUNCTION_EXAMPLES, key=name_of):
            ((value,),) = connection.execute(f"SELECT {example} FROM (SELECT {columns})").fetchall()
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
            shown = shown.lower() if isinstance(value, bool) else shown
            lines.append(f"| `{example}` | {shown} |")
    return [*lines, ""]


def name_of(example: str) -> str:
    """Return the function that an example calls."""
    found = re.match(r"\w+", example)
    assert found is not None
    return found[0]


def _casts() -> list[str]:
    # the parser's name of a type, and the usual one
    names = {
        "INT": "INTEGER",
        "INT128": "HUGEINT",
        "UINT128": "UHUGEINT",
        "UINT": "UINTEGER",
        "TIMESTAMPNTZ": "TIMESTAMP",
    }
    types = sorted({names.get(name, name) for name in _CAST_TARGETS})
    return ["## Types to cast to", "", ", ".join(f"`{name}`" for name in types) + ".", ""]


def _options() -> list[str]:
    lines = [
        "## Options",
        "",
        "They are written in `OPTIONS (name = value, …)`, as keywords of `sql(…)`, and as arguments of `dp_query` and "
        "`dp_explain`. [Options](sql-options.md) says what each does.",
        "",
    ]
    return [*lines, *(f"- `{name}`: {_wanted(name)}" for name in OPTION_NAMES), ""]


def _wanted(option: str) -> str:
    """Return the values that an option takes, as its check says them of a value that no option takes."""
    refusals = Refusals("")
    assert not _check_option(option, object(), [one.word for one in MECHANISMS], None, refusals)
    (refusal,) = refusals.found
    return refusal.hint.removeprefix("Give ").removesuffix(".")


def _name_of_number(found: re.Match[str]) -> str:
    """Return the text for a place of a hint that is filled in: a sentence of `_FILLED`, or the name of a number."""
    return _FILLED.get(found[1], found[1])


def _combinations() -> list[str]:
    lines = [
        "## What goes with what",
        "",
        "A query with the thing in bold cannot have the things of a line below it. The line ends with the cure. A line "
        "that begins with *no* names a thing that is needed. Keys are *public* if each of their columns has a list of "
        "keys, or if there is no GROUP BY. All others are *private*. *AUTO bounds* are those of "
        "`contribution_bounds_per_… => AUTO`. A *sketch* is `mechanism = MISRA_GRIES` with `sketch_size`.",
        "",
    ]
    found: dict[str, list[str]] = {}
    for row in COMBINATIONS:
        hint = re.sub(r"{(\w+)[^}]*}", _name_of_number, row.hint)
        found.setdefault(row.thing, []).append(f"- {', '.join(map(_thing, row.beside))}: {hint}")
    for thing, items in found.items():
        lines += [f"**{_thing(thing)}**", "", *items, ""]
    return lines


_FILLED = {
    "declare_or_leave": "Declare CALL dp_domain('table', 'column', keys := ['a', 'b']), or leave",
    "by_threshold": "; for the keys with enough units, write OPTIONS (group_selection_strategy = GAUSSIAN_THRESHOLD)",
    "cure": "Declare CALL dp_domain('table', 'column', keys := ['a', 'b']), or leave the key out",
    "unit": "'unit'",
    "given": "target_relative_error and its options",
    "declaration": "CALL dp_protect('table', max_groups_contributed := 4)",
    "largest": "; for the largest groups alone, write OPTIONS (top_k = 200)",
}
"""Texts for the places of hints that are filled in with a sentence."""


def _thing(thing: str) -> str:
    """Return a thing as the page writes it: options as code, and mechanisms by their words."""
    start, _, unfit = thing.partition("a mechanism without ")
    if not start and unfit:
        return ", ".join(f"`mechanism = {one.word}`" for one in MECHANISMS if unfit in one.without)
    return f"`{thing}`" if thing.partition(" = ")[0] in OPTION_NAMES else thing


def _calls() -> list[str]:
    def listed(names: tuple[str, ...]) -> str:
        return ", ".join(f"`{name}`" for name in names)

    return [
        "## Statements",
        "",
        f"- **Declarations**, as `CALL …`: {listed(DECLARATIONS)}. Arguments of a budget are {listed(BUDGET)}. "
        f"Rules of a table are {listed(TABLE_RULES)}. The other arguments are {listed(_OTHER_ARGUMENTS)}.",
        f"- **The books**, as `FROM …` or `CALL …`: {listed(TABLE_FUNCTIONS)}. "
        "**Tables**: `SHOW TABLES`, `DESCRIBE t`.",
        f"- **Private aggregate functions**: {listed(PRIVATE_AGGREGATES)}. "
        f"**Ends of intervals**: {listed(INTERVAL_FUNCTIONS)}.",
        f"- **Windows over the result**: {listed(tuple(dict.fromkeys(RESULT_FUNCTIONS.values())))}.",
        "",
        "## Aggregates",
        "",
        "[Aggregates](sql-aggregates.md) says which bounds each needs.",
        "",
        *(f"- {listed(kind.names)}: {kind.answers}" for kind in AGGREGATES),
        "",
    ]


_OTHER_ARGUMENTS = tuple(sorted({name for names in ARGUMENTS.values() for name in names} - {*BUDGET, *TABLE_RULES}))


def main() -> None:
    """Write the page."""
    Path(PAGE).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
