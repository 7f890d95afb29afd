"""Messages between a coordinator process and its parent process."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dingsdk.config import to_easydict, to_plain
from dingsdk.errors import ConfigError
from dingsdk.pipeline import coordinator_process
from dingsdk.pipeline.context import Evaluation, RunContext, RunRecorder, RunStatus
from dingsdk.pipeline.coordinator_process import (
    TELL_S,
    CoordinatorSpec,
    Failed,
    Message,
    Observed,
    Order,
    Report,
    _Context,
    _coordinate,
    _failed,
    _Observers,
    _Parent,
    _run,
    coordinator_main,
    decode,
    encode,
)
from dingsdk.pipeline.process_group import LinkedProcess
from dingsdk.pipeline.saved_run import JournaledRun
from dingsdk.pipeline.train import compile_run
from dingsdk.pipeline.worker_process import HANDLED
from dingsdk.plugins import PluginManager, default_manager, hookimpl, observe, use_manager
from dingsdk.worker import NaiveCommander

PATIENCE_S = 60.0
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
        reports.append(decode(ours.recv_bytes()))

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
        ours.send_bytes(encode(message))
    ours.close()
    parent.obey()

    assert codes == [1]
    assert (parent.reason, parent.stop.is_set()) == (reason, stops)
    assert lost == []
    parent.poll()
    assert lost == [("c0", "it died"), ("c1", "it hung")]
    with pytest.raises(queue.Empty):
        parent.lost.get_nowait()


def test_message_to_a_dead_parent_is_dropped(
    pipe: tuple[Connection, Connection],
) -> None:
    ours, theirs = pipe
    ours.close()
    _Parent(theirs).send(Order("stopped"))


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


def test_hook_calls_are_sent_to_the_parent_with_paths_as_text(
    pipe: tuple[Connection, Connection],
) -> None:
    ours, theirs = pipe
    _Observers(_Parent(theirs)).after_checkpoint(path=Path("/run/ckpt"), iteration=2)
    told = decode(ours.recv_bytes())
    assert told == Observed("after_checkpoint", {"path": "/run/ckpt", "iteration": 2})


def spec_of(cfg: Any, run_dir: Path, **facts: Any) -> CoordinatorSpec:
    given = {
        "snapshot": default_manager().snapshot(),
        "is_resumed": False,
        "rejoin_s": 0.0,
        **facts,
    }
    return CoordinatorSpec("coordinator", "coordinator", cfg, "", run_dir, **given)


def raised(error: Exception) -> Failed:
    error.add_note("at the door")
    try:
        raise error
    except Exception as caught:
        return _failed(caught)


def test_error_is_sent_to_the_parent_with_its_facts_or_its_traceback() -> None:
    known = raised(ConfigError("no such key", path="a.b"))
    assert known == Failed("ConfigError", "no such key", {"path": "a.b"}, ["at the door"], True)

    other = raised(ValueError("no"))
    assert (other.code, other.text) == ("DingError", "the coordinator: ValueError: no")
    assert (other.facts, other.is_user_mistake) == ({}, False)
    (note,) = other.notes
    assert note.startswith("Traceback")
    assert note.endswith("ValueError: no\nat the door\n")


def test_coordinator_that_cannot_start_reports_the_error_and_exits(tmp_path: Path) -> None:
    cfg = to_plain(compile_run("cartpole-dqn", "parallel", "flask_fs"))
    cfg["policy"]["other"]["commander"]["type"] = "naiv"
    spec = spec_of(cfg, tmp_path)
    process = LinkedProcess(coordinator_main, spec, "coordinator")
    messages: list[Message] = []
    while not messages and process.exit_code is None:
        messages += map(decode, process.received(PATIENCE_S))
    assert process.end(PATIENCE_S) == 1
    (message,) = messages
    assert isinstance(message, Failed)
    assert (message.code, message.facts["asked"]) == ("UnknownPluginError", "naiv")
    assert message.is_user_mistake
    assert spec.crash_file.read_text() == ""
    assert process.end(0.0) == 1  # again


def test_coordinator_process_ignores_signals_and_stops_on_a_message_of_its_parent(
    tmp_path: Path, pipe: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pipe
    found: list[Any] = []

    def coordinate(spec: CoordinatorSpec, parent: _Parent) -> None:
        found.extend(map(signal.getsignal, sorted(HANDLED)))
        found.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()) & HANDLED)
        found.append(parent.stop.wait(20.0))

    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(coordinator_process, "_coordinate", coordinate)
    monkeypatch.setattr(coordinator_process, "crashes_recorded", nullcontext)
    spec = spec_of({}, tmp_path)
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    mask = signal.pthread_sigmask(
        signal.SIG_BLOCK, HANDLED
    )  # the parent starts this process with blocked signals
    ours.send_bytes(encode(Order("interrupted")))
    try:
        assert _run(spec, theirs) == 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    (watch,) = [each for each in threading.enumerate() if each.name == "parent-watch"]
    ours.close()
    watch.join(20.0)

    assert found == [signal.SIG_IGN] * len(HANDLED) + [set(), True]
    assert codes == [1]


class Telling(NaiveCommander):
    """Calls a hook in its constructor."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        observe().after_checkpoint(path=Path("/run/ckpt"), iteration=0)


