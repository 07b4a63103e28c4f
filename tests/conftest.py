"""Settings of all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from dpsql.frontends.frames import privacy_unit
from dpsql.model.estimates import Estimate
from dpsql.session import ProcessState, plan_cache
from tests.front_ends import is_thorough

# how long an example takes is a fact about the machine, and so is how long it takes to think of one
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# what every change must pass has the same examples each time; new ones are searched for with the long tests
settings.register_profile("dpsql", settings.get_profile("search"), derandomize=True, database=None)
settings.load_profile("dpsql")


# `make spark` runs these, and installs what they need
collect_ignore = [] if "DPSQL_SPARK" in os.environ else ["spark"]


class _FailuresAtOnce:
    """A plugin that prints each failed test, with the first line of its error, as it fails."""

    def __init__(self, plugins: pytest.PytestPluginManager) -> None:
        self._plugins = plugins

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print a report if it is one of a failure."""
        terminal = self._plugins.get_plugin("terminalreporter")
        if report.failed and terminal:
            crash = getattr(report.longrepr, "reprcrash", None)
            error = crash.message.partition("\n")[0] if crash else ""
            terminal.write(f"\nFAILED {report.nodeid} ({report.when}) {error}"[:400] + "\n", red=True)


def pytest_configure(config: pytest.Config) -> None:
    """Print failures at once, and search where long tests run too (`make audit`)."""
    config.pluginmanager.register(_FailuresAtOnce(config.pluginmanager))
    if "not long" not in config.option.markexpr:
        settings.load_profile("search")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files whose tests all have the marker `thorough` if such tests are not run: reading them takes time."""
    return True if "not thorough" in config.option.markexpr and is_thorough(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the marker `thorough` to all tests of the files that `make test` leaves out."""
    for item in items:
        if is_thorough(item.path):
            item.add_marker(pytest.mark.thorough)


@pytest.fixture(autouse=True, scope="module")
def _process_state() -> None:
    """Each file has a ledger of this process of its own, whichever files ran before it in one worker."""
    privacy_unit._PROCESS_STATE = ProcessState()


@pytest.fixture
def plans_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plan is kept, so that a fault which is planted in planning meets every text, and none meets the next test."""
    monkeypatch.setattr(plan_cache, "_LONGEST_QUESTION", -1)


@pytest.fixture
def as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of few units are shown as they are, below 0 too, so that what is shown has the law of the noise."""
    monkeypatch.setattr(Estimate, "is_never_negative", False)
