"""The generated reference pages are those of the code."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
GENERATED = runpy.run_path(str(DOCS / "generate.py"))
PAGES: dict[str, str] = GENERATED["pages"]()
HOW_TO: dict[str, str] = GENERATED["how_to_pages"]()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_reference_page_is_up_to_date(name: str) -> None:
    written = (DOCS / "reference" / name).read_text(encoding="utf-8")

    assert written == PAGES[name], "run `make docs`"


@pytest.mark.parametrize("name", sorted(HOW_TO))
def test_page_of_a_template_is_up_to_date(name: str) -> None:
    written = (DOCS / "how-to" / name).read_text(encoding="utf-8")

    assert written == HOW_TO[name], "run `make docs`"


def test_reference_folder_holds_no_other_pages() -> None:
    folder = DOCS / "reference"
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]

    assert sorted(found) == sorted(PAGES)


def test_every_hook_kind_and_error_is_described() -> None:
    for line in PAGES["errors.md"].splitlines():
        if line.startswith("| `"):
            assert line.split("|")[-2].strip(), line
    assert "None" not in PAGES["hooks.md"].replace("non-None", "").split("\n\n")


KEY_ROW = re.compile(r"^\| `([\w.]+)` \| (.+?) \| (required|see below|`.*?`) \| ?(.*?) ?\|$")


def test_every_config_key_has_a_type_a_default_and_a_meaning() -> None:
    rows = [line for line in PAGES["config.md"].splitlines() if line.startswith("| `")]
    assert len(rows) > 400
    for line in rows:
        found = KEY_ROW.match(line)
        assert found, line
        _, takes, _, meaning = found.groups()
        assert takes.strip(), line
        assert meaning.endswith("."), line


def test_seconds_and_bytes_are_named_where_a_key_is_in_them() -> None:
    for line in PAGES["config.md"].splitlines():
        if found := KEY_ROW.match(line):
            key, _, _, meaning = found.groups()
            if key.endswith(("_s", "_timeout", "_seconds")):
                assert "econds" in meaning, line
            if key.endswith("_bytes"):
                assert "bytes" in meaning, line
