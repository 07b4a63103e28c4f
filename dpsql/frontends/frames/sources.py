"""Which table a frame holds: the one that its unit names, or one of its own for as long as the frame is there."""

from __future__ import annotations

import itertools
import threading
import weakref

from dpsql.frontends.frames.privacy_unit import PrivacyUnit
from dpsql.frontends.frames.rows import Frame

_numbers = itertools.count(1)
# reentrant: a frame may be collected, and forgotten, while another one is remembered
_lock = threading.RLock()
_own: dict[int, tuple[weakref.ref[Frame], str]] = {}


def source_of(frame: Frame, unit: PrivacyUnit) -> str:
    """The source that the unit names; without one, this very object is a source, until it is gone.

    Rows are never looked at for this, so a frame that was changed in place is still the same source.
    """
    if unit.source is not None:
        return unit.source
    place = id(frame)
    with _lock:
        known = _own.get(place)
        if known is None or known[0]() is not frame:
            source = f"frame #{next(_numbers)}"
            known = (weakref.ref(frame, lambda _: _forget(place, source)), source)
            _own[place] = known
    return known[1]


def _forget(place: int, source: str) -> None:
    with _lock:
        # another frame may have its place in memory by now
        if place in _own and _own[place][1] == source:
            del _own[place]
