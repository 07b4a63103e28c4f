"""The question that was paid for last, and its price, as the history and the ledger hold them."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpsql.state.charges import Spent
from dpsql.state.database import select_rows


@dataclass(frozen=True, slots=True)
class PaidQuestion:
    """A question that was charged for, and the price that it would have if nothing of it were stored.

    Attributes:
        query_hash: the question, as in receipts.
        asked_nano: the level that it asked for, as a clearance limits it.
        rho_nano: sum of the levels at which its statistics, and the histograms that AUTO chose by, are drawn.
        delta_units: sum of the largest delta that the reader was charged at once for each of them.

    """

    query_hash: str
    asked_nano: int
    rho_nano: int
    delta_units: int

    @property
    def price(self) -> Spent:
        """Both amounts of its price."""
        return Spent(self.rho_nano, self.delta_units)


# The last charged release; the others of its answer have its name, reader and moment, which is told in seconds.
_LAST = """
SELECT query_hash, analyst, at FROM release
WHERE reused = 0 AND (?2 IS NULL OR lower(trim(analyst)) = lower(trim(?2))) AND EXISTS (
    SELECT 1 FROM json_each(release.statistics) AS asked
    JOIN charge ON charge.statistic_hash = asked.value AND charge.unit = ?1
)
ORDER BY id DESC LIMIT 1
"""
# If a question was asked twice in a second, the last charged release of each frame comes last.
_SAME_ANSWER = """
SELECT analyst, statistics, levels, rho_nano, charged_rho_nano FROM release
WHERE query_hash = ? AND analyst = ? AND at = ? ORDER BY reused DESC, id
"""


def last_paid_question(connection: sqlite3.Connection, unit: str, analyst: str | None) -> PaidQuestion | None:
    """Return the last question about a unit that was charged for, or None if there is none.

    The price is that of a first asking, also if a part of the answer was stored already.

    Args:
        connection: in a transaction.
        unit: name of the privacy unit.
        analyst: who asked; None for any reader.

    """
    last = connection.execute(_LAST, (unit, analyst)).fetchone()
    if last is None:
        return None
    releases = [*{one["statistics"]: one for one in select_rows(connection, _SAME_ANSWER, last)}.values()]
    statistics = {statistic for one in releases for statistic in one["statistics"]}
    largest = _largest_charges(connection, unit, statistics, last[1])
    histograms = _histograms(connection, statistics)
    chosen_by = {
        statistic: level
        for one in releases
        for statistic, (level, *_) in zip(one["statistics"], one["levels"], strict=False)
        if statistic in histograms
    }
    asked_nano = rho_nano = _asked_level(connection, releases, histograms) + sum(chosen_by.values())
    if sum(one["charged_rho_nano"] for one in releases) > asked_nano:
        # only a ceiling charges more than is asked for: each statistic is drawn at the ceiling
        rho_nano = sum(each.rho_nano for each in largest)
    return PaidQuestion(last[0], asked_nano, rho_nano, sum(each.delta_units for each in largest))


def _histograms(connection: sqlite3.Connection, statistics: Iterable[str]) -> frozenset[str]:
    """Return those of the statistics that AUTO chose by."""
    rows = connection.execute(
        "SELECT DISTINCT statistic_hash FROM auto_choice WHERE statistic_hash IN (SELECT value FROM json_each(?))",
        (json.dumps(sorted(statistics)),),
    )
    return frozenset(statistic for (statistic,) in rows)


_ASKED = """
SELECT query_rho, statistic_hash, min(asked_rho), max(asked_rho) FROM pin
WHERE analyst = lower(?) AND statistic_hash IN (SELECT value FROM json_each(?)) GROUP BY query_rho, statistic_hash
"""


def _asked_level(
    connection: sqlite3.Connection, releases: Sequence[Mapping[str, Any]], histograms: frozenset[str]
) -> int:
    """Return the level in nano-rho that an answer was asked for at, without the histograms that AUTO chose by.

    A statistic may be served at a higher level that was stored; the pins of the reader tell what was asked for. The
    releases of an answer were asked for together, as grouping sets are, or one by one, as rounds of keys are. A release
    of an old state file has no pins: its level is the one that was served.
    """
    parts = {one["statistics"]: frozenset(one["statistics"]) - histograms for one in releases}
    asked: dict[int, dict[str, tuple[int, int]]] = {}
    names = json.dumps(sorted(frozenset().union(*parts.values())))
    for level, statistic, low, high in connection.execute(_ASKED, (releases[0]["analyst"], names)):
        asked.setdefault(level, {})[statistic] = low, high

    def level_of(together: Sequence[Mapping[str, Any]]) -> int | None:
        statistics = frozenset().union(*(parts[one["statistics"]] for one in together))
        served = sum(one["rho_nano"] for one in together)
        fitting = [
            level
            for level, found in asked.items()
            if level <= served
            and statistics <= found.keys()
            and sum(found[one][0] for one in statistics) <= level <= sum(found[one][1] for one in statistics)
        ]
        return max(fitting, default=None)

    whole = level_of(releases)
    return sum(level_of([one]) or one["rho_nano"] for one in releases) if whole is None else whole


_CHARGES = """
SELECT statistic_hash, id, coalesce(shown_rho, rho_nano), coalesce(shown_delta, delta_units), analyst FROM charge
WHERE unit = ? AND statistic_hash IN (SELECT value FROM json_each(?))
"""


def _largest_charges(
    connection: sqlite3.Connection, unit: str, statistics: Iterable[str], analyst: str
) -> tuple[Spent, ...]:
    """Return the largest rho and the largest delta that one charge of each statistic took.

    They are those of the analyst who asked, so that the price tells nothing about later questions of others. If others
    paid for a statistic alone, their charges count up to the last one of the analyst.
    """
    charges = connection.execute(_CHARGES, (unit, json.dumps(sorted(statistics)))).fetchall()
    until = max((row[1] for row in charges if row[4] == analyst), default=math.inf)
    found: dict[str, list[Spent]] = {}
    for is_own in (True, False):
        beside = frozenset(found)
        for statistic, number, rho_nano, delta_units, reader in charges:
            if (reader == analyst) is is_own and number <= until and statistic not in beside:
                # amounts of delta are decimal text
                found.setdefault(statistic, []).append(Spent(rho_nano, int(delta_units)))
    return tuple(
        Spent(max(one.rho_nano for one in each), max(one.delta_units for one in each)) for each in found.values()
    )
