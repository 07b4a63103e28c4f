"""The page docs/api.md, generated from the public names: `python -m tests.documents.api` writes it.

A row of a table is a name and the first paragraph of its docstring, for readers of plain Markdown. Below a table are
the names for mkdocstrings, which shows them with all details on the site of `make docs`.
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
    "Connect a tool": ("dbapi.connect", "dbapi.Connection", "dbapi.Cursor", "dbapi.Error"),
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
"""Public names below dpsql, by their purpose."""

_HEAD = """# The Python API

These are the public names of `import dpsql`, from their docstrings. The accessor `df.dp` has [its own page](pandas.md).

The site of `make docs` shows the arguments of each name, and so does `help(dpsql.Session)` in Python.
`python -m tests.documents.api` writes this page.
"""


def page() -> str:
    """Return the page that the docstrings give."""
    lines = [_HEAD]
    for title, names in GROUPS.items():
        lines += [f"## {title}", "", "| name | meaning |", "| --- | --- |"]
        lines += [f"| `dpsql.{name}` | {first_sentence(name)} |" for name in names]
        lines += ["", *(f"::: dpsql.{name}\n" for name in names)]
    return "\n".join(lines).rstrip() + "\n"


def first_sentence(name: str) -> str:
    """Return the first paragraph of a name's docstring, in one line.

    Raises:
        ValueError: the name has no docstring.

    """
    described: object = dpsql
    for part in name.split("."):
        described = getattr(described, part)
    # getdoc alone returns the docstring of a parent class for a class without one
    text = inspect.getdoc(described) if described.__doc__ else None
    if not text:
        raise ValueError(f"dpsql.{name} has no docstring")
    return " ".join(text.partition("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")


def main() -> None:
    """Write the page."""
    Path(PAGE).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
