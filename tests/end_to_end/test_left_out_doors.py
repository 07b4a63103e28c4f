"""A web log whose busy visitors are cut: every door says first that numbers are too low, and by how much."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dpsql
from dpsql.frontends.dbt.log_line import log_line
from dpsql.remote.wire import result_of, to_arrow
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

VISITORS, MOST = 2_000, 400
WARNING = r"too low  at least [\d,]+, probably [\d,]+ or more rows of busy visitors are left out"


def log() -> pd.DataFrame:
    """Return hits by a Pareto law of index 1.2, on seven pages."""
    sizes = np.minimum(((np.arange(VISITORS) + 0.5) / VISITORS) ** (-1 / 1.2), MOST).astype(int)
    visitor = np.repeat(np.arange(VISITORS), sizes)
    row = np.arange(len(visitor))
    return pd.DataFrame({"visitor": visitor, "page": [f"/{one}" for one in (visitor + row) % 7]})


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    """Return a session on the log, in which a visitor counts on 2 pages with 2 rows each."""
    hits = log()
    with dpsql.connect() as session:
        session._runner.noise_source = seeded_noise(2)
        session.connection.execute("CREATE TABLE log AS FROM hits")
        assert len(hits) > VISITORS
        session.sql("CALL dp_unit('visitor', epsilon_budget := 100, delta_budget := 1e-3)")
        session.sql(
            "CALL dp_protect('log', unit := 'visitor', privacy_unit_column := 'visitor', "
            "max_groups_contributed := 2, max_rows_per_group := 2)"
        )
        yield session


@pytest.fixture(scope="module")
def answer(session: dpsql.Session) -> dpsql.Result:
    """Return hits by page."""
    return session.sql("SELECT page, count(*) AS n FROM log GROUP BY page", epsilon=5, delta=1e-6)


def test_what_is_said_is_true(answer: dpsql.Result) -> None:
    (lost,) = receipt_of(answer).left_out
    shown = {page for page, _ in answer}
    truly = int(log()["page"].isin(shown).sum()) - lost.found.shown
    assert lost.found.is_too_low
    assert lost.found.groups == len(shown)
    assert 0.3 * truly < lost.found.least < truly + 4.0 * lost.found.shown_sigma
    assert lost.columns == ("n",)


def test_estimates_have_the_digits_of_their_numbers(session: dpsql.Session) -> None:
    columns = "count(*) AS n, dp_unbounded(n) AS whole, dp_unbounded_low(n) AS low, dp_unbounded_high(n) AS high"
    shown = session.sql(f"SELECT page, {columns} FROM log GROUP BY page", epsilon=5, delta=1e-6)
    assert all(0 <= low <= n <= whole <= high for _, n, whole, low, high in shown)
    assert not any(number % 1.0 for _, _, whole, _, high in shown for number in (whole, high))
    assert str(shown).count("±") == len(shown) + 1
    none = session.sql(f"SELECT {columns} FROM log WHERE page = '/9'", epsilon=5, delta=1e-6)
    assert all(0 <= low <= n <= whole for n, whole, low, _ in none)


def test_the_factor_names_its_column_beside_computed_numbers(session: dpsql.Session) -> None:
    """The number of groups is not too low."""
    text = "SELECT page, count(*) AS n, count(*) OVER () AS pages FROM log GROUP BY page"
    (line,) = [one for one in str(session.sql(text, epsilon=5, delta=1e-6)).splitlines() if one.startswith("whole")]
    assert line.endswith("× n, or more, if groups are cut alike: dp_unbounded(n)")


def test_people_beside_a_count_that_is_too_low_are_named_too(session: dpsql.Session) -> None:
    """Bounds leave out their groups as well, and the lines about that have no room."""
    text = "SELECT page, count(*) AS n, count(DISTINCT visitor) AS people FROM log GROUP BY page"
    (line,) = [one for one in str(session.sql(text, epsilon=5, delta=1e-6)).splitlines() if one.startswith("too low")]
    assert line.endswith("; people may be, too")


def test_a_number_that_is_computed_from_an_answer_is_no_lower_end(session: dpsql.Session) -> None:
    counts = "SELECT page, count(*) AS n FROM log GROUP BY page"
    computed = str(session.sql(f"SELECT page, 1000 - n AS n FROM ({counts})", epsilon=5, delta=1e-6))
    assert "≥" not in computed
    assert "too low" in computed
    assert "× the counted rows, or more, if groups are cut alike\n" in computed


def test_every_door_warns_first(answer: dpsql.Result, capsys: pytest.CaptureFixture[str]) -> None:
    receipt = receipt_of(answer)
    answer.show()
    printed = capsys.readouterr().out
    box, _, below = printed.partition("too low")
    assert box.count("≥ ") == len(answer)
    (first, second, *_) = f"too low{below}".splitlines()
    assert pd.Series([first]).str.fullmatch(WARNING).all(), first
    assert second.startswith("whole    about ")
    assert second.endswith(" × these numbers, or more, if groups are cut alike: dp_unbounded(n)")

    page = answer._repr_html_()
    assert page.count("≥ ") == len(answer)
    assert page.index(first) < page.index("whole    about") < page.index("<summary>")
    assert escape(str(receipt)) in page

    picture = answer.plot().texts[0].get_text()
    assert first in picture
    assert "light: about " in picture

    assert first in answer.lines_below(receipt_at="FROM dp_receipt()")
    assert log_line("hits", receipt).startswith("hits: too low: at least ")
    assert receipt.kept[0].startswith("numbers are too low: the whole is about ")


def test_a_reader_at_a_server_sees_the_same(answer: dpsql.Result) -> None:
    there = result_of(to_arrow(answer))
    assert there.printed().partition("price")[0] == answer.printed().partition("price")[0]
    assert str(there.receipt) == str(answer.receipt)


def test_a_frame_has_it_in_its_receipt() -> None:
    hits: Any = log()
    unit = dpsql.unit("visitor of doors", column="visitor", epsilon_budget=100, delta_budget=1e-3)
    sizes = hits.dp.groupby("page", unit=unit, epsilon=5, max_groups=2, max_rows_per_group=2).size()
    record = sizes.attrs["dpsql"]
    assert "numbers are too low: the whole is about " in repr(record)
    assert "dp_unbounded" not in repr(record)
    assert json.loads(json.dumps(record))["left_out"][0]["unit"] == "visitor of doors"
