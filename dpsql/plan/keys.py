"""Keys that a SELECT groups by: of types that can be released, and the public lists that may say which there are.

Keys without such a list are refused if the budget of the unit has no delta for thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.model.combinations import COMBINATIONS
from dpsql.model.environment import things_without, types_of
from dpsql.model.private_query import OPTION_NAMES, Buckets, EachKey
from dpsql.model.refusals import refuse_combinations
from dpsql.model.rows import BINS, Key, PublicKeys
from dpsql.operations import blanks
from dpsql.operations.dialect import span_of, text_literal, to_sql, unquoted
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
_OPTION = "group_selection_strategy"
_BY_LISTS = f"{_OPTION} = PUBLIC_GROUPS"


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


def unlisted_keys(text: SelectText, written: Sequence[exp.Expr], *, by_policy: bool = False) -> list[exp.Expr]:
    """Return the keys that are not taken from a public list; all of them where a threshold is asked for.

    Args:
        text: the query.
        written: the keys.
        by_policy: whether a list counts only if it is declared, and not if the text gives it.

    """
    if text.options.group_selection_strategy == "GAUSSIAN_THRESHOLD":
        return list(written)
    has_list, origin = text.environment.policy.has_public_keys, text.relation.schema.origin
    unlisted = [k for k in written if not (BINS in k.meta or (isinstance(k, exp.Column) and has_list(*origin(k.name))))]
    return [] if text.kept and not by_policy and unlisted and _are_kept(text, written) else unlisted


def _are_kept(text: SelectText, written: Sequence[exp.Expr]) -> bool:
    """Check that public rows in the text list its keys, and that nothing is asked that needs private ones."""
    from dpsql.plan.kept_lists import are_listed  # noqa: PLC0415 — few queries need it

    # keys that are selected first because nobody named a mechanism are only tried
    named = replace(text, options=replace(text.options, mechanism=None)) if text.finds_mechanism else text
    return are_listed(text, written) and not _beside_private_keys_alone(named)


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
        if text.kept and unlisted_keys(text, written, by_policy=True):
            from dpsql.plan.kept_lists import read_listed_keys  # noqa: PLC0415 — few queries need it

            return read_listed_keys(text, written, keys)
        origin, bins = text.relation.schema.origin, [node for node in written if BINS in node.meta]
        origins = {to_sql(node): origin(node.name) for node in written}
        origins |= {to_sql(node): (BINS, str(node.meta[BINS])) for node in bins}
        return text.environment.schemas.public_keys([origins[key.sql] for key in keys], [key.type for key in keys])
    for node in unlisted if _BY_LISTS in text.options.given else ():
        refuse_combinations(
            {_BY_LISTS},
            {_BY_LISTS, "private keys"},
            node,
            text.refusals,
            key=unquoted(node),
            declare_or_leave=declare_or_leave(text, [node]),
        )
    return None


@dataclass(frozen=True, slots=True)
class SelectKeys:
    """Keys that a SELECT groups by.

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
    # buckets are places in declared lists
    text = replace(text, kept=None)
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


def refuse_thresholds(text: SelectText, keys: Sequence[exp.Expr]) -> None:
    """Note a refusal of groups that only a threshold could show.

    Args:
        text: the query.
        keys: its keys. Nothing is noted if all of them are taken from public lists.

    """
    by_threshold = unlisted_keys(text, keys)
    if not by_threshold:
        # public keys lack their list if something else was refused
        return
    unlisted = unlisted_keys(replace(text, options=replace(text.options, group_selection_strategy=None)), keys)
    names = " and ".join(map(unquoted, unlisted))
    cure, cure_of_analysts = _cures(text, unlisted, names)
    refuse_combinations(
        {"a unit without thresholds"},
        {"a unit without thresholds", "private keys"},
        next((key for key in unlisted or by_threshold if span_of(key, text.refusals.text)), text.hint),
        text.refusals,
        subject=f"groups by {names} have private keys" if names else f"{_OPTION} = GAUSSIAN_THRESHOLD hides keys",
        unit=text_literal(text.owner.rules.unit),
        terms="composition = 'pure' without delta_budget" if text.owner.rules.counts_epsilon else "thresholds := false",
        cure=cure,
        cure_of_analysts=cure_of_analysts,
    )


def _cures(text: SelectText, unlisted: Sequence[exp.Expr], names: str) -> tuple[str, str]:
    """Return what the curator, and what an analyst, can write instead, without the full stop."""
    if not unlisted:
        return (f"Leave {_OPTION} out",) * 2
    if left := _for_private_keys_alone(text):
        options = " and ".join(sorted(left & set(OPTION_NAMES)))
        return (f"Ask for count(*) by keys with a public list{f', without {options}' if options else ''}",) * 2
    if any(isinstance(key, exp.Column) and key.name in text.owner.names_unit for key in unlisted):
        # a list of the unit's members is nothing to publish
        begins = "Leave"
    else:
        begins = declare_or_leave(text, unlisted)
        if text.owner.rules.counts_epsilon:
            terms = f"{text_literal(text.owner.rules.unit)}, delta_budget := {blanks.DELTA_BUDGET}, replace := true"
            listed = begins[0].lower() + begins[1:]
            begins = f"Declare CALL dp_unit({terms}) before anything of the unit is charged, or {listed}"
    return f"{begins} {names} out", "Ask for keys with a public list, or without GROUP BY"


def _for_private_keys_alone(text: SelectText) -> set[str]:
    """Return what a text asks for that public keys do not go with, options by their names."""
    found = _beside_private_keys_alone(text) | (text.options.given & {_OPTION})
    return {"mechanism" if thing == "a mechanism without public keys" else thing for thing in found}


def _beside_private_keys_alone(text: SelectText) -> set[str]:
    """Return what a text asks for that public keys do not go with, but for the strategy, as things or options."""
    options = text.options
    asked = {*options.given, *things_without(options.mechanism, text.environment.mechanisms)}
    if not text.select.calls:
        asked.add("keys alone")
    unfit = {one.thing for one in COMBINATIONS if "public keys" in one.beside}
    unfit |= {thing for one in COMBINATIONS if one.thing == "public keys" for thing in one.beside}
    return {thing.partition(" = ")[0] for thing in asked & unfit}
