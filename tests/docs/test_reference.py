"""The generated reference pages are up to date with the code and complete."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generated() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "generate.py"))


def written(folder: Path, names: Iterable[str]) -> dict[str, str]:
    return {name: (folder / name).read_text(encoding="utf-8") for name in names}


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The written pages, which are the generated ones: to generate them takes seconds."""
    found = [path for path in (DOCS / "reference").rglob("*") if path.is_file()]
    return written(
        DOCS / "reference", [str(each.relative_to(DOCS / "reference")) for each in found]
    )


def test_reference_pages_are_up_to_date(generated: dict[str, Any], pages: dict[str, str]) -> None:
    assert pages == generated["pages"](), "run `make docs`"


def test_how_to_pages_of_templates_are_up_to_date(generated: dict[str, Any]) -> None:
    made = generated["how_to_pages"]()

    assert written(DOCS / "how-to", made) == made, "run `make docs`"


def test_public_names_are_described_in_the_files(pages: dict[str, str]) -> None:
    for page, text in pages.items():
        for entry in text.split("\n## ")[1:] if page.startswith("api/") else ():
            name, _, body = entry.partition("\n")
            assert body.strip(), f"{page}: {name}"
            assert " at 0x" not in body, f"{page}: {name}"
    (entry,) = (
        entry
        for entry in pages["api/dingsdk.worker.md"].split("\n## ")
        if entry.startswith('<a id="dingsdk.worker.NaiveReplayBuffer">')
    )
    assert "class NaiveReplayBuffer(" in entry
    assert "**Args**" in entry


def test_every_hook_kind_and_error_is_described(pages: dict[str, str]) -> None:
    for line in pages["errors.md"].splitlines():
        if line.startswith("| `"):
            assert line.split("|")[-2].strip(), line
    assert "None" not in pages["hooks.md"].replace("non-None", "").split("\n\n")


KEY_ROW = re.compile(r"^\| `([\w.<>]+)` \| (.+?) \| (required|see below|`.*?`) \| ?(.*?) ?\|$")


def test_every_config_key_has_a_type_a_default_and_a_meaning(pages: dict[str, str]) -> None:
    rows = [line for line in pages["config.md"].splitlines() if line.startswith("| `")]
    keys = set()
    for line in rows:
        found = KEY_ROW.match(line)
        assert found, line
        key, takes, _, meaning = found.groups()
        keys.add(key)
        assert takes.strip(), line
        assert meaning.endswith("."), line
    assert len(keys) >= 260


def test_keys_that_all_types_share_are_listed_once(generated: dict[str, Any]) -> None:
    types = [("a", "One.", ["all", "own"]), ("b", "Two.", ["all"]), ("c", "One.", ["all", "own"])]
    head = ["| key | takes | default | meaning |", "|---|---|---|---|"]

    tables = [table.splitlines() for table in generated["_type_tables"]("x", types)]

    assert tables == [
        ["## `x`, all types", "", *head, "all"],
        ["## `x`, type `a` or `c`", "", "One.", "", *head, "own"],
        ["## `x`, type `b`", "", "Two. It has no other keys."],
    ]
    assert list(generated["_type_tables"]("x", types[1:2])) == [
        "\n".join(["## `x`, type `b`", "", "Two.", "", *head, "all"])
    ]


def test_every_limit_has_a_value_and_a_meaning(pages: dict[str, str]) -> None:
    rows = [line for line in pages["limits.md"].splitlines() if line.startswith("| `")]
    assert len(rows) > 150
    for line in rows:
        _, _, value, meaning, file, _ = re.split(r" ?\| ?", line)
        assert re.match(r"-?\(?\d", value), line
        assert meaning.endswith("."), line
        assert file.endswith(".py`"), line


def test_limit_without_a_meaning_is_refused(generated: dict[str, Any], tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('WAIT_S = 2.5\n"""Of a wait."""\nMOST, _SHIFT = 3, 4\nMAX_ROWS = 2 << 10\n')
    found = generated["_constants"](module)

    names, value, meaning = next(found)
    assert (names, ast.unparse(value), meaning) == (["WAIT_S"], "2.5", "Of a wait.")
    with pytest.raises(ValueError, match="MAX_ROWS needs a docstring"):
        next(found)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("WAIT_S = 2.5", "2.5 s"),
        ("WAIT_S = (0.5, 20.0)", "0.5 s, 20 s"),
        ("_PER_S = 1.0", "1 a second"),
        ("SETTLED_NS = 1000", "1,000 ns"),
        ("MAX_BYTES = 4096", "4,096 bytes"),
        ("MAX_BYTES = 3 << 20", "3 MiB"),
        ("MAX_BYTES = (1 << 32) - 1", "(1 << 32) - 1 bytes"),
        ("MOST_ROWS = 1 << 30", "1,073,741,824"),
        ("MOST_ROWS, MAX_BYTES = 512, 16 << 10", "512, 16 KiB"),
    ],
)
def test_limit_is_shown_with_its_unit(
    generated: dict[str, Any], tmp_path: Path, line: str, shown: str
) -> None:
    module = tmp_path / "module.py"
    module.write_text(f'{line}\n"""Of something."""\n')
    ((names, value, _),) = generated["_constants"](module)
    assert generated["_limit"](names, value) == shown


def test_meaning_of_a_key_names_its_unit(pages: dict[str, str]) -> None:
    for line in pages["config.md"].splitlines():
        if found := KEY_ROW.match(line):
            key, _, _, meaning = found.groups()
            if key.endswith(("_s", "_timeout", "_seconds")):
                assert "econds" in meaning, line
            if key.endswith("_bytes"):
                assert "bytes" in meaning, line
