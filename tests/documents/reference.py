"""The page docs/reference.md, generated from the program's own lists: python -m tests.documents.reference writes it."""

from __future__ import annotations

from pathlib import Path

from dpsql.mechanism.registry import MECHANISMS
from dpsql.model.combinations import COMBINATIONS
from dpsql.model.private_query import OPTION_NAMES
from dpsql.plan.aggregates.registry import AGGREGATES
from dpsql.session.declare import ARGUMENTS, BUDGET, TABLE_RULES
from dpsql.sql.clauses import INTERVAL_FUNCTIONS, PRIVATE_AGGREGATES
from dpsql.sql.row_rules import _CAST_TARGETS, FUNCTION_EXAMPLES
from dpsql.sql.statements import DECLARATIONS, TABLE_FUNCTIONS
from dpsql.sql.windows import RESULT_FUNCTIONS
from tests.documents.pages import ROOT

PAGE = ROOT / "docs" / "reference.md"


def page() -> str:
    """Return the page as it has to be."""
    return "\n".join([_HEAD, *_functions(), *_casts(), *_combinations(), *_calls()])


_HEAD = """# Which functions and statements are there, and what goes with what?

`python -m tests.documents.reference` writes these lists from the lists that the program checks. [SQL](sql.md) explains
them; other pages list [options](sql-options.md) and [codes of refusals](sql-refusals.md#codes).
"""


def _functions() -> list[str]:
    calls: dict[str, list[str]] = {}
    for example in sorted(FUNCTION_EXAMPLES):
        calls.setdefault(example[0], []).append(f"`{example}`")
    return [
        "## Functions of a row",
        "",
        "They may be in [row expressions](sql.md#row-expressions) (WHERE, GROUP BY, arguments of aggregates) and over "
        "the noisy result. DuckDB's other names for them work, too. In the examples x, y and z are numbers, s and t "
        "texts, c a BOOLEAN, d and e dates, and ts a TIMESTAMP.",
        "",
        *(f"- {', '.join(those)}" for those in calls.values()),
        "",
    ]


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


def _combinations() -> list[str]:
    lines = [
        "## What goes with what",
        "",
        "A query with the thing in bold cannot have the others in its line. The refusal says what to write instead. "
        "Keys are *public* if each of their columns has a list of keys, or if there is no GROUP BY. All others are "
        "*private*. *AUTO bounds* are those of `contribution_bounds_per_… => AUTO`. A *sketch* is "
        "`mechanism = MISRA_GRIES` with `sketch_size`.",
        "",
    ]
    beside: dict[str, list[str]] = {}
    for row in COMBINATIONS:
        beside.setdefault(row.thing, []).extend(row.beside)
    for thing, others in beside.items():
        refused = dict.fromkeys(_thing(other) for other in others if _needed(other) is None)
        needed = dict.fromkeys(_thing(name) for name in map(_needed, others) if name is not None)
        parts = [f"not with {', '.join(refused)}"] * bool(refused) + [f"needs {', '.join(needed)}"] * bool(needed)
        lines.append(f"- **{_thing(thing)}**: {'; '.join(parts)}")
    return [*lines, ""]


def _needed(other: str) -> str | None:
    """Return the thing that a query must have, if `other` says that it is missing, else None."""
    if other in _MISSING:
        return _MISSING[other]
    return other.removeprefix("no ") if other.startswith("no ") else None


_MISSING = {
    "no target": "a target",
    "no text key": "a text key",
    "neither running totals nor buckets": "running totals or buckets",
}
"""Needed things whose name follows from no word of the missing one."""


def _thing(thing: str) -> str:
    """Return a thing as the page writes it: options as code, and mechanisms by their words."""
    start, _, unfit = thing.partition("a mechanism without ")
    if not start and unfit:
        return ", ".join(f"`mechanism = {one.word}`" for one in MECHANISMS if unfit in one.without)
    return f"`{thing}`" if thing.partition(" = ")[0] in OPTION_NAMES else thing.replace(", units", " with units")


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
