"""Functions that a config names as ``module:function``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dingsdk.plugins.user_functions import find_function


def test_function_of_a_module_is_found() -> None:
    assert find_function("json:dumps") == (json.dumps, "")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("dumps", "no module:function"),
        ("json:dumpz", "json has no function 'dumpz'"),
        ("json:__name__", "json has no function '__name__'"),
        ("no_such_module:f", "its import raised ModuleNotFoundError"),
    ],
)
def test_error_says_why_a_name_is_no_function(name: str, why: str) -> None:
    found, text = find_function(name)
    assert found is None
    assert text.startswith(why)


def test_failed_import_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_at_import.py").write_text("x = 1\nraise RuntimeError('no')\n")
    monkeypatch.syspath_prepend(tmp_path)
    found, text = find_function("fails_at_import:f")
    assert found is None
    assert text.endswith("fails_at_import.py, line 2)")
