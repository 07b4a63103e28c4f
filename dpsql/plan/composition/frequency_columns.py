"""Columns of mode and histogram, written over the counts of groups and values, and the join of these."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dpsql.operations.dialect import parse_statement, to_sql

WRITTEN = "dpsql_written"
"""Mark on the nodes of an outer statement that are computed from counts, and that no text has."""

MOST_LISTED = 1_000
"""Most keys in whose order mode chooses, because each value is compared with all of them."""


def called(name: str) -> exp.TableAlias:
    """Return the name of a source."""
    return exp.TableAlias(this=exp.to_identifier(name))


def mode_of(value: exp.Expr, rows: exp.Expr, listed: Sequence[str]) -> exp.Expr:
    """Return the value with the most rows, the first of several, or NULL if no value has a count above 0.

    Args:
        value: the value.
        rows: its count.
        listed: the declared keys as SQL, in whose order the first is found; else it is that of the values.

    """
    place = ""
    if 1 < len(listed) <= MOST_LISTED:
        keys = ", ".join(listed).replace("{", "{{").replace("}", "}}")
        place = f"list_position([{keys}], {{value}}), "
    order = f"{{rows}} DESC, {place}{{value}}"
    known = "FILTER (WHERE {rows} > 0 AND {value} IS NOT NULL)"
    return _parsed(f"(list({{value}} ORDER BY {order}) {known})[1]", value, rows)


def histogram_of(value: exp.Expr, rows: exp.Expr, bins: tuple[list[exp.Expr], str] | None) -> exp.Expr:
    """Return the counts of all values, or of all bins, in the order of the values."""
    known, shown = "FILTER (WHERE {value} IS NOT NULL)", "{value}"
    if bins:
        names, kind = bins
        shown = f"CAST(([{', '.join(map(to_sql, names))}])[{{value}} + 1] AS {kind})"
    counts = f"list(CAST(greatest({{rows}}, 0) AS UBIGINT) ORDER BY {{value}}) {known}"
    return _parsed(f"map(list({shown} ORDER BY {{value}}) {known}, {counts})", value, rows)


def _parsed(form: str, value: exp.Expr, rows: exp.Expr) -> exp.Expr:
    """Return an expression whose nodes are marked as those of no text."""
    found: exp.Expr = (
        parse_statement(f"SELECT {form.format(value=to_sql(value), rows=to_sql(rows))}").expressions[0].pop()
    )
    for node in found.walk():
        node.meta.clear()
        node.meta[WRITTEN] = True
    return found


def joined(base: str, source: exp.Subquery, keys: Sequence[str]) -> exp.Join:
    """Return the join of counts by the keys."""
    if not keys:
        return exp.Join(this=source, kind="CROSS")
    place = source.alias.rpartition("_")[2]
    pairs = [
        exp.NullSafeEQ(
            this=exp.column(key, table=base, quoted=True),
            expression=exp.column(f"{key}_{place}", table=source.alias, quoted=True),
        )
        for key in keys
    ]
    return exp.Join(this=source, side="LEFT", on=exp.and_(*pairs))
