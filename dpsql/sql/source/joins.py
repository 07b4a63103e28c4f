"""Joins as they are written: which sources of a FROM clause are joined how, and on which columns.

Rows meet where columns agree: by ON, USING or NATURAL, or by what WHERE says beside a comma. Whose the rows are that
come of it, `joined_rows` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.errors import SchemaError
from dpsql.model.environment import Column, Environment
from dpsql.model.refusals import Refusals
from dpsql.operations.comparisons import cast_to, compared_type
from dpsql.operations.dialect import span_of, written
from dpsql.sql.clauses import conjuncts
from dpsql.sql.source.computed_ends import ComputedEnds
from dpsql.sql.source.crossed_rows import is_compared_with_public, is_with_list
from dpsql.sql.source.join_order import Apart, in_reach, shared_conditions, sides_of
from dpsql.sql.source.relation import fresh
from dpsql.sql.source.seen_columns import Part, SeenColumn, columns_named, columns_of, own_columns

INNER, LEFT, RIGHT, FULL, SEMI, ANTI = "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN"
CROSS = "CROSS JOIN"
"""The join of each row with each row of a list of values, or of few public rows."""
_KINDS = {
    ("", ""): INNER,
    ("", "INNER"): INNER,
    ("LEFT", ""): LEFT,
    ("LEFT", "OUTER"): LEFT,
    ("RIGHT", ""): RIGHT,
    ("RIGHT", "OUTER"): RIGHT,
    ("FULL", ""): FULL,
    ("FULL", "OUTER"): FULL,
    ("", "SEMI"): SEMI,
    ("", "ANTI"): ANTI,
}
FILTERING = (SEMI, ANTI)
MOST_TABLES = 12


@dataclass(frozen=True, slots=True)
class Step:
    """How a part is joined: what has to be equal, and what its own rows have to be before."""

    kind: str
    equal: tuple[tuple[SeenColumn, SeenColumn], ...] = ()
    own: tuple[exp.Expr, ...] = ()
    merged: tuple[SeenColumn, ...] = ()


@dataclass(frozen=True, slots=True)
class Joins:
    """Parts in the order in which they are joined, their steps, and the columns that come of them.

    ``spares`` says whether an equality of expressions only filters the joined rows. ``decided`` are columns that WHERE
    compares by ``=`` with an expression of other sides, each with the places of these.
    """

    parts: tuple[Part, ...]
    steps: tuple[Step, ...]
    columns: tuple[SeenColumn, ...]
    spares: bool = False
    decided: tuple[tuple[SeenColumn, frozenset[int]], ...] = ()


class _Reader:
    """Reads steps one after the other; ``columns`` are those of the parts so far."""

    def __init__(
        self,
        parts: Sequence[Part],
        where: Sequence[exp.Expr],
        environment: Environment,
        refusals: Refusals,
        apart: Apart,
        *,
        every: bool,
    ) -> None:
        self._parts = parts
        self._apart = apart
        self._every = every
        self.spares = False
        self._text = refusals.text
        self._refusals = refusals
        self.where = list(where)
        self._own = columns_of(parts)
        self._taken = {seen.output.name for own in self._own for seen in own}
        self.columns: list[SeenColumn] = []
        self.computed = ComputedEnds(parts, environment, refusals)

    def step(self, place: int) -> Step:
        """How the part at a place is joined; None of its columns is known to those before."""
        part, right = self._parts[place], self._own[place]
        join = part.join
        if not join:
            self.columns += right
            return Step("")
        kind = kind_of(join)
        using, on, method = join.args.get("using") or [], join.args.get("on"), _word(join, "method")
        apart = is_apart(join)
        if apart or not kind or method not in ("", "NATURAL") or not (using or on or method):
            equal = self._equalities_of_where(place) if apart else []
            if not equal and self._meets_each_row(place, join):
                self.columns += right
                self.computed.add_step(place, INNER)
                return Step(CROSS)
            if not equal:
                self._refusals.add(
                    "source",
                    join,
                    "this kind of join has no private form.",
                    "Use JOIN or LEFT JOIN, with ON a.x = b.y or USING (x). Beside FROM a, b use WHERE a.x = b.y.",
                )
            self.columns += right
            self.computed.add_step(place, INNER)
            return Step(INNER, tuple(equal))
        if kind in (RIGHT, FULL) and any(is_apart(other.join) for other in self._parts[1:place]):
            self._refusals.add(
                "source", join, "a comma before RIGHT or FULL JOIN has no private form.", "Use JOIN … ON there."
            )
        names = [name.name for name in using] if not method else self._common(right, join)
        pairs = [self._used(name, right, join) for name in names]
        step = self._conditions(place, kind, pairs, conjuncts(on)) if on else Step(kind, tuple(pairs))
        self.computed.add_step(place, kind)
        return self._with_merged(step, right, len(pairs))

    def _meets_each_row(self, place: int, join: exp.Join) -> bool:
        """Check that each row meets each row of a list of values, or of public rows that WHERE compares with it."""
        if _word(join, "side") or _word(join, "method") or _word(join, "kind") not in ("", "INNER", "CROSS"):
            return False
        compared = is_apart(join) and is_compared_with_public(self.where, self._parts, place)
        return compared or is_with_list(self._parts, place)

    def _common(self, right: Sequence[SeenColumn], join: exp.Join) -> list[str]:
        visible = [seen.declared for seen in right if seen.shown and not seen.hidden]
        names = [name for name in visible if columns_named(self.columns, name)]
        if not names:
            self._refusals.add("source", join, "NATURAL JOIN finds no column that both have.", "Use JOIN … ON.")
        return names

    def _used(self, name: str, right: Sequence[SeenColumn], join: exp.Join) -> tuple[SeenColumn, SeenColumn]:
        ends = [columns_named(side, name) for side in (self.columns, right)]
        if any(len(end) != 1 for end in ends):
            node = next((one for one in join.args.get("using") or [] if one.name == name), join)
            raise SchemaError(
                f"USING ({name}) needs one column of this name on either side.", span=span_of(node, self._text)
            )
        return ends[0][0], ends[1][0]

    def _equalities_of_where(self, place: int) -> list[tuple[SeenColumn, SeenColumn]]:
        """Return the equalities of WHERE between this part and those before; they are taken out of it.

        Whole numbers of two widths join only if no columns of one type do. Else they stay in WHERE.
        """
        written = [(condition, self._pair(condition, place)) for condition in self.where]
        implied = [self._pair(shared, place) for condition in self.where for shared in shared_conditions(condition)]
        found = [pair for pair in (*(pair for _, pair in written), *implied) if pair]
        joining = [pair for pair in found if _are_of_one_type(pair)] or found
        self.where = [condition for condition, pair in written if pair not in joining]
        if not joining:
            computed = [(condition, self._computed_pair(condition, place)) for condition in self.where]
            self.where = [condition for condition, pair in computed if not pair]
            joining = [pair for _, pair in computed if pair]
        return joining

    def _pair(self, condition: exp.Expr, place: int) -> tuple[SeenColumn, SeenColumn] | None:
        """Return columns that a condition says are equal, one before this part and one of it."""
        if not isinstance(condition, exp.EQ):
            return None
        ends = [self._candidates(side, place) for side in sides_of(condition) if isinstance(side, exp.Column)]
        if len(ends) != 2 or any(len(found) != 1 for found in ends):
            return None
        left, right = sorted((ends[0][0], ends[1][0]), key=lambda seen: seen.place)
        joins = right.place == place != left.place and bool(compared_type(left.output.type, right.output.type))
        return (left, right) if joins and not self._stay_apart(left, right) else None

    def _computed_pair(self, condition: exp.Expr, place: int) -> tuple[SeenColumn, SeenColumn] | None:
        """Return columns as ``_pair`` does, of which one or both are computed of columns of one part."""
        if not isinstance(condition, exp.EQ) or condition.find(exp.Query):
            return None
        named = [[self._candidates(column, place) for column in own_columns(side)] for side in sides_of(condition)]
        if not all(named) or any(len(found) != 1 for side in named for found in side):
            return None
        places = [{found[0].place for found in side} for side in named]
        if any(len(one) != 1 for one in places) or {place} not in places or places[0] == places[1] or {-1} in places:
            return None
        if self._stay_apart(named[0][0][0], named[1][0][0]):
            return None
        ends = [
            found[0][0] if isinstance(side, exp.Column) else self.computed.end(side, found[0][0].place, self._taken)
            for side, found in zip(sides_of(condition), named, strict=True)
        ]
        left, right = sorted(ends, key=lambda seen: seen.place)
        return left, right

    def _stay_apart(self, left: SeenColumn, right: SeenColumn) -> bool:
        return frozenset(id(self._parts[seen.place].node) for seen in (left, right)) in self._apart

    def _conditions(
        self, place: int, kind: str, pairs: Sequence[tuple[SeenColumn, SeenColumn]], conditions: Sequence[exp.Expr]
    ) -> Step:
        equal, own, others = list(pairs), [], []
        for condition in conditions:
            columns = [self._find(column, place) for column in own_columns(condition)]
            places = {seen.place for seen in columns}
            plain = isinstance(condition, exp.EQ) and all(isinstance(side, exp.Column) for side in sides_of(condition))
            joins = plain and place in places and len(places) == 2 and not self._stay_apart(columns[0], columns[1])
            if joins:
                left, right = sorted(columns, key=lambda seen: seen.place)
                equal.append((left, right))
            else:
                others.append((condition, places))
        filters = kind == INNER and not self._is_kept_later(place)
        # beside columns that join, an expression filters joined rows: a filter is a part of hashes
        spares = bool(filters and equal) and not self._every
        for condition, places in others:
            pair = None if spares else self._computed_pair(condition, place)
            self.spares |= spares and isinstance(condition, exp.EQ) and place in places and len(places) == 2
            if pair:
                equal.append(pair)
            elif filters:
                self.where.append(condition)
            elif kind in (LEFT, *FILTERING) and places == {place}:
                own.append(condition)
            else:
                inner = kind not in FILTERING and is_compared_with_public([condition], self._parts, place)
                self._refusals.add(
                    "source",
                    condition,
                    f"{written(condition)} cannot decide which rows of this join match.",
                    f"Use JOIN in place of {kind}: an inner join with public rows may compare so."
                    if inner
                    else "Compare this table with an earlier one by = in ON; put other conditions into WHERE, or into "
                    "a subquery of one side.",
                )
        crosses = not equal and kind not in FILTERING and is_compared_with_public(conditions, self._parts, place)
        if not equal and not crosses:
            self._refusals.add(
                "source",
                conditions[0],
                f"{written(conditions[0])} does not join this table with an earlier one.",
                "Compare a column of this table with one of a table before it by =, as in a.x = b.y.",
            )
        return Step(CROSS if crosses and filters else kind, tuple(equal), tuple(own))

    def _is_kept_later(self, place: int) -> bool:
        """Whether a later join keeps rows that WHERE would drop and ON does not."""
        return any(_word(part.join, "side") in ("RIGHT", "FULL") for part in self._parts[place + 1 :] if part.join)

    def _with_merged(self, step: Step, right: Sequence[SeenColumn], used: int) -> Step:
        """The step with the columns that USING makes; from here on they stand for both of theirs."""
        pairs = step.equal[:used]
        both = {left.output.name for left, _ in pairs} if step.kind in (RIGHT, FULL) else set()
        away = both | {right.output.name for _, right in pairs}
        merged = [self._merged(left, right, step.kind) for left, right in pairs] if both else []
        stands_for = dict(zip([left.output.name for left, _ in pairs], merged, strict=False))
        columns: list[SeenColumn] = []
        for seen in (*self.columns, *([] if step.kind in FILTERING else right)):
            # in the place of the left one, where a star shows it
            columns += [stands_for.pop(seen.output.name)] if seen.output.name in stands_for else []
            columns.append(replace(seen, hidden=seen.hidden or seen.output.name in away))
        self.columns = columns
        return replace(step, merged=tuple(merged) if step.kind == FULL else ())

    def _merged(self, left: SeenColumn, right: SeenColumn, kind: str) -> SeenColumn:
        """What USING makes of two columns: after RIGHT JOIN the right one, after FULL JOIN whichever there is."""
        if kind == RIGHT:
            return replace(right, qualifier="", declared=left.declared, hidden=False)
        name = fresh(f"{left.declared} of both", self._taken)
        self._taken.add(name)
        uses = left.output.uses + right.output.uses
        both = compared_type(left.output.type, right.output.type)
        one, other = (cast_to(seen.sql, seen.output.type, both) for seen in (left, right))
        output = Column(name, both, True, left.output.origin, uses=uses)
        return SeenColumn(-1, "", left.declared, name, f"coalesce({one}, {other})", output, True, False)

    def _find(self, node: exp.Column, place: int) -> SeenColumn:
        """The column that a name in ON means."""
        found = self._candidates(node, place)
        if len(found) != 1:
            what = "is in more than one table" if found else "is not there"
            raise SchemaError(f"column {node.sql(dialect='duckdb')} {what}.", span=span_of(node, self._text))
        return found[0]

    def _candidates(self, node: exp.Column, place: int) -> list[SeenColumn]:
        if node.args.get("db"):
            return []
        return columns_named((*self.columns, *self._own[place]), node.name, node.table)


def _are_of_one_type(pair: tuple[SeenColumn, SeenColumn]) -> bool:
    return pair[0].output.type == pair[1].output.type


def is_apart(join: exp.Join | None) -> bool:
    """Whether a source only stands beside those before it, by a comma or CROSS JOIN."""
    if not join:
        return False
    plain = not any(join.args.get(name) for name in ("on", "using", "side", "method"))
    return plain and _word(join, "kind") in ("", "CROSS")


def kind_of(join: exp.Join) -> str | None:
    """Return the kind of a join, or None if it is none of those that are read."""
    return _KINDS.get((_word(join, "side"), _word(join, "kind")))


def _word(join: exp.Join, name: str) -> str:
    return str(join.args.get(name) or "").upper()


def read_joins(
    where: Sequence[exp.Expr],
    parts: Sequence[Part],
    environment: Environment,
    refusals: Refusals,
    apart: Apart = frozenset(),
    *,
    every: bool = False,
) -> tuple[Sequence[exp.Expr], Joins]:
    """Return what is left of WHERE, and how the sources of a FROM clause are joined.

    Args:
        where: conditions that hold all together.
        parts: the sources.
        environment: binds expressions that are compared.
        refusals: collects.
        apart: pairs of parts whose equalities only filter.
        every: whether expressions join beside equal columns, too.

    Raises:
        SchemaError: a name in ON or USING is not there, or is there more than once.
        UnsupportedQueryError: a join has no private form; nothing more can be said then.

    """
    before = len(refusals.found)
    order = list(range(len(parts)))
    if all(is_apart(part.join) for part in parts[1:]):
        order = in_reach(parts, where, apart)
        parts = [parts[place] for place in order]
    reader = _Reader(parts, where, environment, refusals, apart, every=every)
    steps = [reader.step(place) for place in range(len(parts))]
    for part, step in zip(parts, steps, strict=True):
        if not all(compared_type(left.output.type, right.output.type) for left, right in step.equal):
            from dpsql.sql.source.type_mismatches import refuse_mismatches  # noqa: PLC0415 — few joins have them

            refuse_mismatches(parts, part, step.equal, refusals)
    refusals.raise_if_any(before)
    columns = reader.columns
    if order != sorted(order):
        # a star shows them as FROM lists them
        columns = sorted(columns, key=lambda seen: order[seen.place])
    return reader.where, Joins(tuple(reader.computed.parts), tuple(steps), tuple(columns), reader.spares)
