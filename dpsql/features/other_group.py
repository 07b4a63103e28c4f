"""The row of the groups that are not shown: how it is priced, released and explained with the groups.

It is released after the groups, outside those which this release shows. The groups are charged, drawn and stored
first. Which of them are shown is then post-processing of stored points, and names the frame of the row. The row is
charged, drawn and stored after that. Whoever is stopped in between, or asks the same again, finds the same groups
stored, so that the row has the same frame, and no part is paid twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from dpsql.cascade.reader import Reader
from dpsql.engine import digest
from dpsql.errors import AccessError
from dpsql.features.joint_release import called_keys, joint_receipt, joint_rows, largest_columns, own_receipts
from dpsql.features.query_kind import QueryKind
from dpsql.model.frame import NANO
from dpsql.model.identity import query_hash
from dpsql.model.private_query import Request
from dpsql.model.query_kinds import WithOtherGroup
from dpsql.plan.features.other_group import outside_of
from dpsql.receipts import words
from dpsql.receipts.coverage_receipt import with_coverage
from dpsql.receipts.offer_receipt import column_receipts
from dpsql.receipts.plan_rows import Row, expected_error, offer_rows, price_rows, statistic_row
from dpsql.receipts.receipt import Receipt
from dpsql.receipts.remarks import asked_at, threshold_reason
from dpsql.release.exact import no_keys
from dpsql.release.noisy_table import noisy_table
from dpsql.release.offer import Offer, amounts_of, offers_of
from dpsql.release.points import shown_frame, shown_key_table
from dpsql.release.runtime import Claim, Runtime
from dpsql.release.stages import Released, Stage
from dpsql.state import State, texts_to_arrow


class OtherGroupKind(QueryKind[WithOtherGroup]):
    """Queries with one more row, for the groups that are not shown."""

    def stages(self, query: WithOtherGroup, state: State, reader: Reader) -> Iterator[Stage]:
        """Yield the groups and then the row; while groups are to be drawn, the row as if nothing is stored of it."""
        yield Stage(query.parts, reader)
        (groups,) = offers_of(query.parts, state, reader)
        dearest = _dearest_row(query, groups, reader)
        if any(serving.steps for serving in groups.servings):
            # of groups that cost nothing the row is known, and found before it is charged, once they are stored
            if groups.items:
                yield replace(dearest, keys=no_keys(query.first.frame))
            return
        keys = shown_key_table(groups, state.side_table)
        frame = outside_of(query.row.frame, groups.query.frame, digest(keys))
        row = replace(dearest.parts[0], frame=frame)
        # which groups are shown follows from released numbers, and so does what was paid for the rows outside them
        # before
        yield Stage((row,), reader, keys, claim=_claim_of(query, dearest, state))

    def offers(self, query: WithOtherGroup, state: State, reader: Reader) -> tuple[Offer, ...]:
        """Return how the groups are served, and last the row; if it is not known yet, as if nothing is stored of it."""
        groups, *row = super().offers(query, state, reader)
        return groups, *(row or _dearest_row(query, groups, reader).offers(state))

    def receipt(self, query: WithOtherGroup, offers: Sequence[Offer], _state: State) -> Receipt:
        """Return the receipt of groups and row together."""
        own = own_receipts(query, offers)
        columns = largest_columns([one.columns for one in own])
        base = replace(own[0], columns=columns, notes=(*own[0].notes, *other_notes(query)))
        return joint_receipt(query, base, offers, own, called_keys(offers))

    def answer(
        self, query: WithOtherGroup, released: Sequence[Released], receipt: Receipt, runtime: Runtime, reader: Reader
    ) -> tuple[pa.Table, Receipt]:
        """Return the row under the groups."""
        groups, row = (one.offer for one in released)
        state = runtime.state
        shown, outside = (shown_frame(one, state.side_table) for one in (groups, row))
        receipt = with_coverage(receipt, groups, shown, state.side_table)
        if not len(shown.shown):

            def at(request: Request) -> tuple[Offer, ...]:
                (higher,) = offers_of([asked_at(groups.query, request)], state, reader)
                return higher, *_dearest_row(query, higher, reader).offers(state)

            reason = threshold_reason([groups], groups.query.request, at, state, slice(1))
            receipt = replace(receipt, nothing_shown=(reason,))
        above = noisy_table(groups, shown, state.side_table)
        return _appended(above, noisy_table(row, outside, state.side_table), query), receipt

    def rows(self, query: WithOtherGroup, state: State, reader: Reader) -> list[Row]:
        """Return the rows of the groups, and those of the row; its groups are known when they are drawn."""
        (groups,) = offers_of(query.parts, state, reader)
        (row,) = _dearest_row(query, groups, reader).offers(state)
        price = amounts_of([row])[0] / NANO
        columns = column_receipts(row.query, row.histogram, row.noise)
        return [
            *offer_rows(groups),
            *(("other group", *statistic_row(serving, row)[1:]) for serving in row.servings),
            *(("other group", column.name, expected_error(column)) for column in columns),
            *(("other group", "rule", note) for note in other_notes(query)),
            *joint_rows("with other group", query, (groups, row)),
            ("with other group", "price", f"rho = {price:.9g} more, nothing where the shown groups have one already"),
            *price_rows(query, [groups]),
        ]


KIND = OtherGroupKind()


def _dearest_row(asked: WithOtherGroup, groups: Offer, reader: Reader) -> Stage:
    """Return the stage of the row if nothing is stored of it, which costs the most; it is at the level of the groups.

    Raises:
        AccessError: a reader with a limit asks; of each set of shown groups the row is a release of its own.

    """
    if reader.has_limit:
        raise AccessError(
            "each set of shown groups has an other group of its own, which adds to the others, and "
            f"{reader.name!r} has a limit; leave other_group out"
        )
    request = asked.row.request.at(groups.asked_nano / NANO)
    return Stage((replace(asked.row, request=request),), reader)


def _claim_of(asked: WithOtherGroup, dearest: Stage, state: State) -> Claim:
    """Return the most that the row may be charged: its price if nothing is stored of it."""
    (row,) = dearest.offers(state)
    question = f"{query_hash(asked)} {row.asked_nano} {row.query.request.delta} {dearest.reader.name}"
    return Claim(question, *amounts_of([row]))


def other_notes(asked: WithOtherGroup) -> tuple[str, ...]:
    """Return the rules that hold for the row beside the groups."""
    return (
        words.OTHER_ROW.format(name=asked.name),
        words.OTHER_ROW_HOLDS.format(groups=asked.first.frame.bounding.max_groups),
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
