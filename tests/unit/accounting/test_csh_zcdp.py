"""What the ledger adds, against the mechanism: approximate zCDP with the events of docs/proofs/csh-zcdp.md."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from scipy.special import log_ndtr

from dpsql.accounting.correlated_histogram import CorrelatedProfile
from tests.unit.accounting.csh_brute_force import COMMON, Floats, output_law, renyi

ORDERS = (1.01, 1.5, 2.0, 4.0)


def conditional_laws(
    *, common: int, new: int, changed: int, sigma: float, tau: float, correlation: float, tilted: bool
) -> tuple[Floats, Floats, float, float]:
    """Laws with and without the unit, each given its event, and the probabilities of these.

    With the unit the event is that no new key is shown. Without it there is no new key; the event happens with the
    probability that ``new`` keys would stay hidden if the common noise were lower by the share of the change
    that it hides, or (``tilted`` off) always.
    """
    count = math.ceil(1.0 + tau + 12.0 * sigma * (1.0 + math.sqrt(correlation)))
    span = 7.0 * sigma * (1.0 + math.sqrt(correlation))
    edges = [np.append(1.0 + tau, np.linspace(count - span, count + span + 1.0, {1: 1201, 2: 201}[common]))] * common
    share = changed * correlation / (1.0 + correlation * common)
    noise = COMMON * sigma * math.sqrt(correlation)
    law = partial(output_law, sigma=sigma, tau=tau, correlation=correlation, edges=edges)
    hidden_with = np.exp(new * log_ndtr((tau - noise) / sigma))
    hidden_without = np.exp(new * log_ndtr((tau + share - noise) / sigma)) if tilted else np.ones_like(noise)
    after = (count + 1,) * changed + (count,) * (common - changed)
    p = law(after, hidden_weight=hidden_with)
    q = law((count,) * common, hidden_weight=hidden_without)
    return p / p.sum(), q / q.sum(), float(p.sum()), float(q.sum())


@pytest.mark.parametrize("tilted", [True, False])
@pytest.mark.parametrize(
    ("sigma", "quantile", "correlation"), [(1.5, 0.3, 1.0), (0.8, 1.0, 0.5), (2.0, 2.5, 3.0), (1.0, 0.0, 0.0)]
)
@pytest.mark.parametrize(("common", "new", "changed"), [(1, 1, 1), (1, 30, 1), (2, 3, 1), (2, 3, 2), (2, 3, 0)])
def test_given_that_no_new_key_is_shown_it_is_zcdp(
    *, common: int, new: int, changed: int, sigma: float, quantile: float, correlation: float, tilted: bool
) -> None:
    tau = quantile * sigma
    p, q, likely_p, likely_q = conditional_laws(
        common=common, new=new, changed=changed, sigma=sigma, tau=tau, correlation=correlation, tilted=tilted
    )
    k = common + new
    rho = 0.5 * changed * (1.0 + correlation * (common - changed)) / (1.0 + correlation * common) / sigma**2
    assert rho <= CorrelatedProfile(k=k, sigma=sigma, correlation=correlation).rho
    largest = max(max(renyi(p, q, order), renyi(q, p, order)) / order for order in ORDERS)
    if tilted:
        hidden = 1.0 - CorrelatedProfile(k=k, sigma=sigma, correlation=correlation).threshold_delta(tau)
        assert min(likely_p, likely_q) >= hidden
        assert largest <= rho * (1 + 1e-9) + 1e-12
    elif correlation >= 1.0 and new > 1 and quantile < 1.0:
        # Without the event on the other side too the divergence is larger: the tilt does the work.
        assert largest > 1.02 * rho


@pytest.mark.parametrize("correlation", [0.0, 0.7])
@pytest.mark.parametrize("changed", [1, 2])
def test_rho_is_reached_without_new_keys(correlation: float, changed: int) -> None:
    p, q, _, _ = conditional_laws(
        common=2, new=0, changed=changed, sigma=2.0, tau=5.0, correlation=correlation, tilted=True
    )
    rho = 0.125 * changed * (1.0 + correlation * (2 - changed)) / (1.0 + 2.0 * correlation)
    for order in (1.5, 5.0):
        measured = max(renyi(p, q, order), renyi(q, p, order)) / order
        assert rho * (1 - 5e-3) <= measured <= rho * (1 + 1e-9)
        # Noise three percent low is refused by the same check.
        assert measured > 0.97**2 * rho * (1 + 1e-9)
