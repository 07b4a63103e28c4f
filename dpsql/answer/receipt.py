"""The receipt of an answer: which release it was, its price, and the size of its noise."""

from __future__ import annotations

from dataclasses import dataclass

from dpsql.answer import words
from dpsql.pictures.tables import short

_HIDING = ("gshm", "csh")
"""Mechanisms of private keys."""


@dataclass(frozen=True, slots=True)
class ColumnReceipt:
    """The noise of one column.

    Attributes:
        name: name of the column in the result.
        aggregate: the aggregate it shows.
        bounds: public interval of what one unit adds to one group; None for averages.
        linf: most that one unit was assumed to move one group of the noised sum (after recentring).
        l2: the same over all groups of the unit, with max_groups groups.
        sigma: standard deviation of the shown value, the largest of all rows; None for averages, whose error depends on
            what is shown.
        half_width_95: half of the 95 % interval, likewise.
        lattice: step of the grid on which the noised sum lives.

    """

    name: str
    aggregate: str
    bounds: tuple[float, float] | None
    linf: float | None
    l2: float | None
    sigma: float | None
    half_width_95: float | None
    lattice: float | None


@dataclass(frozen=True, slots=True)
class CoverageReceipt:
    """Coverage of one number: noisy numbers on what bounding leaves, released and paid for like those of the answer.

    All numbers of all coverage of one answer, but for ``share``, are true together with probability 95 %.

    Attributes:
        of: ``groups``, ``rows``, or the aggregate that adds them up.
        unit: whose.
        share: estimate of the part that is left, over units up to ``size``; None where it is unknown.
        low, high: the ends of its interval.
        size: number of groups or rows, or amount, up to which a unit's is told apart.
        least_beyond, beyond: fewest and most units with more than that; what bounds keep of theirs is not known.
        part_beyond: least part that they have of all that there is.
        high_of_all: most that bounds keep of all that there is; 1 where nothing is known.
        advice: where ``low`` is less than 95 %, what to write for more, and what that costs.
        unknown: why nothing is known, and what to write to know more; else empty.

    """

    of: str
    unit: str
    share: float | None = None
    low: float = 0.0
    high: float = 1.0
    size: float = 0.0
    least_beyond: int = 0
    beyond: int = 0
    part_beyond: float = 0.0
    high_of_all: float = 1.0
    advice: str = ""
    unknown: str = ""

    def __str__(self) -> str:
        if self.unknown:
            return words.coverage_unknown(self.of, self.unknown)
        kept = words.kept_up_to(self.of, self.unit, f"{self.size:,.9g}", self.low, self.high)
        more = words.units_beyond(self.least_beyond, self.beyond, self.part_beyond) if self.beyond else ""
        return "; ".join(filter(None, [kept, more, words.kept_of_all(self.of, self.high_of_all), self.advice]))


