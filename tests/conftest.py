"""Settings of all tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from dpsql.frontends.frames import privacy_unit
from dpsql.session import ProcessState

# how long an example takes is a fact about the machine, and so is how long it takes to think of one
settings.register_profile("dpsql", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dpsql")


@pytest.fixture(autouse=True, scope="module")
def _process_state() -> None:
    """Each file has a ledger of this process of its own, whichever files ran before it in one worker."""
    privacy_unit._PROCESS_STATE = ProcessState()
