"""docs/reference.md, generated from the allow-list and the options: python -m tests.documents.reference writes it."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb

from dpsql.mechanism.registry import MECHANISMS
from dpsql.model.private_query import OPTION_NAMES
from dpsql.model.refusals import CODES, COMBINATIONS, Refusals
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
    """The page as it has to be."""
    return "\n".join([_HEAD, *_functions(), *_casts(), *_options(), *_combinations(), *_calls(), *_refusals()]) + "\n"


_HEAD = """# What exactly may be written?

Lists, generated from what the program checks (`python -m tests.documents.reference`); [sql.md](sql.md) explains them.
"""


def _functions() -> list[str]:
    row = ", ".join(f"`{name}` = {value}" for name, value in ROW.items())
    lines = [
        "## Functions of a row",
        "In row expressions (WHERE, GROUP BY, arguments of aggregates) and over the noisy result. "
        "Other names that DuckDB has for them work too.",
        f"Examples on the row {row}:",
        "",
        "| function | example | gives |",
        "| --- | --- | --- |",
    ]
    columns = ", ".join(f"{value} AS {name}" for name, value in ROW.items())
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for example in sorted(FUNCTION_EXAMPLES, key=name_of):
            ((value,),) = connection.execute(f"SELECT {example} FROM (SELECT {columns})").fetchall()
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
            shown = shown.lower() if isinstance(value, bool) else shown
            lines.append(f"| `{name_of(example)}` | `{example}` | {shown} |")
    return [*lines, ""]


def name_of(example: str) -> str:
    """The function that an example calls."""
    found = re.match(r"\w+", example)
    assert found is not None
    return found[0]


def _casts() -> list[str]:
    # what the parser calls a type, and what people do
    names = {
        "INT": "INTEGER",
        "INT128": "HUGEINT",
        "UINT128": "UHUGEINT",
        "UINT": "UINTEGER",
        "TIMESTAMPNTZ": "TIMESTAMP",
    }
    types = sorted({names.get(name, name) for name in _CAST_TARGETS})
    return ["## Types to cast to", ", ".join(f"`{name}`" for name in types) + ".", ""]


def _options() -> list[str]:
    lines = [
        "## Options",
        "In `OPTIONS (name = value, …)`, as keywords of `sql(…)`, and as arguments of `dp_query` and `dp_explain`. "
        "What each means: [options](sql-options.md).",
        "",
        "| option | takes |",
        "| --- | --- |",
    ]
    return [*lines, *(f"| `{name}` | {_wanted(name)} |" for name in OPTION_NAMES), ""]


def _wanted(option: str) -> str:
    """What the check of an option says that it takes, when it is given something that nothing takes."""
    refusals = Refusals("")
    assert not _check_option(option, object(), [one.word for one in MECHANISMS], None, refusals)
    (refusal,) = refusals.found
    return refusal.hint.removeprefix("Give ").removesuffix(".")


def _name_of_number(found: re.Match[str]) -> str:
    return _FILLED.get(found[1], found[1])


def _combinations() -> list[str]:
    lines = [
        "## What goes with what",
        "A query that has a thing of the first column cannot have one of the second. Keys are *public* where each of "
        "their columns has a list of keys or there is no GROUP BY, else *private*. *AUTO bounds* are those of "
        "`contribution_bounds_per_… => AUTO`, a *sketch* is `mechanism = MISRA_GRIES` with `sketch_size`.",
        "",
        "| this | does not go with | instead |",
        "| --- | --- | --- |",
    ]
    for row in COMBINATIONS:
        beside = ", ".join(map(_thing, row.beside))
        # a number that is filled in stands as its name
        hint = re.sub(r"{(\w+)[^}]*}", _name_of_number, row.hint)
        lines.append(f"| {_thing(row.thing)} | {beside} | {hint} |")
    return [*lines, ""]


_FILLED = {
    "declare_or_leave": "Declare CALL dp_domain('table', 'column', keys := ['a', 'b']), or leave",
    "by_threshold": "; for the keys with enough units, write OPTIONS (group_selection_strategy = GAUSSIAN_THRESHOLD)",
    "cure": "Declare CALL dp_domain('table', 'column', keys := ['a', 'b']), or leave the key out",
    "unit": "'unit'",
    "given": "target_relative_error and its options",
    "declaration": "CALL dp_protect('table', max_groups_contributed := 4)",
    "largest": "; for the largest groups alone, write OPTIONS (top_k = 200)",
}
"""What stands for words of a hint that are sentences of their own."""


def _thing(thing: str) -> str:
    """A thing as the page writes it: options as code, and mechanisms by their words."""
    start, _, unfit = thing.partition("a mechanism without ")
    if not start and unfit:
        return ", ".join(f"`mechanism = {one.word}`" for one in MECHANISMS if unfit in one.without)
    return f"`{thing}`" if thing.partition(" = ")[0] in OPTION_NAMES else thing


def _calls() -> list[str]:
    def listed(names: tuple[str, ...]) -> str:
        return ", ".join(f"`{name}`" for name in names)

    return [
        "## Statements",
        f"- **Declarations**, as `CALL …`: {listed(DECLARATIONS)}. A budget is said by {listed(BUDGET)}; "
        f"rules of a table by {listed(TABLE_RULES)}; the rest by {listed(_OTHER_ARGUMENTS)}.",
        f"- **The books**, as `FROM …` or `CALL …`: {listed(TABLE_FUNCTIONS)}. "
        "**Tables**: `SHOW TABLES`, `DESCRIBE t`.",
        f"- **Private aggregate functions**: {listed(PRIVATE_AGGREGATES)}. "
        f"**Ends of intervals**: {listed(INTERVAL_FUNCTIONS)}.",
        f"- **Windows over the result**: {listed(tuple(dict.fromkeys(RESULT_FUNCTIONS.values())))}.",
        "",
        "| aggregate | answers |",
        "| --- | --- |",
        *(f"| {listed(kind.names)} | {kind.answers} |" for kind in AGGREGATES),
        "",
    ]


def _refusals() -> list[str]:
    lines = ["## Codes of refusals", "", "| code | for |", "| --- | --- |"]
    return [*lines, *(f"| `{code}` | {meaning} |" for code, meaning in sorted(CODES.items()))]


_OTHER_ARGUMENTS = tuple(sorted({name for names in ARGUMENTS.values() for name in names} - {*BUDGET, *TABLE_RULES}))


def main() -> None:
    """Write the page."""
    Path(PAGE).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
