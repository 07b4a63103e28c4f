"""``python -m dpsql.engine.check``: try on the installed DuckDB the facts on which privacy rests."""

from __future__ import annotations

import duckdb

from dpsql.engine.probes import FACTS, TESTED_RANGE, holds, is_tested


def main() -> int:
    """Print each fact with its outcome; return 0 if all hold, else 1."""
    outcomes = [(fact, holds(fact)) for fact in FACTS]
    failed = sum(not outcome for _, outcome in outcomes)
    tested = "tested" if is_tested(duckdb.__version__) else "not tested"
    verdict = f"{failed} of {len(outcomes)} facts do not hold" if failed else f"all {len(outcomes)} facts hold"
    print(f"DuckDB {duckdb.__version__} ({tested}; dpsql was tested with {TESTED_RANGE}): {verdict}")
    for fact, outcome in outcomes:
        print(f"  {'holds ' if outcome else 'FAILED'}  {fact.subject}: {fact.sentence}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
