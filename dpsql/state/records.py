"""What the side table holds, as frozen values: frames, points, thresholds, snapshots, releases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.errors import ReleaseError
from dpsql.state.policy import DELTA_UNITS_PER_ONE, MAX_RHO_NANO

_MOST_EXPONENT = 1022
"""Powers of two up to this exponent, and their reciprocals, are normal doubles."""


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """One release of one statistic: noisy values for every key of its frame, shown or hidden.

    Attributes:
        statistic_hash: the query hash of the statistic.
        rho_nano: level in nano-rho, positive.
        frame_hash: the frame whose keys the values belong to.
        values: int64, shape (n,), in lattice steps; values[i] belongs to key id i.
        lattice_exponent: a lattice step is 2**lattice_exponent.
        sigma: standard deviation of the noise, in units of the statistic.
        tau: threshold, None for public keys.
        threshold_delta_units: delta of that threshold, in multiples of 2**-100.
        correlation: variance of the noise that all keys share, over sigma**2.
        floor: what was subtracted from every value, to be added again, in lattice steps; noisy where floor_correlation
            is not None.
        floor_correlation: variance of what floor and values together still share, over sigma**2.
        source_rho_nano: level of the point that it was made of, and of the release where releases are independent; None
            where it was drawn. Of rows left out, place of the number whose charge has paid for it; None if that is its
            own.
        release_rho_nano: level of the independent release that it was made of, beside others at its level; 0 where its
            statistic has one point at a level.
        cells: values per key, side by side; known to whoever makes a point, and not stored.
        created_at: when it was drawn, with a time zone.

    """

    statistic_hash: str
    rho_nano: int
    frame_hash: str
    values: npt.NDArray[np.int64] = field(repr=False)
    lattice_exponent: int
    sigma: float
    tau: float | None
    threshold_delta_units: int
    correlation: float = 0.0
    floor: int = 0
    floor_correlation: float | None = None
    source_rho_nano: int | None = None
    release_rho_nano: int = 0
    cells: int = 1
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        if type(self.rho_nano) is not int or not 0 < self.rho_nano <= MAX_RHO_NANO:
            raise ReleaseError("a point needs a positive level in whole nano-rho")
        delta = self.threshold_delta_units
        if type(delta) is not int or not 0 <= delta <= DELTA_UNITS_PER_ONE:
            raise ReleaseError("a point needs a threshold delta in whole units")
        if not 0.0 < self.sigma < math.inf or (self.tau is not None and not math.isfinite(self.tau)):
            raise ReleaseError("a point needs a positive sigma and a finite threshold")
        correlations = (self.correlation, 0.0 if self.floor_correlation is None else self.floor_correlation)
        if not all(0.0 <= one < math.inf for one in correlations) or type(self.floor) is not int:
            raise ReleaseError("a point needs a whole floor and correlations that are not negative")
        if self.values.dtype != np.int64 or self.values.ndim != 1:
            raise ReleaseError("the values of a point are a vector of int64")
        if self.release_rho_nano and (self.tau is not None or delta or self.release_rho_nano <= self.rho_nano):
            raise ReleaseError("what is made of an independent release is below it, and has no threshold")

    @property
    def noisy_values(self) -> npt.NDArray[np.float64]:
        """The values in units of the statistic; of a presence count less the floor."""
        return self.values.astype(np.float64) * 2.0**self.lattice_exponent


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """The noisy values of a stored point on keys that its frame gets later.

    Attributes:
        statistic_hash, rho_nano: which point.
        values: int64, in lattice steps.

    """

    statistic_hash: str
    rho_nano: int
    values: npt.NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Level:
    """What a stored point is without its values; attributes as those of `Point`."""

    rho_nano: int
    sigma: float
    tau: float | None
    threshold_delta_units: int
    correlation: float
    floor_correlation: float | None
    value_count: int
    source_rho_nano: int | None = None
    release_rho_nano: int = 0

    @property
    def is_paid(self) -> bool:
        """Whether something was charged for it: it was drawn, or has a threshold of its own."""
        return self.source_rho_nano is None or self.threshold_delta_units > 0

    @property
    def release(self) -> int:
        """Where releases are independent: the level of the one that it is, or was made of."""
        return self.rho_nano if self.source_rho_nano is None else self.source_rho_nano


@dataclass(frozen=True, slots=True)
class Stop:
    """Where the steps of a question by relative error ended for a reader.

    Attributes:
        rho_nano: level of the last step.
        steps: number of steps.
        ending: why it was the last: ``met``, ``most`` for the highest level that the question allows, ``budget`` or
            ``rises`` if no further step could be paid, or drawn.

    """

    rho_nano: int
    steps: int
    ending: str


@dataclass(frozen=True, slots=True)
class Pin:
    """Which point a reader is shown of a statistic wherever they ask the same again.

    Attributes:
        analyst: the reader's name.
        statistic_hash: the query hash of the statistic.
        asked_rho_nano: level that the statistic was asked for at.
        query_rho_nano: level of all that was asked for at once.
        own_release: whether a release with a threshold of its own was asked for, where releases are independent.
        by_half_width: whether the level followed from half widths.
        rho_nano, release_rho_nano: of the point.
        has_threshold: whether the point's own threshold was part of the answer.

    """

    analyst: str
    statistic_hash: str
    asked_rho_nano: int
    query_rho_nano: int
    own_release: bool
    by_half_width: bool
    rho_nano: int
    release_rho_nano: int
    has_threshold: bool


@dataclass(frozen=True, slots=True)
class SeenLevels:
    """Levels of a statistic that a reader with a limit may know of, in nano-rho.

    Attributes:
        known: those of their own answers, and the highest one that a text of anybody named.
        with_threshold: those of their own answers whose own threshold was part of the answer.
        most_nano: the highest level that any text could have led to.

    """

    known: frozenset[int]
    with_threshold: frozenset[int]
    most_nano: int


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold that is charged for a point which was stored without one."""

    statistic_hash: str
    rho_nano: int
    tau: float
    delta_units: int


