"""Errors behave like the builtin exceptions they subclass, and can be copied."""

from __future__ import annotations

import copy
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from dingsdk import errors
from dingsdk.data import decode_message, encode_message
from dingsdk.errors import (
    DingError,
    TaskFail,
    TaskFailedError,
    UnknownPluginError,
    error_text,
    raised_at,
    traceback_text,
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


def test_errors_are_caught_as_the_builtin_they_behave_like() -> None:
    with pytest.raises(KeyError) as caught:
        raise UnknownPluginError("no 'x' among the buffers", kind="buffers")
    assert str(caught.value) == "no 'x' among the buffers"


@pytest.mark.parametrize("is_mistake", [True, False])
def test_failed_task_is_a_user_mistake_if_its_result_says_so(is_mistake: bool) -> None:
    error = TaskFailedError("task failed", result={"is_user_mistake": is_mistake})
    assert error.is_user_mistake is is_mistake
    assert copy.copy(error).is_user_mistake is is_mistake


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


def test_text_of_an_error_can_be_sent_whatever_its_message_has() -> None:
    try:
        raise ValueError("no file a\udcff")
    except ValueError as error:
        texts = error_text(error), traceback_text(error)

    for text in texts:
        assert "\\udcff" in text
        assert decode_message(encode_message({"text": text})) == {"text": text}
