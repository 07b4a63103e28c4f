"""The bounded query of a frame whose groups are sums of a finer frame's: units are bounded there, and then added up."""

from __future__ import annotations

from dpsql.query.bound import bounded_sql, most_steps
from dpsql.query.frame import PRESENCE, Frame, Statistic
from dpsql.query.kept import Formulation


def exact_sql(
    frame: Frame,
    statistics: tuple[Statistic, ...],
    salt: bytes,
    *,
    held_keys: bool = False,
    formulation: Formulation = "groups_first",
) -> str:
    """SQL for the exact per-group table of any frame, as `bounded_sql` has it.

    *Guarantee*: sums of what `bounded_sql` gives for the finer frame, so a unit moves them by no more than the sums of
    what it moves there; the clamp brings no two of them further apart (docs/proofs/grouping-sets.md, Lemma 1).

    Args:
        frame: what is grouped.
        statistics: the presence count first, then the others.
        salt: the secret bits of the frame that bounds units: the finer one where there is one.
        held_keys: as for `bounded_sql`.
        formulation: as for `bounded_sql`, of the frame that bounds units.

    """
    finer = frame.finer
    if finer is None:
        return bounded_sql(frame, statistics, salt, held_keys=held_keys, formulation=formulation)
    names = ["units", *(f"stat_{i}" for i in range(1, len(statistics)))]
    places = [finer.keys.index(key) for key in frame.keys]
    columns = [f"key_{place} AS key_{i}" for i, place in enumerate(places)]
    columns += [
        f"CAST(least(greatest(coalesce(sum({name}), 0), {-most}), {most}) AS BIGINT) AS {name}"
        for name, most in zip(names, [most_steps(frame, one) for one in (PRESENCE, *statistics[1:])], strict=True)
    ]
    grouping = f" GROUP BY {', '.join(f'key_{place}' for place in places)}" if places else ""
    return (
        f"SELECT {', '.join(columns)} FROM ({bounded_sql(finer, statistics, salt, formulation=formulation)}){grouping}"
    )
