"""Settings of all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

from dpsql.frontends.frames import privacy_unit
from dpsql.session import ProcessState

# how long an example takes is a fact about the machine
settings.register_profile("dpsql", deadline=None)
settings.load_profile("dpsql")


@pytest.fixture(autouse=True, scope="module")
def _process_state() -> None:
    """Each file has a ledger of this process of its own, whichever files ran before it in one worker."""
    privacy_unit._PROCESS_STATE = ProcessState()
