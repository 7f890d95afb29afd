"""Runs pytest, and tries tests again that failed: ``python -m tools.unsteady PYTEST-ARGUMENTS``.

Where at most 3 tests fail, and nothing else does, each of them runs alone until it has passed three
times in a row. The exit code is 0 then, and a report names them. Another exit code of pytest, a
failed collection and a process of tests that died are failures at once.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

MOST = 3
TIMES = 3
REPORT = Path(".venv/unsteady.txt")


class Failures:
    """A plugin of pytest that notes what failed.

    Attributes:
        tests: Ids of the tests that failed.
        others: What else failed: collections, and tests in which their process died.
        paths: What pytest was asked to collect.
    """

    def __init__(self) -> None:
        self.tests: set[str] = set()
        self.others: list[str] = []
        self.paths: list[str] = []

    def pytest_configure(self, config: pytest.Config) -> None:
        self.paths = list(config.args)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.others.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        if report.when in ("setup", "call", "teardown"):
            self.tests.add(report.nodeid)
        else:  # xdist reports a dead process like this
            self.others.append(report.nodeid)


def passes_alone(options: Sequence[str], test: str) -> bool:
    """Whether a test passes ``TIMES`` times in a row, each time in a process of its own."""
    command = [sys.executable, "-m", "pytest", *options, "-n", "0", "-q", test]
    for _ in range(TIMES):
        done = subprocess.run(command, capture_output=True, text=True)
        last = done.stdout.rstrip().rpartition("\n")[2]
        # A test that is skipped now did not pass.
        if done.returncode != 0 or not re.match(r"1 passed\b(?!.*skipped)", last):
            sys.stdout.write(f"{test} fails alone too:\n{done.stdout}{done.stderr}")
            return False
    return True


def main(arguments: Sequence[str]) -> int:
    """Run pytest and return its exit code, or 0 if all that failed passes alone."""
    REPORT.unlink(missing_ok=True)
    failures = Failures()
    code = int(pytest.main(list(arguments), plugins=[failures]))
    if code != pytest.ExitCode.TESTS_FAILED or failures.others:
        return code
    options = [each for each in arguments if each not in failures.paths]
    tests = sorted(failures.tests)
    if len(tests) > MOST or not all(passes_alone(options, test) for test in tests):
        return code
    lines = [
        f"unsteady: failed beside others, passed {TIMES} times alone: {test}\n" for test in tests
    ]
    REPORT.write_text("".join(lines), encoding="utf-8")
    sys.stdout.writelines(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
