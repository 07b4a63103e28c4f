"""The mechanisms of a query in words and numbers: the one that was chosen, and those that were not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dpsql.errors import CalibrationError
from dpsql.query.frame import Frame
from dpsql.query.private_query import PrivateQuery
from dpsql.release.calibrate import calibrate
from dpsql.release.choose import choose, histogram_of
from dpsql.release.estimates import Z_95
from dpsql.release.histogram import count_sigma
from dpsql.session.receipt import column_receipts, shown_threshold

_MECHANISMS = {
    "gaussian": "Gaussian noise on every public key",
    "correlated_gaussian": "correlated Gaussian noise on every public key: part of it is common to all keys",
    "discrete_correlated_gaussian": "correlated discrete Gaussian noise on every public key",
    "factorised_gaussian": "Gaussian noise on partial sums of public keys, from which totals and values are read",
    "gshm": "Gaussian sparse histogram: noise, then a threshold on the count of units",
    "csh": "correlated stability histogram: noise, part of it common to all keys, then a threshold",
}


def mechanism_sentence(frame: Frame) -> str:
    """What a frame's mechanism does."""
    sentence = _MECHANISMS[frame.mechanism]
    if frame.sparsity is None:
        return sentence
    if frame.sparsity.kind == "sketch":
        return f"{sentence}; on a Misra-Gries sketch of {frame.sparsity.k} counters"
    return f"{sentence}; on the {frame.sparsity.k} largest groups, less the next largest"


def threshold_sentence(query: PrivateQuery, tau: float | None) -> str:
    """Which keys are shown."""
    threshold = shown_threshold(query.frame, tau, query.min_units)
    if tau is None or query.frame.sparsity is None:
        return f"a key is shown if its noisy count of units exceeds {threshold:.9g}"
    rule = f"a key is shown if its noisy count of units exceeds the largest group left out by more than {threshold:.9g}"
    return rule + (f", and {query.min_units + tau:.9g}" if query.min_units > 1 else "")


def not_chosen(query: PrivateQuery) -> Iterator[tuple[str, str]]:
    """Name and numbers of each mechanism that would have answered the same text."""
    for frame in query.alternatives:
        other = choose(replace(query, frame=frame, alternatives=()))
        histogram = histogram_of(frame)
        try:
            calibration = calibrate(other, histogram)
        except CalibrationError as error:
            yield mechanism_sentence(frame), str(error)
            continue
        sigma = count_sigma(histogram, calibration.levels[0].sigma)
        numbers = f"sigma of a count = {sigma:.9g}, 95 % half width = {Z_95 * sigma:.9g}"
        if query.total is not None:
            sigmas = {level.statistic: level.sigma for level in calibration.levels}
            columns = [column for column in column_receipts(other, histogram, sigmas) if column.sigma is not None]
            numbers = "; ".join(f"sigma of {column.name} = {column.sigma:.9g}" for column in columns)
        if calibration.tau is not None:
            numbers += f"; {threshold_sentence(other, calibration.tau)}"
        yield mechanism_sentence(frame), numbers
