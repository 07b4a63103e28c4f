"""Limits of size that tests hold.

A limit is a ceiling, not a target: most files, functions and signatures are far below theirs. Never pack code, or cut
it where it belongs together, to get below one. If a limit is wrong, change it, and say why in the commit. There is no
limit on the size of the whole library.
"""

from __future__ import annotations

SIZE_LIMITS = {"lines of a file": 400, "lines of a function": 60, "parameters of a function": 7}
"""By the names of ``source_figures.SIZES``."""

TRACE_LIMITS = {
    "asked first": {"files": 95, "functions": 609, "lines": 3_142, "types": 33},
    "printed": {"files": 26, "functions": 128, "lines": 512, "types": 6},
    "asked again": {"files": 56, "functions": 265, "lines": 1_203, "types": 21},
}
"""Ceilings of the simplest private query, by step and by the names of ``query_trace.QueryTrace``.

They are the counts of ``python -m tests.structure.query_trace``, the largest that noise may lead to. They may only
fall: a change that lowers a count lowers its limit, and a feature that the query does not use adds nothing. The query
sets no option. So all that is on by default counts, such as what bounds leave out, the state file and its stamps.
"""

NEVER_ENTERED = (
    "access/",
    "plan/environment/links.py",
    "release/sketch.py",
    "bound/value_counts.py",
    "features/",
    "frontends/",
    "noise/gaussian_laws.py",
    "noise/law.py",
    "noise/laws.py",
    "noise/lazy_jumps.py",
    "noise/laplace_laws.py",
    "noise/poisson_laws.py",
    "pictures/",
    "plan/aggregates/running_totals.py",
    "plan/features/",
    "plan/grouping_sets.py",
    "remote/",
    "sql/source/as_of.py",
    "sql/source/join_rows.py",
    "sql/source/joins.py",
    "sql/source/predicates.py",
    "sql/source/projections.py",
    "sql/source/unit_groups.py",
    "sql/windows.py",
)
"""Folders and files below dpsql/ that no step of the simplest private query enters."""

ENTERED = (
    "features/kinds.py",
    "features/one_set.py",
    "features/query_kind.py",
    "pictures/tables.py",
    "plan/features/coverage.py",
)
"""Files of these folders that it enters: the kinds of queries, its own kind, the printed table, and coverage."""

PUBLIC_CLASSES = ("PandasFrame", "TableFrame")
"""Classes of ``df.dp``, which no name of ``dpsql.__all__`` leads to."""
