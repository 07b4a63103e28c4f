"""The 500 most frequent of a million words, each of 100,000 authors using up to 200 of them: one query, no max_groups.

    python -m benchmarks.top_k [releases]

Top-k with correlated noise (what the text alone gets) against the Gaussian sparse histogram at several max_groups, each
through the front door. Precision is the share of the true 500 among the 500 rows asked for; the error is the root mean
square over the true 500 of shown less true number of authors, a word that is not shown counting as 0; beside it the
same over the shown ones alone. Bounding costs the sparse histogram what busy authors lose; top-k has none.
"""

from __future__ import annotations

import sys

import numpy as np

import dpsql

AUTHORS, WORDS, MOST_WORDS, WANTED = 100_000, 1_000_000, 200, 500
EPSILON, DELTA = 1.0, 1e-6
MAX_GROUPS = (1, 5, 10, 20, 50, 100, 200)


def main() -> None:
    """Print the table."""
    releases = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with dpsql.connect(":memory:", threads=2) as session:
        _write_words(session)
        session.sql(
            "CALL dp_protect('words', coverage := FALSE, "
            "privacy_unit_column := 'author', rho_budget := 1e9, delta_threshold := 0.9, "
            "delta_conversion := 1e-6)"
        )
        exact = session.connection.execute(
            "SELECT word, count(DISTINCT author) AS authors FROM words GROUP BY word ORDER BY authors DESC, word "
            f"LIMIT {WANTED + 1}"
        ).fetchall()
        truth = {str(word): float(authors) for word, authors in exact[:WANTED]}
        rows = session.connection.execute("SELECT count(*), count(DISTINCT word) FROM words").fetchone()
        assert rows is not None
        print(
            f"{rows[0]:,} rows, {rows[1]:,} words; the largest has {exact[0][1]:,} authors, number {WANTED} has "
            f"{exact[WANTED - 1][1]:,}\nepsilon = {EPSILON:g}, delta = {DELTA:g}, {releases} releases each\n"
        )
        print(f"{'':28} {'sigma':>8} {'shown':>6} {'precision':>10} {'error':>9} {'error if shown':>15}")
        _measure(session, "top-k, correlated noise", "", truth, releases)
        for max_groups in MAX_GROUPS:
            options = f", mechanism = GSHM, max_groups_contributed = {max_groups}"
            _measure(session, f"sparse, max_groups = {max_groups}", options, truth, releases)


def _write_words(session: dpsql.Session) -> None:
    """Authors with a Zipf number of words (most have few), words of Zipf frequency (exponent 1.05)."""
    random = np.random.default_rng(5)
    each = np.minimum(MOST_WORDS, (20.0 * random.pareto(1.2, AUTHORS) + 1.0)).astype(np.int64)
    shares = np.cumsum(np.arange(1, WORDS + 1) ** -1.05)
    author = np.repeat(np.arange(AUTHORS), each)
    word = np.searchsorted(shares / shares[-1], random.random(author.size))
    session.connection.register("drawn", {"author": author, "word": word})
    session.connection.execute("CREATE TABLE words AS SELECT DISTINCT author, 'w' || word AS word FROM drawn")
    session.connection.unregister("drawn")


def _measure(session: dpsql.Session, name: str, options: str, truth: dict[str, float], releases: int) -> None:
    sql = (
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = {EPSILON}, delta = {DELTA}{options}) "
        f"word, count(DISTINCT author) AS authors FROM words GROUP BY word ORDER BY authors DESC LIMIT {WANTED}"
    )
    squares, shown_squares, hits, shown = [], [], [], []
    for _ in range(releases):
        session.sql("CALL dp_new_version('words')")
        answer = session.sql(sql)
        found = dict(answer.fetchall())
        errors = np.array([found.get(word, 0.0) - count for word, count in truth.items()])
        among = np.array([word in found for word in truth])
        squares.append(np.mean(errors**2))
        shown_squares.append(np.mean(errors[among] ** 2) if among.any() else 0.0)
        hits.append(among.mean())
        shown.append(len(found))
    assert answer.receipt is not None
    sigma = answer.receipt.columns[-1].sigma
    print(
        f"{name:28} {sigma:8.2f} {np.mean(shown):6.0f} {np.mean(hits):10.1%} {np.sqrt(np.mean(squares)):9.1f} "
        f"{np.sqrt(np.mean(shown_squares)):15.1f}"
    )


if __name__ == "__main__":
    main()
