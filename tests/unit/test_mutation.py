"""`make mutate` draws mutants of the shipped code and runs the tests that cover them."""

from __future__ import annotations

import ast
import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.mutation.__main__ import _tests_of, area_of
from tools.mutation.checkout import Checkout
from tools.mutation.coverage_map import CoverageMap, Tree
from tools.mutation.coverage_map import Test as RecordedTest
from tools.mutation.mutants import mutants_of

CHECKOUT = Path(__file__).parents[2]


def changes(source: str) -> list[str]:
    return [mutant.after for mutant in mutants_of("module.py", source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ["a <= b"]),
        ("a is not None", ["a is None"]),
        ("f(a, b)", ["pass", "f(b, a)"]),
        ("a[i:]", ["a[(i + 1):]"]),
        ("x = 3", ["x = 4"]),
        ("x = 0.5", ["x = 1.0"]),
        ("x = y and not z", ["x = y or not z", "x = y and z"]),
        ("self.x += 1", ["pass", "self.x -= 1", "self.x += 2"]),
        ("def f():\n    return x", ["return None"]),
        ("if x:\n    y", ["if not (x):"]),
        ("x = a.reshape(n, -1)", ["x = a.reshape(-1, n)"]),
        ("x = max(a, b)", ["x = min(a, b)"]),
        ("x = max(a)", ["x = min(a)"]),
        ("for i in range(n): y", ["for i in range(n + 1): y"]),
        ("for i in j:\n    continue", ["break", "pass"]),
        ("x: Annotated[int, Meta(ge=1)] = y", ["x: Annotated[int, Meta(ge=2)] = y"]),
    ],
)
def test_code_with_an_effect_is_mutated(source: str, expected: list[str]) -> None:
    assert sorted(changes(source)) == sorted(expected)


@pytest.mark.parametrize(
    "source",
    [
        '"""A text with 1 number."""',
        "x = y",
        "def f(a: int | None) -> int | str: ...",
        "if TYPE_CHECKING:\n    x = 1",
        'logger.debug("%d", 1)',
        'if a > 1:\n    logger.debug("%d", 1)',
        'logger.log(logging.DEBUG, "%d", 1)',
        "raise NotImplementedError",
        "x = zip(a, strict=True)",
        "x = isinstance(y, int | None)",
    ],
)
def test_code_that_no_test_can_check_is_not_mutated(source: str) -> None:
    assert changes(source) == []


def test_mutant_changes_only_its_line() -> None:
    source = "if a:\n    b += 1  # why\nc\n"
    mutant = next(mutant for mutant in mutants_of("m.py", source) if mutant.after.startswith("b -"))
    assert mutant.before == "b += 1"  # without the comment: the mutant's name must not depend on it
    assert mutant.apply(source) == "if a:\n    b -= 1\nc\n"


def test_lines_that_run_at_import_are_distinguished_from_lines_of_functions() -> None:
    source = "x = 1\n@njit\ndef f():\n    y = 2\ndef g():\n    z = 3\n"
    by_line = {mutant.line: mutant for mutant in mutants_of("m.py", source)}
    assert [by_line[line].runs_at_import for line in (1, 4, 6)] == [True, True, False]


def test_every_mutant_of_the_shipped_code_parses() -> None:
    path = CHECKOUT / "dingsdk" / "worker" / "policy_lag.py"
    source = path.read_text()
    mutants = mutants_of(path.name, source)
    assert mutants
    for mutant in mutants:
        ast.parse(mutant.apply(source))


def test_every_shipped_module_is_in_an_area_except_the_kit_and_templates() -> None:
    modules = [*CHECKOUT.glob("dingsdk/**/*.py"), *CHECKOUT.glob("plugins/*/dingsdk_*/**/*.py")]
    without = {
        module.relative_to(CHECKOUT).parts[1]
        for module in modules
        if "tests" not in module.parts and area_of(str(module.relative_to(CHECKOUT))) is None
    }
    assert without == {"testing", "templates"}
    assert area_of("plugins/dingsdk-watch/tests/test_page.py") is None


