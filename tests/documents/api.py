"""docs/api.md, generated from the public names: python -m tests.documents.api writes it.

A row of a table is a name and the first sentence of its docstring, for those who read plain Markdown. Below a table
stand the names for mkdocstrings, which shows them with all they have on the site of `make docs`.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import dpsql
from tests.documents.pages import ROOT

PAGE = ROOT / "docs" / "api.md"
GROUPS = {
    "Ask and declare": ("connect", "Session", "Analyst"),
    "Read an answer": ("Result", "Receipt", "ColumnReceipt", "CoverageReceipt"),
    "Ask of data frames": ("unit", "PrivacyUnit", "from_frame"),
    "Ask a server": ("remote.connect", "remote.RemoteAnalyst"),
    "Draw": ("plot_cascade", "plot_budget"),
    "Read an error": (
        "DpsqlError",
        "QueryError",
        "ParseError",
        "SchemaError",
        "UnsupportedQueryError",
        "Refusal",
        "Span",
        "PolicyError",
        "BudgetError",
        "CalibrationError",
        "EngineError",
        "ReleaseError",
        "StateError",
        "EntropyError",
        "MissingPackageError",
        "AccessError",
        "RemoteError",
    ),
}
"""Public names below dpsql, by what they are for."""

_HEAD = """# The Python API

What `import dpsql` gives, generated from the docstrings (`python -m tests.documents.api`). The site of `make docs`
shows each name with its arguments; in Python, `help(dpsql.Session)` does. The accessor `df.dp` has
[a page of its own](pandas.md).
"""


def page() -> str:
    """The page as it has to be."""
    lines = [_HEAD]
    for title, names in GROUPS.items():
        lines += [f"## {title}", "", "| name | what it is |", "| --- | --- |"]
        lines += [f"| `dpsql.{name}` | {first_sentence(name)} |" for name in names]
        lines += ["", *(f"::: dpsql.{name}\n" for name in names)]
    return "\n".join(lines).rstrip() + "\n"


def first_sentence(name: str) -> str:
    """The first paragraph of a name's docstring, in one line.

    Raises:
        ValueError: it has none.

    """
    described: object = dpsql
    for part in name.split("."):
        described = getattr(described, part)
    # of a class without one it would be that of a class above it
    text = inspect.getdoc(described) if described.__doc__ else None
    if not text:
        raise ValueError(f"dpsql.{name} has no docstring")
    return " ".join(text.partition("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")


def main() -> None:
    """Write the page."""
    Path(PAGE).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
