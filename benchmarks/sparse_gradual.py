"""A sparse histogram over 10**12 public keys, released in five rounds: time, memory, and how little depends on N.

    python -m benchmarks.sparse_gradual

10**5 keys have a count. The first three domains differ by a factor of 1000 each; their thresholds let a zero key
through about 20,000 times a round, whatever the domain. In the last case that happens 40 times.
"""

from __future__ import annotations

import math
import resource
import time

import numpy as np
from scipy.special import ndtri

from dpsql.noise.entropy import SystemEntropy
from dpsql.noise.sparse_gradual import NANO, SparseGradual

LISTED = 100_000
MAX_GROUPS = 4
LEVELS = tuple(NANO * share // 100 for share in (1, 3, 10, 30, 100))
CASES = ((10**9, 2e4), (10**12, 2e4), (10**15, 2e4), (10**12, 40.0))


def run(domain_size: int, zero_keys_shown: float) -> None:
    """Print one line a round."""
    generator, entropy = np.random.default_rng(1), SystemEntropy()
    keys = np.unique(generator.integers(domain_size, size=LISTED))
    counts = generator.zipf(1.5, size=keys.size).clip(max=10**6).astype(np.int64)
    score = -float(ndtri(zero_keys_shown / domain_size))
    print(f"\n{domain_size:.0e} keys, {keys.size} with a count, thresholds at {score:.2f} standard deviations")
    print("    rho    shown  of count 0   kept  seconds")
    start = time.perf_counter()
    state = SparseGradual.over(domain_size, keys, counts, max_groups=MAX_GROUPS)
    for level in LEVELS:
        begin = time.perf_counter()
        shown, state = state.release(level, score * math.sqrt(MAX_GROUPS * NANO / (2 * level)), entropy)
        seconds = time.perf_counter() - begin
        of_zero = int((state.counts[np.searchsorted(state.keys, shown.keys)] == 0).sum())
        print(f"{level / NANO:7.2f} {shown.keys.size:8d} {of_zero:11d} {state.keys.size:6d} {seconds:8.2f}")
    print(f"all rounds: {time.perf_counter() - start:.2f} s")


def main() -> None:
    """Print every case, and the peak of memory of the whole process."""
    for domain_size, zero_keys_shown in CASES:
        run(domain_size, zero_keys_shown)
    print(f"\npeak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB")


if __name__ == "__main__":
    main()
