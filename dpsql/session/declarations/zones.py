"""Time zones that a table is declared with, and the warning where the curator's session has another one."""

from __future__ import annotations

from dpsql.engine import Engine
from dpsql.errors import PolicyError
from dpsql.model.environment import TableSchema
from dpsql.operations.dialect import text_literal
from dpsql.session.declarations.arguments import Arguments
from dpsql.sql.time_zones import unknown_zone
from dpsql.sql.zone_names import ZONES
from dpsql.state import ProtectedTable

_UTC = frozenset(
    f"{prefix}{name}" for prefix in ("", "Etc/") for name in ("UTC", "UCT", "GMT", "Greenwich", "Universal", "Zulu")
)
"""Names of one zone."""


def declared_zone(arguments: Arguments, before: ProtectedTable | None) -> str | None:
    """Return the time zone that a declaration names.

    Raises:
        PolicyError: it is not known, or the table has another one, which a repeated declaration does not change.

    """
    zone, is_named = arguments.read("time_zone", str), arguments.names_any("time_zone")
    if zone is not None and zone not in ZONES:
        raise PolicyError(" ".join(unknown_zone(zone)))
    if before and is_named and (zone or "UTC") != (before.time_zone or "UTC") and not arguments.flag("replace"):
        raise PolicyError(
            f"days and hours of table {before.table} are those of time zone {before.time_zone or 'UTC'}, and would be "
            f"those of {zone or 'UTC'}; add replace := true if that is meant"
        )
    return zone


def other_zone(schema: TableSchema, table: ProtectedTable, engine: Engine) -> str:
    """Return a warning if days of a table are those of another zone than the curator's session has; else empty.

    Args:
        schema: the table.
        table: what is declared of it.
        engine: knows the session.

    """
    if not any("WITH TIME ZONE" in column.type.upper() for column in schema.columns):
        return ""
    zone, here = table.time_zone or "UTC", engine.session_zone()
    if zone == here or {zone, here} <= _UTC:
        return ""
    told = f"; days and hours of its TIMESTAMPTZ values are those of time zone {zone}, and this session has {here}"
    cure = f": add time_zone := {text_literal(here)}, replace := true if that is meant"
    return told + (cure if here in ZONES else "")
