"""Statements over a table of pairs: each has the result of its statement over the rows, bit for bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st

import dpsql
from dpsql.bound.coverage import numbers_of
from dpsql.bound.formulations import Formulation, fastest_of_groups
from dpsql.bound.pairs import PAIRS, Pairs
from dpsql.bound.statement import Bounded
from dpsql.bound.unit_histograms import UnitCounts, extremes_sql, group_counts_sql, norms_sql, unit_histogram_sql
from dpsql.cascade.reader import CURATOR
from dpsql.engine.transaction import DuckDBTransaction
from dpsql.errors import UnsupportedQueryError
from dpsql.model.frame import PRESENCE, Frame, Sparsity, Statistic
from dpsql.operations import row_sql
from dpsql.plan.features.auto import GROUPS
from dpsql.plan.features.coverage import with_coverage
from dpsql.plan.features.key_rounds import first_round, next_round
from dpsql.sql.statements import SelectStatement, read_statement
from tests.frames import with_bounding, with_relation
from tests.unit.bound.exact_runs import SALT, Laboratory
from tests.unit.bound.normed_cases import normed_cases
from tests.unit.bound.query_descriptions import Case
from tests.unit.bound.random_cases import cases

_SHORT = settings(
    max_examples=7, derandomize=True, database=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,)
)


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def plain_frame() -> Frame:
    with dpsql.connect() as session:
        session.connection.execute("CREATE TABLE visits (patient INTEGER, city VARCHAR)")
        session.sql(
            "CALL dp_protect('visits', privacy_unit_column := 'patient', max_groups_contributed := 2, "
            "epsilon_budget := 10, delta_budget := 1e-5)"
        )
        statement = read_statement("SELECT city, count(DISTINCT patient) FROM visits GROUP BY city")
        assert isinstance(statement, SelectStatement)
        return session._runner.plan(statement, {"rho": 0.1, "delta": 1e-6}, CURATOR)[0].first.frame


def _rows(transaction: DuckDBTransaction, sql: str, listed: pa.Table | None) -> Counter[str]:
    table = transaction.aggregate(sql, listed_keys=listed, timeout_seconds=None)
    return Counter(map(repr, table.reveal().to_pylist()))


def _formulations(frame: Frame, *, has_native: bool) -> list[Formulation]:
    """Return the formulations of a frame over pairs."""
    return list(dict.fromkeys(["groups_first", "few_choose", fastest_of_groups(frame, has_native=has_native)]))


def _of_auto(statistics: tuple[Statistic, ...]) -> list[Statistic]:
    """Return what AUTO would ask about the same columns."""
    one = Statistic(kind="rows_norm", low_steps=0, high_steps=1, lattice_exponent=0)
    rows = [replace(one, value_sql=of.value_sql, filter_sql=of.filter_sql) for of in statistics if of.kind == "rows"]
    kinds = ("sum_norm", "group_extremes")
    return rows + [
        replace(one, kind=kind, value_sql=of.value_sql, filter_sql=of.filter_sql)  # type: ignore[arg-type]
        for of in statistics
        for kind in kinds
        if of.kind == "sum"
    ]


def _check(laboratory: Laboratory, case: Case) -> bool:
    with laboratory.run(case) as run:
        query = with_coverage(run.query.first)
        frame, listed, of_auto = query.frame, laboratory.public_keys(run), _of_auto(query.statistics)
        pairs = Pairs.of(frame, [*of_auto, *numbers_of(query.statistics)])
        if pairs is None or not pairs.serves(frame):
            return False
        with laboratory.engine.transaction() as transaction:
            counts = transaction.make_pairs(pairs, listed_keys=listed, timeout_seconds=None)
            for bounded in _readings(frame, query.statistics):
                _check_reading(transaction, bounded, listed, pairs, has_native=laboratory.has_native)
            _check_histograms(transaction, frame, of_auto, pairs, listed)
            _check_counts(transaction, frame, of_auto, counts, listed)
            if frame.has_private_keys:
                keys = _some_keys(transaction, frame)
                _check_rounds(transaction, frame, pairs, keys)
                for bounded in _readings_of_private_keys(frame, query.statistics):
                    _check_reading(transaction, bounded, keys, pairs, has_native=laboratory.has_native)
    return True


def _readings(frame: Frame, statistics: tuple[Statistic, ...]) -> list[Bounded]:
    """Return first readings of a frame, of numbers, of coverage beside them, and of coverage beside counts of units."""
    plain = tuple(one for one in statistics if not one.covered)
    covering = tuple(one for one in statistics if one.covered)
    beside = [Bounded(frame, due, covering, "covered_groups") for due in (plain, (PRESENCE,)) if covering]
    return [Bounded(frame, plain), *beside]


def _readings_of_private_keys(frame: Frame, statistics: tuple[Statistic, ...]) -> list[Bounded]:
    """Return first readings with a minimum and a subtraction, and one on the keys that a frame holds already."""
    plain = tuple(one for one in statistics if not one.covered)
    boundings = (
        replace(frame.bounding, minimum_units=2),
        replace(frame.bounding, minimum_units=2, sparsity=Sparsity("top_k", 1)),
    )
    first = [Bounded(replace(frame, bounding=bounding), plain) for bounding in boundings]
    return [*first, Bounded(frame, plain, held_keys=True)]


def _check_reading(
    transaction: DuckDBTransaction, bounded: Bounded, listed: pa.Table | None, pairs: Pairs, *, has_native: bool
) -> None:
    if not all(map(pairs.has, bounded.measured)):
        return
    expected = _rows(transaction, bounded.sql(SALT), listed)
    for formulation in _formulations(bounded.frame, has_native=has_native):
        for table in (pairs, None):
            if table or formulation == "groups_first" or bounded.coverage:
                sql = bounded.sql(SALT, formulation, table)
                assert _rows(transaction, sql, listed) == expected, (formulation, bool(table))


def _check_histograms(
    transaction: DuckDBTransaction, frame: Frame, of_auto: list[Statistic], pairs: Pairs, listed: pa.Table | None
) -> None:
    found = [_rows(transaction, group_counts_sql(frame, SALT, pairs=one), listed) for one in (None, pairs)]
    assert found[0] == found[1]
    for one in of_auto:
        sql = extremes_sql if one.kind == "group_extremes" else norms_sql
        found = [_rows(transaction, sql(frame, one, SALT, pairs=table), listed) for table in (None, pairs)]
        assert found[0] == found[1], one.kind


def _check_counts(
    transaction: DuckDBTransaction,
    frame: Frame,
    of_auto: list[Statistic],
    counts: UnitCounts,
    listed: pa.Table | None,
) -> None:
    """Compare what is counted when the table is made with the histograms over the rows."""
    for one in (GROUPS, *of_auto):
        places = counts.histogram(one)
        assert (places is not None) == (one.kind in ("groups", "rows_norm"))
        if places is not None:
            sql = unit_histogram_sql(frame, one, SALT)
            table = transaction.aggregate(sql, listed_keys=listed, timeout_seconds=None).reveal()
            assert Counter(places) == Counter(tuple(row.values()) for row in table.to_pylist())


def _some_keys(transaction: DuckDBTransaction, frame: Frame) -> pa.Table:
    """Return the first key, or none if no unit has one."""
    first = f"SELECT DISTINCT {', '.join(frame.key_columns)} FROM temp.main.{PAIRS} ORDER BY ALL LIMIT 1"
    return transaction.aggregate(first, listed_keys=None, timeout_seconds=None).reveal()


def _check_rounds(transaction: DuckDBTransaction, frame: Frame, pairs: Pairs, selected: pa.Table) -> None:
    """Compare a round of key selection on the rows of all keys but those that were selected."""
    later = next_round(first_round(frame, 2), 1, "selected")
    bounded = Bounded(later, (PRESENCE,))
    assert pairs.serves(later)
    expected = _rows(transaction, bounded.sql(SALT), selected)
    for formulation in ("groups_first", "few_choose"):
        assert _rows(transaction, bounded.sql(SALT, formulation, pairs), selected) == expected


@settings(_SHORT)
@given(case=st.one_of(cases(), normed_cases()))
def test_pairs_give_what_rows_give(laboratory: Laboratory, case: Case) -> None:
    _check(laboratory, case)


@settings(_SHORT, max_examples=2)
@given(case=cases().filter(lambda case: not case.query.keys))
def test_pairs_of_frames_without_keys_give_what_rows_give(laboratory: Laboratory, case: Case) -> None:
    assert _check(laboratory, case)


@pytest.mark.long
@settings(max_examples=2000, suppress_health_check=list(HealthCheck))
@given(case=st.one_of(cases(), normed_cases()))
def test_pairs_give_what_rows_give_over_many_cases(laboratory: Laboratory, case: Case) -> None:
    try:
        _check(laboratory, case)
    except UnsupportedQueryError:
        # a few sums are too far from 0 for their norm
        reject()


def test_pairs_serve_no_frame_that_keeps_some_rows_of_a_unit(plain_frame: Frame) -> None:
    pairs = Pairs.of(plain_frame, ())
    assert pairs is not None
    assert pairs.serves(plain_frame)
    assert not pairs.serves(with_bounding(plain_frame, max_rows=5))


def test_rows_that_a_salt_cuts_have_no_pairs(plain_frame: Frame) -> None:
    assert Pairs.of(with_relation(plain_frame, f"(SELECT * FROM visits WHERE {row_sql.SALT} > '')"), ()) is None
