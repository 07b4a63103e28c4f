"""Answers of several frames: one table and one receipt of several grouping sets, or of the groups and one more row.

**Grouping sets** are charged whole and then released set by set; values agree where sets are sums of one. All of that
is post-processing of stored points, and of the plan.

**The row of the groups that are not shown** is released after the groups, outside those which this release shows. The
groups are charged, drawn and stored first; which of them are shown is then post-processing of stored points, and names
the frame of the row. The row is charged, drawn and stored after that. Whoever is stopped in between, or asks the same
again, finds the same groups stored, so that the row has the same frame, and no part is paid twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dpsql.answer.coverage_receipt import with_coverage, with_coverage_of_sets
from dpsql.answer.estimates import NoisyValues, linear_value, noise_sigma
from dpsql.answer.exact import Runtime, no_keys
from dpsql.answer.nothing_shown import asked_at, reasons_of_sets, threshold_reason
from dpsql.answer.offer import Offer, asked_together, column_receipts, make_receipt, offers_of, with_price
from dpsql.answer.points import Agreed, noisy_table, served_point, shown_key_table
from dpsql.answer.result import ColumnReceipt, Receipt, SetReceipt
from dpsql.answer.stage import Inquiry, Stage, prepare_stage, reading_of, release_stage
from dpsql.cascade.reader import Reader
from dpsql.cascade.serving import Draw
from dpsql.engine import digest
from dpsql.errors import AccessError
from dpsql.features.consistent import (
    Marginal,
    consistent_values,
    consistent_variances,
    roundings,
    whole_marginals,
)
from dpsql.mechanism.calibrate import MOST_DRAWN
from dpsql.mechanism.joint import ShownFrame, joint_guarantee
from dpsql.mechanism.registry import shared
from dpsql.mechanism.window import charged_delta
from dpsql.model.estimates import Estimate, Sum
from dpsql.model.frame import PRESENCE, Statistic
from dpsql.model.identity import query_hash
from dpsql.model.private_query import FrameQuery, GroupingSets, Request, WithOtherGroup
from dpsql.plan.features.other_group import outside_of
from dpsql.state import NANO_PER_RHO, SideTable, State, texts_to_arrow, to_arrow

Noise = Mapping[Statistic, float]
_DECIMAL = re.compile(r"DECIMAL\(\d+,(\d+)\)")


def release_sets(sets: GroupingSets, runtime: Runtime, inquiry: Inquiry) -> tuple[pa.Table, Receipt]:
    """The answer of a query with several grouping sets, which is charged whole, and then released set by set.

    Raises:
        DpsqlError: as `prepare_stage` and `release_stage`.

    """
    stage = prepare_stage(sets.parts, runtime, inquiry.reader)
    offers = stage.offers
    # all of the receipt that can fail is made before the charge
    receipt = _joint_receipt(sets, stage)
    charged = release_stage(stage, runtime, inquiry)
    side_table = runtime.state.side_table
    priced = tuple(
        replace(one, receipt=with_price(one.receipt, charged.part(part.items)))
        for one, part in zip(receipt.sets, offers, strict=True)
    )
    tables = [
        _placed(sets, part.query, noisy_table(part, side_table, values))
        for part, values in zip(offers, _agreed(sets, offers, side_table), strict=True)
    ]
    empty = [place for place, one in enumerate(tables) if not one.num_rows]
    if empty:
        receipt = replace(receipt, nothing_shown=_set_reasons(sets, offers, empty, runtime.state, inquiry.reader))
    table = pa.concat_tables([tables[place] for place in sets.sets], promote_options="permissive")
    return table, with_coverage_of_sets(replace(with_price(receipt, charged), sets=priced), offers, side_table)


def _set_reasons(
    sets: GroupingSets, offers: Sequence[Offer], empty: Sequence[int], state: State, reader: Reader
) -> tuple[str, ...]:
    """Return why the sets at these places have no groups."""

    def at(request: Request) -> tuple[Offer, ...]:
        return offers_of(shared(replace(sets, request=request)).parts, state, reader)

    reasons = [
        (
            offers[place].query.frame.called_keys,
            threshold_reason(offers[place : place + 1], sets.request, at, state, slice(place, place + 1)),
        )
        for place in empty
    ]
    return reasons_of_sets(reasons, are_all=len(empty) == len(offers))


def joint_guarantee_of(request: Request, offers: Sequence[Offer]) -> tuple[float, float]:
    """(epsilon, delta) of several frames together, both rounded up."""
    shown = [
        ShownFrame(
            part.histogram,
            sum(serving.guaranteed_nano for serving in part.servings),
            _threshold_delta(part),
            tuple(serving.level.statistic for serving in part.servings),
            1 if all(serving.is_single_draw for serving in part.servings) else MOST_DRAWN,
            part.auto_nano,
        )
        for part in offers
    ]
    return joint_guarantee(shown, request)


def _joint_receipt(sets: GroupingSets, stage: Stage) -> Receipt:
    """The receipt of all sets together, before a price is known."""
    offers, receipts = stage.offers, stage.receipts
    epsilon, delta = joint_guarantee_of(sets.request, offers)
    columns = joint_columns(sets, offers)
    own = [replace(receipt, columns=shown) for receipt, shown in zip(receipts, columns, strict=True)]
    return replace(
        receipts[0],
        query_hash=query_hash(sets),
        mechanism=", ".join(dict.fromkeys(receipt.mechanism for receipt in receipts)),
        rho=math.fsum(receipt.rho for receipt in receipts),
        asked_rho=asked_together(receipts),
        epsilon=epsilon,
        delta=delta,
        max_keys=None,
        threshold=None,
        columns=largest_columns(columns),
        notes=tuple(dict.fromkeys((*(note for receipt in receipts for note in receipt.notes), *joint_notes(sets)))),
        sets=tuple(
            SetReceipt(part.query.frame.called_keys, receipt) for part, receipt in zip(offers, own, strict=True)
        ),
    )


def joint_columns(sets: GroupingSets, offers: Sequence[Offer]) -> list[tuple[ColumnReceipt, ...]]:
    """Of each set the noise of its columns."""
    lengths = _agree(sets, offers)
    rounded = roundings(lengths, _marginals(offers, PRESENCE)) if lengths else (1,) * len(offers)
    return [
        column_receipts(part.query, part.histogram, noise, count)
        for part, noise, count in zip(offers, _noises(sets, offers), rounded, strict=True)
    ]


def joint_notes(sets: GroupingSets) -> tuple[str, ...]:
    """What holds for the sets together."""
    adds_up = "rows of a finer set add up to those of a coarser one"
    apart = "each grouping set is a release of its own, so that its rows need not add up to another's"
    return (
        "errors differ by grouping set; what is stated of a column is the largest of them",
        adds_up if sets.adds_up else apart,
    )


def _placed(sets: GroupingSets, part: FrameQuery, table: pa.Table) -> pa.Table:
    """The rows of one set with the columns of all."""
    places = sets.places(part)
    keys = len(sets.keys) - len(sets.flagged)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        f"key_{place}": table.column(f"key_{places.index(place)}") if place in places else pa.nulls(table.num_rows)
        for place in range(keys)
    }
    for i, place in enumerate(sets.flagged):
        columns[f"key_{keys + i}"] = to_arrow(np.full(table.num_rows, int(place not in places)))
    others = {name: table.column(name) for name in table.column_names if not name.startswith("key_")}
    return pa.table(columns | others)


def _marginals(offers: Sequence[Offer], statistic: Statistic) -> list[Marginal]:
    """What is known of one statistic of the finest set, which comes first."""
    finest = offers[0].query.frame.keys
    found = []
    for part in offers:
        sigma = next(serving.level.sigma for serving in part.servings if serving.level.statistic == statistic)
        axes = tuple(finest.index(key) for key in part.query.frame.keys)
        shared = part.histogram.correlation * sigma**2 if statistic == PRESENCE else 0.0
        own = sigma**2 if statistic == PRESENCE else noise_sigma(statistic, sigma, part.histogram) ** 2
        found.append(Marginal(axes, own, shared))
    return found


def _agree(sets: GroupingSets, offers: Sequence[Offer]) -> tuple[int, ...]:
    """Lengths of the finest set's keys where values are made to agree; empty where they are not, or are none."""
    public = offers[0].query.frame.public_keys
    return public.lengths if sets.adds_up and public is not None and public.count else ()


