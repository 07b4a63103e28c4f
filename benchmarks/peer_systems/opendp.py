"""OpenDP: a Polars frame, bounded by its own truncation or beforehand, with the threshold that it solves for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import opendp.prelude as dp
import polars as pl

from benchmarks.peer_systems.exchange import HIGHEST_AMOUNT, LOWEST_AMOUNT, PEOPLE, QUESTIONS, SUMS, Asked, Way, serve

dp.enable_features("contrib")


def ways(rows: Path, asked: Asked) -> list[Way]:
    """Gaussian noise of rho, half of delta each for the threshold and the conversion."""
    data = pl.read_csv(rows)
    rho = _rho(asked.epsilon, asked.delta / 2)
    gaussian = dp.loss_of(rho=rho, delta=asked.delta / 2)
    noise = f"Gaussian noise of rho = {rho:.4f} and delta / 2"
    # keep="sample" fails in 0.16.0: "multiple fields with name 'key' found"
    own = (
        "truncate_num_groups(keep='first'), which counts the least keys of a person, here the most popular ones, and "
        f"{asked.max_groups - 1} where {asked.max_groups} are asked for; {noise}"
    )
    by_hand = f"groups and rows of a person are sampled by hand in Polars, and declared as Bound; {noise}"
    return [
        Way("its own truncation", own, {each: partial(_own, data, asked, gaussian, each) for each in QUESTIONS}),
        Way("bounded by hand", by_hand, {each: partial(_by_hand, data, asked, gaussian, each) for each in QUESTIONS}),
    ]


def _own(data: pl.DataFrame, asked: Asked, loss: Any, question: str) -> dict[int, float]:
    unit = dp.unit_of(contributions=1, identifier=pl.col("person"))
    query = _context(data, asked, unit, loss).query()
    bounded = query.truncate_per_group(_most_rows(asked, question), by=["key"]).truncate_num_groups(
        asked.max_groups, by=["key"], keep="first"
    )
    return _answer(bounded, question)


def _by_hand(data: pl.DataFrame, asked: Asked, loss: Any, question: str) -> dict[int, float]:
    rows = _most_rows(asked, question)
    sampled = data.sample(fraction=1.0, shuffle=True)
    pairs = sampled.unique(["person", "key"], maintain_order=True).select("person", "key")
    few = pairs.filter(pl.int_range(pl.len()).over("person") < asked.max_groups)
    kept = sampled.filter(pl.int_range(pl.len()).over("person", "key") < rows).join(few, on=["person", "key"])
    unit = dp.unit_of(contributions=[dp.polars.Bound(by=["key"], num_groups=asked.max_groups, per_group=rows)])
    return _answer(_context(kept, asked, unit, loss).query(), question)


def _context(data: pl.DataFrame, asked: Asked, unit: Any, loss: Any) -> Any:
    margin = dp.polars.Margin(by=["key"], max_length=1_000_000, max_groups=asked.public_keys)
    return dp.Context.compositor(
        data=data.lazy(), privacy_unit=unit, privacy_loss=loss, split_evenly_over=1, margins=[margin]
    )


def _most_rows(asked: Asked, question: str) -> int:
    """A person with one row in a key is a row, so people are counted as rows."""
    return 1 if question == PEOPLE else asked.max_rows


def _answer(query: Any, question: str) -> dict[int, float]:
    columns = [dp.len(signed=True).alias("number")]
    if question == SUMS:
        amount: Any = pl.col("amount")  # OpenDP adds `dp` to it
        columns.append(amount.dp.sum((LOWEST_AMOUNT, HIGHEST_AMOUNT)).alias("total"))
    shown = query.group_by("key").agg(*columns).release().collect()
    return dict(zip(shown["key"], shown.to_series(-1), strict=True))


def _rho(epsilon: float, delta: float) -> float:
    """The largest rho that OpenDP's own conversion turns into (epsilon, delta)."""
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    low, high = 1e-6, epsilon
    for _ in range(40):
        middle = (low + high) / 2
        noise = dp.m.make_gaussian(*space, scale=(0.5 / middle) ** 0.5)
        fits = dp.c.make_zCDP_to_approxDP(noise).map(1.0).epsilon(delta) <= epsilon
        low, high = (middle, high) if fits else (low, middle)
    return low


if __name__ == "__main__":
    serve("opendp", ways)
