"""The row of the groups that are not shown: how it is priced, released and explained with the groups.

It is released after the groups, outside those which this release shows. The groups are charged, drawn and stored
first. Which of them are shown is then post-processing of stored points, and names the frame of the row. The row is
charged, drawn and stored after that. Whoever is stopped in between, or asks the same again, finds the same groups
stored, so that the row has the same frame, and no part is paid twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from dpsql.cascade.reader import Reader
from dpsql.engine import digest
from dpsql.errors import AccessError
from dpsql.features.joint_release import joint_guarantee_of, largest_columns
from dpsql.features.query_kind import QueryKind
from dpsql.model.private_query import FrameQuery, Request
from dpsql.model.query_kinds import WithOtherGroup
from dpsql.plan.features.other_group import outside_of
from dpsql.receipts import words
from dpsql.receipts.coverage_receipt import with_coverage
from dpsql.receipts.nothing_shown import asked_at, threshold_reason
from dpsql.receipts.offer_receipt import asked_together, column_receipts, make_receipt, with_price
from dpsql.receipts.plan_rows import Row, expected_error, offer_rows, price_rows, statistic_row
from dpsql.receipts.receipt import Receipt, SetReceipt
from dpsql.release.claims import Claim
from dpsql.release.exact import Runtime, no_keys
from dpsql.release.inquiry import Inquiry
from dpsql.release.noisy_table import noisy_table
from dpsql.release.offer import Offer, offers_of
from dpsql.release.points import shown_key_table
from dpsql.release.stage import Stage, prepare_stage, reading_of, release_stage
from dpsql.state import NANO_PER_RHO, State, texts_to_arrow


@dataclass(frozen=True, slots=True)
class OtherGroupKind:
    """Queries with one more row, for the groups that are not shown."""

    def offers(self, query: WithOtherGroup, state: State, reader: Reader) -> tuple[Offer, ...]:
        """Return how the groups are served, and last the row where nothing is stored of it."""
        (groups,) = offers_of(query.parts, state, reader)
        return groups, other_offer(query, groups, state, reader)

    def require_runs(self, query: WithOtherGroup, runtime: Runtime, reader: Reader) -> None:
        """Find out that groups and row can be read where they are yet to be drawn."""
        (groups,) = offers_of(query.parts, runtime.state, reader)
        reading_of(groups, runtime)
        if groups.items:
            _require_row_runs(query, other_offer(query, groups, runtime.state, reader), runtime)

    def release(self, query: WithOtherGroup, runtime: Runtime, inquiry: Inquiry) -> tuple[pa.Table, Receipt]:
        """Release the groups and then the row, and return both with their receipt."""
        return release_with_other(query, runtime, inquiry)

    def rows(self, query: WithOtherGroup, state: State, reader: Reader) -> list[Row]:
        """Return the rows of the groups, and those of the row; its groups are known when they are drawn."""
        groups, row = self.offers(query, state, reader)
        rho, epsilon, delta = joint_terms(groups, row)
        price = sum(item.rho_nano for item in row.items) / NANO_PER_RHO
        columns = column_receipts(row.query, row.histogram, row.noise)
        return [
            *offer_rows(groups),
            *(("other group", *statistic_row(serving, row)[1:]) for serving in row.servings),
            *(("other group", column.name, expected_error(column)) for column in columns),
            *(("other group", "rule", note) for note in other_notes(query)),
            ("with other group", "rho", f"{rho:.9g}"),
            ("with other group", "this query alone", f"epsilon = {epsilon:.6g}, delta = {delta:.6g}"),
            ("with other group", "price", f"rho = {price:.9g} more, nothing where the shown groups have one already"),
            *price_rows(query, [groups]),
        ]


KIND: QueryKind[WithOtherGroup] = OtherGroupKind()


def release_with_other(asked: WithOtherGroup, runtime: Runtime, inquiry: Inquiry) -> tuple[pa.Table, Receipt]:
    """Release the groups and then the row, and return both with one receipt.

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
    # which groups are shown follows from released numbers, and so does what was paid for the rows outside them before
    claim = inquiry.claim or _claim_of(other_offer(asked, groups, runtime.state, inquiry.reader), inquiry)
    inquiry = replace(inquiry, claim=claim)
    row = prepare_stage([_at_level(replace(asked.row, frame=frame), groups)], runtime, inquiry.reader, keys)
    (outside,) = row.offers
    joint = _receipt_with_row(asked, stage, row)
    paid = release_stage(row, runtime, inquiry)
    first, own = (replace(make_receipt(one), query_hash=inquiry.query_hash) for one in (groups, outside))
    joint = replace(joint, query_hash=inquiry.query_hash)
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
    """Return how the row is served if nothing is stored of it, which costs the most.

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


def _require_row(asked: WithOtherGroup, stage: Stage, runtime: Runtime, reader: Reader) -> None:
    """Find what could keep the row from being released after the groups are paid for; charges and reads nothing."""
    (groups,) = stage.offers
    row = other_offer(asked, groups, runtime.state, reader)
    if not groups.items:
        # the groups cost nothing, and tell which row it is: what that one needs is found before it is charged
        return
    _receipt_with_row(asked, stage, Stage((row,), (None,)))
    runtime.state.ledger.require(groups.query.frame.rows.unit, (*groups.items, *row.items), reader.name)
    _require_row_runs(asked, row, runtime)


def _require_row_runs(asked: WithOtherGroup, row: Offer, runtime: Runtime) -> None:
    reading_of(row, runtime, no_keys(asked.first.frame))


def _claim_of(row: Offer, inquiry: Inquiry) -> Claim:
    """Return the most that the row may be charged: its price if nothing is stored of it."""
    question = f"{inquiry.query_hash} {row.asked_nano} {row.query.request.delta} {inquiry.reader.name}"
    return Claim(question, sum(item.rho_nano for item in row.items), sum(item.delta_units for item in row.items))


def other_notes(asked: WithOtherGroup) -> tuple[str, ...]:
    """Return the rules that hold for the row beside the groups."""
    return (
        words.OTHER_ROW.format(name=asked.name),
        words.OTHER_ROW_HOLDS.format(groups=asked.first.frame.bounding.max_groups),
    )


def joint_terms(groups: Offer, row: Offer) -> tuple[float, float, float]:
    """Return rho, epsilon and delta of groups and row together."""
    rho_nano = groups.rho_nano + row.rho_nano
    return (rho_nano / NANO_PER_RHO, *joint_guarantee_of(groups.query.request, (groups, row)))


def _at_level(row: FrameQuery, groups: Offer) -> FrameQuery:
    """Return the query of the row at the level that was asked for the groups."""
    return replace(row, request=row.request.at(groups.asked_nano / NANO_PER_RHO))


def _receipt_with_row(asked: WithOtherGroup, groups: Stage, row: Stage) -> Receipt:
    """Build the receipt of groups and row, without charges."""
    rho, epsilon, delta = joint_terms(*groups.offers, *row.offers)
    first, own = (make_receipt(one) for one in (*groups.offers, *row.offers))
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
    """Return the row under the groups: its text keys read its name, its other keys NULL."""
    columns: dict[str, pa.Array | pa.ChunkedArray] = {name: row.column(name) for name in row.column_names}
    for i, key in enumerate(asked.keys):
        kind = groups.column(f"key_{i}").type
        named = key.type == "VARCHAR"
        names = texts_to_arrow([asked.name] * row.num_rows)
        columns[f"key_{i}"] = names.cast(kind) if named else pa.nulls(row.num_rows, kind)
    return pa.concat_tables([groups, pa.table(columns).select(groups.column_names)], promote_options="permissive")