@dataclass(frozen=True, slots=True)
class SetReceipt:
    """The receipt of one grouping set, by its keys."""

    keys: tuple[str, ...]
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a release was, what it cost, and how noisy it is; a function of policy, text and past releases.

    Attributes:
        query_hash: identity of the statistics asked for.
        table, version, unit: which data, under whose budget.
        mechanism: ``gaussian``, ``correlated_gaussian`` or ``factorised_gaussian`` (public keys), ``gshm`` or ``csh``
            (private keys behind a threshold), ``discrete_correlated_gaussian`` where the noise is discrete,
            ``keys_first`` where keys are selected by releases of their own.
        rho: zCDP level of the numbers shown, whether paid now or before; where the keys beside them stem from a release
            at a higher level, notes name it.
        epsilon, delta: what numbers and keys shown guarantee together, by the exact joint analysis or, inside a window,
            from zCDP with the delta of all its thresholds.
        charged_rho, charged_delta: what this query took from the unit's budget.
        reused: whether everything was served from stored releases.
        max_groups: most groups that one unit was assumed (and made) to touch; None where it may touch any number.
        max_keys: most keys that have a count, whatever the data are (a public list, or top-k); None for any number.
        threshold: a key is shown if its noisy count of units exceeds this; None with public keys. Where max_keys bounds
            private keys: exceeds the largest group left out by more than this.
        columns: the noise per column.
        notes: rules that shaped the answer, as sentences.
        sets: of a query with several grouping sets, the receipt of each; of one with other_group that of the groups
            and that of the row, whose keys are (); of keys that are selected in rounds that of each round, by its
            number, and last that of the numbers, if there are any. What stands above is of all together, and of a
            column the largest.
        coverage: where it was asked for, what bounding leaves of what units have.
        nothing_shown: why the answer, or one of its grouping sets, has no groups, as sentences.
        asked_rho: zCDP level that was asked for; stored numbers of a higher level may serve it. None if a server of
            before does not tell it.
        asked_by: ``epsilon`` or ``rho``, by which the question asked for its level. None as for ``asked_rho``.

    """

    query_hash: str
    table: str
    version: str
    unit: str
    mechanism: str
    rho: float
    epsilon: float
    delta: float
    charged_rho: float
    charged_delta: float
    reused: bool
    max_groups: int | None
    max_keys: int | None
    threshold: float | None
    columns: tuple[ColumnReceipt, ...]
    notes: tuple[str, ...]
    sets: tuple[SetReceipt, ...] = ()
    coverage: tuple[CoverageReceipt, ...] = ()
    nothing_shown: tuple[str, ...] = ()
    asked_rho: float | None = None
    asked_by: str | None = None

    @property
    def is_relative(self) -> bool:
        """Whether the threshold counts from the largest group left out: a list of keys leaves none out."""
        return self.max_keys is not None and self.mechanism in _HIDING

    @property
    def price(self) -> str:
        """What was charged, in words."""
        if self.reused:
            return "nothing (served as stored)"
        # what the precision of the noise costs is of no interest to whoever reads
        has_delta = self.charged_delta >= words.LEAST_DELTA
        delta = f"= {self.charged_delta:.3g}" if has_delta else f"< {words.LEAST_DELTA:.0e}"
        return f"rho = {self.charged_rho:.6g}, delta {delta}"

    @property
    def kept(self) -> tuple[str, ...]:
        """Sentences on what bounds keep, of each grouping set, too: they stand beside the numbers everywhere."""
        of_sets = (f"({', '.join(one.keys)}): {kept}" for one in self.sets for kept in one.receipt.coverage)
        return (*map(str, self.coverage), *of_sets)

    @property
    def missing(self) -> tuple[str, ...]:
        """Sentences on missing groups, columns that are NULL, and a missed target: they stand beside the numbers."""
        notes = dict.fromkeys([*self.notes, *(note for one in self.sets for note in one.receipt.notes)])
        return (*self.nothing_shown, *filter(words.says_missed, notes), *filter(words.says_null, notes))

    def __str__(self) -> str:
        return _text(self)


def _text(receipt: Receipt) -> str:
    """Return a receipt as it is printed."""
    level = words.served_at(receipt.rho, receipt.asked_rho)
    lines = [f"nothing  {sentence}" for sentence in receipt.nothing_shown]
    lines += [f"missed   {note}" for note in receipt.notes if words.says_missed(note)]
    # what bounds leave out stands nearest to the numbers
    lines += [f"kept     {sentence}" for sentence in receipt.kept]
    lines += [
        f"{receipt.mechanism} on {receipt.table} (version {receipt.version}), privacy unit {receipt.unit}",
        f"price    {receipt.price}",
        f"privacy  {level}; alone: epsilon = {receipt.epsilon:.4g} at delta = {receipt.delta:.3g}",
    ]
    if receipt.threshold is not None:
        above = "the largest group left out by more than " if receipt.is_relative else ""
        lines.append(f"keys     shown where the noisy count of units exceeds {above}{short(receipt.threshold, 4)}")
    for one in receipt.sets:
        keys, own = ", ".join(one.keys), one.receipt
        hidden = "" if own.threshold is None else f"; shown above {short(own.threshold, 4)} units"
        level = words.served_at(own.rho, own.asked_rho)
        lines.append(f"set      ({keys}): {level}, charged {own.charged_rho:.6g}{hidden}")
    for column in receipt.columns:
        width = "differs by row" if column.half_width_95 is None else f"± {short(column.half_width_95)} (95 %)"
        lines.append(f"error    {column.name}: {width}")
    return "\n".join(lines + [f"note     {note}" for note in receipt.notes if not words.says_missed(note)])
