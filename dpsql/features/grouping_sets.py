"""Grouping sets: how several sets of keys are priced, released and explained as one answer.

They are charged whole and then released set by set. Values agree where sets are sums of one. All of that is
post-processing of stored points, and of the plan.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dpsql.cascade.reader import Reader
from dpsql.features.consistent import (
    Marginal,
    consistent_values,
    consistent_variances,
    roundings,
    whole_marginals,
)
from dpsql.features.joint_release import asked_guarantee, called_keys, joint_receipt, joint_rows, largest_columns
from dpsql.features.query_kind import QueryKind
from dpsql.mechanism.histogram import Histogram
from dpsql.mechanism.measure import MISS
from dpsql.mechanism.registry import histogram_of, shared
from dpsql.model.estimates import WHOLE, Estimate, Sum
from dpsql.model.frame import PRESENCE, Statistic
from dpsql.model.private_query import FrameQuery, Request
from dpsql.model.query_kinds import GroupingSets
from dpsql.receipts import words
from dpsql.receipts.coverage_receipt import with_coverage_of_sets
from dpsql.receipts.offer_receipt import asked_sigmas, column_receipts, make_receipt
from dpsql.receipts.plan_rows import Row, frame_plan_rows, price_rows
from dpsql.receipts.receipt import ColumnReceipt, Receipt
from dpsql.receipts.remarks import reasons_of_sets, threshold_reason
from dpsql.release.estimates import NoisyValues, linear_value, noise_sigma
from dpsql.release.noisy_table import noisy_table
from dpsql.release.offer import Offer, offers_of
from dpsql.release.points import Agreed, served_point, shown_frame
from dpsql.release.runtime import Runtime
from dpsql.release.stages import Released, Stage
from dpsql.state import SideTable, State, to_arrow

Noise = Mapping[Statistic, float]
_DECIMAL = re.compile(r"DECIMAL\(\d+,(\d+)\)")


class GroupingSetsKind(QueryKind[GroupingSets]):
    """Queries with several grouping sets."""

    def stages(self, query: GroupingSets, _state: State, reader: Reader) -> Iterator[Stage]:
        """Yield the distinct sets, which are charged together."""
        yield Stage(query.parts, reader)

    def receipt(self, query: GroupingSets, offers: Sequence[Offer], _state: State) -> Receipt:
        """Return the receipt of all sets together."""
        columns = joint_columns(query, [*map(NoisedFrame.served, offers)])
        own = [replace(make_receipt(offer), columns=shown) for offer, shown in zip(offers, columns, strict=True)]
        notes = (*(note for one in own for note in one.notes), *joint_notes(query))
        base = replace(
            own[0],
            mechanism=", ".join(dict.fromkeys(one.mechanism for one in own)),
            max_keys=None,
            threshold=None,
            columns=largest_columns(columns),
            notes=tuple(dict.fromkeys(notes)),
        )
        return joint_receipt(query, base, offers, own, called_keys(offers))

    def answer(
        self, query: GroupingSets, released: Sequence[Released], receipt: Receipt, runtime: Runtime, reader: Reader
    ) -> tuple[pa.Table, Receipt]:
        """Return the groups of all sets, in the order of the text."""
        offers, side_table = [one.offer for one in released], runtime.state.side_table
        agreed = _agreed(query, offers, side_table)
        found = [shown_frame(part, side_table, values) for part, values in zip(offers, agreed, strict=True)]
        tables = [
            _placed(query, part.query, noisy_table(part, shown, side_table))
            for part, shown in zip(offers, found, strict=True)
        ]
        empty = [place for place, one in enumerate(tables) if not one.num_rows]
        if empty:
            receipt = replace(receipt, nothing_shown=_set_reasons(query, offers, empty, runtime.state, reader))
        table = pa.concat_tables([tables[place] for place in query.sets], promote_options="permissive")
        return table, with_coverage_of_sets(receipt, offers, found, side_table)

    def rows(self, query: GroupingSets, state: State, reader: Reader) -> list[Row]:
        """Return the rows of each set, and those of all together."""
        offers, rows = self.offers(query, state, reader), list[Row]()
        for part, columns in zip(offers, joint_columns(query, [*map(NoisedFrame.served, offers)]), strict=True):
            keys = ", ".join(part.query.frame.called_keys) or "()"
            rows += [("grouping set", "keys", keys), *frame_plan_rows(part, columns)]
        return [*rows, *joint_rows("all sets", query, offers, *joint_notes(query)), *price_rows(query, offers)]

    def at(self, query: GroupingSets, rho: float) -> GroupingSets:
        """Return the query at a level of rho, each set with its share."""
        return shared(replace(query, request=query.request.at(rho)))

    def columns(self, query: GroupingSets, miss: float = MISS) -> tuple[ColumnReceipt, ...]:
        """Return the noise of each column in the set where it is largest, at the level asked for."""
        return largest_columns(joint_columns(query, [NoisedFrame.asked(part) for part in query.parts], miss))

    def guarantee(self, query: GroupingSets) -> tuple[float, float]:
        """Return the guarantee of all sets together."""
        return asked_guarantee(query.request, query.parts)


KIND = GroupingSetsKind()


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


@dataclass(frozen=True, slots=True)
class NoisedFrame:
    """A set with the noise of its statistics.

    Attributes:
        query: of the set.
        histogram: how its presence count is noised.
        sigmas: standard deviation of the noise of each statistic.

    """

    query: FrameQuery
    histogram: Histogram
    sigmas: Noise

    @classmethod
    def asked(cls, query: FrameQuery) -> NoisedFrame:
        """Return a set with the noise of the level that is asked for.

        Raises:
            CalibrationError: a level rounds to nothing, or its noise cannot be drawn.

        """
        return cls(query, histogram_of(query.frame), asked_sigmas(query))

    @classmethod
    def served(cls, offer: Offer) -> NoisedFrame:
        """Return a set with the noise of what is served."""
        levels = (serving.level for serving in offer.servings)
        return cls(offer.query, offer.histogram, {level.statistic: level.sigma for level in levels})

    @property
    def noise(self) -> Noise:
        """Standard deviation of each statistic's point."""
        return {one: noise_sigma(one, sigma, self.histogram) for one, sigma in self.sigmas.items()}


