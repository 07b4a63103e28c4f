"""Covariances, correlations, lines and geometric means through SQL: without noise they are DuckDB's."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

import dpsql
from tests.noise_sources import silence

COLUMNS = (
    *(f"{name}(y, x)" for name in ("covar_pop", "covar_samp", "corr", "regr_slope", "regr_intercept", "regr_r2")),
    *("geomean(z)", "geometric_mean(exp(x / 3))", "corr(x, y)", "regr_slope(w > 2, x)", "covar_pop(w, 2 * y + w)"),
    *("corr(y, x) FILTER (WHERE w > 1)", "geomean(z) FILTER (WHERE y > 0)"),
)


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect() as opened:
        opened.sql("CALL dp_unit('person', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)")
        silence(opened)
        yield opened


def fill(session: dpsql.Session, seed: int, *, strange: bool) -> str:
    """Create a random table of 40 people with up to three rows in each of two groups; return its name."""
    chance, table = random.Random(seed), f"t{seed}"

    def missing(value: float) -> str:
        return chance.choice(("NULL", "'nan'", "'inf'")) if strange and chance.random() < 0.15 else repr(value)

    rows = []
    for person in range(40):
        for group in range(2):
            for _ in range(chance.randrange(4)):
                x = chance.uniform(-5.0, 5.0)
                y = max(-9.0, min(9.0, chance.gauss(x * (1 - 3 * group), 2.0)))
                z, w = chance.choice((0.5, 1.0, 8.0, chance.uniform(0.2, 50.0))), chance.randrange(5)
                rows.append(f"({person}, {group}, {missing(x)}, {missing(y)}, {missing(z)}, {w})")
    session.connection.execute(
        f"CREATE TABLE {table} (person INTEGER, g INTEGER, x DOUBLE, y DOUBLE, z DOUBLE, w INTEGER NOT NULL)"
    )
    session.connection.execute(f"INSERT INTO {table} VALUES {', '.join(rows)}")
    session.sql(
        f"CALL dp_protect('{table}', unit := 'person', privacy_unit_column := 'person', coverage := FALSE, "
        "max_groups_contributed := 2, max_rows_per_group := 3)"
    )
    for column, low, high in (("x", -5, 5), ("y", -9, 9), ("z", 0.2, 50), ("w", 0, 4)):
        session.sql(f"CALL dp_domain('{table}', '{column}', bounds := [{low}, {high}])")
    session.sql(f"CALL dp_domain('{table}', 'g', keys := [0, 1])")
    return table


def test_without_noise_they_are_duckdbs(session: dpsql.Session) -> None:
    for seed in range(20):
        table = fill(session, seed, strange=seed % 2 == 1)
        columns = random.Random(seed).sample(COLUMNS, 3)
        private = session.sql(f"SELECT g, {', '.join(columns)} FROM {table} GROUP BY g ORDER BY g", rho=10).fetchall()
        for i, column in enumerate(columns, start=1):
            exact = session.connection.execute(_plain(column, table)).fetchall()
            assert [row[i] for row in private] == pytest.approx([row[0] for row in exact], rel=1e-4, abs=1e-4), column


def _plain(column: str, table: str) -> str:
    """Return DuckDB's query over rows with known values, without truth values and FILTER of a macro."""
    call, _, condition = column.partition(" FILTER (WHERE ")
    known = [f"isfinite({name})" for name in "xyz" if name in call.replace("exp", "")]
    where = " AND ".join([*known, condition.rstrip(")") or "true"])
    return f"SELECT {call.replace('w > 2', '(w > 2)::int')} FROM {table} WHERE {where} GROUP BY g ORDER BY g"


def test_one_order_of_a_pair_pays_for_the_other(session: dpsql.Session) -> None:
    table = fill(session, 100, strange=True)
    for column, is_free in (("corr(y, x)", False), ("corr(x, y)", True), ("regr_r2(x, y), regr_slope(x, y)", True)):
        receipt = session.sql(f"SELECT {column} FROM {table}", rho=0.1).receipt
        assert receipt
        assert (receipt.charged_rho == 0.0) is is_free, column


def test_auto_finds_the_bounds_of_both_values(session: dpsql.Session) -> None:
    session.connection.execute(
        "CREATE TABLE steps AS SELECT i AS person, i % 40 + 1.0 AS x, 3.0 * (i % 40) + i % 7 AS y FROM range(4000) t(i)"
    )
    session.sql("CALL dp_protect('steps', unit := 'person', privacy_unit_column := 'person', max_rows_per_group := 1)")
    result = session.sql("SELECT regr_slope(y, x) AS slope, geomean(x) AS mean FROM steps", rho=1)
    ((slope, mean),) = result.fetchall()
    # the largest values may be cut
    assert slope == pytest.approx(3.0, abs=0.3)
    assert mean == pytest.approx(16.0, abs=2.0)
    assert result.receipt
    notes = " ".join(result.receipt.notes)
    assert "y in regr_slope(y, x)" in notes
    assert "x in regr_slope(y, x)" in notes


def test_a_line_of_which_nothing_is_known_is_null_on_the_screen(session: dpsql.Session) -> None:
    table = fill(session, 101, strange=False)
    printed = str(session.sql(f"SELECT regr_slope(y, x) AS slope FROM {table}", rho=1e-4))
    assert "NULL in slope: the 95 % interval covers all of the number line" in printed


def test_bounds_of_either_value_are_told(session: dpsql.Session) -> None:
    table = fill(session, 102, strange=False)
    session.sql(f"CALL dp_protect('{table}', coverage := TRUE)")
    text = f"SELECT corr(y, x, contribution_bounds_per_row => ((-3, 3), (-2, 2))) AS c FROM {table}"
    receipt = session.sql(text, rho=5).receipt
    assert receipt
    lines = " ".join(map(str, receipt.kept))
    assert "values of y" in lines
    assert "values of x" in lines
