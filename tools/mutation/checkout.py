"""Copies of the checkout, each with its own interpreter, in which mutants are tried."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from tools.mutation.coverage_map import PLUGIN, Test, Tree
from tools.mutation.mutants import Mutant


class Checkout:
    """A copy of a tree and a virtual environment whose `dingsdk` is that copy.

    All other packages come from the environment of the running interpreter.

    Args:
        folder: Folder of the copy; updated if it exists.
        tree: The files to copy.
    """

    def __init__(self, folder: Path, tree: Tree) -> None:
        self.root = folder.absolute()
        self.python = self.root / ".venv" / "bin" / "python"
        self._stamp = 0
        self._passing: set[str] = set()
        self._failing: set[str] = set()
        self._runner: subprocess.Popen[str] | None = None
        self._copy(tree)
        if not self.python.exists():
            self._make_environment()
        self._name_packages()
        sources = [name for name in ("dingsdk", "plugins", "tests") if (self.root / name).exists()]
        self._run(["-m", "compileall", "-q", *sources])

    def try_mutant(self, mutant: Mutant, tests: list[Test]) -> str | None:
        """Run tests on a mutant; return the name of the first that fails, or None if all pass.

        Tests that also fail without the mutant do not count.
        """
        tests = [test for test in tests if test.name not in self._failing]
        while tests and (killer := self._first_killer(mutant, tests)) is not None:
            if self._passes(killer, tests):
                return killer
            self._failing.add(killer)
            tests = [test for test in tests if test.name != killer]
        return None

    def _first_killer(self, mutant: Mutant, tests: list[Test]) -> str | None:
        path = self.root / mutant.path
        source, times = path.read_text(), path.stat()
        try:
            path.write_text(mutant.apply(source))
            # Bytecode and numba's cache compare times in seconds: use a new second each time.
            self._stamp = max(self._stamp + 1, int(time.time()))
            os.utime(path, (self._stamp, self._stamp))
            for batch in _batches(tests):
                killer = self._first_failure(batch)
                if killer is not None:
                    return killer
            return None
        finally:
            path.write_text(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def close(self) -> None:
        """End the process that runs the tests; it also ends with this one."""
        if self._runner is not None:
            with self._runner:  # closes the pipes, then waits
                self._runner = None

    def _passes(self, name: str, tests: list[Test]) -> bool:
        """Whether a test passes without the mutant; a hang has no test name and is not repeated."""
        if name not in self._passing:
            alone = [test for test in tests if test.name == name]
            if alone and self._first_failure(alone) is not None:
                return False
            self._passing.add(name)
        return True

    def _first_failure(self, tests: list[Test]) -> str | None:
        """Run tests in a process; a hang or a crash counts as a failure of the running test."""
        chosen = self.root / ".mutation-tests.json"
        chosen.write_text(json.dumps([test.name for test in tests]))
        log = self.root / ".mutation-log.txt"
        longest = max(test.duration_s for test in tests)
        arguments = [
            "-x", "-v", "--tb=no", "-p", PLUGIN, "-m", "", "-p", "no:xdist",
            "-p", "no:cacheprovider", "--timeout", str(int(30 + 5 * longest)),
            "--basetemp", str(self.root / ".tmp"), *dict.fromkeys(test.file for test in tests),
        ]  # fmt: skip
        limit_s = 120 + 5 * sum(test.duration_s for test in tests)
        code = self._ask_runner({"arguments": arguments, "limit_s": limit_s, "log": str(log)})
        if code == 0:
            return None
        text = log.read_text(errors="replace")
        names = [test.name for test in tests]
        for line in text.splitlines():
            if " FAILED" in line or " ERROR" in line:
                for name in names:
                    if line.startswith(f"{name} "):
                        return name
        if "ImportError while loading conftest" in text:
            return f"{tests[0].file} (its conftest.py)"
        # A mutant that breaks an import makes the collection fail. Here pytest did not run at all.
        if code in (4, 5) or "test session starts" not in text:
            raise RuntimeError(text)
        return f"{tests[0].file} (exit code {code})"

    def _ask_runner(self, request: dict[str, object]) -> int | None:
        if self._runner is None:
            self._runner = subprocess.Popen(
                [str(self.python), "-m", "tools.mutation.runner"],
                cwd=self.root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self._runner.stdin is not None
        assert self._runner.stdout is not None
        self._runner.stdin.write(json.dumps(request) + "\n")
        self._runner.stdin.flush()
        code: int | None = json.loads(self._runner.stdout.readline())
        return code

    def _copy(self, tree: Tree) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        copied = self.root / ".mutation-copied.json"
        before = json.loads(copied.read_text()) if copied.exists() else {}
        copied.unlink(missing_ok=True)
        for name in before.keys() - tree.digests.keys():
            (self.root / name).unlink(missing_ok=True)
        now = {}
        for name, digest in tree.digests.items():
            target = self.root / name
            # A changed time shows that a killed run left a mutant in the file.
            if not target.exists() or before.get(name) != [digest, target.stat().st_mtime_ns]:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tree.root / name, target)
            now[name] = [digest, target.stat().st_mtime_ns]
        copied.write_text(json.dumps(now))

    def _name_packages(self) -> None:
        """Make this copy, its plugins and examples, and all installed packages importable."""
        folders = [self.root / "plugins", self.root / "docs" / "examples"]
        packages = [self.root, *(each for folder in folders for each in sorted(folder.glob("*/")))]
        paths = map(str, [*packages, sysconfig.get_path("purelib")])
        (self._site() / "copy.pth").write_text("\n".join(paths) + "\n")

    def _site(self) -> Path:
        (site,) = (self.root / ".venv" / "lib").glob("*/site-packages")
        return site

    def _make_environment(self) -> None:
        """Create an environment without own packages."""
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(self.root / ".venv")], check=True
        )
        for file in Path(sysconfig.get_path("purelib")).glob("*coverage*.pth"):
            shutil.copy(file, self._site())
        for script in Path(sys.executable).parent.iterdir():
            with contextlib.suppress(UnicodeDecodeError, IsADirectoryError):
                text = script.read_text()
                if text.startswith(f"#!{Path(sys.executable).parent}"):
                    copy = self.root / ".venv" / "bin" / script.name
                    copy.write_text(f"#!{self.python}\n" + text.partition("\n")[2])
                    copy.chmod(0o755)

    def _run(self, arguments: list[str]) -> None:
        subprocess.run(
            [str(self.python), *arguments], cwd=self.root, check=False, capture_output=True
        )


def _batches(tests: list[Test]) -> list[list[Test]]:
    """Split tests, fastest files first, into runs; each run may take longer than the one before."""
    files: dict[str, list[Test]] = {}
    for test in sorted(tests, key=lambda test: test.duration_s):
        files.setdefault(test.file, []).append(test)
    batches: list[list[Test]] = [[]]
    limits_s = [5.0, 25.0, float("inf")]
    spent_s = 0.0
    for group in sorted(files.values(), key=lambda group: sum(test.duration_s for test in group)):
        spent_s += sum(test.duration_s for test in group)
        if spent_s > limits_s[0] and batches[-1]:
            batches.append([])
            spent_s = 0.0
            limits_s.pop(0)
        batches[-1].extend(group)
    return [batch for batch in batches if batch]
