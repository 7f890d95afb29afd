"""The tests named in docs/explanation/fault-matrix.md exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "fault-matrix.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| Fault |", "| ---"))
]


def test_page_has_a_table() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_named_tests_exist(row: list[str]) -> None:
    _, _, _, tests = row
    named = re.findall(r"`([\w/.-]+\.py)::(test_\w+)`", tests)
    assert len(named) == len(tests.split("<br>"))
    for path, function in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert function in defined, f"{path} has no {function}"
