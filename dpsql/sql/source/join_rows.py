"""The rows of a join: whose they are, what reads them, and how many public tables make of one.

A join is private where, for every unit, the joined rows that carry it are a function of that unit's rows and of public
tables. So it may be with public rows on columns that agree, or with rows of the same unit on columns that lead to it:
then whatever it multiplies is the unit's own, and is bounded as ever. docs/proofs/relations.md has every rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dpsql.model.environment import Column, Environment, JoinedName, TableSchema
from dpsql.model.refusals import Refusals
from dpsql.operations.comparisons import cast_to, compared_type, comparison
from dpsql.operations.dialect import quote
from dpsql.sql.source.borders import bordered, hides_joins
from dpsql.sql.source.crossed_rows import crossed_places
from dpsql.sql.source.join_order import Apart
from dpsql.sql.source.joins import CROSS, FILTERING, FULL, INNER, LEFT, RIGHT, Joins, Step, is_apart
from dpsql.sql.source.relation import (
    HIDDEN_UNIT,
    Owner,
    Relation,
    are_one_unit,
    fresh,
    optional,
    renamed,
    with_columns_of,
)
from dpsql.sql.source.row_bounds import declares_one_row, with_bounds, with_levels_of
from dpsql.sql.source.row_cut import cut, single_row
from dpsql.sql.source.row_growth import (
    MOST_DEGREE,
    Ties,
    compared,
    growth,
    is_one_side,
    is_unique,
    own_columns_compared,
    reached,
    with_derived,
)

MOST_MATCHES = 1_000
"""Most joined rows that public tables may make of one protected row: what one row can cost is bounded."""


def joined(joins: Joins, environment: Environment, refusals: Refusals) -> Relation:
    """The joined rows as one relation.

    Raises:
        UnsupportedQueryError: rows of two units, or of nobody knows whom, would come together.

    """
    before = len(refusals.found)
    owners = [_owner_of(joins, 0)]
    extra: list[tuple[str, str, str]] = []
    for place in range(1, len(joins.parts)):
        owner, unit = _step_owner(place, owners[-1], joins, extra, refusals)
        owners.append(owner)
        extra += [unit] if unit else []
    refusals.raise_if_any(before)
    joins, ties = _without_growth(joins, refusals)
    parts = joins.parts
    matches = _check_matches(joins, ties, environment, refusals)
    owner, unique = with_bounds(joins, owners, multiplies=matches > 1)
    refusals.raise_if_any(before)
    texts = [_text(joins, place, ties, environment) for place in range(len(parts))]
    source = _whole_source(joins, texts, ties)
    # after RIGHT JOIN … USING a column has two names
    seen_once = list({seen.output.name: seen for seen in joins.columns}.values())
    selected = [f"{seen.sql} AS {quote(seen.output.name)}" for seen in seen_once]
    selected += [f"{sql} AS {quote(name)}" for name, _, sql in extra]
    readable = all(part.relation.schema.relation for part in parts)
    first = next((part for part in parts if part.relation.owner), parts[0]).relation.schema
    columns = [seen.output for seen in seen_once] + [Column(name, kind, True) for name, kind, _ in extra]
    schema = TableSchema(
        canonical=first.canonical,
        relation=f"(SELECT {', '.join(selected)} FROM {source})" if readable else "",
        columns=tuple(columns),
        catalog_name=first.catalog_name,
        names=tuple(
            JoinedName(seen.qualifier, seen.declared, seen.output.name, seen.hidden)
            for seen in joins.columns
            if seen.shown
        ),
    )
    reads = tuple(dict.fromkeys(read for part in parts for read in part.relation.reads))
    return Relation(
        schema,
        owner,
        f"({from_text(joins, [part.relation.identity for part in parts])})",
        reads,
        matches,
        unique=unique,
        cuts=tuple(dict.fromkeys(sentence for part in parts for sentence in part.relation.cuts)),
        single=tuple(dict.fromkeys(sentence for part in parts for sentence in part.relation.single)),
    )


def _without_growth(joins: Joins, refusals: Refusals) -> tuple[Joins, Ties]:
    """Return the joins, of which those sides are cut that multiply rows of a unit, and sides to compare by units.

    A side of which the policy counts one row of a unit, and which is compared by the unit alone, is cut to one row.
    Then it multiplies no other side. If it is compared by more, the one row may be another than the one that meets.
    """
    found = growth(joins)
    parts = list(joins.parts)
    for place in found.places:
        owner = parts[place].relation.owner
        if owner and declares_one_row(owner.rules) and own_columns_compared(joins, place) <= owner.names_unit:
            parts[place] = replace(parts[place], relation=single_row(parts[place].relation))
    if parts != list(joins.parts):
        joins = replace(joins, parts=tuple(parts))
        found = growth(joins)
    if found.degree > MOST_DEGREE:
        refusals.refuse(
            "source",
            joins.parts[0].node,
            f"more than {MOST_DEGREE} joined tables would each multiply the rows of a person by those of the others.",
            "Join on columns that a constraint keeps unique, or group each in a subquery by the unit first.",
        )
    for place in found.places:
        parts[place] = replace(
            parts[place], relation=cut(parts[place].relation, found.degree, found.keys.get(place, ()))
        )
    return replace(joins, parts=tuple(parts)), found.ties


def _tied(joins: Joins, ties: Ties) -> dict[int, list[str]]:
    """Return, by the later side, comparisons of the units of two sides."""
    texts: dict[int, list[str]] = {}
    for a, b in ties:
        one, other = (joins.parts[place].relation for place in (a, b))
        left, right = f"join_{a}.{one.unit_sql}", f"join_{b}.{other.unit_sql}"
        texts.setdefault(b, []).append(comparison(left, "=", right, (one.unit_type, other.unit_type)))
    return texts


def _whole_source(joins: Joins, texts: Sequence[str], ties: Ties) -> str:
    """Return FROM, and WHERE if protected sides are cut by windows, in which DuckDB reads these sides as a whole.

    In an inner join DuckDB looks at the rows of one side first. It reads only those rows of the other side that may
    match, and no row if there is none. The windows of a side are most of the work, so the time would show whether one
    row passed a filter of the other side. A full join reads both sides. WHERE keeps the rows that have both, and TRY
    hides that from the optimizer.
    """
    tied, steps, conditions, has_windows = _tied(joins, ties), list(joins.steps), [], False
    for place, (part, step) in enumerate(zip(joins.parts, joins.steps, strict=True)):
        relation = part.relation
        has_windows |= bool(relation.cuts or relation.single)
        if has_windows and relation.owner and step.kind == INNER:
            steps[place] = replace(step, kind=FULL)
            conditions += _comparisons(step, tied.get(place, ()))
    if not conditions or {step.kind for step in joins.steps} & {RIGHT, FULL}:
        return from_text(joins, texts, tied)
    return f"{from_text(replace(joins, steps=tuple(steps)), texts, tied)} WHERE TRY({' AND '.join(conditions)})"


def _comparisons(step: Step, ties: Sequence[str]) -> list[str]:
    """Return all that a step compares, the units included, in a fixed order."""
    equal = (comparison(left.sql, "=", right.sql, (left.output.type, right.output.type)) for left, right in step.equal)
    return sorted({*equal, *ties})


def from_text(joins: Joins, texts: Sequence[str], ties: Mapping[int, Sequence[str]] | None = None) -> str:
    """Return FROM without its first word.

    Args:
        joins: the sides.
        texts: of each side, its rows.
        ties: of some sides, comparisons beside those of its step.

    """
    steps = []
    for place, (step, text) in enumerate(zip(joins.steps, texts, strict=True)):
        equal = _comparisons(step, (ties or {}).get(place, ()))
        condition = f" ON {' AND '.join(equal)}" if equal else ""
        steps.append(f"{step.kind} {text} AS join_{place}{condition}".strip())
    return " ".join(steps)


def _text(joins: Joins, place: int, ties: Ties, environment: Environment) -> str:
    """Return the rows of a side, with a border around its tables if they must not be joined with others first."""
    relation = joins.parts[place].relation
    text = relation.schema.relation
    if not hides_joins(relation, environment) and (" JOIN " not in text or not is_one_side(joins, place, ties)):
        return text
    return bordered(text)


def _owner_of(joins: Joins, place: int) -> Owner | None:
    relation = joins.parts[place].relation
    owner = relation.owner
    if not owner:
        return None
    outputs = {seen.name: (seen.output.name,) for seen in joins.columns if seen.place == place}
    if owner.unit not in outputs:
        # the rows of a semi-join are not there, but what leads to their unit is compared
        outputs = {column.name: (column.name,) for column in relation.schema.columns}
    return renamed(owner, outputs, outputs[owner.unit][0])


def _step_owner(
    place: int, left: Owner | None, joins: Joins, extra: Sequence[tuple[str, str, str]], refusals: Refusals
) -> tuple[Owner | None, tuple[str, str, str] | None]:
    """Whose the rows are after a step; and, after FULL JOIN, the unit as one more column: its name, type and SQL."""
    part, step = joins.parts[place], joins.steps[place]
    filtering = step.kind in FILTERING
    right = part.relation.owner if filtering else _owner_of(joins, place)
    equal = {
        (one.output.name, other.name if filtering else other.output.name)
        for one, other in step.equal
        # what is computed is never the unit
        if one.shown and other.shown
    }
    if not right or not left:
        if filtering and right:
            refusals.add(
                "source",
                part.join,
                "the choice of public rows would reveal something about protected rows.",
                "Start from the protected table.",
            )
        owner = left if filtering else left or right
        return (owner if not owner or filtering else _with_equals(owner, step.kind, equal)), None
    if left.rules.unit != right.rules.unit:
        refusals.add(
            "source",
            part.join,
            f"rows of two units would be joined: {left.rules.unit} and {right.rules.unit}.",
            "Join tables of one unit.",
        )
    elif not are_one_unit(left, right, equal):
        refusals.add(
            "source",
            part.join,
            "two protected tables are joined, and not on the columns that say whose their rows are.",
            "Compare their privacy units, or the keys by which they are linked, as in a.unit = b.unit.",
        )
    # bounds of the joined rows are found once all sides are cut
    rules = with_levels_of(left.rules, right.rules)
    if filtering:
        return replace(left, rules=rules), None
    if step.kind == FULL:
        return _full(replace(left, rules=rules), right, step, joins, extra)
    if step.kind == RIGHT:
        owner = with_columns_of(right, optional(left))
    else:
        owner = with_columns_of(left, optional(right) if step.kind == LEFT else right)
    return _with_equals(replace(owner, rules=rules), step.kind, equal), None


def _with_equals(owner: Owner, kind: str, equal: Iterable[tuple[str, str]]) -> Owner:
    """The owner, with the columns that a step says are equal to the unit: in all rows, or those of an optional side.

    The side of an outer join whose rows are all kept learns nothing: where none matched, nothing was equal.
    """
    if kind == FULL:
        return owner
    pairs = sorted(equal)
    more = True
    while more:
        # one equality may name a column that another one compares
        named = owner.names_unit
        for pair in (pair for pair in pairs if set(pair) & named):
            if kind == INNER:
                owner = replace(owner, always=owner.always | set(pair), sometimes=owner.sometimes - set(pair))
            elif pair[kind == LEFT] not in named:
                owner = replace(owner, sometimes=owner.sometimes | {pair[kind == LEFT]})
        more = owner.names_unit != named
    return owner


def _full(
    left: Owner, right: Owner, step: Step, joins: Joins, extra: Sequence[tuple[str, str, str]]
) -> tuple[Owner, tuple[str, str, str]]:
    """After FULL JOIN either side names the unit; a column of its own holds it, made of earlier such ones."""
    held = {seen.output.name: (seen.output.type, seen.sql) for seen in joins.columns}
    held |= {name: (kind, sql) for name, kind, sql in extra}
    (kind, one), (right_kind, other) = held[left.unit], held[right.unit]
    both_kinds = compared_type(kind, right_kind)
    one, other = cast_to(one, kind, both_kinds), cast_to(other, right_kind, both_kinds)
    name = fresh(HIDDEN_UNIT, held)
    both = {
        merged.output.name
        for merged, (a, b) in zip(step.merged, step.equal, strict=False)
        if a.output.name in left.always and b.output.name in right.always
    }
    owner = with_columns_of(optional(left), optional(right))
    owner = replace(owner, unit=name, always=frozenset({name, *both}))
    return owner, (name, both_kinds, f"coalesce({one}, {other})")


def _check_matches(joins: Joins, ties: Ties, environment: Environment, refusals: Refusals) -> int:
    """Most rows that public tables make of one protected row: how long it takes would tell of that row.

    The engine joins in an order of its own, so a public table may be met through what is compared of it with any one
    table to which protected rows come without it, before the rest is compared. No more of its rows meet one row than
    agree on these columns. Of public tables alone, they are the rows that all others make of one row of some table:
    what is counted while a plan is made must not cost without bound either.
    """
    product, private = _matches(joins, environment, ties), any(part.relation.owner for part in joins.parts)
    if product > MOST_MATCHES:
        what = "of one protected row" if private else "of one of theirs"
        crosses = any(step.kind == CROSS for step in joins.steps)
        refusals.add(
            "source",
            joins.parts[0].node,
            f"public tables may make {product:,} rows {what}"
            f"{': a join without = meets all rows' if crosses else ', by these columns'}.",
            "Select fewer public rows in a subquery, as in JOIN (SELECT * FROM days WHERE day >= DATE '2024-01-01') d "
            f"ON …: at most {MOST_MATCHES:,} rows are joined to one."
            if crosses
            else "Compare columns that tell their rows apart, with one other table each, or join in a subquery first: "
            f"at most {MOST_MATCHES:,} rows are joined to one.",
        )
    return product if private else 1


def _matches(joins: Joins, environment: Environment, ties: Ties = ()) -> int:
    """Return the most joined rows that public tables make of one row, whatever the order of the joins."""
    private = [place for place, part in enumerate(joins.parts) if part.relation.owner]
    pairs = with_derived(compared(joins, ties), range(len(joins.parts)))
    crossed = crossed_places([place for place, step in enumerate(joins.steps) if step.kind == CROSS], joins.parts)
    factors = [1]
    for place, part in enumerate(joins.parts):
        if joins.steps[place].kind in FILTERING:
            continue
        if place in private:
            factors.append(part.relation.matches)
            continue
        starts = {one for one in private or range(len(joins.parts)) if one != place}
        met = reached(starts, [pair for pair in pairs if place not in pair])
        ways = sorted(
            {
                tuple(sorted({own for own, _ in names}))
                for (one, by), names in pairs.items()
                if one == place and by in met and place not in crossed
            }
        )
        # each of its rows meets every row if nothing is compared first
        factors.append(max(most_matches(part.relation, names, environment) for names in ways or [()]))
    return math.prod(factors) // (1 if private else max(factors))


def has_too_many_matches(joins: Joins, environment: Environment) -> bool:
    """Check that public tables make more rows of one row than a join may have."""
    return _matches(joins, environment) > MOST_MATCHES


def filtering_pairs(joins: Joins, environment: Environment) -> Apart:
    """Return the pairs of sides whose equalities may stay in WHERE, if public tables else make too many rows of one.

    Each public side is then joined to one other side alone: the one by whose columns fewest of its rows match a row.
    The other equalities filter the joined rows, as they do if the text has them in WHERE beside JOIN … ON.
    """
    kinds = [step.kind for step in joins.steps]
    pairs, inner = compared(joins), [kind in ("", INNER) for kind in kinds]
    public = {place for place, part in enumerate(joins.parts) if inner[place] and not part.relation.owner}
    edges = {frozenset(pair) for pair in pairs}
    nodes = [place for place, kind in enumerate(kinds) if kind not in FILTERING]
    # without a circle no equality can be spared, and rows that a later join keeps are filtered by no WHERE
    if len(edges) < len(nodes) or {RIGHT, FULL} & set(kinds) or not has_too_many_matches(joins, environment):
        return frozenset()
    met, kept = set(range(len(joins.parts))) - public, set[frozenset[int]]()
    while public - met:
        ways = [
            (most_matches(joins.parts[place].relation, sorted({own for own, _ in names}), environment), place, by)
            for (place, by), names in pairs.items()
            if by in met and place not in met
        ]
        if not ways:
            return frozenset()
        _, place, by = min(ways)
        met.add(place)
        kept.add(frozenset((place, by)))
    loose = {edge for edge in edges - kept if edge & public and inner[max(edge)]}
    written = [place for place in nodes if place and not is_apart(joins.parts[place].join)]
    if any(all(frozenset((place, before)) not in edges - loose for before in range(place)) for place in written):
        # this JOIN … ON would compare nothing with the tables before it
        return frozenset()
    return frozenset(frozenset(id(joins.parts[place].node) for place in edge) for edge in loose)


def most_matches(relation: Relation, names: Sequence[str], environment: Environment) -> int:
    """Most rows of public ones that agree on some columns."""
    # what is gone is not read, nor what a constraint answers
    if not relation.schema.relation or is_unique(relation, names):
        return 1
    version = relation.reads[0][1] if relation.is_table else None
    return environment.schemas.most_matches(relation.schema, names, version)