def _noises(sets: GroupingSets, offers: Sequence[Offer]) -> list[Noise]:
    """Of each set, standard deviations of its statistics as they are shown."""
    lengths = _agree(sets, offers)
    statistics = [serving.level.statistic for serving in offers[0].servings]
    if not lengths:
        return [part.noise for part in offers]
    by_statistic = {statistic: consistent_variances(lengths, _marginals(offers, statistic)) for statistic in statistics}
    return [
        {statistic: math.sqrt(variances[place]) for statistic, variances in by_statistic.items()}
        for place in range(len(offers))
    ]


def _agreed(sets: GroupingSets, offers: Sequence[Offer], side_table: SideTable) -> list[Agreed | None]:
    """Of each set, values that agree with those of the others; None where they stay what was noised."""
    lengths = _agree(sets, offers)
    if not lengths:
        return [None] * len(offers)
    noises = _noises(sets, offers)
    values: list[dict[Statistic, NoisyValues]] = [{} for _ in offers]
    for number, serving in enumerate(offers[0].servings):
        noisy = [served_point(part.servings[number], side_table).noisy_values for part in offers]
        found = consistent_values(lengths, _marginals(offers, serving.level.statistic), noisy)
        for place, cells in enumerate(found):
            values[place][serving.level.statistic] = NoisyValues(cells, noises[place][serving.level.statistic])
    marginals = _marginals(offers, PRESENCE)
    whole = {
        i: whole_marginals(lengths, marginals, linear_value(estimate.value.linear, values[0]), step)
        for i, estimate in enumerate(offers[0].query.estimates)
        if isinstance(estimate.value, Sum) and (step := _step(estimate))
    }
    return [
        Agreed(own, {i: shown[place] for i, shown in whole.items()}, rounded)
        for place, (own, rounded) in enumerate(zip(values, roundings(lengths, marginals), strict=True))
    ]


