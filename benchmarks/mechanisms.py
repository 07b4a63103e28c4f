"""Which mechanism answers best: the sample clinic through the front door, 200 releases of every mechanism.

    python -m benchmarks.mechanisms [releases]

Every row is one text; its mechanisms differ in OPTIONS (mechanism = …) alone, and the star marks the planner's choice
when the text names none. The error of a release is the root of the mean squared difference between shown and true
numbers of patients, over all groups that the text asks for; a group that is not shown counts as 0; beside it its
standard error over the releases. What is true is what bounding leaves, the same for all mechanisms of a row. A
diagnosis is rare if it has 20 to 199 patients.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

import dpsql
from dpsql.assets import asset

EPSILON, DELTA = 1.0, 1e-6
RARE = (20, 199)
COUNT = "count(DISTINCT patient_id)"


@dataclass(frozen=True)
class Row:
    """One text, how many of the largest groups it asks for, and the mechanisms that can answer it."""

    name: str
    key: str
    max_groups: int | None
    public: bool
    limit: int | None
    options: tuple[str, ...]

    def sql(self, options: str) -> str:
        """The text with options."""
        listed = ", ".join([f"epsilon = {EPSILON}", f"delta = {DELTA}", *([options] if options else [])])
        if self.max_groups is not None:
            listed += f", max_groups_contributed = {self.max_groups}"
        limit = f" ORDER BY patients DESC LIMIT {self.limit}" if self.limit is not None else ""
        return (
            f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({listed}) {self.key}, {COUNT} AS patients "
            f"FROM visits GROUP BY {self.key}{limit}"
        )


PUBLIC = ("mechanism = GAUSSIAN", "mechanism = CORRELATED_GAUSSIAN", "mechanism = DISCRETE_CORRELATED_GAUSSIAN")
AFTER_TOP_K = ("mechanism = CSH", "mechanism = GSHM")
OF_ALL_KEYS = ("mechanism = GSHM", *(f"mechanism = CSH, top_k = {k}" for k in (20, 200, 1000)))
ROWS = (
    Row("48 listed cities, 4 a patient", "city", 4, True, None, PUBLIC),
    Row("48 listed cities, any number a patient", "city", 48, True, None, PUBLIC),
    Row("4,000 listed diagnoses, 12 a patient", "diagnosis", 12, True, None, PUBLIC),
    Row("4,000 listed diagnoses, 400 a patient", "diagnosis", 400, True, None, PUBLIC),
    Row("diagnoses, 12 a patient", "diagnosis", 12, False, None, OF_ALL_KEYS),
    Row("diagnoses, 50 a patient", "diagnosis", 50, False, None, OF_ALL_KEYS),
    Row("20 largest diagnoses, 12 a patient", "diagnosis", 12, False, 20, ("mechanism = GSHM", "mechanism = CSH")),
    Row("20 largest diagnoses, any number a patient", "diagnosis", None, False, 20, AFTER_TOP_K),
    Row("200 largest diagnoses, any number a patient", "diagnosis", None, False, 200, AFTER_TOP_K),
)


def main() -> None:
    """Print the table."""
    releases = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(f"epsilon = {EPSILON:g}, delta = {DELTA:g}, {releases} releases each\n")
    titles = f"{'sigma':>8} {'shown':>8} {'rare shown':>11} {'error':>9} {'±':>6} {'error if shown':>15}"
    print(f"  {'mechanism':46} {titles}")
    for row in ROWS:
        with _clinic(public=row.public) as session:
            chosen = _receipt(session, row.sql(""))
            print(f"\n{row.name}")
            for options in row.options:
                print(_line(session, row, options, chosen, releases))


def _clinic(*, public: bool) -> dpsql.Session:
    session = dpsql.connect(":memory:", threads=2)
    for table in ("visits", "cities"):
        session.connection.execute(
            f"CREATE TABLE {table} AS FROM '{asset('sample_data', 'clinic', f'{table}.parquet')}'"
        )
    session.connection.execute(
        "CREATE TABLE codes AS SELECT DISTINCT diagnosis AS code FROM visits WHERE diagnosis IS NOT NULL"
    )
    session.sql(
        "CALL dp_protect('visits', coverage := FALSE, "
        "privacy_unit_column := 'patient_id', rho_budget := 1e9, delta_threshold := 0.9, "
        "delta_conversion := 1e-6, composition := 'zcdp')"
    )
    if public:
        for key, table, column in (("city", "cities", "name"), ("diagnosis", "codes", "code")):
            session.sql(f"CALL dp_public('{table}')")
            session.sql(f"CALL dp_domain('visits', '{key}', keys_from := '{table}.{column}')")
    return session


def _receipt(session: dpsql.Session, sql: str) -> dpsql.Receipt:
    session.sql("CALL dp_new_version('visits')")
    receipt = session.sql(sql).receipt
    assert receipt is not None
    return receipt


def _releases(session: dpsql.Session, sql: str, count: int) -> Iterator[pd.Series]:
    for _ in range(count):
        session.sql("CALL dp_new_version('visits')")
        shown = session.sql(sql).df()
        yield shown.set_index(shown.columns[0])["patients"]


def _truth(session: dpsql.Session, row: Row) -> pd.Series:
    """Numbers of patients as bounding leaves them on average: a patient with more groups counts in a part of each."""
    share = f"least(1.0, {row.max_groups} / count(*) OVER (PARTITION BY patient_id))" if row.max_groups else "1.0"
    known = f"AND {row.key} IS NOT NULL" if row.public else ""
    exact = session.connection.execute(
        f"SELECT {row.key} AS key, sum(share) AS patients FROM (SELECT {row.key}, {share} AS share FROM visits "
        f"WHERE patient_id IS NOT NULL {known} GROUP BY patient_id, {row.key}) GROUP BY ALL ORDER BY patients DESC"
    ).df()
    wanted = exact.head(row.limit) if row.limit is not None else exact
    truth: pd.Series = wanted.set_index("key")["patients"]
    return truth


def _line(session: dpsql.Session, row: Row, options: str, chosen: dpsql.Receipt, releases: int) -> str:
    truth = _truth(session, row)
    receipt = _receipt(session, row.sql(options))
    rare = truth.between(*RARE)
    squares, shares, rare_shares = [], [], []
    shown_squares, shown_count = 0.0, 0
    for counts in _releases(session, row.sql(options), releases):
        found = counts.reindex(truth.index)
        error = (found.fillna(0.0) - truth).to_numpy(dtype=float)
        squares.append(float(np.mean(error**2)))
        shown = found.notna().to_numpy()
        shown_squares, shown_count = shown_squares + float(np.sum(error[shown] ** 2)), shown_count + int(shown.sum())
        shares.append(shown.mean())
        rare_shares.append(found[rare].notna().mean() if rare.any() else 0.0)
    star = "*" if (receipt.mechanism, receipt.max_keys) == (chosen.mechanism, chosen.max_keys) else " "
    rare_shown = f"{np.mean(rare_shares):.1%}" if rare.any() else "-"
    sigma = receipt.columns[-1].sigma
    assert sigma is not None
    error_of_all = np.sqrt(np.mean(squares))
    spread = np.std(squares) / np.sqrt(releases) / (2.0 * error_of_all)
    return (
        f"{star} {options:46} {sigma:8.2f} {np.mean(shares):8.1%} {rare_shown:>11} "
        f"{error_of_all:9.2f} {spread:6.2f} {np.sqrt(shown_squares / max(1, shown_count)):15.2f}"
    )


if __name__ == "__main__":
    main()