SOURCE = "def add(a, b):\n    return a + b\n"
TESTS = {
    "tests/test_add.py": "from dingsdk.add import add\ndef test_add(): assert add(1, 2) == 3\n",
    "tests/test_zero.py": "from dingsdk.add import add\ndef test_zero(): assert add(0, 0) == 0\n",
    "tests/test_broken.py": "def test_broken(): assert False\n",
}


def test_recording_fails_if_no_test_ran(tmp_path: Path) -> None:
    coverage_map = CoverageMap(tmp_path / "coverage", Tree(CHECKOUT), ())
    with pytest.raises(RuntimeError, match="no test ran: /bin/false"):
        coverage_map.record(["tests/unit/test_errors.py"], tmp_path, Path("/bin/false"), 1)


def test_recording_that_hangs_is_killed_and_run_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.mutation.coverage_map._LONGEST_S", 1.0)
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho $$ >>started\nexec sleep 600\n")
    script.chmod(0o755)
    coverage_map = CoverageMap(tmp_path / "coverage", Tree(CHECKOUT), ())
    with pytest.raises(RuntimeError, match="took more than 1 s twice"):
        coverage_map.record(["tests/unit/test_errors.py"], tmp_path, script, 1)
    started = (tmp_path / "started").read_text().split()
    assert len(started) == 2
    assert not any(Path("/proc", pid).exists() for pid in started)


@pytest.mark.slow
def test_mutant_is_killed_by_a_test_that_passes_without_it(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    files = {"dingsdk/__init__.py": "", "dingsdk/add.py": SOURCE, "pyproject.toml": "", **TESTS}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    shutil.copytree(CHECKOUT / "tools", root / "tools")
    subprocess.run(["git", "init", "-q", root], check=True)
    checkout = Checkout(tmp_path / "copy", Tree(root))
    minus = next(each for each in mutants_of("dingsdk/add.py", SOURCE) if "a - b" in each.after)
    add, zero, broken = (RecordedTest(f"{name}::{Path(name).stem}", 0.1) for name in TESTS)
    try:
        assert checkout.try_mutant(minus, [broken, zero, add]) == add.name
        assert checkout.try_mutant(minus, [broken, zero]) is None
        unimportable = dataclasses.replace(minus, line=1, after="def add(a, b")
        killer = checkout.try_mutant(unimportable, [zero])
        assert killer is not None
        assert killer.startswith("tests/test_zero.py (exit code")
        assert (checkout.root / "dingsdk/add.py").read_text() == SOURCE
    finally:
        checkout.close()


@pytest.mark.parametrize(
    ("at_import", "covered", "expected"),
    [
        (True, True, ["short", "middle", "pages"]),
        (False, True, ["short", "long"]),
        (False, False, ["importer", "short"]),  # as lines of compiled functions
    ],
)
def test_slow_tests_are_skipped_except_the_reference_pages(
    at_import: bool, covered: bool, expected: list[str]
) -> None:
    class Recorded:
        def tests_of_module(
            self, path: str, scope: tuple[int, int] | None = None
        ) -> list[RecordedTest]:
            middle = RecordedTest("importer" if scope is None else "middle", 50.0)
            return [RecordedTest("long", 90.0), middle, *self.quick]

        def importers(self, path: str) -> list[str]:
            return ["importer"]

        def tests_of_file(self, name: str) -> list[RecordedTest]:
            return [RecordedTest("pages", 300.0)]

        def tests_of_line(self, path: str, line: int) -> list[RecordedTest]:
            return [RecordedTest("long", 90.0), *self.quick] if covered else []

        quick = (RecordedTest("short", 1.0),)

    (mutant,) = mutants_of("module.py", "x = 3")
    mutant = dataclasses.replace(mutant, runs_at_import=at_import)
    assert [each.name for each in _tests_of(mutant, Recorded())] == expected  # type: ignore[arg-type]
