"""The refusal of private keys in a unit whose budget keeps no delta for thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.model.environment import things_without
from dpsql.model.private_query import OPTION_NAMES
from dpsql.model.refusals import COMBINATIONS, refuse_combinations
from dpsql.operations.dialect import span_of, text_literal, unquoted
from dpsql.plan.features.declared_keys import declare_or_leave
from dpsql.plan.keys import unlisted_keys
from dpsql.sql.source.sources import SelectText

_OPTION = "group_selection_strategy"


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
    return f"{begins} {names} out", "Ask for keys with a public list, or without GROUP BY"


def _for_private_keys_alone(text: SelectText) -> set[str]:
    """Return what a text asks for that public keys do not go with, options by their names."""
    options = text.options
    asked = {*options.given, *things_without(options.mechanism, text.environment.mechanisms)}
    if not text.select.calls:
        asked.add("keys alone")
    if options.group_selection_strategy == "GAUSSIAN_THRESHOLD":
        asked.add(_OPTION)
    unfit = {_OPTION, *(one.thing for one in COMBINATIONS if "public keys" in one.beside)}
    unfit |= {thing for one in COMBINATIONS if one.thing == "public keys" for thing in one.beside}
    found = {thing.partition(" = ")[0] for thing in asked & unfit}
    return {"mechanism" if thing == "a mechanism without public keys" else thing for thing in found}
