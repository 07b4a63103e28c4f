"""Keys of ENUM types, which are texts: they are sorted by place once the curator declares the list public."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

import dpsql
from dpsql.errors import PolicyError
from tests.noise_sources import silence

ORDERED = "CALL dp_domain('stay', 'mood', ordered := true)"
BY_MOOD = "SELECT mood, count(*) AS n FROM stay GROUP BY mood"
PLACES, LETTERS = ["low", "mid", "high"], ["high", "low", "mid"]


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        for statement in (
            "CREATE TYPE mood AS ENUM ('low', 'mid', 'high', 'never')",
            "CREATE TABLE stay AS SELECT i % 500 AS guest, (['low', 'mid', 'high'][1 + i % 3])::mood AS mood, "
            "'house' || i % 3 AS house FROM range(3000) r(i)",
        ):
            session.connection.execute(statement)
        session.sql("CALL dp_unit('guest', rho_budget := 1e6, delta_threshold := 0.4, delta_conversion := 0.1)")
        session.sql(
            "CALL dp_protect('stay', unit := 'guest', privacy_unit_column := 'guest', max_groups_contributed := 9, "
            "max_rows_per_group := 9, default_rho := 1, default_delta := 1e-3)"
        )
        silence(session)
        yield session


def first_column(session: dpsql.Session, text: str) -> list[object]:
    return [row[0] for row in session.sql(text).fetchall()]


@pytest.mark.parametrize(
    ("text", "by_place"),
    [
        (f"{BY_MOOD} ORDER BY mood", PLACES),
        (f"{BY_MOOD} ORDER BY 1 DESC LIMIT 1", ["high"]),
        ("SELECT m, count(*) FROM (SELECT guest, mood AS m FROM stay) GROUP BY m ORDER BY ALL", PLACES),
        ("SELECT mood, count(*) AS n FROM stay GROUP BY ROLLUP (mood) ORDER BY mood NULLS FIRST", [None, *PLACES]),
        (f"{BY_MOOD} QUALIFY row_number() OVER (ORDER BY mood) < 3 ORDER BY mood", ["low", "mid"]),
        (f"SELECT * FROM ({BY_MOOD}) ORDER BY mood LIMIT 1", ["low"]),
        (f"SELECT * FROM ({BY_MOOD}) ORDER BY ALL DESC LIMIT 1", ["high"]),
        (f"SELECT DISTINCT mood FROM ({BY_MOOD}) ORDER BY mood", PLACES),
        (f"SELECT m FROM (SELECT DISTINCT mood AS m FROM ({BY_MOOD})) ORDER BY m", PLACES),
        (
            f"WITH a AS ({BY_MOOD}), b AS (SELECT n, mood AS m FROM a) SELECT m AS x FROM b ORDER BY 1 DESC",
            PLACES[::-1],
        ),
        (f"WITH a AS ({BY_MOOD}) SELECT mood, sum(n) FROM a GROUP BY ALL ORDER BY mood", PLACES),
        (
            f"SELECT mood FROM (SELECT *, row_number() OVER (ORDER BY mood) AS place FROM ({BY_MOOD})) WHERE place = 1",
            ["low"],
        ),
        # what is computed of a key is a text
        ("SELECT upper(mood) AS mood, count(*) FROM stay GROUP BY 1 ORDER BY mood", ["HIGH", "LOW", "MID"]),
        (f"SELECT upper(mood) AS mood FROM ({BY_MOOD}) ORDER BY mood", ["HIGH", "LOW", "MID"]),
    ],
)
def test_keys_come_by_place_where_the_list_is_public(session: dpsql.Session, text: str, by_place: list[object]) -> None:
    session.sql(ORDERED)
    assert first_column(session, text) == by_place


def test_keys_come_by_letters_where_nothing_is_declared_or_no_more(session: dpsql.Session) -> None:
    assert first_column(session, f"{BY_MOOD} ORDER BY mood") == LETTERS
    session.sql(ORDERED)
    assert first_column(session, f"{BY_MOOD} ORDER BY mood") == PLACES
    # a declaration that does not name the order keeps it
    session.sql("CALL dp_domain('stay', 'mood', keys := ['low', 'mid', 'high'])")
    assert first_column(session, f"{BY_MOOD} ORDER BY mood") == PLACES
    totals = session.sql("SELECT mood, sum(count(*)) OVER (ORDER BY mood) AS n FROM stay GROUP BY mood ORDER BY mood")
    assert [(mood, int(n)) for mood, n in totals.fetchall()] == [("low", 1000), ("mid", 2000), ("high", 3000)]
    session.sql("CALL dp_domain('stay', 'mood', ordered := false)")
    assert first_column(session, f"{BY_MOOD} ORDER BY mood") == LETTERS


def test_answers_are_texts_whose_unshown_members_are_nowhere(session: dpsql.Session) -> None:
    session.sql(ORDERED)
    answer = session.sql(f"{BY_MOOD} ORDER BY mood")
    assert str(answer.arrow().schema.field("mood").type) == "string"
    assert "never" not in str(answer) + str(answer.receipt)
    assert "never" not in str(session.sql(f"FROM dp_explain('{BY_MOOD} ORDER BY mood')").fetchall())


def test_another_list_later_is_sorted_by_letters_and_the_curator_is_told(
    session: dpsql.Session, caplog: pytest.LogCaptureFixture
) -> None:
    session.sql(ORDERED)
    assert not session.warnings
    assert first_column(session, f"{BY_MOOD} ORDER BY mood") == PLACES
    session.connection.execute("CREATE TYPE other AS ENUM ('mid', 'low', 'high')")
    session.connection.execute("ALTER TABLE stay ALTER mood TYPE other USING mood::VARCHAR::other")
    with caplog.at_level(logging.WARNING, "dpsql"):
        assert first_column(session, f"{BY_MOOD} ORDER BY mood") == LETTERS
    (told,) = (one for one in session.warnings if "sorts by letters" in one)
    assert told in caplog.messages
    session.sql(told[told.index("CALL") :])
    assert first_column(session, f"{BY_MOOD} ORDER BY mood") == ["mid", "low", "high"]
    session.connection.execute("ALTER TABLE stay ALTER mood TYPE VARCHAR")
    (told,) = (one for one in session.warnings if "sorts by letters" in one)
    session.sql(told[told.index("CALL") :])
    assert not any("sorts by letters" in one for one in session.warnings)


def test_only_an_enum_has_an_order(session: dpsql.Session) -> None:
    with pytest.raises(PolicyError, match="'house' is VARCHAR, and only an ENUM has an order; leave ordered out"):
        session.sql("CALL dp_domain('stay', 'house', ordered := true)")
