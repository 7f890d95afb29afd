"""The entry points of the distribution and the types that it registers are the same."""

from __future__ import annotations

import tomllib
from pathlib import Path

from dingsdk_zoo.plugin import POLICIES

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def test_each_registered_type_has_an_entry_point() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]

    assert project["entry-points"]["dingsdk.policies"].keys() == POLICIES.keys()
