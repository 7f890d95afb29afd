"""What the user reads of an error that ended the coordinator's process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dingsdk.errors import DingError, TaskFailedError
from dingsdk.pipeline.context import RunContext
from dingsdk.pipeline.coordinator_process import Failed
from dingsdk.pipeline.supervisor import Supervisor

REPORT = "Fatal Python error: Segmentation fault"


def error_of(run_dir: Path, message: Failed, report: str = "") -> DingError:
    """Return the error of the message; the worker that its facts name has left a crash report."""
    supervisor = Supervisor(RunContext(cfg={}, run_dir=run_dir))
    reports = {message.facts.get("worker_id", ""): report}
    supervisor._workers = SimpleNamespace(crash_report=lambda worker_id: reports.get(worker_id, ""))
    return supervisor._error_of(message)


@pytest.mark.parametrize("is_user_mistake", [False, True])
def test_error_has_the_class_the_facts_and_the_notes_that_it_was_raised_with(
    tmp_path: Path, is_user_mistake: bool
) -> None:
    facts: dict[str, Any] = {"worker_id": "w0", "task": "t1"}
    notes = ["the first", "the second"]
    message = Failed("TaskFailedError", "it broke", facts, notes, is_user_mistake)

    error = error_of(tmp_path, message)

    assert type(error) is TaskFailedError
    assert str(error) == "it broke"
    assert (error.facts["worker_id"], error.facts["task"]) == ("w0", "t1")
    assert error.__notes__ == notes
    assert error.is_user_mistake is is_user_mistake


def test_error_of_a_class_that_is_unknown_here_keeps_its_text(tmp_path: Path) -> None:
    error = error_of(tmp_path, Failed("ErrorOfAPlugin", "it broke", {}, [], False))
    assert (type(error), str(error)) == (DingError, "it broke")
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize(
    ("notes", "expected"),
    [([], [f"raised by the worker:\n{REPORT}"]), (["its traceback"], ["its traceback"])],
)
def test_crash_report_of_its_worker_is_told_where_nothing_else_says_where_it_was_raised(
    tmp_path: Path, notes: list[str], expected: list[str]
) -> None:
    message = Failed("WorkerCrashedError", "w0 died", {"worker_id": "w0"}, notes, False)
    assert error_of(tmp_path, message, REPORT).__notes__ == expected


def test_error_without_workers_is_the_one_that_was_told(tmp_path: Path) -> None:
    supervisor = Supervisor(RunContext(cfg={}, run_dir=tmp_path))
    error = supervisor._error_of(Failed("ConfigError", "no such key", {"path": "a"}, [], True))
    assert (type(error).__name__, str(error)) == ("ConfigError", "no such key")
