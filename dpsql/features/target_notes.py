"""Notes of a receipt about a relative error, and the errors of its columns after several steps."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dpsql.features.target_facts import may_cut
from dpsql.features.target_levels import absolute_grid, level_of_text, steps_up
from dpsql.features.target_rule import Step, best_level, interval_quantile, measured, number_asked, numbers_within
from dpsql.model.frame import NANO
from dpsql.model.private_query import FrameQuery
from dpsql.model.query_kinds import RelativeError, WithinTarget
from dpsql.receipts import target_words, words
from dpsql.receipts.receipt import ColumnReceipt
from dpsql.release.offer import Offer
from dpsql.state import Stop

_TIMES_CAP = 1_000
"""A forecast looks for a level up to so many times the highest one that the question allows."""


def after_steps(columns: Sequence[ColumnReceipt], target: RelativeError) -> tuple[ColumnReceipt, ...]:
    """Return the errors of columns with the half widths of numbers at which steps ended."""
    quantile = interval_quantile(target)
    return tuple(one if one.sigma is None else replace(one, half_width_95=quantile * one.sigma) for one in columns)


def alias_of(part: FrameQuery, number: int) -> str:
    """Return the first column of the answer that shows an estimate, by the number of the estimate."""
    return next(column.name for column in part.finish.columns if column.estimate == number)


def target_notes(step: Step, stop: Stop, query: WithinTarget, offer: Offer) -> Iterator[str]:
    """Yield what was asked, what the steps led to, and which level would have been enough."""
    target, part = query.target, query.first
    of_noise = any(may_cut(part, number) for number in measured(part))
    yield target_words.asked(target, of_rows=step.picked is not None)
    # levels are those of the answer, with what AUTO chose by
    beside = sum(level.rho_nano for level in part.auto_levels)
    rho, found = (offer.rho_nano + beside) / NANO, _outcome(step, query)
    if stop.ending == "met":
        yield target_words.outcome(found, stop.steps, rho, of_noise=of_noise)
    else:
        yield target_words.missed(found, target.error, stop, rho, of_noise=of_noise)
    levels = steps_up(part)
    higher = absolute_grid(_TIMES_CAP * levels[-1])
    best = best_level(step, (*levels, *higher[bisect.bisect(higher, levels[-1]) :]), target)
    if best is not None:
        yield target_words.enough(level_of_text(part, best) / NANO)
    if clause := part.finish.leaves_out if step.picked is None else "":
        yield words.COUNTS_ALL.format(clause=clause)
    if part.frame.has_private_keys and step.groups and step.picked is None:
        yield words.SHOWN_BY_OTHERS


def _outcome(step: Step, query: WithinTarget) -> target_words.Outcome:
    """Return how many groups are within the target: of the column in which most are not, if columns differ."""
    within = numbers_within(step, query.target)
    names = [alias_of(query.first, number) for number in measured(query.first)] if len(set(within)) > 1 else []
    count, name = min(zip(within, names or [""] * len(within), strict=True), default=(step.counted, ""))
    needed = step.picked.needed if step.picked else None
    return target_words.Outcome(count, step.counted, number_asked(step, query.target), needed, name)
