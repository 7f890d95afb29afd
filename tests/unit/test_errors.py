"""Errors behave like the builtin exceptions they subclass, and can be copied."""

from __future__ import annotations

import copy
import importlib
import inspect
import runpy
from pathlib import Path
from typing import Any

import pytest

from dingsdk import errors
from dingsdk.errors import (
    DingError,
    TaskFail,
    TaskFailedError,
    UnknownPluginError,
    listing,
    nearest_name,
    raised_at,
    spelling,
    wrong_type,
)

ALL = [
    each
    for _, each in inspect.getmembers(errors, inspect.isclass)
    if issubclass(each, DingError) and each is not TaskFail
]


@pytest.mark.parametrize("error_type", ALL)
def test_error_keeps_text_facts_and_type_through_a_copy(error_type: type[DingError]) -> None:
    error = error_type("what went wrong", path="a.b", count=3)

    copied = copy.copy(error)

    assert type(copied) is error_type
    assert str(copied) == str(error) == "what went wrong"
    assert copied.facts == {"path": "a.b", "count": 3}
    assert copied.count == 3
    assert copied.code == error_type.__name__


def test_unknown_fact_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = DingError("text").nonsense


def test_errors_are_caught_as_the_builtin_they_behave_like() -> None:
    with pytest.raises(KeyError) as caught:
        raise UnknownPluginError("no 'x' among the buffers", kind="buffers")
    assert str(caught.value) == "no 'x' among the buffers"


def test_task_fail_carries_its_result_through_a_copy() -> None:
    copied = copy.copy(TaskFail({"message": "busy"}, "not now"))
    assert copied.facts["result"] == {"message": "busy"}
    assert str(copied) == "not now"


@pytest.mark.parametrize("is_mistake", [True, False])
def test_failed_task_is_a_user_mistake_if_its_result_says_so(is_mistake: bool) -> None:
    error = TaskFailedError("task failed", result={"is_user_mistake": is_mistake})
    assert error.is_user_mistake is is_mistake
    assert copy.copy(error).is_user_mistake is is_mistake


def test_only_these_errors_are_retryable() -> None:
    retryable = {error.__name__ for error in ALL if error.retryable}

    assert retryable == {
        "BufferFullError",
        "ServerLostError",
        "StaleEpochError",
        "StorageFullError",
        "TaskTimeoutError",
        "WorkerLostError",
    }


def test_only_these_errors_are_user_mistakes() -> None:
    mistakes = {error.__name__ for error in ALL if error.is_user_mistake}

    assert mistakes == {
        "AuthError",
        "CheckpointCorruptError",
        "CheckpointError",
        "CheckpointMissingError",
        "CheckpointVersionError",
        "ConfigError",
        "ConfigTypeError",
        "DatasetError",
        "HookError",
        "InsecureBindError",
        "NotSavableError",
        "PluginLoadError",
        "PluginNotInstalledError",
        "PortInUseError",
        "RunDirLockedError",
        "RunFolderError",
        "ServerLostError",
        "StorageFullError",
        "UnknownEnvError",
        "UnknownKeyError",
        "UnknownPluginError",
        "UntrustedImportError",
    }


def test_task_fail_has_a_default_text_and_copies_its_result() -> None:
    result = {"message": "busy"}
    error = TaskFail(result)
    result["message"] = "idle"
    assert (str(error), error.facts["result"]) == ("task failed", {"message": "busy"})
    assert TaskFail().facts["result"] == {}


@pytest.mark.parametrize(
    ("path", "found", "text"),
    [
        ("a.b", None, "a.b: expected a list, found None (null); like this"),
        ("", "x", "config: expected a list, found 'x' (str); like this"),
        ("a", "x" * 300, f"a: expected a list, found '{'x' * 199} (str); like this"),
        ("a", 2**10_001, "a: expected a list, found a number of thousands of digits (int); like"),
        ("a", 2**600, f"a: expected a list, found {str(2**600)[:200]} (int); like this"),
    ],
)
def test_value_of_a_wrong_type_is_shown_with_its_type(path: str, found: Any, text: str) -> None:
    error = wrong_type(path, "a list", found, "; like this")
    assert str(error).startswith(text)
    assert error.facts == {"path": path, "expected": "a list", "found": found}


def test_names_are_listed_in_order() -> None:
    assert listing(["b", 1, "a"]) == "1, a, b"
    assert listing([]) == "none"


def test_raised_at_is_empty_for_a_syntax_error(tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    path.write_text("def f(:\n")
    with pytest.raises(SyntaxError) as caught:
        runpy.run_path(str(path))
    assert raised_at(caught.value) == ""


def test_nearest_name_is_none_without_a_similar_name() -> None:
    assert nearest_name("in_memroy", ["flask_fs", "in_memory"]) == "in_memory"
    assert nearest_name("zzz", ["flask_fs", "in_memory"]) is None


def test_spelling_ends_a_sentence_with_a_question_if_there_is_a_near_name() -> None:
    assert spelling("in_memroy", ["in_memory"]) == ("in_memory", "; did you mean 'in_memory'?")
    assert spelling(3, ["in_memory"]) == (None, ".")


def test_raised_at_gives_the_line_in_the_given_module_or_the_innermost_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_outer.py").write_text("import acme_inner\ndef go():\n    acme_inner.go()\n")
    (tmp_path / "acme_inner.py").write_text("def go():\n    raise KeyError('x')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyError) as caught:
        importlib.import_module("acme_outer").go()
    inner, outer = f" ({tmp_path}/acme_inner.py, line 2)", f" ({tmp_path}/acme_outer.py, line 3)"
    found = [raised_at(caught.value, name) for name in ("", "acme_inner", "acme_outer", "acme_x")]
    assert found == [inner, inner, outer, inner]
