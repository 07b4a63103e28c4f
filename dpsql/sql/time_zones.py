"""Time zones in row expressions: which of them a query may name.

DuckDB fails outside TRY where it does not know a zone, so a name is looked up before anything is charged. A zone that a
column holds would be looked up row by row, so a zone is a literal.
"""

from __future__ import annotations

from sqlglot import exp

from dpsql.model.refusals import Refusals
from dpsql.model.similar_names import did_you_mean
from dpsql.operations.dialect import text_literal, written
from dpsql.sql.zone_names import ZONES

_LONGEST = 64
"""Longer texts are not repeated in a message."""
_NAMES = "Zones are named as 'America/New_York', 'Europe/Berlin' or 'UTC'."


def check_zone(call: exp.Anonymous, refusals: Refusals) -> None:
    """Note a refusal if a call of ``timezone`` names no zone that is known, as a literal."""
    zone = call.expressions[0] if len(call.expressions) == 2 else None
    if not (isinstance(zone, exp.RawString) or (isinstance(zone, exp.Literal) and zone.is_string)):
        refusals.add(
            "row_syntax",
            call,
            f"{written(call)} takes a time zone as a literal, and a timestamp.",
            "Write t AT TIME ZONE 'Europe/Berlin'.",
        )
    elif zone.name not in ZONES:
        refusals.add("row_syntax", zone, *unknown_zone(zone.name))


def unknown_zone(name: str) -> tuple[str, str]:
    """Return the message and the hint about a time zone that is not known."""
    shown = text_literal(name) if len(name) <= _LONGEST else "of this name"
    similar = did_you_mean(name, ZONES, "'{}'")
    return f"there is no time zone {shown}.", f"{similar} {_NAMES}".lstrip()
