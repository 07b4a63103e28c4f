"""A pytest plugin that prints the CPU seconds of the tests by folder, and the slowest tests (`make test-times`).

A test's CPU time is that of its process and of the child processes for which it waited, user and system time together.
A fixture of a module or a session counts for the first test that uses it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

_SLOWEST = 60
_PROPERTY = "cpu_seconds"
_STARTED = pytest.StashKey[float]()


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Store the CPU seconds at which a test begins."""
    item.stash[_STARTED] = _cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the CPU seconds of set-up, call and teardown to the last report of the test."""
    report = yield
    if report.when == "teardown":
        report.user_properties.append((_PROPERTY, _cpu_seconds() - item.stash[_STARTED]))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the folders, then the slowest tests."""
    tests: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == _PROPERTY:
                    tests[report.nodeid] = value
    files: dict[str, float] = defaultdict(float)
    folders: dict[str, float] = defaultdict(float)
    for test, seconds in tests.items():
        file = test.partition("::")[0]
        files[file] += seconds
        folders[str(Path(file).parent)] += seconds
    terminalreporter.section(f"CPU seconds: {sum(tests.values()):,.0f} of {len(tests):,} tests")
    for title, figures, most in (("folder", folders, None), ("file", files, _SLOWEST), ("test", tests, _SLOWEST)):
        terminalreporter.write_line(f"-- by {title}")
        for name, seconds in sorted(figures.items(), key=lambda row: -row[1])[:most]:
            terminalreporter.write_line(f"{seconds:8.1f} {name}")