@dataclass(frozen=True, slots=True)
class AutoChoice:
    """Which histogram AUTO chose by in a release; levels in nano-rho.

    Attributes:
        statistic_hash: the histogram's.
        analyst: who is shown what was chosen.
        share_nano: what the query left for the histogram.
        rho_nano: level of the point that chose.
        rho_limit: highest level that may choose for the reader; None for any.

    """

    statistic_hash: str
    analyst: str
    share_nano: int
    rho_nano: int
    rho_limit: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The exact histogram that a frame was first released from, and that its later releases are drawn from.

    Attributes:
        values: int64, shape (n,): values[i] belongs to key id i; a key that came later is not in it.
        floor: what was subtracted from every count.

    """

    values: npt.NDArray[np.int64] = field(repr=False)
    floor: int = field(repr=False)

    def __post_init__(self) -> None:
        if self.values.dtype != np.int64 or self.values.ndim != 1:
            raise ReleaseError("the values of a snapshot are a vector of int64")
        if type(self.floor) is not int or self.floor < 0:
            raise ReleaseError("a snapshot needs a whole floor that is not negative")


@dataclass(frozen=True, slots=True)
class Release:
    """What an analyst was shown and what it took: amounts as in the receipt, versions as (table, version).

    Attributes:
        levels: of each statistic, the level in nano-rho up to which this release tells of it; and where releases of it
            are independent, the level of the one that it stems from, else 0. Then the level that could be charged for
            it, and the delta of its draw at this level; and the delta of the frame's threshold, and whether a window
            has it.
        changed: tables that were read for it and had changed since their version was first read; for the curator alone.
        claim: empty if the charge follows from texts and policy. Else the family of its frame; and if the statistics
            follow from released numbers, too, the question, and the most that it could be charged.

    """

    analyst: str
    query_hash: str
    at: datetime
    statistics: tuple[str, ...]
    levels: tuple[tuple[Any, ...], ...]
    mechanism: str
    rho_nano: int
    epsilon: float
    delta: float
    charged_rho_nano: int
    charged_delta_units: int
    reused: bool
    table_versions: tuple[tuple[str, str], ...]
    changed: tuple[str, ...] = ()
    claim: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyList:
    """The public list of a column, as keys of a type: a digest, and the list itself as Arrow."""

    table: str
    column: str
    key_type: str
    digest: str
    blob: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class TableMark:
    """What is cheap to see of a table's rows, at one moment of one version: names of parts and their digests."""

    table: str
    version: str
    parts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredGroups:
    """Groups in which rows that bounds leave out were measured, and the released number that they were compared with.

    One record is stored beside each point of rows left out. Groups, sum and cut follow from released values.

    Attributes:
        statistic_hash: the query hash of the point's statistic.
        rho_nano: level of the point, its position in the chain of its statistic.
        cut_exponent: each unit counts with at most 2**cut_exponent, in units of the aggregate.
        shown: sum of the released numbers over the groups.
        shown_sigma: standard deviation of the noise in this sum, not negative.
        key_ids: int64, ids of the groups in the frame of the released numbers, each once; None for all groups of that
            frame.
        presence_rho_nano: level of the presence count that the groups and the sum follow from.
        number_rho_nano: level of the statistic that the sum follows from; 0 if that is the presence count alone.

    """

    statistic_hash: str
    rho_nano: int
    cut_exponent: int
    shown: float
    shown_sigma: float
    key_ids: npt.NDArray[np.int64] | None = field(repr=False)
    presence_rho_nano: int = 0
    number_rho_nano: int = 0

    def __post_init__(self) -> None:
        if type(self.rho_nano) is not int or not 0 < self.rho_nano <= MAX_RHO_NANO:
            raise ReleaseError("measured groups need a positive level in whole nano-rho")
        if not all(type(one) is int and one >= 0 for one in (self.presence_rho_nano, self.number_rho_nano)):
            raise ReleaseError("measured groups need the levels of the released numbers in whole nano-rho")
        if type(self.cut_exponent) is not int or abs(self.cut_exponent) > _MOST_EXPONENT:
            raise ReleaseError("measured groups need a cut at a finite power of two")
        if not math.isfinite(self.shown) or not 0.0 <= self.shown_sigma < math.inf:
            raise ReleaseError("measured groups need a finite sum with a finite deviation that is not negative")
        ids = self.key_ids
        if ids is not None and (ids.dtype != np.int64 or ids.ndim != 1):
            raise ReleaseError("the ids of measured groups are a vector of int64")
        if ids is not None and ids.size and (ids.min() < 0 or len(np.unique(ids)) != len(ids)):
            raise ReleaseError("the ids of measured groups are not negative, and each is there once")


