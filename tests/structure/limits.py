"""Limits of size that tests hold.

A limit is a ceiling, not a target: most files, functions and signatures are far below theirs. Never pack code, or cut
it where it belongs together, to get below one. If a limit is wrong, change it, and say why in the commit. There is no
limit on the size of the whole library.
"""

from __future__ import annotations

SIZE_LIMITS = {"lines of a file": 400, "lines of a function": 60, "parameters of a function": 7}
"""By the names of ``source_figures.SIZES``."""

TRACE_LIMITS = {
    "asked first": {"files": 78, "functions": 470, "lines": 2_490, "types": 25},
    "asked again": {"files": 52, "functions": 228, "lines": 1_030, "types": 17},
}
"""Ceilings of the simplest private query, by the names of ``query_trace.QueryTrace``.

They are about a tenth above what ``python -m tests.structure.query_trace`` printed when they were set.
"""

NEVER_ENTERED = (
    "access/",
    "plan/environment/links.py",
    "release/sketch.py",
    "bound/value_counts.py",
    "features/",
    "frontends/",
    "noise/laws/",
    "pictures/",
    "plan/aggregates/running_totals.py",
    "plan/features/",
    "plan/grouping_sets.py",
    "plan/without_thresholds.py",
    "remote/",
    "sql/source/as_of.py",
    "sql/source/join_rows.py",
    "sql/source/joins.py",
    "sql/source/predicates.py",
    "sql/source/projections.py",
    "sql/source/unit_groups.py",
    "sql/windows.py",
)
"""Folders and files below dpsql/ that the simplest private query does not enter."""

ENTERED = ("features/kinds.py", "features/one_set.py")
"""Files of these folders that it enters: the list of the kinds of queries, and its own kind."""

PUBLIC_CLASSES = ("PandasFrame", "TableFrame")
"""Classes of ``df.dp``, which no name of ``dpsql.__all__`` leads to."""
