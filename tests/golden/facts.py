"""Facts that golden files hold: hashes, levels, noise scales, thresholds and prices, as values of one line of JSON.

Left out, because it follows the data: of keys that are selected in rounds and of an answer with other_group the hashes
of points, since the frame of later rounds, and that of the row, hold a digest of the keys that are shown. Values,
floors, salts and numbers of private keys are in no entry.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from unittest import mock

import dpsql
from dpsql.cascade.reader import Reader
from dpsql.features.kinds import kind_of
from dpsql.features.query_kind import QueryKind
from dpsql.mechanism.calibrate import Calibration
from dpsql.model.frame import PRESENCE
from dpsql.model.private_query import PrivateQuery
from dpsql.model.query_kinds import GroupingSets, OneSet, WithOtherGroup
from dpsql.receipts import plan_rows
from dpsql.receipts.offer_receipt import make_receipt
from dpsql.release.estimates import noise_sigma
from dpsql.release.offer import Offer
from dpsql.session import explain
from dpsql.session.lookups import cascade_table
from dpsql.state import DELTA_UNITS_PER_ONE, NANO_PER_RHO, ChargeItem, State

Entry = dict[str, Any]
"""One statement: the fields of `of_receipt`, and ``points``, ``frames``, ``charges`` or ``calibrations``."""

_HASH = re.compile(r"\b[0-9a-f]{64}\b")
_LEFT_OUT = "(left out)"
_AMOUNTS = ("rho", "sigma", "correlation", "tau", "threshold_delta")


def of_answer(query: PrivateQuery, receipt: dpsql.Receipt, state: State) -> Entry:
    """Return the facts of an answered query: its receipt, and the points that the state stores for it."""
    table = cascade_table(state, (receipt.query_hash,)).arrow().to_pylist()
    points = [_point(row.pop("statistic"), row) for row in table]
    if not isinstance(query, OneSet | GroupingSets):
        points = [_HASH.sub(_LEFT_OUT, point) for point in points]
    return of_receipt(receipt) | {"points": sorted(points)}


def of_receipt(receipt: dpsql.Receipt) -> Entry:
    """Return hash, mechanism, levels, price, threshold and the noise of each column; and the same of each set."""
    entry: Entry = {
        "query": receipt.query_hash,
        "version": receipt.version,
        "mechanism": receipt.mechanism,
        "rho": _rounded(receipt.rho),
        "epsilon": _rounded(receipt.epsilon),
        "delta": _rounded(receipt.delta),
        "charged_rho": _rounded(receipt.charged_rho),
        "charged_delta": _rounded(receipt.charged_delta),
        "threshold": _rounded(receipt.threshold),
        "sigmas": [_rounded(column.sigma) for column in receipt.columns],
    }
    return entry | ({"sets": [of_receipt(one.receipt) for one in receipt.sets]} if receipt.sets else {})


def of_plan(query: PrivateQuery, state: State, reader: Reader) -> Entry:
    """Return the facts that ``dp_explain`` shows: of its offers, or of the calibrations that AUTO chooses from."""
    with _calls(kind_of(query)) as calls:
        explain.explain_table(query, state, reader)
    calibrations: list[Calibration] = calls["calibrate"]
    entry = {"calibrations": [_calibration(one) for one in calibrations]} if calibrations else {}
    if query.first.is_open:
        return _of_open_plan(calls) | entry
    # rows of some plans are written from stages, and their kind has the same offers
    offers: tuple[Offer, ...] = calls["offers"][0] if calls["offers"] else kind_of(query).offers(query, state, reader)
    # which row it is of the groups that are not shown follows the data
    parts = [_of_offer(offer) for offer in (offers[:1] if isinstance(query, WithOtherGroup) else offers)]
    return (parts[0] if len(parts) == 1 else {"sets": parts}) | entry


def _of_open_plan(calls: _Calls) -> Entry:
    (asked,), (terms,) = calls["open_price"], calls["open_terms"]
    return {
        "rho": _rounded(terms.total_nano / NANO_PER_RHO),
        "epsilon": _rounded(terms.epsilon),
        "delta": _rounded(terms.delta),
        **_price(terms.rho_nano + _sum_nano(asked), terms.delta_units + _sum_delta(asked)),
        "charges": [_charge(item.statistic_hash, item.rho_nano, item.delta_units) for item in asked],
    }


def _of_offer(offer: Offer) -> Entry:
    points = []
    for serving in offer.servings:
        level = serving.level
        sigma = level.sigma if level.statistic.covered else offer.noise[level.statistic]
        amounts = {"rho": level.rho_nano / NANO_PER_RHO, "sigma": sigma, "tau": serving.tau}
        points.append(_point(serving.pin.statistic_hash, amounts))
    price = _price(_sum_nano(offer.items), _sum_delta(offer.items))
    return of_receipt(make_receipt(offer)) | price | {"points": sorted(points)}


def _calibration(found: Calibration) -> str:
    sigma = noise_sigma(PRESENCE, found.levels[0].sigma, found.histogram)
    amounts = {"rho": found.rho_nano / NANO_PER_RHO, "sigma": sigma, "tau": found.cut.tau}
    return _point("presence", amounts)


def _sum_nano(items: Iterable[ChargeItem]) -> int:
    return sum(item.rho_nano for item in items)


def _sum_delta(items: Iterable[ChargeItem]) -> int:
    return sum(item.delta_units for item in items)


def _price(rho_nano: int, delta_units: int) -> Entry:
    return {
        "charged_rho": _rounded(rho_nano / NANO_PER_RHO),
        "charged_delta": _rounded(delta_units / DELTA_UNITS_PER_ONE),
    }


_Calls = Mapping[str, list[Any]]
"""Result of each call, by the name of the function."""


@contextlib.contextmanager
def _calls(kind: QueryKind[Any]) -> Iterator[_Calls]:
    """Record from what ``dp_explain`` writes its rows."""
    calls: defaultdict[str, list[Any]] = defaultdict(list)
    watched = ((explain, "calibrate"), (plan_rows, "calibrate"), (explain, "open_price"))
    of_kind = ((type(kind), name) for name in ("offers", "open_terms") if hasattr(kind, name))
    with contextlib.ExitStack() as patches:
        for owner, name in (*watched, *of_kind):
            patches.enter_context(mock.patch.object(owner, name, _recording(getattr(owner, name), calls[name])))
        yield calls


def _recording(function: Any, calls: list[Any]) -> Any:
    def call(*arguments: Any) -> Any:
        found = function(*arguments)
        calls.append(found)
        return found

    return call


def of_state(state: State) -> Entry:
    """Return frames and charges of a state file in the order of writing, with amounts as the file counts them."""
    with state._database.read() as connection:
        frames = connection.execute("SELECT frame_hash, base_hash, generation FROM frame ORDER BY rowid").fetchall()
        charges = connection.execute("SELECT statistic_hash, rho_nano, delta_units FROM charge ORDER BY id").fetchall()
    return {
        "frames": [name + (f" generation {number} of {base}" if number else "") for name, base, number in frames],
        "charges": [_charge(name, rho, int(delta)) for name, rho, delta in charges],
    }


def without_hashes(value: Any) -> Any:
    """Return a value without hashes, and lists that were sorted by hashes sorted by the rest."""
    if isinstance(value, str):
        return _HASH.sub(_LEFT_OUT, value)
    if isinstance(value, list):
        left = [without_hashes(one) for one in value]
        return left if left == value else sorted(left, key=str)
    if isinstance(value, dict):
        return {name: without_hashes(one) for name, one in value.items()}
    return value


def _charge(name: str, rho_nano: int, delta_units: int) -> str:
    return f"{name} rho={rho_nano} delta={delta_units / DELTA_UNITS_PER_ONE:.12g}"


def _point(name: str, amounts: Mapping[str, float | None]) -> str:
    shown = [f"{amount}={amounts[amount]:.12g}" for amount in _AMOUNTS if amounts.get(amount)]
    return " ".join([name, *shown])


def _rounded(value: float | None) -> float | None:
    """Return a number to twelve digits: the last ones are the machine's."""
    return None if value is None else float(f"{value:.12g}")
