"""Public rows of which an outer join keeps every one, as in ``visits RIGHT JOIN cities``: a list that the text gives.

Each row with a unit is joined to one of these rows. So groups by their columns are among those that the public rows
have, whatever the protected rows are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpsql.model.environment import TableSchema
from dpsql.operations.dialect import quote
from dpsql.sql.source.join_rows import from_text
from dpsql.sql.source.joins import CROSS, INNER, LEFT, RIGHT, Joins
from dpsql.sql.source.relation import Relation


def kept_rows(joins: Joins) -> Relation | None:
    """Return the public rows that a join keeps, with the names of their columns in the joined rows.

    Args:
        joins: the sides.

    Returns:
        The rows of one side, or of the first sides joined. None if no public side keeps all its rows.

    """
    places = _kept_places(joins)
    kept = [joins.parts[place].relation for place in places]
    if not kept:
        return None
    seen_once = list({seen.output.name: seen for seen in joins.columns if seen.place in places}.values())
    selected = ", ".join(f"{seen.sql} AS {quote(seen.output.name)}" for seen in seen_once)
    is_there = all(relation.schema.relation for relation in kept)
    texts = [relation.schema.relation for relation in kept]
    schema = TableSchema(
        canonical=kept[0].schema.canonical,
        relation=f"(SELECT {selected} FROM {_rows(joins, places, texts)})" if is_there else "",
        columns=tuple(seen.output for seen in seen_once),
        catalog_name=kept[0].schema.catalog_name,
    )
    identity = f"(SELECT {selected} FROM {_rows(joins, places, [relation.identity for relation in kept])})"
    reads = tuple(dict.fromkeys(read for relation in kept for read in relation.reads))
    return Relation(schema, None, identity, reads)


def _rows(joins: Joins, places: range, texts: Sequence[str]) -> str:
    """Return FROM of some sides, each with its text."""
    if len(places) == 1:
        return f"{texts[0]} AS join_{places.start}"
    return from_text(replace(joins, parts=joins.parts[: places.stop], steps=joins.steps[: places.stop]), texts)


def _kept_places(joins: Joins) -> range:
    """Return the places of the public sides whose joined rows are all kept by the joins after them."""
    kept = range(0)
    for place, (part, step) in enumerate(zip(joins.parts, joins.steps, strict=True)):
        is_public = part.relation.owner is None
        if is_public and (step.kind in ("", INNER, CROSS, LEFT) and kept == range(place)):
            # public sides before the first protected one are one list
            kept = range(place + 1)
        elif step.kind != LEFT:
            kept = range(place, place + 1) if is_public and step.kind == RIGHT else range(0)
    return kept
