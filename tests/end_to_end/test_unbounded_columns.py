"""Columns for which AUTO found no bounds: NULL, not paid for, and beside columns that keep their levels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any

import pytest

import dpsql
from tests.cures import filled
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

LEVEL: dict[str, Any] = {"rho": 0.02, "delta": 1e-6}
FAR = "CASE WHEN u % 2 = 0 THEN 1e25 ELSE -1e25 END"


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    """120 people with values of many sizes, in `v`, and others that no histogram tells, in `far`."""
    with dpsql.connect(threads=1) as opened:
        opened.connection.execute(
            "CREATE TABLE t AS SELECT u, u % 3 AS day, power(2, hash(u) % 40) AS v, "
            f"(hash(u) % 1000)::DECIMAL(9, 2) AS paid, {FAR} AS far FROM range(120) r(u)"
        )
        opened.sql("CALL dp_unit('person', rho_budget := 90, delta_threshold := 1e-2, delta_conversion := 1e-6)")
        opened.sql("CALL dp_protect('t', unit := 'person', privacy_unit_column := 'u')")
        opened.sql("CALL dp_domain('t', 'day', keys := [0, 1, 2])")
        opened._runner.noise_source = seeded_noise(9)
        yield opened


def null_notes(answer: dpsql.Result) -> list[str]:
    return [note for note in receipt_of(answer).notes if " is NULL, and not paid for" in note]


@pytest.mark.parametrize("key", ["day", ""])
def test_a_column_without_bounds_is_null_and_others_keep_their_levels(session: dpsql.Session, key: str) -> None:
    grouped, key = (" GROUP BY day ORDER BY day", "day, ") if key else ("", "")
    text = f"SELECT {key}count(*) AS n, {{}} FROM t{grouped}"
    empty = session.sql(text.format("sum(v) AS s, sum(v) / count(*) AS r, avg(v) AS a"), **LEVEL)
    frame = empty.df()
    assert frame[["s", "r", "a"]].isna().all(axis=None)
    assert frame.n.notna().all()
    assert {note.split(" is ")[0] for note in null_notes(empty)} == {"sum(v)", "avg(v)"}
    # of the same text with other values AUTO finds bounds, and the count has the noise that it has here
    session.connection.execute("UPDATE t SET v = 7")
    session.connection.execute("INSERT INTO t SELECT 200 + u, u % 3, 7, 7, 7 FROM range(6000) r(u)")
    session.sql("CALL dp_new_version('t')")
    full = session.sql(text.format("sum(v) AS s, sum(v) / count(*) AS r, avg(v) AS a"), **LEVEL)
    assert full.df().notna().all(axis=None)
    (one, *_), (other, *_) = receipt_of(empty).columns, receipt_of(full).columns
    assert one.l2 is not None
    assert other.l2 is not None
    assert one.sigma == pytest.approx((other.sigma or 0.0) * one.l2 / other.l2, rel=0.1)
    assert receipt_of(empty).charged_rho < 0.7 * receipt_of(full).charged_rho == pytest.approx(0.7 * 0.02)
    assert receipt_of(empty).epsilon == pytest.approx(receipt_of(full).epsilon, rel=1e-6)


def test_a_column_alone_is_null_on_every_key(session: dpsql.Session) -> None:
    for select, kind in (("sum(v)", "double"), ("sum(paid)", "decimal128(38, 2)"), ("sum(far)", "double")):
        answer = session.sql(f"SELECT day, {select} AS s FROM t GROUP BY day ORDER BY day", **LEVEL)
        assert answer.fetchall() == [(0, None), (1, None), (2, None)]
        assert str(answer.arrow().schema.field("s").type) == kind
        (note,) = null_notes(answer)
        assert f"\nnull    {note.split(',')[0]}" in str(answer)
        assert escape(note) in answer._repr_html_()


def test_what_is_computed_of_it_follows_null(session: dpsql.Session) -> None:
    text = "SELECT day, sum(v) AS s, dp_interval_low(s) AS low, coalesce(sum(v), -1) AS c FROM t GROUP BY day"
    assert {row[1:] for row in session.sql(f"{text} ORDER BY s, day", **LEVEL).fetchall()} == {(None, None, -1.0)}
    assert session.sql(f"{text} HAVING sum(v) > -1e300", **LEVEL).fetchall() == []
    totals = "SELECT day, sum(sum(v)) OVER (ORDER BY day) AS s FROM t GROUP BY day"
    assert [row[1] for row in session.sql(totals, **LEVEL).fetchall()] == [None] * 3
    assert session.sql(f"SELECT max(s) FROM ({text})", **LEVEL).fetchall() == [(None,)]


@pytest.mark.parametrize("select", ["avg(v)", "sum(v) FILTER (WHERE u > 3)", "sum(far)"])
def test_the_call_that_the_note_names_is_answered(session: dpsql.Session, select: str) -> None:
    (note,) = null_notes(session.sql(f"SELECT day, {select} FROM t GROUP BY day", **LEVEL))
    # more rho finds no values out of the range that AUTO can tell
    higher = "" if "out of the range" in note else ", or ask with more epsilon or rho"
    (cure,) = re.findall(rf"; write (.+){higher}$", note)
    assert ("more epsilon" in note) == bool(higher)
    answer = session.sql(f"SELECT day, {filled(cure)} AS s FROM t GROUP BY day", **LEVEL)
    assert null_notes(answer) == []
    assert [column.name for column in receipt_of(answer).columns] == ["s"]


def test_a_domain_bounds_one_row_of_a_unit(session: dpsql.Session) -> None:
    session.sql("CALL dp_domain('t', 'v', bounds := [0, 40])")
    session.sql("CALL dp_domain('t', 'far', bounds := [-1e25, 1e25])")
    for column, most in (("v", 40.0), ("far", 1e25)):
        answer = session.sql(f"SELECT day, sum({column}) AS s FROM t GROUP BY day", **LEVEL)
        receipt = receipt_of(answer)
        assert answer.df().s.notna().all()
        assert receipt.columns[0].l2 == pytest.approx(most)
        assert any(
            f"as much of a unit as one row may have within the bounds [{-most if most > 99 else 0:.9g}, "
            f"{most:.9g}]" in note
            for note in receipt.notes
        )


def test_explaining_says_the_same_for_nothing(session: dpsql.Session) -> None:
    text = "SELECT day, count(*) AS n, sum(v) AS s FROM t GROUP BY day"
    answer = session.sql(text, **LEVEL)
    before = session.sql("FROM dp_budget('person')").fetchall()
    rows = session.sql(f"FROM dp_explain($${text}$$, rho := 0.02, delta := 1e-6)").fetchall()
    assert [value for section, _, value in rows if section == "error" and " is NULL, and" in value] == null_notes(
        answer
    )
    assert [name for section, name, _ in rows if section == "expected error"] == ["n"]
    assert session.sql("FROM dp_budget('person')").fetchall() == before


def test_a_higher_level_finds_bounds_and_the_lower_answer_stays(session: dpsql.Session) -> None:
    session.connection.execute("INSERT INTO t SELECT 200 + u, u % 3, 7, 7, 7 FROM range(300) r(u)")
    text = "SELECT day, sum(v) AS s FROM t GROUP BY day ORDER BY day"
    low = session.sql(text, rho=0.001, delta=1e-6).fetchall()
    high = session.sql(text, rho=20, delta=1e-6).df()
    assert {value for _, value in low} == {None}
    assert high.s.notna().all()
    again = session.sql(text, rho=0.001, delta=1e-6)
    assert (again.fetchall(), receipt_of(again).charged_rho) == (low, 0.0)


def test_a_reader_may_not_ask_above_their_limit_because_columns_are_null(session: dpsql.Session) -> None:
    session.sql("CALL dp_analyst('ana', rho_limit := 0.5)")
    analyst = session.as_analyst("ana")
    far = ", ".join(f"sum(far + {i}) AS s{i}" for i in range(4))
    text = f"SELECT day, count(*) AS n, {far} FROM t GROUP BY day"
    assert len(null_notes(analyst.sql(text, rho=0.5, delta=1e-6))) == 4
    # what AUTO found lasts, and the count alone is below the limit
    for rho in (0.6, 1.0):
        with pytest.raises(dpsql.AccessError):
            analyst.sql(text, rho=rho, delta=1e-6)
    assert receipt_of(analyst.sql(text, rho=0.5, delta=1e-6)).charged_rho == 0.0
