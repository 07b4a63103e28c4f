"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# how long an example takes is a fact about the machine
settings.register_profile("dpsql", deadline=None)
settings.load_profile("dpsql")
