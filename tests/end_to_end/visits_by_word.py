"""A table of visits with some words of 4,000 people, whose bounds leave rows and groups out; and its plans."""

from __future__ import annotations

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.model.frame import Statistic
from dpsql.model.identity import statistic_hash
from dpsql.model.private_query import FrameQuery
from dpsql.sql.statements import SelectStatement, read_statement
from dpsql.state import State
from tests.noise_sources import seeded_noise

QUESTION = "SELECT word, count(*) AS n FROM visits GROUP BY word"
TOTAL = (
    "SELECT count(*) AS n, dp_unbounded(n) AS whole, dp_unbounded_low(n) AS low, dp_unbounded_high(n) AS high "
    "FROM visits"
)
PEOPLE = "SELECT word, count(DISTINCT person) AS n FROM visits GROUP BY word"
SUMS = "sum(cost, contribution_bounds_per_row => (0, 4))"
SIGNED = "sum(cost - 3, contribution_bounds_per_row => (-2, 2))"
AVERAGE = "avg(cost, contribution_bounds_per_row => (0, 5))"
ROWS = 2
"""Rows of a person that count in a group."""


def opened(path: str = ":memory:", heavy: int = 0) -> dpsql.Session:
    """Open a session: 4,000 people have up to 38 words, and up to 3 rows for each; person 9999 has more rows."""
    session = dpsql.connect(path)
    session._runner.noise_source = seeded_noise(7)
    session.connection.execute(
        "CREATE OR REPLACE TABLE visits AS SELECT person, word, 1e0 + word % 5 AS cost FROM "
        "range(4000) p(person), range(40) w(word), range(3) r(i) "
        "WHERE (person * 31 + word * 17) % 41 < 1 + person % 38 AND i <= (person + word) % 3 "
        f"UNION ALL SELECT 9999, i % 7, 2e0 FROM range({heavy}) h(i)"
    )
    session.sql("CALL dp_unit('person', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)")
    session.sql(
        "CALL dp_protect('visits', unit := 'person', privacy_unit_column := 'person', max_groups_contributed := 30, "
        f"max_rows_per_group := {ROWS})"
    )
    return session


def sizes_of(session: dpsql.Session) -> tuple[int, int]:
    """Return the numbers of all rows and of all people."""
    (found,) = session.connection.execute("SELECT count(*), count(DISTINCT person) FROM visits").fetchall()
    return int(found[0]), int(found[1])


def planned(session: dpsql.Session, text: str, rho: float) -> tuple[FrameQuery, State]:
    """Return the query that a text becomes, with coverage, and the state it is planned on."""
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    query, state, _ = session._runner.plan(statement, {"rho": rho, "coverage": True}, CURATOR)
    return query.first, state


def top_levels(session: dpsql.Session, text: str, rho: float) -> dict[Statistic, int]:
    """Return the highest stored level of each statistic of a query."""
    query, state = planned(session, text, rho)
    tops = {one: state.side_table.levels(statistic_hash(one, query.frame)) for one in query.statistics}
    return {one: levels[0].rho_nano for one, levels in tops.items() if levels}
