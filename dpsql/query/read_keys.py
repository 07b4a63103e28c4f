"""Group keys: what rows are grouped by, of which types, and whether public lists say which keys there are."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dpsql.query.dialect import to_sql, unquoted
from dpsql.query.environment import Environment, TableSchema, types_of
from dpsql.query.keys import Key, PublicKeys
from dpsql.query.options import QueryOptions
from dpsql.query.refusals import Refusals

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


def read_keys(
    written: Sequence[exp.Expr], schema: TableSchema, environment: Environment, refusals: Refusals
) -> tuple[Key, ...]:
    """The keys by their text, sorted; none where something was refused before.

    Raises:
        SchemaError: a key does not bind.

    """
    if refusals.found:
        return ()
    types = types_of(environment, schema.columns, [(key, to_sql(key)) for key in written], refusals.text)
    keys: list[Key] = []
    for node, key_type in zip(written, types, strict=True):
        if any(part in key_type for part in _UNRELEASABLE):
            refusals.add(
                "key_type",
                node,
                "a group key of this type cannot be released.",
                "Group by a scalar or a list, or cast it to VARCHAR.",
            )
        keys.append(Key(to_sql(node), key_type))
    return tuple(sorted(keys, key=lambda key: key.sql))


def unlisted_keys(
    options: QueryOptions, written: Sequence[exp.Expr], schema: TableSchema, environment: Environment
) -> list[exp.Expr]:
    """Keys that are not taken from a public list; all of them where a threshold is asked for."""
    if options.group_selection_strategy == "GAUSSIAN_THRESHOLD":
        return list(written)
    has_list = environment.policy.has_public_keys
    return [key for key in written if not (isinstance(key, exp.Column) and has_list(*schema.origin(key.name)))]


def read_public_keys(
    options: QueryOptions,
    written: Sequence[exp.Expr],
    keys: Sequence[Key],
    schema: TableSchema,
    environment: Environment,
    refusals: Refusals,
) -> PublicKeys | None:
    """The public lists that make the keys; None where one has none or a threshold is asked for.

    Args:
        options: the query's.
        written: the keys as they stand in the text.
        keys: the same as `read_keys` gives them.
        schema: of the relation that is grouped.
        environment: policy and schemas.
        refusals: collects.

    """
    if not keys:
        return None
    unlisted = unlisted_keys(options, written, schema, environment)
    if not unlisted:
        origins = {to_sql(node): schema.origin(node.name) for node in written}
        return environment.schemas.public_keys([origins[key.sql] for key in keys], [key.type for key in keys])
    if options.group_selection_strategy == "PUBLIC_GROUPS":
        for node in unlisted:
            refusals.add(
                "public_keys_missing", node, f"{unquoted(node)} has no public list of keys.",
                "Group by a column with CALL dp_domain('table', 'column', keys := [...]), or leave PUBLIC_GROUPS out.",
            )  # fmt: skip
    return None
