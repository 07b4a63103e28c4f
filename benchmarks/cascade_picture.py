"""The picture of docs/cascade.md: python -m benchmarks.cascade_picture --svg docs/pictures/cascade.svg.

Patients per city of the sample clinic, asked for at four levels, then at all lower ones of the free grid. Claim: the
requests cost what the highest alone costs, and the noise of a city at all levels is one random walk, which ends at the
noise of the highest level: a lower level only adds to it, and is no fresh look at the data. Noise is seeded, so the
picture is the same each time; it needs matplotlib (the extra `plot`), the printed numbers do not.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import dpsql
from dpsql.assets import asset
from dpsql.mechanism.window import FREE_LEVELS
from tests.noise_sources import seeded_noise

REQUESTS = (0.05, 0.5, 0.2, 1.0)
LOWEST = 0.01
SEED = 7
CITIES_SHOWN = 4

# An answer is rounded to whole patients; the middle of its interval is not.
QUERY = """
    SELECT city, count(DISTINCT patient_id) AS patients,
           (dp_interval_low(patients) + dp_interval_high(patients)) / 2 AS middle
    FROM patients GROUP BY city"""
TRUTH = "SELECT city, count(DISTINCT patient_id) FROM patients GROUP BY city"

INK, EDGE, BAND = "#222222", "#9aa5b1", "#e3e8ee"
CHARGED, FREE = "#0072b2", "#d55e00"

Errors = dict[str, dict[float, float]]


@dataclass(frozen=True)
class Run:
    """What was asked and shown.

    Attributes:
        prices: rho that each request cost, in their order.
        errors: by city, noisy less true number of patients at each level.
        sizes: by city, the true number.

    """

    prices: tuple[float, ...]
    errors: Errors
    sizes: dict[str, int]


def free_levels() -> list[float]:
    """Levels below the highest that nobody pays for."""
    return [rho_nano / 1e9 for rho_nano in FREE_LEVELS if LOWEST * 1e9 <= rho_nano < REQUESTS[-1] * 1e9]


def run() -> Run:
    """Ask for the four levels, then for lower ones in random order, and collect the noise of each city."""
    with dpsql.connect() as session:
        path = str(asset("sample_data", "clinic", "patients.parquet"))
        session.connection.execute("CREATE TABLE patients AS FROM read_parquet(?)", [path])
        session.sql("CALL dp_unit('patient', epsilon_budget := 8, delta_budget := 1e-6)")
        session.sql(
            "CALL dp_protect('patients', coverage := FALSE, unit := 'patient', privacy_unit_column := 'patient_id', "
            "max_groups_contributed := 1)"
        )
        session._runner.noise_source = seeded_noise(SEED)
        sizes = dict(session.connection.execute(TRUTH).fetchall())
        path_levels = [rho for rho in free_levels() if rho not in REQUESTS]
        prices, errors = [], Errors()
        for rho in (*REQUESTS, *np.random.default_rng(SEED).permutation(path_levels).tolist()):
            answer = session.sql(QUERY, rho=rho)
            assert answer.receipt is not None
            prices.append(answer.receipt.charged_rho)
            for city, _, middle in answer.fetchall():
                errors.setdefault(city, {})[rho] = middle - sizes[city]
    assert not any(prices[len(REQUESTS) :])
    return Run(tuple(prices[: len(REQUESTS)]), errors, sizes)


def print_run(shown: Run, cities: list[str]) -> None:
    """Print price and noise of each request."""
    print(f"{'request':<10}{'rho':>6}{'costs':>8}  " + "".join(f"{city:>14}" for city in cities))
    for number, (rho, price) in enumerate(zip(REQUESTS, shown.prices, strict=True), start=1):
        print(f"{number:<10}{rho:>6}{price:>8.2f}  " + "".join(f"{shown.errors[city][rho]:>14.2f}" for city in cities))
    levels = len(shown.errors[cities[0]]) - len(REQUESTS)
    print(f"all together cost {sum(shown.prices):.2f}; {levels} lower levels more cost nothing")


def marker(axis: Any, x: float, y: float, number: int, *, charged: bool) -> None:
    """A numbered request: filled where it was charged, hollow where it was free."""
    colour = CHARGED if charged else FREE
    fill, text = (colour, "white") if charged else ("white", colour)
    axis.plot([x], [y], "o", ms=12, mfc=fill, mec=colour, mew=1.6, zorder=4, clip_on=False)
    axis.text(x, y, str(number), ha="center", va="center_baseline", color=text, size=8.5, weight="bold", zorder=5)


def draw_city(axis: Any, shown: Run, city: str, *, first: bool) -> None:
    """The path of one city's noise inside the funnel."""
    rhos: npt.NDArray[np.float64] = np.geomspace(LOWEST, 1.0, 100)
    sigma = np.sqrt(0.5 / rhos)
    axis.fill_between(rhos, -sigma, sigma, color=BAND, lw=0, zorder=0)
    axis.axhline(0, color=EDGE, lw=0.8, zorder=1)
    path = sorted(shown.errors[city].items())
    axis.plot(*zip(*path, strict=True), "-", color=INK, lw=0.9, zorder=2)
    for number, (rho, price) in enumerate(zip(REQUESTS, shown.prices, strict=True), start=1):
        marker(axis, rho, shown.errors[city][rho], number, charged=price > 0)
    axis.set_title(f"{city}: {shown.sizes[city]:,} patients", loc="left", size=10, color=INK)
    if first:
        axis.text(0.0108, -9.7, "shaded: ± one standard deviation", size=8, color=INK)
        axis.text(0.0108, 9.0, f"line: {len(path) - len(REQUESTS)} lower levels more, all free", size=8, color=INK)


