"""What a query groups, by the keys of each grouping set: the frames that can answer it, and how these bound units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.query.aggregate_source import Aggregate
from dpsql.query.auto import auto_groups, counted_groups
from dpsql.query.clauses import Clauses
from dpsql.query.dialect import quote, to_sql
from dpsql.query.environment import Environment, TableRules, TableSchema
from dpsql.query.frame import Frame
from dpsql.query.grouping_sets import GroupedSelect
from dpsql.query.keys import Key, PublicKeys
from dpsql.query.levels import check_threshold, read_window
from dpsql.query.measured import check_beside_buckets
from dpsql.query.mechanism import mechanisms
from dpsql.query.names import ResolvedSelect
from dpsql.query.options import QueryOptions
from dpsql.query.private_query import AutoGroups, Buckets, Request
from dpsql.query.read_keys import read_keys, read_public_keys
from dpsql.query.refusals import Refusals
from dpsql.query.relation import Owner, Relation
from dpsql.query.set_frames import distinct_sets, frames_of_sets


@dataclass(frozen=True, slots=True)
class GroupedSource:
    """What a query groups, before its keys: the frame without any, and what says how a unit's groups are bounded."""

    base: Frame
    clauses: Clauses
    request: Request
    rules: TableRules
    hint: exp.Expr | None
    refusals: Refusals

    @property
    def min_units(self) -> int:
        """Groups of fewer units are not shown."""
        return max(self.clauses.options.min_privacy_units_per_group or 1, self.rules.min_units)

    def by_keys(self, written: Sequence[exp.Expr], keys: tuple[Key, ...], public: PublicKeys | None) -> Frame:
        """The frame by some keys, its mechanism not chosen yet."""
        options, hides = self.clauses.options, bool(written) and public is None
        window = read_window(
            options, self.rules, self.request, private_keys=hides, ceiling=self.base.ceiling, hint=self.hint,
            refusals=self.refusals,
        )  # fmt: skip
        max_groups = _max_groups(options, self.rules, written, public)
        return replace(
            self.base, keys=keys, max_groups=max_groups, public_keys=public,
            minimum_units=self.rules.min_units if hides else 1, window=window,
            counted_groups=counted_groups(max_groups, public) if options.bounding == "L2" and max_groups else None,
        )  # fmt: skip


def base_frame(
    relation: Relation, owner: Owner, select: ResolvedSelect, ceiling: int | None, environment: Environment
) -> Frame:
    """The frame of a relation's rows without keys, in which every unit has one group."""
    schema, rules = relation.schema, owner.rules
    links = tuple((step.parent, step.version, step.columns, step.parent_columns) for step in rules.links)
    return Frame(
        unit=rules.unit,
        table=schema.canonical,
        relation=schema.relation,
        version=rules.version,
        unit_column=_unit_column(schema, owner),
        filters=tuple(sorted({to_sql(part) for part in select.filters})),
        keys=(),
        max_groups=1,
        public_keys=None,
        sparsity=None,
        minimum_units=1,
        mechanism="gaussian",
        window=None,
        settings=environment.settings,
        ceiling=ceiling,
        links=links if relation.is_table else (),
        source="" if relation.is_table else relation.identity,
        reads=() if relation.is_table else relation.reads,
        cuts=relation.cuts,
        types=schema.types,
    )


def by_one_set(
    source: GroupedSource,
    resolved: ResolvedSelect,
    inner: ResolvedSelect,
    keys: tuple[Key, ...],
    public: PublicKeys | None,
    buckets: Buckets | None,
    aggregates: Mapping[str, Aggregate],
) -> tuple[list[tuple[Frame, ...]], AutoGroups | None]:
    """The frames of the one set of keys, and what AUTO asks before they are known."""
    clauses, hint, refusals, auto = source.clauses, source.hint, source.refusals, None
    options = clauses.options
    check_threshold(options, private_keys=bool(inner.keys) and public is None, hint=hint, refusals=refusals)
    frame = source.by_keys(inner.keys, keys, public)
    if options.max_groups_contributed == "AUTO" and keys and frame.key_count != 1:
        auto = auto_groups(frame, weighted=options.bounding == "L2")
    if inner is not resolved:
        once = frame.max_groups == 1 and auto is None
        check_beside_buckets(resolved, aggregates, source.min_units, hint, once=once, refusals=refusals)
    return [mechanisms(frame, clauses, inner, aggregates, buckets, refusals)], auto


def by_sets(
    source: GroupedSource,
    grouped: GroupedSelect,
    schema: TableSchema,
    environment: Environment,
    aggregates: Mapping[str, Aggregate],
) -> list[tuple[Frame, ...]]:
    """Of each distinct grouping set its frames."""
    clauses, refusals = source.clauses, source.refusals
    found, hides = [], False
    selects = [grouped.of_set(places) for places in distinct_sets(grouped.select.sets)]
    for select in selects:
        keys = read_keys(select.keys, schema, environment, refusals)
        public = read_public_keys(clauses.options, select.keys, keys, schema, environment, refusals)
        found.append(source.by_keys(select.keys, keys, public))
        hides |= bool(select.keys) and public is None
    check_threshold(clauses.options, private_keys=hides, hint=source.hint, refusals=refusals)
    return frames_of_sets(found, selects, clauses, aggregates, refusals)


def _unit_column(schema: TableSchema, owner: Owner) -> Key:
    column = schema.column(owner.unit)
    if column is None:
        raise AssertionError("a relation has the column that names its unit")
    return Key(quote(column.name), column.type)


def _max_groups(
    options: QueryOptions, rules: TableRules, written: Sequence[exp.Expr], public: PublicKeys | None
) -> int | None:
    if not written:
        return 1
    # AUTO has a number when it was told one
    asked = 1 if options.max_groups_contributed == "AUTO" else options.max_groups_contributed or rules.max_groups
    if public is not None:
        return max(1, min(asked or public.count, public.count))
    return asked
