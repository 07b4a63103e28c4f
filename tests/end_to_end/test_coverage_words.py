"""Sentences on averages, spreads and sums over AUTO's bounds are true in the words of the column, the worst first."""

from __future__ import annotations

import json

import numpy as np
import pytest

import dpsql
from benchmarks.coverage_words import CASES, Release, opened, released
from dpsql.frontends.dbt.log_line import log_line
from dpsql.release import cut_values
from dpsql.remote.wire import receipt_of as receipt_from_json
from dpsql.remote.wire import to_json
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

RELEASES = 18
UNITS = 1_500
EPSILON = 6.0


def _releases(name: str, count: int) -> list[Release]:
    seed = list(CASES).index(name)
    with opened(CASES[name], UNITS, seed, seeded_noise(seed)) as (session, units):
        return [released(session, CASES[name], units, EPSILON) for _ in range(count)]


def test_what_is_printed_is_true_on_six_tables() -> None:
    """18 releases: with probability 0.95 fewer than 15 are true with probability 0.01. The sentence before fails.

    `python -m benchmarks.coverage_words` counts 400 for each table.
    """
    found = [one for name in CASES for one in _releases(name, RELEASES // len(CASES))]
    assert len(found) >= RELEASES
    lines = [line for one in found for line in one.lines]
    # each average and sum has a line, and nearly all of them say how many units may have cut values
    assert len(lines) >= len(found)
    assert sum(line.most_cut < 1.0 for line in lines) > 0.7 * len(lines)
    assert sum(one.is_true for one in found) >= 15
    assert sum(one.was_true for one in found) < 15
    assert not any("sign" in str(line) or "distance" in str(line) for line in lines)


def _patients(key: str = "PRIMARY KEY") -> dpsql.Session:
    """Return a session with 4,000 patients with a weight each, of which nothing is declared but the unit."""
    session = dpsql.connect()
    session._runner.noise_source = seeded_noise(3)
    session.connection.execute(f"CREATE TABLE patients (id INTEGER {key}, ward VARCHAR, weight DOUBLE)")
    session.connection.execute(
        "INSERT INTO patients SELECT i, 'w' || i % 3, 40 + (i * 7919) % 600 / 10 FROM range(4000) p(i)"
    )
    session.sql("CALL dp_unit('patient', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)")
    session.sql("CALL dp_protect('patients', unit := 'patient', privacy_unit_column := 'id')")
    return session


def test_a_declared_bound_and_a_key_need_no_line() -> None:
    text = "SELECT ward, avg(weight) AS w, stddev(weight) AS s FROM patients GROUP BY ward"
    bounds = "CALL dp_domain('patients', 'weight', bounds := [0, {}])"
    with _patients() as session:
        session.sql(
            "CALL dp_protect('patients', replace := true, unit := 'patient', privacy_unit_column := 'id', "
            "max_groups_contributed := 1, max_rows_per_group := 1)"
        )
        session.sql(bounds.format(200))
        answer = session.sql(text, epsilon=4.0)
        assert receipt_of(answer).coverage == ()
        assert "bounds" not in str(answer)
    with _patients() as session:
        session.sql(
            "CALL dp_protect('patients', replace := true, unit := 'patient', privacy_unit_column := 'id', "
            "max_groups_contributed := 1, max_rows_per_group := 1)"
        )
        # a declaration that cuts much is not trusted
        session.sql(bounds.format(50))
        (line,) = receipt_of(session.sql(text, epsilon=4.0)).kept
        assert line.startswith("avg(weight), stddev(weight): at most 7")
        assert line.endswith(
            "of what its values add up to is counted; values outside [0, 50], if there are any, are cut"
        )
    with _patients(key="") as session:
        session.sql(
            "CALL dp_protect('patients', replace := true, unit := 'patient', privacy_unit_column := 'id', "
            "max_groups_contributed := 1, max_rows_per_group := 1)"
        )
        session.sql(bounds.format(200))
        (line,) = receipt_of(session.sql(text, epsilon=4.0)).kept
        assert line.startswith(
            "avg(weight), stddev(weight): values outside [0, 200], if there are any, are cut; at least "
        )
        assert "of its rows are counted for units (patient) with 1 of them" in line


def test_every_door_speaks_of_the_column() -> None:
    """And bounds that somebody writes are cut at, too: how many values, nobody measured."""
    with _patients() as session:
        answer = session.sql("SELECT avg(weight) AS w FROM patients", epsilon=4.0, delta=1e-6)
        receipt = receipt_of(answer)
        (line,) = receipt.coverage
        told = f"avg(weight): up to {line.most_cut * 100:.0f}"[:-1]
        for door in (str(answer), str(receipt), answer._repr_html_(), log_line("weights", receipt)):
            assert told in door
            assert "cut at [32, 128]" in " ".join(door.split())
        assert "cut at [32, 128]" in " ".join(text.get_text().replace("\n", " ") for text in answer.plot().texts)
        assert receipt_from_json(json.loads(json.dumps(to_json(receipt)))) == receipt
        named = session.sql(
            "SELECT avg(weight, contribution_bounds_per_row => (40, 60)) AS w FROM patients", epsilon=4.0
        )
        (line,) = receipt_of(named).coverage
        assert str(line).endswith(": it is unknown how many values are cut at [40, 60]")


def test_a_reader_is_told_by_the_point_that_chose_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    whole = cut_values._point_that_chose

    def listening(*given: object) -> object:
        point = whole(*given)  # type: ignore[arg-type]
        assert point
        read.append(point.rho_nano)
        return point

    monkeypatch.setattr(cut_values, "_point_that_chose", listening)
    text = "SELECT avg(weight) AS w FROM patients"
    with _patients() as session:
        session.sql("CALL dp_analyst('ana', rho_limit := 0.5)")
        (of_curator,) = receipt_of(session.sql(text, rho=4.0)).coverage
        ana = session.as_analyst("ana")
        (first,), (again,) = (receipt_of(ana.sql(text, rho=0.5)).coverage for _ in range(2))
    assert first == again != of_curator
    assert read[0] > 0.5e9 / 32 >= read[1] == read[2]
    assert first.most_cut > of_curator.most_cut
    assert np.isfinite(first.most_cut)


@pytest.mark.parametrize("mechanism", ["KEYS_FIRST", None])
def test_a_sum_of_values_from_0_on_has_an_amount_left_out(mechanism: str | None) -> None:
    """Also where its interval has 0 in its middle, since units do not recentre it."""
    with _patients(key="") as session:
        session.sql("CALL dp_domain('patients', 'weight', bounds := [0, 200])")
        text = "SELECT ward, sum(weight, contribution_bounds_per_row => (0, {})) AS w FROM patients GROUP BY ward"
        wide = receipt_of(session.sql(text.format(200), epsilon=4.0, mechanism=mechanism))
        cut = receipt_of(session.sql(text.format(20), epsilon=4.0, mechanism=mechanism))
    assert (wide.coverage, cut.coverage) == ((), ())
    (nothing,), (much,) = wide.left_out, cut.left_out
    assert nothing.is_amount
    assert nothing.columns == much.columns == ("w",)
    assert abs(nothing.found.value) < 5.0 * nothing.found.sigma
    # weights are 40 to 100, of which 20 are kept
    assert much.found.factor == pytest.approx(3.5, rel=0.2)
    assert all("amount" in str(one) and "size" not in str(one) for one in (*wide.kept, *cut.kept))
