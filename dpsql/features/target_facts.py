"""Facts of a policy, of types and of constraints that make sure that bounds cut nothing of a number."""

from __future__ import annotations

from dpsql.model.estimates import Estimate, LinearValue, NoValue, Quantile, RunningSum, Sum
from dpsql.model.frame import Norm, Statistic
from dpsql.model.private_query import FrameQuery


def may_cut(part: FrameQuery, number: int) -> str:
    """Return the parts of a number that bounds may cut: ``rows``, ``values`` or both; empty if they cut none for sure.

    Groups of a unit are cut unless it may count in every public key, or has one row. Rows in a group are cut unless a
    constraint keeps them at one, or each unit is counted once. Values are cut unless they lie within their bounds by
    the policy or their type.

    Args:
        part: the question.
        number: of the estimate.

    """
    estimate = part.estimates[number]
    cuts = {"rows": _may_cut_rows(part, estimate), "values": _may_cut_values(estimate)}
    return " or ".join(name for name, is_cut in cuts.items() if is_cut)


def is_of_people(estimate: Estimate) -> bool:
    """Check that an estimate counts each unit of a group once at most."""
    if not isinstance(estimate.value, Sum):
        return False
    return _counts_units(estimate)


def _counts_units(estimate: Estimate) -> bool:
    """Check that a count or a running total adds 1 for each unit and group."""
    value = estimate.value
    if not isinstance(value, LinearValue) or estimate.counts_rows:
        return False
    statistic = value.linear.statistic
    return statistic is None or statistic.kind == "units"


def _may_cut_rows(part: FrameQuery, estimate: Estimate) -> bool:
    """Return whether rows, or people, may be missing from the counted part of a number."""
    bounding = part.frame.bounding
    # these drop rows before they are grouped, or groups by the rows of all units
    if bounding.finer or bounding.sparsity or bounding.max_rows or part.frame.rows_sql.cuts:
        return True
    if any(_is_scaled(one.statistic) for one in estimate.value.linears if one.statistic):
        return True
    if part.has_one_row:
        return False
    return part.frame.cuts_groups or not (part.has_one_row_in_group or _counts_units(estimate))


def _is_scaled(statistic: Statistic) -> bool:
    """Return whether bounds may change a single row of a unit: a norm scales it down, or bounds of a group raise it."""
    return isinstance(statistic.limit, Norm) or (statistic.is_raised and statistic.group_bounds_steps is not None)


def _may_cut_values(estimate: Estimate) -> bool:
    """Return whether values may lie outside of the bounds of a sum or an average."""
    if isinstance(estimate.value, Sum | RunningSum):
        statistic = estimate.value.linear.statistic
        if statistic is None or statistic.kind != "sum":
            return False
    elif isinstance(estimate.value, Quantile | NoValue):
        return True
    return estimate.value_bounds is None or not estimate.value_bounds.hold_all
