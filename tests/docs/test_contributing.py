"""The files that CONTRIBUTING.md lists for each kind of change exist and contain the names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    line
    for line in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| change |")
]


def test_there_are_thirteen_changes() -> None:
    assert len(ROWS) == 13


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_named_places_exist(row: str) -> None:
    quoted = re.findall(r"`([^`]+)`", row)
    paths = [ROOT / name for name in quoted if "/" in name]
    files = [path for path in paths if path.suffix == ".py" and "<name>" not in path.name]

    assert paths
    code = [path for path in paths if "tests" not in path.parts and path.suffix == ".py"]
    assert len(code) <= (5 if "hook point" in row else 3)
    for path in paths:
        assert (path.parent if "<name>" in path.name else path).exists(), path
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    for name in quoted:
        if name.isidentifier() and name not in ("Config", "flask_fs"):
            assert re.search(rf"\b{name}\b", source), name


def test_architecture_begins_with_eight_files_that_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    first = page.partition("\n## ")[2].partition("\n## ")[0]
    files = re.findall(r"^\d\. `(\S+)`: ", first, re.MULTILINE)

    assert len(files) == 8
    assert [name for name in files if not (ROOT / name).is_file()] == []
