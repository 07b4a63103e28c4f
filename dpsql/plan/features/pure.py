"""Questions to a unit with ``composition := 'pure'``: what they ask by, and what has no answer with a delta of 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dpsql.errors import AccessError
from dpsql.model.estimates import AnyUnit, Ratio, Sum
from dpsql.model.frame import Frame
from dpsql.model.private_query import Request
from dpsql.operations import blanks
from dpsql.plan.aggregates.arguments import Aggregate
from dpsql.sql.source.sources import SelectText

PURE = "pure"
_BY_RHO = ("rho", "max_rho", "rho_window", "rho_ceiling")
_LEFT_OUT = (
    *("target_relative_error", "bounding", "top_k", "sketch_size", "other_group", "buckets", "own_threshold"),
    *("contribution_norm", "refresh"),
)
_KINDS = ("presence", "units", "rows", "sum")
_ANSWERED = "count, sum, avg and bool_or over public keys"


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
    given = text.options.given
    for name in _BY_RHO:
        if name in given:
            text.refusals.add(
                "option",
                text.hint,
                f"{name} is a rho, and a level of unit {text.owner.rules.unit!r} is an epsilon (composition = 'pure').",
                f"Write OPTIONS (epsilon = {blanks.EPSILON}) in place of {name}.",
            )
    for name in _LEFT_OUT:
        if name in given:
            text.refusals.add(
                "option",
                text.hint,
                f"{name} has no proof for epsilon with a delta of 0 (composition = 'pure').",
                f"Leave {name} out.",
            )
    if text.options.max_groups_contributed == "AUTO":
        text.refusals.add(
            "option",
            text.hint,
            "AUTO predicts Gaussian noise, and this unit has none (composition = 'pure').",
            f"Write OPTIONS (max_groups_contributed = {blanks.MOST_GROUPS}).",
        )


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
                f"Ask for {_ANSWERED}.",
            )
            break
    return len(text.refusals.found) > before
