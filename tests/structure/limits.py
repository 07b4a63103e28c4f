"""Limits of size that tests hold.

When a figure falls, its limit is lowered in the same commit; a commit that raises one says why.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that passes today, and the most that shall pass in the end."""

    most: float
    goal: float


TRACE_LIMITS = {
    "asked first": {
        "files": Limit(102, 56), "functions": Limit(541, 380), "lines": Limit(2_537, 1_900), "types": Limit(19, 20),
    },
    "asked again": {
        "files": Limit(88, 44), "functions": Limit(410, 260), "lines": Limit(1_882, 1_250), "types": Limit(13, 20),
    },
}  # fmt: skip
"""Of the simplest private query, by the names of ``query_trace.QueryTrace``."""

NEVER_ENTERED = ("frontends/", "mechanisms/laws/", "pictures/", "remote/")
"""Folders and files below dpsql/ that the simplest private query does not enter."""

SOURCE_LIMITS = {
    "statements": Limit(18_533, 15_900),
    "tests for None": Limit(774, 350),
    "public names without a docstring, in %": Limit(0, 8),
    "long files": Limit(7, 0),
    "long functions": Limit(5, 0),
    "wide records": Limit(9, 0),
    "wide signatures": Limit(8, 0),
    "vague names of modules": Limit(0, 0),
    "participles as names of modules": Limit(21, 0),
}
"""By the names of ``source_figures.FIGURES``."""

FILE_LINES, FUNCTION_LINES, FIELDS, PARAMETERS = 400, 60, 10, 7
"""Above these a file or function is long, a record or signature wide."""

NONE_TEST_ROOMS = ("query", "session")
"""Rooms whose tests for None are counted; where a room splits, its parts take its place."""

RECORDS_OF_ANY_WIDTH = {
    "dpsql.frontends.server.settings.Settings": "settings",
    "dpsql.session.result.Receipt": "a public result",
    "dpsql.state.policy.ProtectedTable": "a row of a table of the state file",
    "dpsql.state.records.Point": "a row of a table of the state file",
    "dpsql.state.records.Release": "a row of a table of the state file",
}
"""Records as wide as what they stand for, with what that is."""

PUBLIC_CLASSES = ("PandasFrame", "TableFrame")
"""Classes of ``df.dp``, which no name of ``dpsql.__all__`` leads to."""
