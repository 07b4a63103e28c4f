"""Small tables of a shop, a clinic, a web log and sensors at homes, their policy, and a comparison of rows.

A person (buyer, patient, visitor, home) is the privacy unit. Shops, products, wards, tariffs and days are public.
Bounds bind nothing, and each key of a text has several people: without noise, answers are exact. Quantiles are read
from cells, so a text says how far they may lie from the exact ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import dpsql
from tests.noise_sources import silence

Row = tuple[Any, ...]
NUMBERS = (int, float, Decimal)


def _drawn(seed: int, count: int) -> str:
    """Return SQL for a whole number from 0 to ``count - 1`` that follows from the row number ``i`` by a hash."""
    return f"(hash(i + {seed}000) % {count})::INT"


def _share(seed: int) -> str:
    """Return SQL for a number from 0 to 1 with many values."""
    return f"(hash(i + {seed}000) % 100003 / 100003.0)::DOUBLE"


def _word(seed: int, words: Sequence[str]) -> str:
    """Return SQL for one of some words. A word that occurs twice in the list is drawn twice as often."""
    return f"([{', '.join(repr(word) for word in words)}])[1 + {_drawn(seed, len(words))}]"


def _moment(seed: int, start: str, days: int) -> str:
    """Return SQL for a whole minute in the days after a start."""
    return f"TIMESTAMP '{start}' + to_minutes({_drawn(seed, days * 1440)})"


CHANNELS = ("web", "web", "web", "app", "app", "till")
STATUS = ("sent", "sent", "sent", "paid", "paid", "back")
CODES = ("SUMMER-10", "SUMMER-20", "FRIEND-5", "FRIEND-15", "WINTER-25")
MARKS = ("gift", "gift|express", "express", "express|pickup", "pickup", "gift|pickup")
DRUGS = ("aspirin", "aspirin;insulin", "insulin;statin", "statin", "aspirin;statin;insulin", "metformin")
DIAGNOSES = ("E11.9", "E11.2", "E66.0", "I10.0", "I21.4", "J45.1", "J45.9")
AGENTS = (
    "Mozilla/5.0 (X11; Linux) Firefox/131.0",
    "Mozilla/5.0 (Windows NT 10.0) Chrome/129.0",
    "Mozilla/5.0 (Macintosh) Safari/17.6",
    "examplebot/2.1 (+https://bots.example)",
    "news-crawler/1.0",
)
PATHS = ("/shop/item/", "/shop/item/", "/shop/list/", "/help/topic/", "/pay/thanks/")
REFERRERS = ("https://www.search.example/find", "https://news.example/today", "http://www.mail.example/", "")
FIRMWARE = ("v1.9.2", "v2.0.0", "v2.0.1", "v2.1.0")
SETUP = (
    "CREATE TABLE calendar AS SELECT d::DATE AS day, month(d)::INT AS month, d::DATE = last_day(d) AS month_end, "
    "dayofweek(d) IN (0, 6) AS weekend FROM range(TIMESTAMP '2023-10-01', TIMESTAMP '2024-04-01', INTERVAL 1 DAY) r(d)",
    "CREATE TABLE shop AS SELECT i::INT id, 'Shop ' || chr(65 + i::INT) AS name, (['north', 'south'])[1 + i % 2] AS "
    "region FROM range(5) r(i)",
    "CREATE TABLE product AS SELECT i::INT id, 'Product ' || i AS name, (['food', 'home', 'toys'])[1 + i % 3] AS kind, "
    "(3 + i * 5 % 17)::INT price FROM range(12) r(i)",
    f"CREATE TABLE buyer AS SELECT i::INT id, {_word(1, ('DE', 'DE', 'FR', 'IT'))} AS country, "
    f"DATE '2022-01-01' + {_drawn(2, 600)} AS joined FROM range(300) r(i)",
    f"CREATE TABLE purchase AS SELECT i::INT id, (i * 7 % 300)::INT AS buyer, {_drawn(10, 5)} AS shop, "
    f"{_drawn(11, 12)} AS product, {_moment(12, '2023-10-01', 183)} AS placed, 5 + 190 * {_share(13)} ** 2 AS amount, "
    f"1 + {_drawn(14, 6)} AS pieces, {_word(15, CHANNELS)} AS channel, {_word(16, STATUS)} AS status, "
    f"CASE WHEN i % 3 > 0 THEN {_word(17, CODES)} END AS code, "
    f"CASE WHEN i % 4 = 0 THEN ([5, 10, 20, 50])[1 + {_drawn(18, 4)}]::INT END AS voucher, "
    f"{_word(19, MARKS)} AS marks FROM range(3000) r(i)",
    "CREATE TABLE ward AS SELECT i::INT id, (['surgery', 'heart', 'children', 'eyes'])[1 + i] AS name, "
    "(12 + 6 * i)::INT beds FROM range(4) r(i)",
    f"CREATE TABLE patient AS SELECT i::INT id, {_word(30, ('f', 'm'))} AS sex, "
    f"DATE '1930-01-01' + {_drawn(31, 32000)} AS born, 150 + 45 * {_share(32)} AS height FROM range(300) r(i)",
    f"CREATE TABLE stay AS SELECT i::INT id, (i * 11 % 300)::INT AS patient, "
    f"{_drawn(40, 4)} AS ward, "
    f"{_moment(41, '2023-10-01', 183)} AS arrived, "
    f"{_moment(41, '2023-10-01', 183)} + to_minutes(30 + {_drawn(42, 5000)}) AS left_at, "
    f"20 + 900 * {_share(43)} ** 2 AS cost, {_drawn(44, 4)} = 0 AS urgent, {_word(45, DIAGNOSES)} AS diagnosis, "
    f"{_word(46, DRUGS)} AS drugs, 1 + {_drawn(47, 5)} AS triage FROM range(2400) r(i)",
    f"CREATE TABLE vital AS SELECT i::INT id, (i * 13 % 300)::INT AS patient, "
    f"DATE '2023-10-01' + {_drawn(50, 183)} AS taken, 100 + 70 * {_share(51)} AS systolic, "
    f"30 + 35 * {_share(51)} + 25 * {_share(52)} AS diastolic, "
    f"45 + 70 * {_share(53)} AS weight FROM range(2400) r(i)",
    f"CREATE TABLE hit AS SELECT i::INT id, (i * 17 % 400)::INT AS visitor, {_moment(60, '2024-03-01', 14)} AS seen, "
    f"{_word(61, PATHS)} || {_drawn(62, 6)} || {_word(63, ('', '?from=mail', '?from=a%20friend'))} AS url, "
    f"([200, 200, 200, 200, 301, 404, 500])[1 + {_drawn(64, 7)}]::INT AS status, 400 + {_drawn(65, 60000)} AS bytes, "
    f"3 + 900 * {_share(66)} ** 3 AS ms, {_word(67, AGENTS)} AS agent, {_word(68, REFERRERS)} AS referrer, "
    "(['A', 'B'])[1 + (i * 17 % 400) % 2] AS variant FROM range(4000) r(i)",
    "CREATE TABLE tariff AS SELECT i::INT id, (['night', 'day', 'evening'])[1 + i] AS name, ([0, 7, 19])[1 + i]::INT "
    "from_hour, ([6, 18, 23])[1 + i]::INT to_hour, ([12, 30, 24])[1 + i]::INT cents FROM range(3) r(i)",
    f"CREATE TABLE home AS SELECT i::INT id, {_word(80, ('coast', 'hills', 'town'))} AS region, DATE '1960-01-01' + "
    f"{_drawn(81, 20000)} AS built FROM range(250) r(i)",
    f"CREATE TABLE measure AS SELECT i::INT id, (i * 19 % 250)::INT AS home, {_word(82, ('kitchen', 'bath', 'attic'))} "
    f"|| '-temp-0' || (1 + i % 2) AS sensor, {_word(82, ('kitchen', 'bath', 'attic'))} AS room, "
    f"{_moment(83, '2024-03-04', 7)} AS seen, 5 + 25 * {_share(84)} AS celsius, 30 + 50 * {_share(85)} AS humidity, "
    f"60 + 1500 * {_share(86)} ** 2 + "
    f"20 * {_share(84)} AS watts, {_word(87, ('ok', 'ok', 'ok', 'low', 'low', 'fail'))} AS state, "
    f"{_word(88, FIRMWARE)} AS firmware FROM range(4000) r(i)",
    *(
        f"ALTER TABLE {table} ADD PRIMARY KEY ({key})"
        for table, key in (
            ("calendar", "day"),
            *((table, "id") for table in ("shop", "product", "buyer", "purchase", "ward", "patient", "stay", "vital")),
            *((table, "id") for table in ("hit", "tariff", "home", "measure")),
        )
    ),
)
"""Statements of DuckDB that create the tables."""
BOUNDS = "coverage := FALSE, max_groups_contributed := 60, max_rows_per_group := 60"
PEOPLE = {"buyer": "id", "patient": "id", "hit": "visitor", "home": "id"}
LINKS = {"purchase": "buyer", "stay": "patient", "vital": "patient", "measure": "home"}
COLUMN_BOUNDS = {
    "purchase": {"amount": (0, 200), "pieces": (0, 6), "voucher": (0, 50)},
    "patient": {"height": (140, 200)},
    "stay": {"cost": (0, 1000)},
    "vital": {"systolic": (60, 200), "diastolic": (20, 120), "weight": (30, 150)},
    "hit": {"bytes": (0, 100_000), "ms": (1, 1000)},
    "measure": {"celsius": (0, 40), "humidity": (0, 100), "watts": (0, 2000)},
}
"""Bounds of number columns: no value lies outside."""
COLUMN_KEYS = {
    ("purchase", "status"): ["back", "paid", "sent"],
    ("stay", "triage"): [1, 2, 3, 4, 5],
    ("measure", "state"): ["fail", "low", "ok"],
}
"""Columns whose values are public."""
POLICY = (
    "CALL dp_unit('person', rho_budget := 9e9, delta_threshold := 0.4, delta_conversion := 0.1)",
    *(
        f"CALL dp_protect('{table}', unit := 'person', privacy_unit_column := '{column}', "
        f"separate_people := true, {BOUNDS})"
        for table, column in PEOPLE.items()
    ),
    *(f"CALL dp_link('{table}', '{parent}', parent := '{parent}.id', {BOUNDS})" for table, parent in LINKS.items()),
    *(
        f"CALL dp_domain('{table}', '{column}', bounds := [{low}, {high}])"
        for table, columns in COLUMN_BOUNDS.items()
        for column, (low, high) in columns.items()
    ),
    *(f"CALL dp_domain('{table}', '{column}', keys := {keys})" for (table, column), keys in COLUMN_KEYS.items()),
    *(
        f"CALL dp_public('{table}', public_by_decision := 'made up')"
        for table in ("calendar", "shop", "product", "ward", "tariff")
    ),
)
LEVEL: dict[str, Any] = {"rho": 10.0, "delta": 1e-3}
"""Level of a text. Silenced noise hides no group of a few people."""


def create_tables(session: dpsql.Session) -> None:
    """Create the tables in a session's database, declare their policy, and let the session answer without noise."""
    for text in SETUP:
        session.connection.execute(text)
    for text in POLICY:
        session.sql(text)
    silence(session)


