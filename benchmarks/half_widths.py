"""Time of ``dp_explain`` for a question by half widths, beside the same question by rho.

    python -m benchmarks.half_widths [--repeats 15]

Every repetition explains each question both ways, in turns, with texts that were not asked before, so that each one is
planned. The ratio of a pair is of processor time. Claim: the median ratio of each question is at most 3.
"""

from __future__ import annotations

import argparse
import statistics
import time

import dpsql

ALLOWED_RATIO = 3.0
TABLES = """
CREATE TABLE visits AS
SELECT u AS patient, (u + i) % 3 AS city, (u * 7 + i) % 6 AS day, u % 11 AS shop, (u * 13 + i) % 100 AS cost
FROM range(400) a(u), range(3) b(i)
"""
DECLARED = (
    "dp_unit('patient', rho_budget := 1e6, delta_threshold := 0.4, delta_conversion := 1e-6)",
    "dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 3, "
    "max_rows_per_group := 4, coverage := FALSE)",
    "dp_domain('visits', 'city', keys := [0, 1, 2])",
    "dp_domain('visits', 'day', keys := [0, 1, 2, 3, 4, 5])",
    "dp_domain('visits', 'cost', bounds := [0, 100])",
)
TWO = "count(*) AS n, sum(cost) AS c FROM visits WHERE cost <> {}"
WITH = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS"
QUESTIONS = {
    "one group": f"SELECT {TWO}",
    "public keys, GAUSSIAN": f"{WITH} (mechanism = GAUSSIAN) city, {TWO} GROUP BY city",
    "public keys, CORRELATED": f"{WITH} (mechanism = CORRELATED_GAUSSIAN) city, day, {TWO} GROUP BY city, day",
    "private keys, GSHM": f"{WITH} (mechanism = GSHM) shop, {TWO} GROUP BY shop",
    "largest groups, CSH": f"{WITH} (mechanism = CSH, top_k = 8) shop, {TWO} GROUP BY shop",
    "weights": f"{WITH} (bounding = L2) shop, {TWO} GROUP BY shop",
    "window": f"{WITH} (rho_window = [0.000001, 1000]) shop, {TWO} GROUP BY shop",
    "running totals": (
        "SELECT day, sum(count(*)) OVER (ORDER BY day) AS n, sum(sum(cost)) OVER (ORDER BY day) AS c "
        "FROM visits WHERE cost <> {} GROUP BY day"
    ),
    "sets that add up": f"SELECT city, day, {TWO} GROUP BY ROLLUP (city, day)",
    "private sets": f"SELECT city, shop, {TWO} GROUP BY GROUPING SETS ((city), (shop))",
}


def explained(session: dpsql.Session, text: str, options: str) -> float:
    """Explain a question, and return the processor time in seconds."""
    began = time.process_time()
    session.sql(f"FROM dp_explain($${text}$$, {options})").fetchall()
    return time.process_time() - began


def measured(session: dpsql.Session, question: str, repeats: int) -> tuple[float, list[float]]:
    """Return the median time by rho in seconds, and the ratio of each pair."""
    by_rho, ratios = [], []
    for number in range(repeats + 1):
        # each filter is a text of its own, and each target a level of its own
        size = 40.0 + number
        target = f"target_half_width := {{'n': {size}, 'c': {100.0 * size}}}"
        ways = [(f"rho := {0.01 + number / 1000}", 1000 + number), (target, 2000 + number)]
        times = {}
        for options, filtered in ways if number % 2 else reversed(ways):
            times[options] = explained(session, question.format(filtered), options)
        # the first pair imports what is needed
        if number:
            by_rho.append(times[ways[0][0]])
            ratios.append(times[target] / times[ways[0][0]])
    return statistics.median(by_rho), ratios


def main() -> None:
    """Print the ratios, and exit with 1 if a median is above the claim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    medians = []
    with dpsql.connect(":memory:", state=None, threads=1) as session:
        session.connection.execute(TABLES)
        for call in DECLARED:
            session.sql(f"CALL {call}")
        print("question, ms by rho, and the time by half widths over it: median (least to most)")
        for name, question in QUESTIONS.items():
            seconds, ratios = measured(session, question, repeats)
            medians.append(statistics.median(ratios))
            print(f"{name:24} {1e3 * seconds:6.1f} {medians[-1]:6.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"largest median ratio: {max(medians):.2f}; claim: at most {ALLOWED_RATIO:g}")
    raise SystemExit(max(medians) > ALLOWED_RATIO)


if __name__ == "__main__":
    main()
