"""`make mutate` draws mutants of code that behaves, and only where a test could see them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.mutation.__main__ import area_of
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
        ("x = max(a, b)", ["x = min(a, b)"]),
        ("x = max(a)", ["x = min(a)"]),
        ("for i in range(n): y", ["for i in range(n + 1): y"]),
        ("for i in j:\n    continue", ["break", "pass"]),
        ("x: Annotated[int, Meta(ge=1)] = y", ["x: Annotated[int, Meta(ge=2)] = y"]),
    ],
)
def test_places_that_behave_are_changed(source: str, expected: list[str]) -> None:
    assert sorted(changes(source)) == sorted(expected)


@pytest.mark.parametrize(
    "source",
    [
        '"""A text with 1 number."""',
        "x = y",
        "def f(a: int | None) -> int | str: ...",
        "if TYPE_CHECKING:\n    x = 1",
        'logger.debug("%d", 1)',
        'logger.log(logging.DEBUG, "%d", 1)',
        "raise NotImplementedError",
        "x = zip(a, strict=True)",
        "x = isinstance(y, int | None)",
    ],
)
def test_what_no_test_could_see_is_left_alone(source: str) -> None:
    assert changes(source) == []


def test_a_mutant_changes_its_line_alone() -> None:
    source = "if a:\n    b += 1  # why\nc\n"
    mutant = next(mutant for mutant in mutants_of("m.py", source) if mutant.after.startswith("b -"))
    assert mutant.apply(source) == "if a:\n    b -= 1  # why\nc\n"


def test_lines_that_run_at_import_are_told_from_those_of_functions() -> None:
    source = "x = 1\n@njit\ndef f():\n    y = 2\ndef g():\n    z = 3\n"
    by_line = {mutant.line: mutant for mutant in mutants_of("m.py", source)}
    assert [by_line[line].runs_at_import for line in (1, 4, 6)] == [True, True, False]


def test_every_mutant_of_the_shipped_code_parses() -> None:
    path = CHECKOUT / "dingsdk" / "envs" / "base.py"
    source = path.read_text()
    mutants = mutants_of("base.py", source)
    assert mutants
    for mutant in mutants:
        ast.parse(mutant.apply(source))


def test_every_shipped_module_is_in_an_area_except_the_kit() -> None:
    modules = [*CHECKOUT.glob("dingsdk/**/*.py"), *CHECKOUT.glob("plugins/*/dingsdk_*/**/*.py")]
    without = {
        module.relative_to(CHECKOUT).parts[1]
        for module in modules
        if area_of(str(module.relative_to(CHECKOUT))) is None
    }
    assert without == {"testing"}