@dataclass(frozen=True, slots=True, eq=False)
class Additions:
    """What is stored of a frame in one transaction.

    Attributes:
        new_keys: keys that the frame did not hold; they get the next key ids.
        points: new points, each with a value for every key of the frame, the new ones included.
        charge_ids: as returned by ``Ledger.charge``; each pays once.
        release: what the analyst will be shown.
        snapshot: the exact histogram of a frame that is drawn from it ever after; written once.
        thresholds: for points that were stored without one.
        choices: which histograms AUTO chose by.
        marks: of the tables that were read; the first of each version is kept.
        lists: public lists of keys that are others than before.
        pins: which points the analyst is shown from now on; the first for a question stands.
        drawn_once: whether no statistic of the frame may be drawn a second time, as in a round of key selection.
        measured_groups: groups in which points of the frame measure rows left out; one record for each such point.

    """

    new_keys: pa.Table | None = None
    points: Sequence[Point] = ()
    charge_ids: Sequence[int] = ()
    release: Release | None = None
    snapshot: Snapshot | None = None
    thresholds: Sequence[Threshold] = ()
    choices: Sequence[AutoChoice] = ()
    marks: Sequence[TableMark] = ()
    lists: Sequence[KeyList] = ()
    pins: Sequence[Pin] = ()
    drawn_once: bool = False
    measured_groups: Sequence[MeasuredGroups] = ()