def test_stopped_coordinator_sends_all_messages_of_the_run_to_its_parent(
    tmp_path: Path, pipe: tuple[Connection, Connection]
) -> None:
    ours, theirs = pipe
    configured: list[str] = []

    class Observer:
        @hookimpl
        def dingsdk_configure(self, config: Any) -> None:
            configured.append(config.policy.other.commander.type)

    with use_manager(PluginManager()) as manager:
        manager.registry("commanders").register("telling", Telling)
        snapshot = manager.snapshot()
        sets = ["policy.other.commander.type=telling"]
        cfg = to_plain(compile_run("cartpole-dqn", "parallel", "flask_fs", sets))
    spec = spec_of(cfg, tmp_path, snapshot=snapshot)
    parent = _Parent(theirs)
    parent.stop.set()
    with use_manager(PluginManager()) as manager:
        manager.register_plugin(Observer(), "observer")
        _coordinate(spec, parent)
    messages: list[Any] = []
    while ours.poll():
        messages.append(decode(ours.recv_bytes()))

    assert configured == ["telling"]
    kinds = list(dict.fromkeys(map(type, messages)))
    assert kinds == [Observed, Report]
    assert messages[-2].is_ending
    assert messages[0] == Observed("after_checkpoint", {"path": "/run/ckpt", "iteration": 0})
    assert messages[-1].reason == "interrupted"
    assert messages[-1].status.buffer_capacity == 10_000


@pytest.mark.parametrize("is_resumed", [False, True])
def test_coordinator_resumes_from_the_journal_if_its_spec_says_so(
    tmp_path: Path,
    pipe: tuple[Connection, Connection],
    monkeypatch: pytest.MonkeyPatch,
    is_resumed: bool,
) -> None:
    ours, theirs = pipe
    contexts: list[RunContext] = []

    def pipeline(context: RunContext) -> Any:
        contexts.append(context)
        assert context.workers is not None
        context.workers(SimpleNamespace())  # type: ignore[arg-type]
        return SimpleNamespace(reason="limit")

    monkeypatch.setattr("dingsdk.pipeline.parallel.parallel_pipeline", pipeline)
    cfg = to_plain(compile_run("cartpole-dqn", "parallel", "flask_fs"))
    with use_manager(PluginManager()) as manager:
        spec = spec_of(
            cfg, tmp_path, snapshot=manager.snapshot(), is_resumed=is_resumed, rejoin_s=7.5
        )
        parent = _Parent(theirs)
        _coordinate(spec, parent)
    (context,) = contexts
    assert (context.run_dir, context.rejoin_s) == (tmp_path, 7.5)
    assert context.resumed == (JournaledRun(tmp_path, cfg) if is_resumed else None)
    told = decode(ours.recv_bytes())
    assert told == Report("", RunStatus(), [], is_ending=True, reason="limit")
