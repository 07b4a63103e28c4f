"""What a SELECT groups by: keys of types that can be released, and the public lists that may say which there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from dpsql.model.environment import types_of
from dpsql.model.frame import PublicKeys
from dpsql.model.private_query import Buckets, EachKey
from dpsql.model.refusals import refuse_combinations
from dpsql.model.rows import Key
from dpsql.operations.dialect import to_sql, unquoted
from dpsql.plan.features.buckets import BucketParts, bucket_groups, bucket_ordering, take_apart
from dpsql.plan.features.declared_keys import declare_or_leave
from dpsql.sql.names import ResolvedSelect
from dpsql.sql.row_types import checked_conditions
from dpsql.sql.source.sources import SelectText

_UNRELEASABLE = (
    "MAP(",
    "UNION(",
    "STRUCT(",
    "TUPLE(",
    "VARIANT",
    "GEOMETRY",
    "BIT",
    "BIGNUM",
    "UHUGEINT",
    "TIME WITH TIME ZONE",
    '"NULL"',
)


def read_keys(text: SelectText, written: Sequence[exp.Expr]) -> tuple[Key, ...]:
    """The keys by their text, sorted; none where something was refused before.

    Raises:
        SchemaError: a key does not bind.

    """
    refusals = text.refusals
    if refusals.found:
        return ()
    parts = [(key, to_sql(key)) for key in written]
    types = types_of(text.environment, text.relation.schema.columns, parts, refusals.text)
    for node, key_type in zip(written, types, strict=True):
        if any(part in key_type for part in _UNRELEASABLE):
            refusals.add(
                "key_type",
                node,
                "a group key of this type cannot be released.",
                "Group by a scalar or a list, or cast it to VARCHAR.",
            )
    keys = (Key(sql, key_type) for (_, sql), key_type in zip(parts, types, strict=True))
    return tuple(sorted(keys, key=lambda key: key.sql))


def unlisted_keys(text: SelectText, written: Sequence[exp.Expr]) -> list[exp.Expr]:
    """Keys that are not taken from a public list; all of them where a threshold is asked for."""
    if text.options.group_selection_strategy == "GAUSSIAN_THRESHOLD":
        return list(written)
    has_list, origin = text.environment.policy.has_public_keys, text.relation.schema.origin
    return [key for key in written if not (isinstance(key, exp.Column) and has_list(*origin(key.name)))]


def read_public_keys(text: SelectText, written: Sequence[exp.Expr], keys: Sequence[Key]) -> PublicKeys | None:
    """The public lists that make the keys; None where one has none or a threshold is asked for.

    Args:
        text: the query.
        written: the keys as they stand in it.
        keys: the same as `read_keys` gives them.

    """
    if not keys:
        return None
    unlisted = unlisted_keys(text, written)
    if not unlisted:
        origins = {to_sql(node): text.relation.schema.origin(node.name) for node in written}
        return text.environment.schemas.public_keys([origins[key.sql] for key in keys], [key.type for key in keys])
    asked = "group_selection_strategy = PUBLIC_GROUPS"
    for node in unlisted if asked in text.options.given else ():
        refuse_combinations(
            {asked},
            {asked, "private keys"},
            node,
            text.refusals,
            key=unquoted(node),
            declare_or_leave=declare_or_leave(text, [node]),
        )
    return None


@dataclass(frozen=True, slots=True)
class SelectKeys:
    """What a SELECT groups by.

    Attributes:
        inner: the query by the keys of its frame.
        keys: these; of several sets, those of all.
        public: the public lists that make them; None where there are none, and of several sets.
        groups: which groups the answer has.
        shown: the keys of the answer.

    """

    inner: ResolvedSelect
    keys: tuple[Key, ...]
    public: PublicKeys | None
    groups: EachKey | Buckets
    shown: tuple[Key, ...]


def read_select_keys(text: SelectText, *, in_buckets: bool) -> SelectKeys:
    """Read the keys of a SELECT; of its frame by finer ones where it asks for buckets."""
    select = text.select
    if in_buckets:
        parts = take_apart(text)
        if parts:
            return _read_in_buckets(text, parts)
    keys = read_keys(text, select.keys)
    public = None if text.has_sets else read_public_keys(text, select.keys, keys)
    return SelectKeys(select, keys, public, EachKey(), keys)


def _read_in_buckets(text: SelectText, parts: BucketParts) -> SelectKeys:
    refusals = text.refusals
    keys = read_keys(text, parts.inner.keys)
    public = read_public_keys(text, parts.inner.keys, keys)
    if keys and not refusals.found:
        # what does not bind is said of the text, before it is computed on the public list
        checked_conditions(parts.conditions, text.relation.schema.columns, text.environment, refusals)
        shown = read_keys(text, text.select.keys)
        ordering = bucket_ordering(parts, keys, public, text)
        if ordering:
            groups = bucket_groups(parts, ordering, keys, shown, text)
            return SelectKeys(parts.inner, keys, public, groups, shown)
    return SelectKeys(parts.inner, keys, public, EachKey(), keys)