def joint_columns(
    sets: GroupingSets, parts: Sequence[NoisedFrame], miss: float = MISS
) -> list[tuple[ColumnReceipt, ...]]:
    """Return the noise of the columns of each set, with the half widths that it exceeds with a probability."""
    lengths = _agree(sets)
    rounded = roundings(lengths, _marginals(parts, PRESENCE)) if lengths else (1,) * len(parts)
    return [
        column_receipts(part.query, part.histogram, noise, count, miss)
        for part, noise, count in zip(parts, _noises(sets, parts), rounded, strict=True)
    ]


def joint_notes(sets: GroupingSets) -> tuple[str, ...]:
    """Return the rules that hold for all sets together."""
    return (words.LARGEST_OF_SETS, words.SETS_ADD_UP if sets.adds_up else words.SETS_APART)


def _placed(sets: GroupingSets, part: FrameQuery, table: pa.Table) -> pa.Table:
    """Return the rows of one set with the columns of all."""
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


def _marginals(parts: Sequence[NoisedFrame], statistic: Statistic) -> list[Marginal]:
    """Return axes and variances of one statistic in each set; the finest set comes first."""
    finest = parts[0].query.frame.keys
    found = []
    for part in parts:
        sigma = part.sigmas[statistic]
        axes = tuple(finest.index(key) for key in part.query.frame.keys)
        shared = part.histogram.shape.correlation * sigma**2 if statistic == PRESENCE else 0.0
        own = sigma**2 if statistic == PRESENCE else noise_sigma(statistic, sigma, part.histogram) ** 2
        found.append(Marginal(axes, own, shared))
    return found


def _agree(sets: GroupingSets) -> tuple[int, ...]:
    """Return the lengths of the finest set's keys if values are made to agree, and nothing if they are not."""
    public = sets.parts[0].frame.public_keys
    return public.lengths if sets.adds_up and public is not None and public.count else ()


def _noises(sets: GroupingSets, parts: Sequence[NoisedFrame]) -> list[Noise]:
    """Return the standard deviations of the statistics of each set as they are shown."""
    lengths = _agree(sets)
    if not lengths:
        return [part.noise for part in parts]
    by_statistic = {one: consistent_variances(lengths, _marginals(parts, one)) for one in parts[0].sigmas}
    return [
        {statistic: math.sqrt(variances[place]) for statistic, variances in by_statistic.items()}
        for place in range(len(parts))
    ]


def _agreed(sets: GroupingSets, offers: Sequence[Offer], side_table: SideTable) -> list[Agreed | None]:
    """Return values of each set that agree with those of the others; None for a set if they stay what was noised."""
    lengths = _agree(sets)
    if not lengths:
        return [None] * len(offers)
    parts = [*map(NoisedFrame.served, offers)]
    noises = _noises(sets, parts)
    values: list[dict[Statistic, NoisyValues]] = [{} for _ in offers]
    for number, serving in enumerate(offers[0].servings):
        noisy = [served_point(part.servings[number], side_table).noisy_values for part in offers]
        found = consistent_values(lengths, _marginals(parts, serving.level.statistic), noisy)
        for place, cells in enumerate(found):
            values[place][serving.level.statistic] = NoisyValues(cells, noises[place][serving.level.statistic])
    marginals = _marginals(parts, PRESENCE)
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
    """Return the step of a sum that is shown in whole steps: 1, or the last digit of a DECIMAL; 0 for others."""
    scale = _DECIMAL.fullmatch(estimate.type)
    return 10.0 ** -int(scale[1]) if scale else float(estimate.type in WHOLE)
