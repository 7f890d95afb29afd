"""New processes, which import the script that the parent was started with."""

from __future__ import annotations

import multiprocessing
import sys
from types import ModuleType

import pytest

from dingsdk.data.spawn import UNGUARDED, leave_if_importing, spawn_context
from dingsdk.errors import ConfigError


def test_script_that_a_new_worker_imports_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_if_importing()
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(SystemExit) as caught:
        leave_if_importing()
    assert caught.value.code == UNGUARDED


def test_script_without_a_file_starts_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spawn_context("some.key").get_start_method() == "spawn"
    script = ModuleType("__main__")
    script.__file__ = "<stdin>"
    monkeypatch.setitem(sys.modules, "__main__", script)
    with pytest.raises(ConfigError, match=r"^some\.key asks for new processes") as caught:
        spawn_context("some.key")
    assert caught.value.path == "some.key"
