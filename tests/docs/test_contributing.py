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
    for path in paths:
        assert (path.parent if "<name>" in path.name else path).exists(), path
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    for name in quoted:
        if name.isidentifier() and name not in ("Config", "flask_fs"):
            assert re.search(rf"\b{name}\b", source), name
