"""Messages between a coordinator process and its parent process."""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dingsdk.config import to_easydict
from dingsdk.errors import ConfigError, DingError
from dingsdk.pipeline import coordinator_process
from dingsdk.pipeline.context import Evaluation, RunContext, RunRecorder, RunStatus
from dingsdk.pipeline.coordinator_process import (
    TELL_S,
    Observed,
    Order,
    Report,
    _Context,
    _Observers,
    _Parent,
    sendable,
)

EVALUATION = Evaluation(0.5, 5, 2, mean=2.0, min=1.0, max=3.0, episodes=2)


@pytest.fixture
def pipe() -> Iterator[tuple[Connection, Connection]]:
    """The two ends of a pipe: the supervisor's and the coordinator's."""
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        yield ours, theirs


def test_reports_contain_new_evaluations_until_the_one_that_says_the_run_is_ending(
    tmp_path: Path, pipe: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(coordinator_process, "time", clock)
    ours, theirs = pipe
    recorder = RunRecorder()
    recorder.resume([EVALUATION], 12.0)
    status = RunStatus(env_steps=520)
    context = RunContext(cfg={}, run_dir=tmp_path, recorder=recorder, status=lambda: status)
    parent = _Parent(theirs).manage(context, SimpleNamespace())  # type: ignore[arg-type]
    parent.close(5.0)
    assert not ours.poll()  # the workers were never started
    parent.start("here")
    for now[0] in (0.9 * TELL_S, TELL_S):
        parent.poll()
    recorder.take(EVALUATION)
    parent.close(5.0)
    parent.report("limit", is_ending=True)
    reports = []
    while ours.poll():
        reports.append(ours.recv())

    assert reports == [
        Report("here", status, [EVALUATION]),
        Report("here", status, []),
        Report("here", status, [EVALUATION], is_ending=True),
        Report("here", status, [], is_ending=True, reason="limit"),
    ]


@pytest.mark.parametrize(("reason", "stops"), [("stopped", False), ("interrupted", True)])
def test_coordinator_follows_its_parent_and_exits_when_it_is_gone(
    tmp_path: Path,
    pipe: tuple[Connection, Connection],
    monkeypatch: pytest.MonkeyPatch,
    reason: Any,
    stops: bool,
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    ours, theirs = pipe
    parent = _Parent(theirs)
    lost: list[tuple[str, str]] = []
    master: Any = SimpleNamespace(workers=[], lose=lambda *given: lost.append(given))
    parent.manage(RunContext(cfg={}, run_dir=tmp_path), master)
    parent.poll()
    assert (parent.reason, parent.stop.is_set(), lost) == (None, False, [])

    dead, hung = Order(lost="c0", why="it died"), Order(lost="c1", why="it hung")
    for message in (dead, hung, Order(reason)):
        ours.send(message)
    ours.close()
    parent.obey()

    assert codes == [1]
    assert (parent.reason, parent.stop.is_set()) == (reason, stops)
    assert lost == []
    parent.poll()
    assert lost == [("c0", "it died"), ("c1", "it hung")]
    with pytest.raises(queue.Empty):
        parent.lost.get_nowait()


def test_limit_of_the_run_has_priority_over_the_reason_of_the_parent(
    tmp_path: Path, pipe: tuple[Connection, Connection]
) -> None:
    cfg = to_easydict(
        {"system": {"max_env_steps": 10}, "policy": {"learn": {"learner": {"train_iterations": 5}}}}
    )
    parent = _Parent(pipe[1])
    context = _Context(cfg=cfg, run_dir=tmp_path, parent=parent)
    assert context.why_end(9, 4) is None
    parent.reason = "stopped"
    assert context.why_end(9, 4) == "stopped"
    assert context.why_end(10, 4) == "limit"
    assert context.why_end(9, 5) == "limit"


def test_hook_calls_are_sent_to_the_parent(
    pipe: tuple[Connection, Connection],
) -> None:
    ours, theirs = pipe
    _Observers(_Parent(theirs)).after_checkpoint(path=Path("/run/ckpt"), iteration=2)
    told = ours.recv()
    assert told == Observed("after_checkpoint", {"path": Path("/run/ckpt"), "iteration": 2})


def test_error_is_sent_to_the_parent_with_its_facts_or_its_traceback(
    pipe: tuple[Connection, Connection],
) -> None:
    class OwnError(ConfigError):
        """A class that the parent does not have."""

    ours, theirs = pipe
    sent = []
    for error in (
        ConfigError("no such key", path="a.b", at=theirs),
        OwnError("own"),
        ValueError("no"),
    ):
        error.add_note("at the door")
        try:
            raise error
        except Exception as caught:
            theirs.send(sendable(caught))
        sent.append(ours.recv())
    known, own, other = sent
    assert (type(known), str(known), known.is_user_mistake) == (ConfigError, "no such key", True)
    assert known.facts == {"path": "a.b", "at": str(theirs)}
    assert known.__notes__ == own.__notes__ == ["at the door"]
    assert (type(own), own.is_user_mistake) == (DingError, True)
    assert (type(other), str(other)) == (DingError, "the coordinator: ValueError: no")
    assert (other.facts, other.is_user_mistake) == ({}, False)
    (note,) = other.__notes__
    assert note.startswith("Traceback")
    assert note.endswith("ValueError: no\nat the door\n")