def _close(shown: object, exact: object, within: float) -> bool:
    """Return whether two values are equal. Numbers may differ by ``within`` and by a relative 1e-6."""
    if isinstance(shown, NUMBERS) and isinstance(exact, NUMBERS):
        return math.isclose(shown, exact, rel_tol=1e-6, abs_tol=max(within, 1e-6))
    if isinstance(shown, dict) and isinstance(exact, dict):
        return shown.keys() == exact.keys() and all(_close(shown[key], exact[key], within) for key in exact)
    if isinstance(shown, list | tuple) and isinstance(exact, list | tuple):
        return len(shown) == len(exact) and all(_close(one, two, within) for one, two in zip(shown, exact, strict=True))
    return shown == exact


def _sort_key(row: Row) -> tuple[tuple[bool, str], ...]:
    """Return a key that sorts rows with NULL and numbers of several types. Keys are the first columns of a text."""
    return tuple((value is None, f"{value:.4f}" if isinstance(value, NUMBERS) else str(value)) for value in row)


def assert_equal_rows(
    shown: Sequence[Row], exact: Sequence[Row], names: Sequence[str], within: Mapping[str, float], *, ordered: bool
) -> None:
    """Check that two lists of rows are equal, in their order or as multisets, up to the distances of columns."""
    if not ordered:
        shown, exact = sorted(shown, key=_sort_key), sorted(exact, key=_sort_key)
    assert len(shown) == len(exact), (len(shown), len(exact), shown[:5], exact[:5])
    for one, other in zip(shown, exact, strict=True):
        assert len(one) == len(other) == len(names)
        for name, mine, right in zip(names, one, other, strict=True):
            assert _close(mine, right, within.get(name, 0.0)), (name, one, other)
