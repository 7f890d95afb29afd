"""Install commands name only folders and known packages: anybody may publish another name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "dingsdk/**/*.py", "plugins/**/*.py", "plugins/*/*.md")
    for path in ROOT.glob(pattern)
    if "tests" not in path.relative_to(ROOT).parts
)
RECOMMENDED = {"moviepy", "tensorboard"}
"""Packages that the texts recommend, in addition to our dependencies."""


def requirements() -> set[str]:
    files = [ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")]
    projects = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files]
    extras = [
        lines for each in projects for lines in each.get("optional-dependencies", {}).values()
    ]
    groups = [*(each["dependencies"] for each in projects), *extras]
    return {without_version(line).lower() for lines in groups for line in lines}


def without_version(requirement: str) -> str:
    return re.split(r"[<>=\[]", requirement)[0]


def installed_by(text: str) -> Iterator[str]:
    """Yield the arguments of each ``pip install`` in the text, without the options."""
    for command in re.findall(r"pip install ([^`\n\"),;]+)", text):
        yield from (word.strip("'") for word in command.split() if not word.startswith("-"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_text_installs_only_folders_and_known_packages(path: Path) -> None:
    known = requirements() | RECOMMENDED
    for name in installed_by(path.read_text(encoding="utf-8")):
        is_folder = name.startswith((".", "/", "{"))
        assert is_folder or without_version(name) in known, f"{path} names {name}"


def test_install_arguments_are_found_in_a_text() -> None:
    text = "run `pip install -q a ./b`, or\npip install 'c[d]'"

    assert list(installed_by(text)) == ["a", "./b", "c[d]"]
