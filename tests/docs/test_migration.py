"""The page on moving from DI-engine lists every name, and each new place can be imported."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

import dingsdk.worker

PAGE = Path(__file__).parents[2] / "docs/how-to/move-from-di-engine.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").partition("## Every name")[2].splitlines()
    if line.startswith("| ") and not line.startswith("| DI-engine")
]
PLACES = sorted({place for *_, text in ROWS for place in re.findall(r"`(dingsdk\.[\w.]+)`", text)})


def test_every_row_has_a_verdict_and_a_place_or_reason() -> None:
    for name, verdict, text in ROWS:
        assert verdict in ("kept", "replaced", "dropped"), name
        assert text, name
    assert len(ROWS) > 80


def test_every_public_worker_name_has_a_row() -> None:
    named = {name for row in ROWS for name in re.findall(r"`([\w.]+)`", row[0])}
    new = re.search(r"^New in `dingsdk.worker`: (.*?)\n\n", PAGE.read_text(), re.M | re.S)
    assert new is not None
    named.update(re.findall(r"`(\w+)`", new[1]))

    assert set(dingsdk.worker.__all__) - named == set()


@pytest.mark.parametrize("row", [row for row in ROWS if row[1] == "kept"], ids=lambda row: row[0])
def test_kept_name_keeps_its_spelling(row: list[str]) -> None:
    names = re.findall(r"`(\w+)`", row[0])
    places = {place.rpartition(".")[2] for place in re.findall(r"`([\w.]+)`", row[2])}

    if not re.search("and so on|attributes of", row[2]):
        assert set(names) <= places


@pytest.mark.parametrize("place", PLACES)
def test_named_place_can_be_imported(place: str) -> None:
    assert resolve_name(place) is not None