def _step(estimate: Estimate) -> float:
    """What a sum is shown in whole multiples of: 1, or the last digit of a DECIMAL; 0 for others."""
    scale = _DECIMAL.fullmatch(estimate.type)
    return 10.0 ** -int(scale[1]) if scale else float(estimate.type == "BIGINT")


def _threshold_delta(part: Offer) -> float:
    """What the thresholds cost that the shown keys have passed, and that of a ceiling which is paid for now."""
    presence, window = part.presence, part.query.frame.window
    if window is not None:
        return charged_delta(part.histogram, window)
    levels = {keys.rho_nano for keys in presence.keys_from}
    unseen = (step.delta for step in presence.steps if isinstance(step, Draw) and step.level.rho_nano not in levels)
    return math.fsum([presence.keys_delta, *unseen])


def largest_columns(parts: Sequence[tuple[ColumnReceipt, ...]]) -> tuple[ColumnReceipt, ...]:
    """Of each column the part in which it has the most noise."""
    return tuple(max(one, key=lambda column: column.sigma or 0.0) for one in zip(*parts, strict=True))


def release_with_other(asked: WithOtherGroup, runtime: Runtime, inquiry: Inquiry) -> tuple[pa.Table, Receipt]:
    """The answer with the row, which is charged, drawn and stored once the groups are.

    Raises:
        DpsqlError: as `prepare_stage` and `release_stage`; what could keep the row from being released is found before
            the groups are charged, but for what somebody else takes of the budget meanwhile.

    """
    stage = prepare_stage(asked.parts, runtime, inquiry.reader)
    (groups,) = stage.offers
    _require_row(asked, stage, runtime, inquiry.reader)
    charged = release_stage(stage, runtime, inquiry)
    keys = shown_key_table(groups, runtime.state.side_table)
    frame = outside_of(asked.row.frame, groups.query.frame, digest(keys))
    row = prepare_stage([_at_level(replace(asked.row, frame=frame), groups)], runtime, inquiry.reader, keys)
    (outside,) = row.offers
    joint = _receipt_with_row(asked, stage, row)
    paid = release_stage(row, runtime, inquiry)
    first, own, joint = (replace(one, query_hash=inquiry.query_hash) for one in (*stage.receipts, *row.receipts, joint))
    receipt = replace(
        with_price(joint, charged + paid),
        sets=(
            SetReceipt(groups.query.frame.called_keys, with_price(first, charged)),
            SetReceipt((), with_price(own, paid)),
        ),
    )
    side_table = runtime.state.side_table
    receipt = with_coverage(receipt, groups, side_table)
    shown = noisy_table(groups, side_table)
    if not shown.num_rows:

        def at(request: Request) -> tuple[Offer, ...]:
            (higher,) = offers_of([asked_at(groups.query, request)], runtime.state, inquiry.reader)
            return higher, other_offer(asked, higher, runtime.state, inquiry.reader)

        reason = threshold_reason([groups], groups.query.request, at, runtime.state, slice(1))
        receipt = replace(receipt, nothing_shown=(reason,))
    return _appended(shown, noisy_table(outside, side_table), asked), receipt


