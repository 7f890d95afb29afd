"""Runs pytest and repeats failed tests: ``python -m tools.unsteady PYTEST-ARGUMENTS``.

If at most 3 tests fail, and nothing else, each of them is run alone three times. If all pass every
time, the exit code is 0 and a report lists them. Other exit codes of pytest, failed collections and
died test processes are failures without a repeat.
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
    """A pytest plugin that records failures.

    Attributes:
        tests: Ids of the failed tests.
        others: Other failures: collections, and tests whose process died.
        paths: The paths that pytest was called with.
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
        else:  # xdist reports a dead process this way
            self.others.append(report.nodeid)


def passes_alone(options: Sequence[str], test: str) -> bool:
    """Whether a test passes ``TIMES`` times in a row, each time in a new process."""
    command = [sys.executable, "-m", "pytest", *options, "-n", "0", "-q", test]
    for _ in range(TIMES):
        done = subprocess.run(command, capture_output=True, text=True)
        last = done.stdout.rstrip().rpartition("\n")[2]
        # A skipped test does not count as passed.
        if done.returncode != 0 or not re.match(r"1 passed\b(?!.*skipped)", last):
            sys.stdout.write(f"{test} fails alone too:\n{done.stdout}{done.stderr}")
            return False
    return True


def main(arguments: Sequence[str]) -> int:
    """Run pytest; return its exit code, or 0 if all failed tests pass alone."""
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
