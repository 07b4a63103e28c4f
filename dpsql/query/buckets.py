"""Ranges and coarser groups, added up from a release by the values of one public key: ``OPTIONS (buckets = day)``.

What a query says of the bucket column alone (its conditions and grouping expressions) is computed on the public list,
after the noise. So all ranges and all coarser groups of the column are one statistic, and share one price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.query.dialect import to_sql, written
from dpsql.query.environment import Environment, TableSchema
from dpsql.query.keys import Key, Ordering, PublicKeys
from dpsql.query.names import ResolvedSelect
from dpsql.query.options import QueryOptions
from dpsql.query.private_query import Buckets
from dpsql.query.refusals import Refusals
from dpsql.query.totals import LONGEST_SEQUENCE


@dataclass(frozen=True, slots=True)
class BucketParts:
    """A query taken apart along its bucket column.

    Attributes:
        column: the bucket column.
        inner: the query by the values of that column: what is released.
        conditions: what the query asks of the bucket column.

    """

    column: exp.Column
    inner: ResolvedSelect
    conditions: tuple[exp.Expr, ...]

    def is_of_buckets(self, key: exp.Expr) -> bool:
        """Whether a key is computed from the bucket column."""
        return _columns(key) == {self.column.name}


def take_apart(
    options: QueryOptions, resolved: ResolvedSelect, schema: TableSchema, hint: exp.Expr | None, refusals: Refusals
) -> BucketParts | None:
    """The query along its bucket column; None where it has none, or after noting why it cannot be taken apart."""
    if options.buckets is None:
        return None
    declared = schema.column(options.buckets)
    if declared is None:
        refusals.add("buckets", hint, "there is no column of this name.", "Name a column with a public list of keys.")
        return None
    column = exp.column(exp.to_identifier(declared.name, quoted=True))
    for part in (*resolved.filters, *resolved.keys):
        if len(_columns(part)) > 1 and declared.name in _columns(part):
            refusals.add(
                "buckets", part, f"{written(part)} mixes the bucket column with others.",
                "Conditions and keys are computed from the bucket column alone, or without it.",
            )  # fmt: skip
            return None
    conditions = tuple(part for part in resolved.filters if _columns(part) == {declared.name})
    others = tuple(key for key in resolved.keys if _columns(key) != {declared.name})
    filters = tuple(part for part in resolved.filters if part not in conditions)
    return BucketParts(column, replace(resolved, filters=filters, keys=(column, *others)), conditions)


def read_buckets(
    parts: BucketParts, resolved: ResolvedSelect, keys: Sequence[Key], result: Sequence[Key], public: PublicKeys | None,
    schema: TableSchema, environment: Environment, hint: exp.Expr | None, refusals: Refusals,
) -> Buckets | None:  # fmt: skip
    """The groups that the buckets are added up in; None after noting why there are none.

    Args:
        parts: the query along its bucket column.
        resolved: the query as it was asked.
        keys: those of the frame.
        result: those of the answer.
        public: the frame's public keys.
        schema: the source.
        environment: evaluates expressions over the public list.
        hint: the options, for refusals.
        refusals: collects.

    """
    if refusals.found:
        # what is not on the allow-list is not computed
        return None
    if public is None:
        refusals.add(
            "buckets", hint, "the bucket column and all other keys need a public list of keys.",
            "Declare them with CALL dp_domain('table', 'column', keys := [...]).",
        )  # fmt: skip
        return None
    axis = [key.sql for key in keys].index(to_sql(parts.column))
    ordering = Ordering(axis, public.lengths, descending=False, with_null=public.with_null[axis])
    if not 1 <= ordering.length <= LONGEST_SEQUENCE:
        refusals.add(
            "buckets", hint, f"a column of buckets has 1 to {LONGEST_SEQUENCE:,} values.", "Take a coarser column.",
        )  # fmt: skip
        return None
    coarse = {to_sql(key) for key in resolved.keys if parts.is_of_buckets(key)}
    by_sql = {key.sql: place for place, key in enumerate(keys)}
    sources = tuple(None if key.sql in coarse else by_sql[key.sql] for key in result)
    places = environment.schemas.bucket_groups(
        schema.origin(parts.column.name), parts.column.name, keys[axis].type,
        [key.sql for key, source in zip(result, sources, strict=True) if source is None],
        [to_sql(condition) for condition in parts.conditions],
    )  # fmt: skip
    return Buckets(ordering, keys[axis], tuple(result), sources, places)


def _columns(node: exp.Expr) -> set[str]:
    return {column.name for column in node.find_all(exp.Column)}
