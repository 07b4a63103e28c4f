"""Steps 4 and 5 but for the charge: how a query, or each of its grouping sets, is served, and at what price."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpsql.errors import AccessError
from dpsql.query.frame import PRESENCE
from dpsql.query.identity import base_hash, statistic_hash
from dpsql.query.private_query import Grouping, PrivateQuery
from dpsql.release.calibrate import Calibration, calibrate
from dpsql.release.choose import Shape, histogram_of
from dpsql.release.histogram import Histogram
from dpsql.session.reader import Reader
from dpsql.session.receipt import Terms, terms_of
from dpsql.session.serving import Serving
from dpsql.session.servings import servings_of
from dpsql.state import ChargeItem, State, delta_units_up


@dataclass(frozen=True)
class Prepared:
    """A query of one frame as it is to be served; nothing is charged, read or drawn yet.

    Attributes:
        query: on the current generation of its frame.
        calibration: levels, noise and threshold as they were asked for.
        servings: how each statistic is served, presence first.
        terms: what that guarantees.
        items: the price.

    """

    query: PrivateQuery
    calibration: Calibration
    servings: tuple[Serving, ...]
    terms: Terms
    items: tuple[ChargeItem, ...]

    @property
    def histogram(self) -> Histogram:
        """How the presence count is noised."""
        return self.calibration.histogram


def prepare(query: PrivateQuery, state: State, reader: Reader) -> tuple[Prepared, ...]:
    """How a query is served: its one frame, or that of each distinct grouping set.

    Args:
        query: as `current` gives it.
        state: the books.
        reader: who asks, with their clearance, which holds for all parts together.

    Raises:
        AccessError, CalibrationError: nothing was charged or read.

    """
    parts = parts_of(query)
    calibrations = [calibrate(part, held_histogram(part, state)) for part in parts]
    asked_nano = sum(calibration.rho_nano for calibration in calibrations)
    prepared = []
    for part, calibration in zip(parts, calibrations, strict=True):
        servings = servings_of(part, calibration, state, reader, asked_nano)
        terms = terms_of(part, calibration, servings)
        prepared.append(Prepared(part, calibration, servings, terms, _charge_items(part, servings)))
    return tuple(prepared)


def parts_of(query: PrivateQuery) -> tuple[PrivateQuery, ...]:
    """The queries of one frame that a query is made of."""
    return (query,) if query.grouping is None else query.grouping.parts


def current(query: PrivateQuery, state: State, reader: Reader) -> PrivateQuery:
    """The query on the last generation of its frames, or on the next where a refresh is asked for.

    Raises:
        AccessError: a reader with a limit asks for a refresh, which adds to what they hold of the same rows.

    """
    if query.refresh and reader.rho_limit is not None:
        raise AccessError(
            f"a refresh is one more release of the same rows, and {reader.name!r} has a limit; the curator can refresh"
        )
    if query.grouping is not None:
        return _current_parts(query, query.grouping, state, reader)
    last = state.side_table.generation(base_hash(query.frame))
    generation = 0 if last is None else last + query.refresh
    return replace(query, frame=replace(query.frame, generation=generation))


def _current_parts(query: PrivateQuery, grouping: Grouping, state: State, reader: Reader) -> PrivateQuery:
    # units of sums are bounded by the salt of the finest frame's generation
    first, *others = grouping.with_first(current(grouping.parts[0], state, reader)).parts
    parts = (first, *(current(part, state, reader) for part in others))
    return replace(query, frame=first.frame, grouping=replace(grouping, parts=parts))


def held_histogram(query: PrivateQuery, state: State) -> Histogram:
    """How the presence count is noised; a frame that has a point of it keeps its shape."""
    stored = state.side_table.levels(statistic_hash(PRESENCE, query.frame))
    shape = Shape(stored[0].correlation, stored[0].floor_correlation) if stored else None
    return histogram_of(query.frame, shape)


def _charge_items(query: PrivateQuery, servings: tuple[Serving, ...]) -> tuple[ChargeItem, ...]:
    """The price: each draw and its imprecision, and the thresholds that are due."""
    items = []
    for serving in servings:
        rho_nano = sum(level.rho_nano for level, _ in serving.draws)
        # each part is rounded up by itself, as it is where it is stored
        parts = [level.noise_delta for level, _ in serving.draws]
        parts += [cut.delta for cut in (serving.cut, serving.ceiling_cut) if cut is not None]
        if not serving.is_paid:
            items.append(
                ChargeItem(statistic_hash(serving.statistic, query.frame), rho_nano, sum(map(delta_units_up, parts)))
            )
    return tuple(items)
