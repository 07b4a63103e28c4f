"""The query hash: the same for texts that mean the same, another for any that may answer differently."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.model.cells import Cells
from dpsql.model.frame import PRESENCE, Factorised, Largest, Ordering, Sparsity, Window
from dpsql.model.identity import frame_hash, query_hash, statistic_hash
from dpsql.model.private_query import PrivateQuery
from dpsql.model.rows import LinkStep
from dpsql.model.top_rows import ChosenBy
from dpsql.plan.planner import plan_query
from dpsql.sql.statements import SelectStatement, read_statement
from tests.frames import with_bounding, with_relation
from tests.sql.golden_records import NOW, Clinic, Record

BASE = "SELECT diagnosis, count(*), sum(cost) FROM visits WHERE urgent AND cost > 5 GROUP BY diagnosis"
SAME = {
    "layout and comments": BASE.replace(" FROM", "--x\n\n  from").replace("(*)", "( * )/* n */").replace(" > ", ">"),
    "capitals": BASE.upper(),
    "small letters": BASE.lower(),
    "quotes": BASE.replace("diagnosis", '"Diagnosis"').replace("cost", '"COST"').replace("visits", '"visits"'),
    "schema": BASE.replace("visits", "main.visits"),
    "database": BASE.replace("visits", "memory.main.visits"),
    "table alias": BASE.replace("diagnosis", "v.diagnosis").replace("cost", "V.cost").replace("visits", "visits AS v"),
    "column aliases": BASE.replace("diagnosis,", "diagnosis AS d,").replace("(*)", "(*) n"),
    "key by its alias": BASE.replace("diagnosis,", "diagnosis AS d,").replace("BY diagnosis", "BY d"),
    "position": BASE.replace("GROUP BY diagnosis", "GROUP BY 1"),
    "GROUP BY ALL": BASE.replace("GROUP BY diagnosis", "GROUP BY ALL"),
    "order of columns": BASE.replace("diagnosis, count(*), sum(cost)", "sum(cost), diagnosis, count(*)"),
    "order of conditions": BASE.replace("urgent AND cost > 5", "(cost > 5) AND (urgent)"),
    "repeated condition": BASE.replace("urgent AND", "urgent AND cost > 5 AND"),
    "repeated columns": BASE.replace("sum(cost)", "sum(cost), sum(cost) AS again, diagnosis AS same"),
    "arithmetic": BASE.replace("count(*), sum(cost)", "sum(cost) / count(*)"),
    "HAVING, ORDER BY and LIMIT": BASE + " HAVING count(*) > 3 ORDER BY 2 DESC LIMIT 5",
    "FROM first": "FROM visits SELECT diagnosis, count(*), sum(cost) WHERE urgent AND cost > 5 GROUP BY diagnosis",
    "the clause": BASE.replace("SELECT", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.3, delta = 1e-7)"),
    "the policy's own options": BASE.replace(
        "SELECT",
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (max_groups_contributed = 2, privacy_unit_column = patient_id)",
    ),
    "spelling of bounds": BASE.replace("sum(cost)", "sum(cost, contribution_bounds_per_row => (0, 500))"),
    "spelling of counts": BASE.replace("count(*)", "dp_count(1)"),
    "weight": BASE.replace("sum(cost)", "sum(cost, weight => 9)"),
    "private threshold by name": BASE.replace(
        "SELECT", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (group_selection_strategy = GAUSSIAN_THRESHOLD)"
    ),
    "min_privacy_units_per_group": BASE.replace(
        "SELECT", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (min_privacy_units_per_group = 9)"
    ),
}  # fmt: skip
OTHER = {
    "literal": BASE.replace("> 5", "> 6"),
    "type of a literal": BASE.replace("> 5", "> '5'"),
    "comparison": BASE.replace("> 5", ">= 5"),
    "column": BASE.replace("urgent", "NOT urgent"),
    "one condition fewer": BASE.replace("urgent AND ", ""),
    "OR": BASE.replace("urgent AND", "urgent OR"),
    "key": BASE.replace("diagnosis", "city"),
    "key expression": BASE.replace("diagnosis", "upper(diagnosis)"),
    "one key more": BASE + ", urgent",
    "no keys": "SELECT count(*), sum(cost) FROM visits WHERE urgent AND cost > 5",
    "one aggregate more": BASE.replace("count(*)", "count(*), count(cost)"),
    "one aggregate fewer": BASE.replace("count(*), ", ""),
    "bounds": BASE.replace("sum(cost)", "sum(cost, contribution_bounds_per_row => (0, 501))"),
    "per group": BASE.replace("sum(cost)", "sum(cost, contribution_bounds_per_group => (0, 500))"),
    "rows per group": BASE.replace("count(*)", "count(*, contribution_bounds_per_group => (0, 4))"),
    "FILTER": BASE.replace("count(*)", "count(*) FILTER (WHERE urgent)"),
    "argument": BASE.replace("count(*)", "count(cost)"),
    "max_groups": BASE.replace("SELECT", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (max_groups_contributed = 3)"),
    "a row for the groups that are not shown": BASE.replace(
        "SELECT", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (other_group = 'other')"
    ),
    "letter case of a value": BASE.replace("urgent", "city = 'Lund'").replace("'Lund'", "'lund'"),
}


@pytest.fixture(scope="module")
def clinic() -> Iterator[Clinic]:
    clinic = Clinic()
    yield clinic
    clinic.close()


def planned(clinic: Clinic, sql: str, **options: object) -> PrivateQuery:
    return clinic.plan(Record("", 0, "plan", sql, None, options, ()))


@pytest.mark.parametrize("difference", SAME)
def test_texts_that_mean_the_same_have_one_hash(difference: str, clinic: Clinic) -> None:
    assert query_hash(planned(clinic, SAME[difference])) == query_hash(planned(clinic, BASE))


def test_texts_that_may_answer_differently_have_hashes_of_their_own(clinic: Clinic) -> None:
    hashes = {query_hash(planned(clinic, sql)): name for name, sql in OTHER.items()}
    assert len(hashes) == len(OTHER)
    assert query_hash(planned(clinic, BASE)) not in hashes


def test_public_and_private_keys_are_different_frames(clinic: Clinic) -> None:
    sql = "SELECT city, count(*) FROM visits GROUP BY city"
    private = planned(clinic, sql, group_selection_strategy="GAUSSIAN_THRESHOLD")
    assert frame_hash(planned(clinic, sql).first.frame) != frame_hash(private.first.frame)


def test_parameters_hash_as_their_values(clinic: Clinic) -> None:
    def hashed(value: object) -> str:
        statement = read_statement("SELECT count(*) FROM visits WHERE cost > ?", [value])  # type: ignore[list-item]
        assert isinstance(statement, SelectStatement)
        return query_hash(plan_query(statement, clinic.environment))

    assert hashed(5) == query_hash(planned(clinic, "SELECT count(*) FROM visits WHERE cost > 5"))
    assert len({hashed(5), hashed(6), hashed("5"), hashed(None)}) == 4


def test_the_clock_is_part_of_the_hash(clinic: Clinic) -> None:
    statement = read_statement("SELECT count(*) FROM visits WHERE day > current_date")
    assert isinstance(statement, SelectStatement)
    tomorrow = dataclasses.replace(clinic.environment, clock=lambda: NOW.replace(day=22))
    later = dataclasses.replace(clinic.environment, clock=lambda: NOW.replace(hour=23))
    today = query_hash(plan_query(statement, clinic.environment))
    assert query_hash(plan_query(statement, tomorrow)) != today
    assert query_hash(plan_query(statement, later)) == today


def field_names(record: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(record)}


def test_everything_that_a_frame_holds_is_in_its_hash(clinic: Clinic) -> None:
    """A field that is added and forgotten in the hash would serve an old answer for a new question."""
    frame = planned(clinic, "SELECT city, count(*) FROM visits WHERE urgent GROUP BY city").first.frame
    assert frame.public_keys is not None
    own: dict[str, Any] = {
        "keys": (),
        "public_keys": dataclasses.replace(frame.public_keys, digest="other"),
        "mechanism": "csh",
        "window": Window(1, 2, 1e-6),
        "ceiling": 10**9,
        "generation": 1,
        "factorised": Factorised(Ordering(0, (3,), descending=False), 8),
        "largest": Largest(None, ChosenBy(("a", 1, 0), 3, 0.1, 0.95, 10)),
    }
    rows: dict[str, Any] = {
        "unit": "other",
        "table": "main.other",
        "version": "2",
        "filters": ("x",),
        "settings": (),
        "unit_column": dataclasses.replace(frame.rows.unit_column, sql='"other"'),
        "source": '("main.visits"@"1" AS join_0 JOIN "main.other"@"1" AS join_1 ON join_0."a" = join_1."b")',
        "links": (LinkStep(("a",), "main.parent", ("b",), "1"),),
        "outside": "the groups of another frame",
    }
    bounding: dict[str, Any] = {
        "max_groups": 1,
        "sparsity": Sparsity("top_k", 9),
        "minimum_units": 2,
        "counted_groups": 8,
        "by_norm": True,
        "max_rows": 40,
        "finer": dataclasses.replace(frame, rows=dataclasses.replace(frame.rows, version="3")),
    }
    assert field_names(frame) == {*own, "rows", "rows_sql", "bounding"}, "only the text that reads may differ"
    assert field_names(frame.rows) == {*rows, "reads"}, "the source holds what it reads"
    assert field_names(frame.bounding) == set(bounding)
    others = [
        *(dataclasses.replace(frame, **{name: value}) for name, value in own.items()),
        *(
            dataclasses.replace(frame, rows=dataclasses.replace(frame.rows, **{name: value}))
            for name, value in rows.items()
        ),
        *(with_bounding(frame, **{name: value}) for name, value in bounding.items()),
    ]
    assert len({frame_hash(other) for other in [frame, *others]}) == len(others) + 1
    assert frame_hash(with_relation(frame, "elsewhere")) == frame_hash(frame)


def test_another_order_of_kept_groups_is_another_frame(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = planned(clinic, "SELECT city, count(*) FROM visits WHERE urgent GROUP BY city").first.frame
    before = frame_hash(frame)
    monkeypatch.setattr("dpsql.model.identity.PRIORITY_VERSION", 2)
    assert frame_hash(frame) != before
    monkeypatch.undo()
    assert frame_hash(frame) == before


def test_everything_that_is_noised_of_a_sequence_is_in_its_hash(clinic: Clinic) -> None:
    frame = planned(clinic, BASE).first.frame
    # how many keys there are is in the digest of the public list
    assert field_names(Ordering) == {"axis", "lengths", "descending", "with_null"}
    assert field_names(Factorised) == {"ordering", "sixteenths"}
    ways = [
        Factorised(Ordering(axis, (3, 3), descending=descending), sixteenths)
        for axis in (0, 1)
        for descending in (False, True)
        for sixteenths in (1, 8)
    ]
    assert len({frame_hash(dataclasses.replace(frame, factorised=way)) for way in ways}) == len(ways)


def test_everything_that_bounds_the_keys_of_a_frame_is_in_its_hash(clinic: Clinic) -> None:
    frame = planned(clinic, BASE).first.frame
    assert field_names(Sparsity) == {"kind", "k"}
    bounded = (None, Sparsity("top_k", 9), Sparsity("top_k", 10), Sparsity("sketch", 9))
    hashes = {frame_hash(with_bounding(frame, sparsity=sparsity)) for sparsity in bounded}
    assert len(hashes) == len(bounded)


def test_everything_that_a_statistic_holds_is_in_its_hash(clinic: Clinic) -> None:
    query = planned(clinic, "SELECT sum(cost) FILTER (WHERE urgent) FROM visits")
    statistic = next(s for s in query.first.statistics if s != PRESENCE)
    changes = {
        "kind": "rows",
        "low_steps": -1,
        "high_steps": 1,
        "lattice_exponent": 7,
        "value_sql": "x",
        "filter_sql": "y",
        "row_bounds_steps": None,
        "group_bounds_steps": (0, 1),
        "limit": 99,
        "histogram": Cells(0.0, 1.0, finer=True),
    }
    assert set(changes) == field_names(statistic)
    assert field_names(Cells) == {"low", "high", "finer"}
    changed = [dataclasses.replace(statistic, **{name: value}) for name, value in changes.items()]  # type: ignore[arg-type]
    changed.append(dataclasses.replace(statistic, histogram=Cells(0.0, 1.0, finer=False)))
    hashes = {statistic_hash(other, query.first.frame) for other in [statistic, *changed]}
    assert len(hashes) == len(changes) + 2


@settings(max_examples=60)
@given(
    st.permutations(["city = 'Lund'", "cost > 1", "urgent", "day > DATE '2026-01-01'", "fee BETWEEN 1 AND 2"]),
    st.randoms(),
)
def test_conditions_may_be_joined_in_any_order_and_nesting(clinic: Clinic, parts: list[str], random: object) -> None:
    text = parts[0]
    for part in parts[1:]:
        text = f"({text}) AND {part}" if len(text) % 2 else f"{part} AND ({text})"
    both = [
        planned(clinic, f"SELECT count(*) FROM visits WHERE {where}") for where in (text, " AND ".join(sorted(parts)))
    ]
    assert query_hash(both[0]) == query_hash(both[1])
