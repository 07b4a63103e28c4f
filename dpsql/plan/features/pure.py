"""Questions to a unit with ``composition := 'pure'``: what they ask by, and what has no answer with a delta of 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlglot import exp

from dpsql.errors import AccessError
from dpsql.model.estimates import AnyUnit, Ratio, Sum
from dpsql.model.frame import Frame
from dpsql.model.private_query import Request
from dpsql.operations import blanks
from dpsql.plan.aggregates.arguments import Aggregate
from dpsql.plan.features.target_columns import level_in_place
from dpsql.sql.source.sources import SelectText

PURE = "pure"
OF_RHO = ("rho", "max_rho", "rho_window", "rho_ceiling")
"""Options that are a rho."""
LEFT_OUT = (
    *("target_relative_error", "bounding", "top_k", "sketch_size", "other_group", "buckets", "own_threshold"),
    *("contribution_norm", "refresh"),
)
"""Other options that have no proof for epsilon with a delta of 0."""
_KINDS = ("presence", "units", "rows", "sum")
_STAND_IN_RHO = 1.0
"""Level of a text whose level is misspelt, or whose cap has no target (`sql.options`)."""


def request_in_epsilon(text: SelectText, request: Request) -> Request:
    """Return the request of a question to a pure unit: its level is an epsilon, in place of the rho of others.

    Options that such a question cannot have are noted as refusals.

    Raises:
        AccessError: the reader has a limit, which is a rho.

    """
    _refuse_options(text)
    level, delta = request.epsilon if request.target is None else request.rho, request.delta
    has_thresholds = text.owner.rules.has_thresholds
    own = replace(request, rho=level, epsilon=None, delta=delta if has_thresholds else 0.0, coverage=False)
    return replace(own, amount="epsilon", by_budget=False)


def _refuse_options(text: SelectText) -> None:
    """Note a refusal of each option that a question to a pure unit cannot have; here a level is an epsilon.

    Raises:
        AccessError: the reader has a limit, which is a rho.

    """
    if text.owner.rules.levels.limit is not None:
        raise AccessError(
            f"a rho_limit is a level of rho, and unit {text.owner.rules.unit!r} counts epsilon (composition = 'pure'). "
            "The curator can remove the limit (rho_limit := NULL), and declare a budget_part"
        )
    given = text.options.given - ({"rho"} if _rho_stands_in(text) else set())
    # a half width takes the place of a level, and a relative error is replaced by one
    has_level = bool(given & {"epsilon", "target_half_width", "target_relative_error"})
    for name in (one for one in OF_RHO if one in given):
        hint = f"Leave {name} out."
        if name == "max_rho" and "target_half_width" in given and "max_epsilon" not in given:
            hint = f"Write OPTIONS (max_epsilon = {blanks.EPSILON}) in place of max_rho."
        elif not has_level:
            hint, has_level = f"Write OPTIONS (epsilon = {blanks.EPSILON}) in place of {name}.", True
        text.refusals.add(
            "option",
            text.hint,
            f"{name} is a rho, and a level of unit {text.owner.rules.unit!r} is an epsilon (composition = 'pure').",
            hint,
        )
    for name in (one for one in LEFT_OUT if one in given):
        is_level = name == "target_relative_error" and not given & {"epsilon", "target_half_width"}
        text.refusals.add(
            "option",
            text.hint,
            f"{name} has no proof for epsilon with a delta of 0 (composition = 'pure').",
            f"Write {level_in_place(text)}." if is_level else f"Leave {name} out.",
        )
    if text.options.max_groups_contributed == "AUTO":
        text.refusals.add(
            "option",
            text.hint,
            "AUTO predicts Gaussian noise, and this unit has none (composition = 'pure').",
            f"Write OPTIONS (max_groups_contributed = {blanks.MOST_GROUPS}).",
        )


def _rho_stands_in(text: SelectText) -> bool:
    """Check whether the rho of a refused text is one that nobody wrote."""
    options = (text.hint or exp.Null()).find_all(exp.EQ)
    is_written = any(isinstance(one.this, exp.Column) and one.this.name.lower() == "rho" for one in options)
    return bool(text.refusals.found) and text.options.rho == _STAND_IN_RHO and not is_written


def answered(text: SelectText) -> str:
    """Return the numbers that the unit of a text has answers for, as hints list them."""
    return f"count, sum, avg and bool_or{'' if text.owner.rules.has_thresholds else ' over public keys'}"


def refuse_numbers(text: SelectText, frame: Frame, aggregates: Mapping[str, Aggregate]) -> bool:
    """Note a refusal of the first number that has no answer in a pure unit, of keys alone, and of sets of keys.

    Returns:
        Whether there is one.

    """
    before = len(text.refusals.found)
    if frame.has_private_keys and not aggregates:
        text.refusals.add(
            "option",
            text.clauses.select[0],
            "keys without numbers are selected by weights, with Gaussian noise (this unit has composition = 'pure').",
            "Ask for count(*) with GROUP BY.",
        )
    if text.has_sets:
        text.refusals.add(
            "option",
            text.clauses.select[0],
            "GROUPING SETS add up the noise of many numbers (composition = 'pure').",
            "Ask with one GROUP BY.",
        )
    for aggregate in aggregates.values():
        value = aggregate.estimate.value
        statistics = [linear.statistic for linear in value.linears if linear.statistic]
        if not isinstance(value, Sum | Ratio | AnyUnit) or any(one.kind not in _KINDS for one in statistics):
            text.refusals.add(
                "aggregate",
                text.clauses.select[0],
                f"{aggregate.estimate.name} has no proof for epsilon with a delta of 0 (composition = 'pure').",
                f"Ask for {answered(text)}.",
            )
            break
    return len(text.refusals.found) > before
