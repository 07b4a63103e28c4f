"""The cap of a DB-API connection beside prices in several places and errors, and texts that are easily misread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal

import numpy as np
import pytest

import dpsql
from dpsql import dbapi
from dpsql.dbapi.spending import Amounts
from dpsql.errors import BudgetError, EntropyError, StateError
from dpsql.state import SideTable
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.test_dbapi import ABOVE, declare, refused, spent

WITH_OTHERS = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.02{more}) ward::VARCHAR AS w, count(*) AS n "
    "FROM visits GROUP BY w"
)


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        declare(session)
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        yield session


def counted(connection: dbapi.Connection) -> float:
    cap = connection._asking.cap
    assert cap is not None
    return float(cap._spent["patient"].level) if cap._spent else 0.0


def test_the_row_of_other_groups_is_counted_before_and_beside_stored_groups(session: dpsql.Session) -> None:
    """Its price stands beside that of the groups, which may cost nothing."""
    others = WITH_OTHERS.format(more=", other_group = 'rest'")
    small = dbapi.Connection(session.as_analyst("ana"), spend_at_most=0.03)
    assert isinstance(refused(small, others).reason, BudgetError)
    assert spent(session) == 0.0
    small.execute(WITH_OTHERS.format(more=""))
    assert isinstance(refused(small, others).reason, BudgetError)
    assert spent(session) == counted(small) == 0.02
    large = dbapi.Connection(session.as_analyst("ana"), spend_at_most=0.03)
    large.execute(others)
    assert spent(session) == pytest.approx(0.04)
    assert counted(large) == pytest.approx(0.02)


@pytest.mark.parametrize("error", [StateError("busy"), EntropyError("no entropy"), ValueError("a bug")])
def test_any_error_after_a_charge_keeps_the_price(
    session: dpsql.Session, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    capped = dbapi.Connection(session.as_analyst("ana"), default_rho=0.02, spend_at_most=0.05)
    with monkeypatch.context() as broken:
        broken.setattr(SideTable, "store", failing)
        refused(capped, ABOVE, [7])
    assert spent(session) == counted(capped) == 0.02


def test_a_refused_question_gives_its_price_back(session: dpsql.Session) -> None:
    capped = dbapi.Connection(session.as_analyst("ana"), default_rho=0.02, spend_at_most=0.05)
    refused(capped, "SELECT ward, max(cost) FROM visits GROUP BY ward")
    assert spent(session) == counted(capped) == 0.0


def test_a_price_of_nothing_needs_nothing() -> None:
    left = Amounts(Decimal("-1e-9"), Decimal("6.1728395e-09"))
    assert left.covers(Amounts(Decimal(0), Decimal("6.17284e-09")))
    assert not left.covers(Amounts(Decimal(0), Decimal("6.1729e-09")))
    assert not left.covers(Amounts(Decimal("1e-12"), Decimal(0)))


def test_comments_are_read_once(session: dpsql.Session) -> None:
    """Text after a comment is no comment, and many comments take no longer than their letters."""
    ana = dbapi.Connection(session.as_analyst("ana"))
    began = time.process_time()
    assert ana.execute("/*a*/" * 200 + "SELECT 1").fetchall() == [(1,)]
    # twice the time for each two comments would not end
    assert time.process_time() - began < 30.0
    asked = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.001) count(*) AS n FROM visits"
    text = f"/* a */ {asked} WHERE ward::VARCHAR <> '*/ EXPLAIN SELECT 1'"
    assert ana.execute(f"/* ** / */ EXPLAIN {text} AND cost > 1", []).description is not None
    ana.execute(text)
    assert spent(session) == pytest.approx(0.001)


def test_values_of_numpy_are_those_of_python(session: dpsql.Session) -> None:
    ana = dbapi.Connection(session.as_analyst("ana"), default_rho=0.001, spend_at_most=0.5)
    by_day = "SELECT ward, count(*) AS n FROM visits WHERE day >= ? GROUP BY ward ORDER BY ward"
    rows = ana.execute(by_day, [np.datetime64("2026-01-09T00:00:00", "ns")]).fetchall()
    assert rows == ana.execute(by_day, [np.datetime64("2026-01-09T00:00:00", "us").item()]).fetchall()


def test_a_name_that_is_no_text_is_refused(tmp_path: object) -> None:
    with pytest.raises(dbapi.ProgrammingError, match="the name of who asks"):
        dbapi.connect(str(tmp_path), analyst=5)  # type: ignore[arg-type]
