"""Records which tests run which lines, also in processes that tests start.

There is one record per test file. It is valid until the file, a test helper or a source file that
the tests run changes; only outdated records are made again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coverage import CoverageData
from coverage.exceptions import DataError

PLUGIN = "tools.mutation.pytest_plugin"
_LONGEST_S = 1500.0
"""Tests that are recorded together take a fifth of this."""
_NO_TESTS = 5
"""Exit code of pytest if no test is selected."""


@dataclasses.dataclass(frozen=True)
class Test:
    """A test that runs a line, with its recorded duration."""

    name: str
    duration_s: float

    @property
    def file(self) -> str:
        """The file of the test, relative to the root."""
        return self.name.partition("::")[0]


class Tree:
    """The files of a checkout that Git does not ignore, with their digests."""

    def __init__(self, root: Path) -> None:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=root, check=True, capture_output=True,
        ).stdout  # fmt: skip
        names = sorted(name for name in listed.decode().split("\0") if name)
        self.root = root
        self.digests = {
            name: hashlib.sha256((root / name).read_bytes()).hexdigest()[:16]
            for name in names
            if (root / name).is_file()
        }
        self._helpers: dict[str, list[str]] = {}

    def test_files(self, below: Iterable[str]) -> list[str]:
        """List the test files at or below the given paths."""
        places = tuple(below)
        return [
            name
            for name in self.digests
            if name.endswith(".py")
            and Path(name).name.startswith("test_")
            and not name.startswith("dingsdk/")  # tests of templates, which run as copies
            and (not places or name.startswith(places))
        ]

    def helpers(self, test_file: str) -> list[str]:
        """List the test helpers that a test file mentions, and every `conftest.py` it uses."""
        if test_file not in self._helpers:
            beside = {name for name in self.digests if _is_test_helper(name)}
            found: set[str] = set()
            waiting = {test_file}
            while waiting:
                text = (self.root / waiting.pop()).read_text()
                words = set(re.findall(r"\w+", text))
                named = {name for name in beside if Path(name).stem in words - {"conftest"}}
                waiting |= named - found
                found |= named
            above = [str(folder / "conftest.py") for folder in Path(test_file).parents]
            self._helpers[test_file] = sorted(found | (beside & set(above)))
        return self._helpers[test_file]

    def importers(self, path: str) -> list[str]:
        """List the files that import from a module with its full name."""
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        module = re.sub(r"^plugins\.[^.]*\.", "", module)
        line = re.compile(rf"^ *from {re.escape(module)} import ", re.MULTILINE)
        return [
            name
            for name in self.digests
            if name.endswith(".py") and line.search((self.root / name).read_text())
        ]

    def digest(self, names: Iterable[str]) -> str:
        """Return one digest of the contents of the named files, including missing ones."""
        return _digest({name: self.digests.get(name, "") for name in names})


class CoverageMap:
    """The recorded tests of some test files.

    Args:
        folder: Folder of the records.
        tree: The checkout that the records are compared with.
        selection: pytest options that choose tests by marker; each selection has its own records.
    """

    def __init__(self, folder: Path, tree: Tree, selection: tuple[str, ...]) -> None:
        self._folder = folder
        self._tree = tree
        self._selection = selection
        self._records: dict[str, dict[str, Any]] = {}
        self._by_line: dict[tuple[str, int], set[str]] = {}

    def load(self, test_files: Iterable[str]) -> list[str]:
        """Read the records of these files; return the files that must be recorded (again)."""
        stale = []
        for name in test_files:
            try:
                record = json.loads(self._file_of(name).read_text())
            except FileNotFoundError:
                record = None
            if record is None or record["key"] != self._key(name, record["lines"], record["tests"]):
                stale.append(name)
            else:
                self._records[name] = record
        self._by_line = self._index()
        return stale

    def record(self, test_files: list[str], checkout: Path, python: Path, jobs: int) -> None:
        """Run the tests of these files under coverage and store the covered lines.

        Raises:
            RuntimeError: pytest could not run.
        """
        data = checkout / ".mutation-coverage"
        data.mkdir(exist_ok=True)
        for old in data.iterdir():
            old.unlink()
        settings = data / "settings"
        settings.write_text(
            "[run]\nparallel = true\nconcurrency = thread, greenlet\npatch = _exit\n"
            f"context = $MUTATION_TEST\ndata_file = {data / 'lines'}\ndisable_warnings = "
            f"no-data-collected, module-not-measured, couldnt-parse\nsource =\n    {checkout}\n"
            f"omit =\n    {checkout}/tests/*\n    {checkout}/.venv/*\n    {checkout}/tools/*\n"
            "    */test_*.py\n"
        )
        environment = {
            **os.environ, "COVERAGE_PROCESS_START": str(settings), "MUTATION_REPORTS": str(data),
        }  # fmt: skip
        command = [
            str(python), "-m", "pytest", "-q", "-p", PLUGIN, "-n", str(jobs), "--dist", "loadfile",
            "--timeout", "300", "-o", "timeout_method=thread", *self._selection, *test_files,
        ]  # fmt: skip
        # The timeout is a thread that ends the process: with tracing, CPython 3.11 may repeat one
        # instruction forever when a thread's greenlets are dropped, and run no signal handler.
        code = _run(command, checkout, environment)
        reports: dict[str, dict[str, Any]] = {}
        for file in data.glob("tests-*.json"):
            reports |= json.loads(file.read_text())
        if not reports and code != _NO_TESTS:
            raise RuntimeError(f"no test ran: {' '.join(command[:3])} ended with {code}")
        lines = _covered_lines(data, checkout)
        for name in test_files:
            self._keep(name, reports, lines)
        self._by_line = self._index()

    def _keep(
        self, name: str, reports: dict[str, dict[str, Any]], lines: dict[str, dict[str, set[int]]]
    ) -> None:
        tests = {test: report for test, report in reports.items() if test.startswith(f"{name}::")}
        covered: dict[str, dict[str, list[int]]] = defaultdict(dict)
        for test in tests:
            for path, numbers in lines.get(test, {}).items():
                covered[path][test] = sorted(numbers)
        key = self._key(name, covered, tests)
        record = {"key": key, "tests": tests, "lines": covered}
        self._records[name] = record
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file_of(name).write_text(json.dumps(record))

    def key(self, test: str) -> str:
        """Return a digest of all files that the tests in this test's file depend on."""
        return str(self._records[test.partition("::")[0]]["key"])

    def keys(self) -> str:
        """Return one digest of all files that the loaded tests depend on."""
        return _digest({name: record["key"] for name, record in self._records.items()})

    def broken(self) -> list[str]:
        """Return the tests that fail without any mutant; they do not count."""
        return [
            test
            for record in self._records.values()
            for test, report in record["tests"].items()
            if report["failed"]
        ]

    def tests_of_file(self, name: str) -> list[Test]:
        """Return the tests of a file, none if it is not loaded."""
        return self._tests(self._records[name]["tests"] if name in self._records else ())

    def tests_of_line(self, path: str, line: int) -> list[Test]:
        """Return the tests that run a line."""
        return self._tests(self._by_line.get((path, line), set()))

    def importers(self, path: str) -> list[str]:
        """List the files, tests too, that import from a module with its full name."""
        return self._tree.importers(path)

    def tests_of_module(self, path: str, scope: tuple[int, int] | None = None) -> list[Test]:
        """Return tests that run a line of a scope, or else a line of its module or its importers.

        Includes all other tests of their files: a test may use a default without running its line.

        Args:
            path: The module.
            scope: First and last line; None for compiled functions, of which coverage sees only
                the header, in the test that happened to import it first.
        """
        by_line = {line: tests for (file, line), tests in self._by_line.items() if file == path}
        first, last = scope or (0, -1)
        inside = [tests for line, tests in by_line.items() if first <= line <= last]
        if not inside:
            files = {path, *self._tree.importers(path)}
            inside = [tests for (file, _), tests in self._by_line.items() if file in files]
        test_files = {name.partition("::")[0] for tests in inside for name in tests}
        return [test for name in test_files for test in self.tests_of_file(name)]

    def _tests(self, names: Iterable[str]) -> list[Test]:
        found = []
        for name in names:
            report = self._records[name.partition("::")[0]]["tests"][name]
            if not report["failed"]:
                found.append(Test(name, report["duration_s"]))
        return found

    def _index(self) -> dict[tuple[str, int], set[str]]:
        index: dict[tuple[str, int], set[str]] = defaultdict(set)
        for record in self._records.values():
            for path, tests in record["lines"].items():
                for test, numbers in tests.items():
                    for number in numbers:
                        index[path, number].add(test)
        return index

    def _key(self, name: str, covered: Iterable[str], tests: dict[str, dict[str, Any]]) -> str:
        # A failed test may have stopped before lines that it covers.
        has_failed = not tests or any(report["failed"] for report in tests.values())
        files = self._tree.digests if has_failed else [name, *sorted(covered)]
        return self._tree.digest([*files, *self._tree.helpers(name)])

    def _file_of(self, name: str) -> Path:
        which = _digest({"name": name, "selection": " ".join(self._selection)})
        return self._folder / f"{which}.json"


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> int:
    """Run a command and return its exit code.

    After the timeout has ended one of its processes, pytest-xdist may wait forever: a command that
    takes too long is killed and run once more.

    Raises:
        RuntimeError: the second run took too long, too.
    """
    for _ in range(2):
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdout=sys.stderr, start_new_session=True
        ) as process:
            try:
                return process.wait(_LONGEST_S)
            except subprocess.TimeoutExpired:
                continue
            finally:
                if process.poll() is None:  # also after Ctrl-C, which does not reach its session
                    os.killpg(process.pid, signal.SIGKILL)
    raise RuntimeError(f"{' '.join(command[:3])} took more than {_LONGEST_S:.0f} s twice")


def _covered_lines(data: Path, checkout: Path) -> dict[str, dict[str, set[int]]]:
    """Return the line numbers that each test ran, by test and path."""
    covered: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for file in data.glob("lines.*"):
        recorded = CoverageData(str(file))
        try:
            recorded.read()
        except DataError:
            continue  # its process was killed while it wrote
        for measured in recorded.measured_files():
            path = str(Path(measured).relative_to(checkout))
            for line, contexts in recorded.contexts_by_lineno(measured).items():
                for context in contexts:
                    covered[context][path].add(line)
    return covered


def _is_test_helper(name: str) -> bool:
    """Whether a file may change what tests do, and is not a test file."""
    inside = name.startswith("tests/") or "/tests/" in name or name == "conftest.py"
    return inside and not Path(name).name.startswith("test_")


def _digest(named: dict[str, str]) -> str:
    text = json.dumps(named, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
