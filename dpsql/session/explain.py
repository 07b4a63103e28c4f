"""The plan of a query, by the offers that it is answered by, or before AUTO has chosen; and the columns of its answer.

The rows of a plan are those of its kind (`dpsql/features/kinds.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dpsql.cascade.reader import Reader
from dpsql.features.auto import PlanAgain
from dpsql.features.auto_outcomes import dearest_terms
from dpsql.features.auto_price import may_come, open_price
from dpsql.features.kinds import kind_of
from dpsql.mechanism.calibrate import calibrate
from dpsql.model.auto_level import AutoLevel
from dpsql.model.frame import PRESENCE
from dpsql.model.private_query import AutoBounds, AutoGroups, OutputColumn, PrivateQuery
from dpsql.receipts.plan_rows import Row, frame_rows, groups_sentence, threshold_sentence
from dpsql.receipts.result import Result
from dpsql.release.estimates import noise_sigma
from dpsql.release.offer import current, held_histogram
from dpsql.session.lookups import text_table
from dpsql.state import DELTA_UNITS_PER_ONE, NANO_PER_RHO, State


def describe_table(columns: Sequence[OutputColumn]) -> Result:
    """FROM dp_describe($$…$$): names and types of the answer's columns; reads and spends nothing."""
    return text_table(("column_name", "column_type"), [(one.name, one.type) for one in columns])


def explain_table(
    query: PrivateQuery, state: State, reader: Reader, constraint: str = "", again: PlanAgain | None = None
) -> Result:
    """Return the table of dp_explain: mechanism, noise, threshold, expected error, price; reads and spends nothing.

    What is stored at the level asked for or above it would be served as stored, so its noise is what is shown.

    Args:
        query: the plan.
        state: policy, ledger and stored points.
        reader: who asks.
        constraint: what keeps the unit column unique, as SQL; empty if nothing does.
        again: plans the text by what AUTO may find; None if AUTO has chosen, or if only this plan is asked about.

    """
    rows = _open_rows(query, state, reader, again) if query.first.is_open else _rows(query, state, reader)
    if constraint:
        rows = [one for row in rows for one in _with_constraint(row, constraint)]
    return text_table(("section", "name", "value"), rows)


def _with_constraint(row: Row, constraint: str) -> Iterator[Row]:
    """Yield a row of the plan; after that of the privacy unit, how many rows of a unit the constraint allows."""
    yield row
    if row[:2] == ("frame", "privacy unit"):
        yield ("frame", "rows of a unit", f"at most 1, by {constraint}: no bound leaves a row out")


def _rows(query: PrivateQuery, state: State, reader: Reader) -> list[Row]:
    """Return the plan of a query whose bounds are known."""
    query = query.mapped(lambda part: current(part, state, reader))
    kind = kind_of(query)
    rows = kind.rows(query, state, reader)
    if query.whole_request.target:
        from dpsql.features.half_width import target_rows  # noqa: PLC0415 — few queries need it

        rows = [*target_rows(kind, query, state, reader), *rows]
    return rows


def _open_rows(asked_query: PrivateQuery, state: State, reader: Reader, again: PlanAgain | None) -> list[Row]:
    """Return the plan of a query that leaves something to AUTO: its price, and noise for some of its choices."""
    query = asked_query.first
    options = [current(option, state, reader) for option in may_come(query)]
    calibrations = [calibrate(option, held_histogram(option, state)) for option in options]
    items = open_price(query)
    kind = kind_of(asked_query)
    terms = kind.open_terms(asked_query, calibrations[0], state, reader)
    if again:
        terms = dearest_terms(asked_query, terms, again, state, reader)
    asked = list(zip(query.auto, query.auto_levels, strict=True))
    numbers = [
        (
            "frame",
            "max_groups",
            f"AUTO: one of {len(one.candidates)} numbers from {one.candidates[0]} to {one.candidates[-1]}, chosen from "
            f"a noisy histogram of units by their number of groups, {_origin_sentence(level)}",
        )
        for one, level in asked
        if isinstance(one, AutoGroups)
    ]
    bounds = [
        ("bounds", one.name, f"AUTO: found in {_values_sentence(one)}, {_origin_sentence(level)}")
        for one, level in asked
        if isinstance(one, AutoBounds)
    ]
    rows = [
        *kind.open_rows(asked_query, options[0], state, reader),
        *frame_rows(query.frame),
        *(numbers or [("frame", "max_groups", groups_sentence(query.frame))]),
        *bounds,
        ("mechanism", "rho", f"{terms.total_nano / NANO_PER_RHO:.9g}"),
        ("mechanism", "this query alone", f"epsilon = {terms.epsilon:.6g}, delta = {terms.delta:.6g}"),
    ]
    for option, whole in zip(options, calibrations, strict=True):
        noised = kind.noised(replace(asked_query, parts=(option, *asked_query.parts[1:])), state, reader)
        calibration = whole if noised == option else calibrate(noised, held_histogram(noised, state))
        sigma = noise_sigma(PRESENCE, calibration.levels[0].sigma, calibration.histogram)
        # keys that are selected first have a part of the level, which numbers may get
        or_less = "" if noised == option else ", or less, as the first round decides"
        threshold = "" if calibration.cut.tau is None else f"; {threshold_sentence(option, calibration.cut.tau)}"
        groups = f"with max_groups = {option.frame.bounding.max_groups}"
        rows.append((groups, "distinct units", f"sigma of a count = {sigma:.9g}{or_less}{threshold}"))
    rho_nano = terms.rho_nano + sum(item.rho_nano for item in items)
    delta_units = terms.delta_units + sum(item.delta_units for item in items)
    rows += [
        ("price", "rho", f"{rho_nano / NANO_PER_RHO:.9g}, or less where an answer is stored"),
        ("price", "threshold delta", f"{delta_units / DELTA_UNITS_PER_ONE:.6g}"),
    ]
    return rows


def _values_sentence(asked: AutoBounds) -> str:
    """Which histograms bounds are found in."""
    if asked.is_norm:
        return "a noisy histogram of units by the norm of what they have in all groups"
    return "noisy histograms of units by their largest and smallest values"


def _origin_sentence(level: AutoLevel) -> str:
    """Return where a histogram comes from, and at which level."""
    rho = f"at rho = {level.rho_nano / NANO_PER_RHO:.9g}"
    if level.is_stored:
        return f"drawn {rho}"
    if not level.due_nano:
        return f"to be made of a stored one, {rho}, for nothing"
    if level.due_nano == level.rho_nano:
        return f"to be drawn {rho}"
    return f"to be drawn again {rho}, of which {level.due_nano / NANO_PER_RHO:.9g} is not paid yet"
