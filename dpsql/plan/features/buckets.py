"""Ranges and coarser groups, added up from a release by the values of one public key: ``OPTIONS (buckets = day)``.

What a query says of the bucket column alone (its conditions and grouping expressions) is computed on the public list,
after the noise. So all ranges and all coarser groups of the column are one statistic, and share one price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.model.frame import Ordering
from dpsql.model.private_query import Buckets
from dpsql.model.refusals import refuse_combinations
from dpsql.model.rows import Key, PublicKeys
from dpsql.operations.dialect import to_sql, written
from dpsql.plan.aggregates.running_totals import LONGEST_SEQUENCE
from dpsql.plan.features.declared_keys import declare_or_leave
from dpsql.sql.column_names import similar_columns
from dpsql.sql.names import ResolvedSelect
from dpsql.sql.source.sources import SelectText


@dataclass(frozen=True, slots=True)
class BucketParts:
    """A query taken apart along its bucket column.

    Attributes:
        column: the bucket column.
        inner: the query by the values of that column: what is released.
        conditions: what the query asks of the bucket column.
        coarse: keys of the answer that are computed from that column, as SQL.

    """

    column: exp.Column
    inner: ResolvedSelect
    conditions: tuple[exp.Expr, ...]
    coarse: frozenset[str]


def take_apart(text: SelectText) -> BucketParts | None:
    """The query along its bucket column; None after noting why it cannot be taken apart."""
    resolved, refusals = text.select, text.refusals
    declared = text.relation.schema.column(text.options.buckets or "")
    if not declared:
        similar = similar_columns(text.relation.schema, text.options.buckets or "")
        refusals.add(
            "buckets",
            text.hint,
            "there is no column of this name.",
            f"{similar} Name a column with a public list of keys.".lstrip(),
        )
        return None
    column = exp.column(exp.to_identifier(declared.name, quoted=True))
    for part in (*resolved.filters, *resolved.keys):
        if len(_columns(part)) > 1 and declared.name in _columns(part):
            refusals.add(
                "buckets",
                part,
                f"{written(part)} mixes the bucket column with others.",
                "Conditions and keys are computed from the bucket column alone, or without it.",
            )
            return None
    conditions = tuple(part for part in resolved.filters if _columns(part) == {declared.name})
    coarse = [key for key in resolved.keys if _columns(key) == {declared.name}]
    others = [key for key in resolved.keys if _columns(key) != {declared.name}]
    filters = tuple(part for part in resolved.filters if part not in conditions)
    inner = replace(resolved, filters=filters, keys=(column, *others))
    return BucketParts(column, inner, conditions, frozenset(map(to_sql, coarse)))


def bucket_ordering(
    parts: BucketParts, keys: Sequence[Key], public: PublicKeys | None, text: SelectText
) -> Ordering | None:
    """The keys of a frame along the bucket column; None after noting why there is no such order."""
    hint, refusals = text.hint, text.refusals
    if refusals.found:
        # what is not on the allow-list is not computed
        return None
    if not public:
        origin, has_list = text.relation.schema.origin, text.environment.policy.has_public_keys
        unlisted = [
            key for key in parts.inner.keys if not (isinstance(key, exp.Column) and has_list(*origin(key.name)))
        ]
        cure = declare_or_leave(text, unlisted)
        refuse_combinations({"buckets"}, {"buckets", "private keys"}, hint, refusals, declare_or_leave=cure)
        return None
    axis = [key.sql for key in keys].index(to_sql(parts.column))
    ordering = Ordering(axis, public.lengths, descending=False, with_null=public.with_null[axis])
    if not 1 <= ordering.length <= LONGEST_SEQUENCE:
        refusals.add(
            "buckets", hint, f"a column of buckets has 1 to {LONGEST_SEQUENCE:,} values.", "Take a coarser column."
        )
        return None
    return ordering


def bucket_groups(
    parts: BucketParts, ordering: Ordering, keys: Sequence[Key], shown: Sequence[Key], text: SelectText
) -> Buckets:
    """The groups that the buckets are added up in.

    Args:
        parts: the query along its bucket column.
        ordering: the frame's keys along that column.
        keys: those of the frame.
        shown: those of the answer.
        text: the query, over whose public list expressions are evaluated.

    """
    column = keys[ordering.axis]
    by_sql = {key.sql: place for place, key in enumerate(keys)}
    sources = tuple(None if key.sql in parts.coarse else by_sql[key.sql] for key in shown)
    places = text.environment.schemas.bucket_groups(
        text.relation.schema.origin(parts.column.name),
        parts.column.name,
        column.type,
        [key.sql for key in shown if key.sql in parts.coarse],
        [to_sql(condition) for condition in parts.conditions],
    )
    return Buckets(ordering, column, tuple(shown), sources, places)


def _columns(node: exp.Expr) -> set[str]:
    return {column.name for column in node.find_all(exp.Column)}
