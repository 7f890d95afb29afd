"""A pytest plugin of the mutation tool: tells coverage the running test, and orders tests.

Environment:
    MUTATION_REPORTS: While recording, the folder for durations and outcomes.
    MUTATION_TESTS: While a mutant is tried, a file with the tests to run, in order.
    MUTATION_TEST: Set by this plugin to the running test, for the processes that it starts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import coverage
import hypothesis
import pytest

_reports: dict[str, dict[str, Any]] = {}


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make Hypothesis try the same examples for each mutant, without shrinking failures."""
    if "MUTATION_TESTS" in os.environ:
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile(
            "mutation", hypothesis.settings(), phases=phases, derandomize=True, database=None
        )
        hypothesis.settings.load_profile("mutation")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the chosen tests, in the order of the list."""
    chosen = os.environ.get("MUTATION_TESTS")
    if chosen is not None:
        order = {name: at for at, name in enumerate(json.loads(Path(chosen).read_text()))}
        items[:] = sorted(
            (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Record all lines from now on as run by this test, also in its child processes."""
    current = coverage.Coverage.current()
    if current is not None:
        os.environ["MUTATION_TEST"] = item.nodeid
        current.switch_context(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Sum up the seconds of a test, including set-up and teardown."""
    test = _reports.setdefault(report.nodeid, {"duration_s": 0.0, "failed": False})
    test["duration_s"] += report.duration
    test["failed"] |= report.failed


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the reports and the coverage, which an xdist worker would not write at its end."""
    folder = os.environ.get("MUTATION_REPORTS")
    if folder is not None:
        Path(folder, f"tests-{os.getpid()}.json").write_text(json.dumps(_reports))
        current = coverage.Coverage.current()
        if current is not None:
            current.stop()
            current.save()
