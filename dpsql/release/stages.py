"""The stages of a query: frames that are released together, one stage after the other.

A kind of query yields its stages (`dpsql/features/query_kind.py`). The same stages are released here, and explained and
priced elsewhere by what is stored. Each stage is an offer, a charge, a reading and points of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from dpsql.cascade.reader import Reader
from dpsql.model.private_query import FrameQuery
from dpsql.release.exact import no_keys
from dpsql.release.offer import Offer, offers_of
from dpsql.release.points import shown_key_table
from dpsql.release.round_keys import add_keys
from dpsql.release.runtime import Claim, Inquiry, Runtime
from dpsql.release.stage import NO_VALUES, Prepared, prepare, release_prepared
from dpsql.state import Charged, State


@dataclass(frozen=True, slots=True)
class Stage:
    """Frames that are released together; nothing is charged or read yet.

    Attributes:
        parts: their queries, as `offer.current` gives them.
        reader: who asks, with what earlier stages leave of their clearance.
        keys: keys of the groups that a frame of other rows is outside of.
        on_shown_keys: whether the numbers are released on the keys that the stages before have shown.
        served: changes how a frame is served, by what is stored; None if nothing does.
        drawn_once: whether each frame is drawn a single time, as a round of key selection is.
        rises: whether the next stage releases the only frame once more, on the same keys and at a higher level; then
            its rows are read once for both.
        claim: the most that the query may be charged, if its charge follows from the stages before.

    """

    parts: tuple[FrameQuery, ...]
    reader: Reader
    keys: pa.Table | None = None
    on_shown_keys: bool = False
    served: Callable[[Offer], Offer] | None = None
    drawn_once: bool = False
    rises: bool = False
    claim: Claim | None = None

    def offers(self, state: State) -> tuple[Offer, ...]:
        """Return how the frames are served.

        Raises:
            AccessError, CalibrationError: as `offers_of`.

        """
        offers = offers_of(self.parts, state, self.reader)
        return tuple(map(self.served, offers)) if self.served else offers

    def prepared(self, runtime: Runtime, shown: pa.Table | None = None) -> Prepared:
        """Find out how the frames are served, and that they can be released; charges, stores and reads nothing.

        Args:
            runtime: what the steps run on.
            shown: keys that the stages before have shown; None if they are not released yet.

        Raises:
            AccessError, CalibrationError: the reader, or the precision of the noise, does not allow it.
            ReleaseError, SchemaError: as `prepare`.

        """
        keys = self.keys
        if self.on_shown_keys:
            keys = no_keys(self.parts[0].frame) if shown is None else shown
        return prepare(self.offers(runtime.state), runtime, keys)


@dataclass(frozen=True, slots=True)
class Released:
    """A frame that was released.

    Attributes:
        offer: how it is served; all of it is stored.
        charged: its price.
        keys: those that its numbers were released on, if these were selected first.

    """

    offer: Offer
    charged: Charged
    keys: pa.Table | None = None


def release_stages(
    stages: Iterable[Stage], runtime: Runtime, inquiry: Inquiry, ready: Sequence[Prepared] = ()
) -> tuple[Released, ...]:
    """Release one stage after the other: charge, read once for each frame, draw, store.

    Args:
        stages: each is asked for when those before it are stored.
        runtime: what the steps run on.
        inquiry: who asks. What AUTO charged is recorded with the first stage that it chose for, and what was charged
            for a first round with the first stage.
        ready: the first stages, as far as they are prepared already.

    Raises:
        DpsqlError: as `Stage.prepared` and `release_prepared`.

    """
    released: list[Released] = []
    values = NO_VALUES
    for place, stage in enumerate(stages):
        shown = None
        if stage.on_shown_keys:
            shown = shown_together([one.offer for one in released], runtime)
            add_keys(stage.parts[0].frame, shown, runtime)
        is_ready = place < len(ready) and not stage.on_shown_keys
        prepared = ready[place] if is_ready else stage.prepared(runtime, shown)
        before = Charged() if released else inquiry.first_charge
        if any(part.auto for part in stage.parts) and not any(one.offer.query.auto for one in released):
            before += inquiry.auto_charge
        claim = inquiry.claim or stage.claim
        asked = replace(inquiry, reader=stage.reader, auto_charge=before, claim=claim, drawn_once=stage.drawn_once)
        charged, values = release_prepared(prepared, runtime, asked, values)
        values = values if stage.rises else NO_VALUES
        # frames of one stage are charged together
        paid = [charged] if len(prepared.offers) == 1 else [charged.part(offer.items) for offer in prepared.offers]
        paid = _beside(paid, before, prepared.offers) if before.by_statistic else [paid[0] + before, *paid[1:]]
        released += (Released(*one, prepared.keys) for one in zip(prepared.offers, paid, strict=True))
    return tuple(released)


def _beside(paid: Sequence[Charged], before: Charged, offers: Sequence[Offer]) -> list[Charged]:
    """Return the price of each offer with what was charged before: for its statistics, or else for the first offer."""
    known = before.by_statistic
    shares = [before.part(item for item in offer.items if item.statistic_hash in known) for offer in offers]
    if sum(share.rho_nano for share in shares) != before.rho_nano:
        return [paid[0] + before, *paid[1:]]
    return [one + share for one, share in zip(paid, shares, strict=True)]


def offers_of_way(way: Iterable[tuple[Stage, Prepared]]) -> list[Offer]:
    """Return how the frames of prepared stages are served."""
    return [offer for _, prepared in way for offer in prepared.offers]


def offers_of_stages(stages: Iterable[Stage], state: State) -> tuple[Offer, ...]:
    """Return how the frames of stages are served, by what is stored.

    Raises:
        AccessError, CalibrationError: as `Stage.offers`.

    """
    return tuple(offer for stage in stages for offer in stage.offers(state))


def shown_together(offers: Sequence[Offer], runtime: Runtime) -> pa.Table:
    """Return the keys that several releases show, each once."""
    found = pa.concat_tables([shown_key_table(offer, runtime.state.side_table) for offer in offers])
    # a key that passed the threshold of a lower point of one round may be selected by a later one too
    return runtime.sandbox.run("SELECT DISTINCT * FROM found", {"found": found})
