"""How many noise draws a second one core makes, beside numpy's own (insecure) normal variates, rounded.

    python -m benchmarks.noise_rate

Both run in the same process and alternate, so that the ratio does not depend on the load of the machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from dpsql.noise.entropy import SystemEntropy
from dpsql.noise.rounded_gaussian import RoundedGaussian, cell_table, rounded_normal_table

DRAWS = 1_000_000
REPEATS = 5
SCALES = (3.0, 30.0, 31.9, 500.0, 1e5, 1e7, 1e10)


def seconds(action: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def numpy_draw(generator: np.random.Generator, sigma_steps: float) -> object:
    """Draw the same number of variates the insecure way."""
    return np.rint(generator.normal(0, sigma_steps, DRAWS)).astype(np.int64)


def main() -> None:
    """Print one line per noise scale."""
    generator, entropy = np.random.default_rng(), SystemEntropy()
    print("sigma (steps)      draws/s  numpy draws/s  numpy/dpsql  new table (ms)")
    for sigma_steps in SCALES:
        noise = RoundedGaussian(sigma_steps)
        rounded_normal_table.cache_clear()
        cell_table.cache_clear()
        table_milliseconds = 1e3 * seconds(partial(noise.draw, 1, entropy))
        pairs = [
            (
                seconds(partial(noise.draw, DRAWS, entropy)),
                seconds(partial(numpy_draw, generator, sigma_steps)),
            )
            for _ in range(REPEATS)
        ]
        ours, numpys = (DRAWS / statistics.median(times) for times in zip(*pairs, strict=True))
        print(
            f"{sigma_steps:>13.6g}  {ours:>11,.0f}  {numpys:>13,.0f}  {numpys / ours:>11.2f}"
            f"  {table_milliseconds:>14.1f}"
        )


if __name__ == "__main__":
    main()