def draw_prices(axis: Any, prices: tuple[float, ...]) -> None:
    """A bar of what was spent; each request adds its price."""
    spent = 0.0
    for number, price in enumerate(prices, start=1):
        if price > 0:
            axis.barh(0, price, left=spent, height=0.5, color=CHARGED, alpha=0.25, edgecolor="white", lw=2)
            marker(axis, spent + price / 2, 0, number, charged=True)
            axis.text(spent + price / 2, -0.55, f"{price:.2f}", ha="center", va="center", size=9, color=INK)
            spent += price
        else:
            marker(axis, spent, 0.62, number, charged=False)
            axis.text(spent + 0.018, 0.62, "free", va="center_baseline", size=9, color=FREE)
    axis.set(xlim=(0, spent), ylim=(-0.85, 1.0))
    axis.set_title(f"What each request cost in rho: {spent:g} in all, as request 4 alone", loc="left", size=10)
    axis.axis("off")


def draw(file: Path, shown: Run, cities: list[str]) -> None:
    """Write the picture; the same bytes from the same version of matplotlib."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "dpsql", "font.family": "DejaVu Sans", "axes.edgecolor": EDGE})
    figure = importlib.import_module("matplotlib.pyplot").figure(figsize=(8, 6.6), layout="constrained")
    places = figure.subplot_mosaic([["0", "1"], ["2", "3"], ["prices", "prices"]], height_ratios=[1, 1, 0.42])
    for place, city in enumerate(cities):
        axis = places[str(place)]
        draw_city(axis, shown, city, first=place == 0)
        axis.set(xscale="log", xlim=(LOWEST, 1.15), ylim=(-10.5, 10.5))
        ticks, in_last_row, in_first_column = (LOWEST, *sorted(REQUESTS)), place >= CITIES_SHOWN // 2, place % 2 == 0
        axis.set_xticks(ticks, [f"{rho:g}" for rho in ticks])
        axis.set_xticks([], minor=True)
        axis.set_yticks([-10, -5, 0, 5, 10])
        axis.tick_params(labelsize=9, labelbottom=in_last_row, labelleft=in_first_column, labelcolor=INK, color=EDGE)
        axis.spines[["top", "right"]].set_visible(False)
        if in_last_row:
            axis.set_xlabel("level rho (log scale): less noise →", size=9, color=INK)
        if in_first_column:
            axis.set_ylabel("noisy − true patients", size=9, color=INK)
    draw_prices(places["prices"], shown.prices)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None, "Creator": None})


def main() -> None:
    """Run the requests, print them, and draw them where matplotlib is installed."""
    parser = argparse.ArgumentParser(description="Noise of four cities at many levels.")
    parser.add_argument("--svg", type=Path, help="also draw the picture into this file (needs matplotlib)")
    arguments = parser.parse_args()
    shown = run()
    most = max(map(len, shown.errors.values()))
    # not a choice: the first by name
    cities = sorted(city for city in shown.errors if len(shown.errors[city]) == most)[:CITIES_SHOWN]
    print_run(shown, cities)
    if arguments.svg and importlib.util.find_spec("matplotlib") is None:
        print("matplotlib is not installed: no picture")
    elif arguments.svg:
        draw(arguments.svg, shown, cities)


if __name__ == "__main__":
    main()