def other_offer(asked: WithOtherGroup, groups: Offer, state: State, reader: Reader) -> Offer:
    """How the row is served where nothing is stored of it, which costs the most.

    Args:
        asked: groups and row.
        groups: how the groups are served.
        state: the state file.
        reader: who asks.

    Raises:
        AccessError: a reader with a limit asks; of each set of shown groups the row is a release of its own.
        CalibrationError: the level is too small for the row's noise.

    """
    if reader.has_limit:
        raise AccessError(
            "each set of shown groups has an other group of its own, which adds to the others, and "
            f"{reader.name!r} has a limit; leave other_group out"
        )
    (row,) = offers_of([_at_level(asked.row, groups)], state, reader)
    return row


def require_other_runs(asked: WithOtherGroup, groups: Offer, runtime: Runtime, reader: Reader) -> None:
    """Find out that the row can be read where it is yet to be drawn.

    Raises:
        AccessError, CalibrationError: as `other_offer`.
        ReleaseError, SchemaError: the row cannot be read.

    """
    if groups.items:
        _require_row_runs(asked, other_offer(asked, groups, runtime.state, reader), runtime)


def _require_row(asked: WithOtherGroup, stage: Stage, runtime: Runtime, reader: Reader) -> None:
    """Find what could keep the row from being released after the groups are paid for; charges and reads nothing."""
    (groups,) = stage.offers
    row = other_offer(asked, groups, runtime.state, reader)
    if not groups.items:
        # the groups cost nothing, and tell which row it is: what that one needs is found before it is charged
        return
    _receipt_with_row(asked, stage, Stage((row,), (None,), (make_receipt(row),)))
    runtime.state.ledger.require(groups.query.frame.rows.unit, (*groups.items, *row.items), reader.name)
    _require_row_runs(asked, row, runtime)


def _require_row_runs(asked: WithOtherGroup, row: Offer, runtime: Runtime) -> None:
    reading_of(row, runtime, no_keys(asked.first.frame))


def other_notes(asked: WithOtherGroup) -> tuple[str, ...]:
    """What holds for the row beside the groups."""
    return (
        f"the row {asked.name!r} is a release of its own, of the rows outside the shown groups, at the level "
        "of the groups, on top of it, and paid once for each set of shown groups",
        f"of one unit the row holds at most {asked.first.frame.bounding.max_groups} times what it may add to one "
        "group; groups that HAVING or LIMIT takes out are not in it",
    )


def joint_terms(groups: Offer, row: Offer) -> tuple[float, float, float]:
    """Rho, epsilon and delta of groups and row together."""
    rho_nano = groups.rho_nano + row.rho_nano
    return (rho_nano / NANO_PER_RHO, *joint_guarantee_of(groups.query.request, (groups, row)))


def _at_level(row: FrameQuery, groups: Offer) -> FrameQuery:
    """The row at the level that was asked for the groups."""
    return replace(row, request=row.request.at(groups.asked_nano / NANO_PER_RHO))


def _receipt_with_row(asked: WithOtherGroup, groups: Stage, row: Stage) -> Receipt:
    """The receipt of groups and row, before a price is known."""
    rho, epsilon, delta = joint_terms(*groups.offers, *row.offers)
    (first,), (own,) = groups.receipts, row.receipts
    return replace(
        first,
        rho=rho,
        asked_rho=asked_together((first, own)),
        epsilon=epsilon,
        delta=delta,
        columns=largest_columns((first.columns, own.columns)),
        notes=(*first.notes, *other_notes(asked)),
    )


def _appended(groups: pa.Table, row: pa.Table, asked: WithOtherGroup) -> pa.Table:
    """The row under the groups: its text keys read its name, its others NULL."""
    columns: dict[str, pa.Array | pa.ChunkedArray] = {name: row.column(name) for name in row.column_names}
    for i, key in enumerate(asked.keys):
        kind = groups.column(f"key_{i}").type
        named = key.type == "VARCHAR"
        names = texts_to_arrow([asked.name] * row.num_rows)
        columns[f"key_{i}"] = names.cast(kind) if named else pa.nulls(row.num_rows, kind)
    return pa.concat_tables([groups, pa.table(columns).select(groups.column_names)], promote_options="permissive")
