"""Questions whose rows are read twice: all of them, and without one person, in a database beside the session's.

Each draw of a question is seen with its two exact values. What is read after a release follows from what was released,
in both worlds. So the squared distances of all draws add up, as in docs/proofs/ledger.md, Theorem 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from dpsql.bound.left_out import PART_BITS
from dpsql.bound.statement import Bounded
from dpsql.cascade.serving import Draw, Lowering
from dpsql.engine import DuckDBEngine, Engine
from dpsql.features import auto
from dpsql.features.auto_histograms import Question
from dpsql.model.frame import NANO, PRESENCE, Frame, Statistic
from dpsql.model.statistic_kinds import COVERAGE_KINDS, COVERED_KINDS, LEFT_OUT_KINDS
from dpsql.release import left_out_stage, stage
from dpsql.release.exact import Exact, Places, Reading, read_coverage, read_exact
from dpsql.release.left_out_stage import read_left_out
from dpsql.release.offer import Offer
from dpsql.release.runtime import Runtime
from dpsql.release.stored_beside import release_places
from dpsql.state import Charged

Steps = dict[tuple[Any, ...], int]
Both = tuple[Steps, Steps]


@dataclass
class Worlds:
    """What questions read with and without one person, and what they drew of it.

    Attributes:
        offers: how each frame was served.
        charged_nano: what was charged for all of them.
        left_out: for each number of rows left out, its exact values in parts of the cut.
        found: of each frame and statistic the exact values by key.
        auto_losses: of each histogram that AUTO drew, half of the squared distance, and the level that paid for it.

    """

    engine: DuckDBEngine
    offers: list[Offer] = field(default_factory=list)
    charged_nano: int = 0
    left_out: dict[tuple[Frame, Statistic], tuple[int, int]] = field(default_factory=dict)
    found: dict[tuple[Frame, Statistic], Both] = field(default_factory=dict)
    auto_losses: list[tuple[float, float]] = field(default_factory=list)

    @property
    def loss(self) -> float:
        """Half of the squared distance of all draws, in units of their noise: at most the level that was charged."""
        return math.fsum([*map(self.loss_of, self.offers), *(loss for loss, _ in self.auto_losses)])

    def loss_of(self, offer: Offer) -> float:
        """Half of the squared distance of what one frame draws, in units of its noise."""
        return math.fsum(self._loss(offer, step) for step in _draws(offer))

    def losses_of_left_out(self) -> Iterator[tuple[tuple[Frame, Statistic], float, float]]:
        """Yield the chain of each number of rows left out, its loss, and the level that was paid for it."""
        for offer in self.offers:
            for step in _draws(offer):
                if step.fresh.statistic.kind in LEFT_OUT_KINDS:
                    chain = (offer.query.frame, step.fresh.statistic)
                    yield chain, self._loss(offer, step), step.fresh.rho_nano / NANO

    def _loss(self, offer: Offer, step: Draw) -> float:
        frame, statistic, sigma = offer.query.frame, step.fresh.statistic, step.fresh.sigma
        if statistic.kind in LEFT_OUT_KINDS:
            # nothing is read if no group is shown
            one, other = self.left_out.get((frame, replace(statistic, kind=COVERED_KINDS[statistic.kind])), (0, 0))
            return ((one - other) * 2.0**-PART_BITS / sigma) ** 2 / 2.0
        with_all, without = self.found[frame, statistic]
        keys = {**with_all, **without}
        if frame.bounding.minimum_units > 1:
            # a group that one person brings above the minimum is hidden by the threshold, with all that it has
            keys = {key: steps for key, steps in with_all.items() if key in without}
        moved = [with_all.get(key, 0) - without.get(key, 0) for key in keys]
        exponent = 0 if statistic.kind in COVERAGE_KINDS else frame.exact_exponent(statistic)
        squared = math.fsum(steps * steps for steps in moved) * 4.0**exponent
        correlation, most = offer.histogram.shape.correlation, frame.key_count
        if statistic == PRESENCE and correlation and most is not None:
            squared -= correlation * (sum(moved) * 2.0**exponent) ** 2 / (1.0 + correlation * most)
        return squared / (2.0 * sigma**2)

    @property
    def charge(self) -> float:
        """The level that was charged."""
        return math.fsum([self.charged_nano / NANO, *(level for _, level in self.auto_losses)])


def _draws(offer: Offer) -> Iterator[Draw]:
    for serving in offer.servings:
        yield from (step for step in serving.steps if isinstance(step, Draw))


@contextmanager
def watched(beside: duckdb.DuckDBPyConnection) -> Iterator[Worlds]:
    """Read what questions read of the session's rows in another database, too, with the same secrets."""
    worlds = Worlds(DuckDBEngine(beside))

    def elsewhere(runtime: Runtime) -> Runtime:
        # pairs of rows are those of the session
        return replace(runtime, engine=worlds.engine, held=[])

    def charging(offers: Sequence[Offer], *of: Any) -> Charged:
        charged = charge_offers(offers, *of)
        worlds.offers += offers
        worlds.charged_nano += charged.rho_nano
        return charged

    def reading(asked: Reading, salt: bytes, runtime: Runtime, timeout: float | None) -> Exact:
        one, other = (read_exact(asked, salt, each, timeout) for each in (runtime, elsewhere(runtime)))
        for statistic, values in one.values.items():
            both = (values, other.values[statistic])
            if statistic.kind in COVERAGE_KINDS:
                found = tuple(map(_places, both))
            else:
                found = tuple(_by_key(asked, exact, each) for exact, each in zip((one, other), both, strict=True))
            worlds.found[asked.bounded.frame, statistic] = (found[0], found[1])
        return one

    def measuring(
        frame: Frame, measured: Sequence[tuple[Statistic, int]], salt: bytes, runtime: Runtime, *of: Any
    ) -> Mapping[Statistic, int]:
        one, other = (read_left_out(frame, measured, salt, each, *of) for each in (runtime, elsewhere(runtime)))
        worlds.left_out.update({(frame, statistic): (one[statistic], other[statistic]) for statistic in one})
        return one

    def covering(bounded: Bounded, salt: bytes, engine: Engine, *of: Any) -> Places:
        one, other = (read_coverage(bounded, salt, each, *of) for each in (engine, worlds.engine))
        worlds.found.update({(bounded.frame, each): (_places(one[each]), _places(other[each])) for each in one})
        return one

    def looking(question: Question, listed: pa.Table | None, runtime: Runtime, *of: Any) -> npt.NDArray[np.int64]:
        one, other = (look(question, listed, each, *of) for each in (runtime, elsewhere(runtime)))
        moved.append(float(((one - other).astype(np.float64) ** 2).sum()))
        return one

    def asking(frame: Frame, step: Draw | Lowering, *of: Any) -> Charged:
        charged = release_places(frame, step, *of)
        if isinstance(step, Draw):
            worlds.auto_losses.append((moved.pop() / (2.0 * step.fresh.sigma**2), charged.rho_nano / NANO))
        return charged

    moved: list[float] = []
    look = auto._read
    charge_offers = stage.charge_offers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "charge_offers", charging)
        patch.setattr(auto, "_read", looking)
        patch.setattr(auto, "release_places", asking)
        patch.setattr(stage, "read_exact", reading)
        patch.setattr(stage, "read_coverage", covering)
        patch.setattr(left_out_stage, "read_left_out", measuring)
        yield worlds


def _places(units: npt.NDArray[np.int64]) -> Steps:
    """Return the units in each place of coverage."""
    return {(place,): int(value) for place, value in enumerate(units)}


def _by_key(asked: Reading, exact: Exact, values: npt.NDArray[np.int64]) -> Steps:
    """Return the values of a statistic by key; those of a cell have its number beside the key."""
    tables = [exact.new_keys] if asked.is_first and exact.new_keys is not None else [asked.known, exact.new_keys]
    keys = [tuple(key.values()) for table in tables if table is not None for key in _rows(table)]
    cells = len(values) // max(1, len(keys))
    return {(*key, cell): int(values[i * cells + cell]) for i, key in enumerate(keys) for cell in range(cells)}


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table, which may have no columns."""
    found: list[dict[str, Any]] = table.to_pylist() if table.num_columns else [{}] * table.num_rows
    return found
