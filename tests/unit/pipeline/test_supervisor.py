"""Watching and replacing the coordinator process, and the errors that the user sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dingsdk.config import to_easydict
from dingsdk.errors import (
    ConfigError,
    StorageFullError,
    WorkerCrashedError,
)
from dingsdk.pipeline.context import (
    Evaluation,
    RunContext,
    RunRecorder,
    RunStatus,
    WorkerStatus,
)
from dingsdk.pipeline.coordinator_process import (
    CoordinatorSpec,
    Message,
    Observed,
    Order,
    Report,
)
from dingsdk.pipeline.process_group import KILL_S
from dingsdk.pipeline.supervisor import (
    CLOSE_S,
    INTERRUPTED_CLOSE_S,
    NO_ROOM_PAUSE_S,
    Supervisor,
)
from dingsdk.pipeline.train import compile_run

REPORT = "Fatal Python error: Segmentation fault"
ADDRESS = "http://127.0.0.1:7777"
EVALUATION = Evaluation(0.5, 5, 2, mean=2.0, min=1.0, max=3.0, episodes=2)


def report(address: str = ADDRESS, status: RunStatus | None = None, **facts: Any) -> Report:
    return Report(address, status or RunStatus(), **{"evaluations": [], **facts})


@pytest.mark.parametrize(
    ("notes", "expected"),
    [([], [f"raised by the worker:\n{REPORT}"]), (["its traceback"], ["its traceback"])],
)
def test_crash_report_of_the_worker_is_added_to_an_error_without_notes(
    tmp_path: Path, notes: list[str], expected: list[str]
) -> None:
    cfg = to_easydict({"system": {"restarts": 1}})
    supervisor = Supervisor(RunContext(cfg=cfg, run_dir=tmp_path))
    supervisor._workers = SimpleNamespace(crash_report={"w0": REPORT}.get)
    error = WorkerCrashedError("w0 died", worker_id="w0")
    for note in notes:
        error.add_note(note)
    assert supervisor._explained(error).__notes__ == expected


class Coordinator:
    """A fake coordinator process that the test controls."""

    def __init__(self, spec: CoordinatorSpec) -> None:
        self.spec = spec
        self.exit_code: int | None = None
        self.told: list[Message] = []
        self.waits_s: list[float] = []
        self.heard: list[Message] = []
        self.ends: list[float] = []
        self.is_closed = False

    def received(self, timeout_s: float = 0.0) -> list[Message]:
        self.waits_s.append(timeout_s)
        messages, self.told = self.told, []
        if any(isinstance(message, Report) and message.reason for message in messages):
            self.exit_code = 0
        return messages

    def send(self, message: Message) -> None:
        self.heard.append(message)

    def kill(self) -> None:
        self.exit_code = -9

    def end(self, timeout_s: float) -> int | None:
        self.ends.append(timeout_s)
        return self.exit_code

    def close(self) -> None:
        self.is_closed = True


class Site:
    """The supervisor of a run, with a fake clock and fake processes."""

    def __init__(self, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.calls: list[Any] = []
        self.started: list[Coordinator] = []
        self.script: list[Message] = []  # the messages of the next coordinator that is started
        self.made: list[Any] = []
        sets = ["system.restarts=1", "system.coordinator.storage_timeout_s=30"]
        cfg = compile_run("cartpole-dqn", "parallel", "flask_fs", sets, 0)
        self.lease_s = cfg.system.coordinator.lease_s
        recorder = RunRecorder(lambda: self.now)
        self.context = RunContext(cfg=cfg, run_dir=run_dir, recorder=recorder)
        self.supervisor = Supervisor(self.context, lambda: self.now)
        names = ("close", "keep_data", "remove_data", "launch", "start_worker")
        self.transport = SimpleNamespace(**{name: self.noting(name) for name in names})

        def start(main: Any, spec: CoordinatorSpec) -> Coordinator:
            self.started.append(Coordinator(spec))
            self.newest.told, self.script = self.script, []
            return self.started[-1]

        def transport(of: Any, folder: Path) -> Any:
            assert (of, folder) == (cfg, run_dir)
            return self.transport

        def workers(*given: Any, start: Any) -> Any:
            self.calls.append("made")
            self.made.append((*given, start))
            names = ("prepare", "start", "poll", "close")
            calls = {name: self.noting(f"workers {name}") for name in names}
            return SimpleNamespace(crash_report=lambda worker_id: "", **calls)

        module = "dingsdk.pipeline.supervisor"
        monkeypatch.setattr(f"{module}.LinkedProcess", start)
        monkeypatch.setattr(f"{module}.ProcessWorkers", workers)
        monkeypatch.setattr(f"{module}.make_transport", transport)
        monkeypatch.setattr(f"{module}.POLL_S", 0.0)

    def noting(self, name: str) -> Callable[..., None]:
        return lambda *given: self.calls.append((name, *given) if given else name)

    @property
    def newest(self) -> Coordinator:
        return self.started[-1]

    def tell(self, *messages: Message, after_s: float = 0.0) -> None:
        self.now += after_s
        self.newest.told += messages
        self.supervisor._look()

    def open(self, port: int = 7777, after_s: float = 0.0) -> None:
        (self.supervisor._context.run_dir / "journal").mkdir(exist_ok=True)
        self.tell(report(f"http://127.0.0.1:{port}"), after_s=after_s)

    def die(self, after_s: float = 0.0) -> None:
        """Kill the coordinator, and wait until another one is started."""
        self.newest.exit_code = -9
        self.tell(after_s=after_s)
        self.now = max(self.now, self.supervisor._coordinator.start_at)
        self.supervisor._look()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path, monkeypatch)
    made.supervisor._start()
    return made


@pytest.fixture
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A run that has not started."""
    return Site(tmp_path, monkeypatch)


FULL = StorageFullError("no room", path="p", reason="ENOSPC")


def test_dead_coordinator_is_replaced_on_the_same_port(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    first = site.newest
    assert (first.spec.is_resumed, first.spec.rejoin_s) == (False, 0.0)
    site.open(7777)
    site.die()
    assert first.is_closed
    assert "the coordinator died: killed by SIGKILL; it is started again" in caplog.text
    spec = site.newest.spec
    assert (spec.is_resumed, spec.rejoin_s) == (True, site.lease_s)
    assert spec.cfg["system"]["transport"]["port"] == 7777
    site.calls.clear()
    site.open(7777)
    assert site.calls == ["workers poll"]
    site.die(60.0)
    site.calls.clear()
    site.open(8888)
    assert site.calls == [
        ("workers close", INTERRUPTED_CLOSE_S[1]),
        "made",
        ("workers start", "http://127.0.0.1:8888"),
        "workers poll",
    ]


def test_coordinator_that_never_opened_is_not_replaced(site: Site) -> None:
    with pytest.raises(WorkerCrashedError, match="cannot start: killed by SIGKILL"):
        site.die()
    assert len(site.started) == 1


def test_coordinator_that_hangs_is_killed_and_another_one_continues(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.open()
    hanging = site.newest
    for _ in range(30):
        site.tell(after_s=1.0)
    site.tell(report())  # it was slow
    for _ in range(30):
        site.tell(after_s=1.0)
    assert (hanging.exit_code, site.started) == (None, [hanging])
    site.tell(after_s=0.5)
    site.die()
    assert len(site.started) == 2
    assert site.newest.spec.is_resumed
    assert "died: killed because it has been silent for 30 s; it is started again" in caplog.text
    for _ in range(40):  # a new one may need longer until it listens
        site.tell(after_s=1.0)
    assert len(site.started) == 2


def test_coordinator_that_hangs_at_the_start_ends_the_run(site: Site) -> None:
    for _ in range(301):
        site.tell(after_s=1.0)
    with pytest.raises(WorkerCrashedError, match=r"cannot start: .* not joined .* 300 s"):
        site.tell()


def test_coordinator_is_not_killed_for_time_in_which_the_supervisor_was_stopped(
    site: Site,
) -> None:
    site.open()
    site.tell(after_s=3600.0)
    for _ in range(30):
        site.tell(after_s=1.0)
    assert len(site.started) == 1


def test_coordinator_that_ends_the_run_may_be_silent(site: Site) -> None:
    site.open()
    site.tell(report(is_ending=True))
    for _ in range(100):
        site.tell(after_s=1.0)
    assert len(site.started) == 1


def test_coordinator_without_disk_space_is_restarted_up_to_a_time_limit(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.open()
    site.die()
    for after_s in (0.0, 19.0):
        tried = site.newest
        site.tell(FULL, after_s=after_s)
        assert tried.ends == [KILL_S]
        site.tell()
        assert site.newest is tried
        site.tell(after_s=NO_ROOM_PAUSE_S)
        assert site.newest is not tried
        assert (site.newest.spec.is_resumed, site.newest.spec.rejoin_s) == (True, site.lease_s)
        assert caplog.text.count("the coordinator waits for up to 30 s: no room") == 1
    site.open()  # the next outage has its own time limit
    site.die(after_s=60.0)
    for after_s in (0.0, 29.0):
        site.tell(FULL, after_s=after_s)
        site.tell(after_s=NO_ROOM_PAUSE_S)
    with pytest.raises(StorageFullError, match="no room"):
        site.tell(FULL, after_s=0.1)


def test_interrupted_run_ends_after_five_seconds_without_its_coordinator(site: Site) -> None:
    site.open()
    site.context.stop.set()
    for after_s in (0.0, 5.0):
        site.tell(after_s=after_s)
        assert site.supervisor._reason is None
    site.tell(after_s=0.1)
    assert site.supervisor._reason == "interrupted"
    assert site.newest.heard == [Order("interrupted")]


@pytest.mark.parametrize("has_begun", [False, True])
def test_interrupted_run_does_not_wait_for_a_dead_or_unopened_coordinator(
    site: Site, has_begun: bool
) -> None:
    if has_begun:
        site.open()
        site.newest.exit_code = 1
    site.context.stop.set()
    site.tell()
    assert site.supervisor._reason == "interrupted"


def test_messages_of_a_coordinator_are_passed_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks: list[Any] = []
    observers = SimpleNamespace(
        after_checkpoint=lambda **facts: hooks.append(facts),
        after_task=lambda **facts: hooks.append(facts),
    )
    monkeypatch.setattr("dingsdk.pipeline.supervisor.observe", lambda: observers)
    site.open()
    connected = (WorkerStatus("c0", "collector", 3.0),)
    status = RunStatus(env_steps=5, train_iter=2, connected=connected)
    facts = {"path": Path("/run/ckpt"), "iteration": 2}
    told = report(status=status, evaluations=[EVALUATION])
    site.tell(told, Observed("after_checkpoint", facts))
    site.tell(Observed("after_task", {"task_id": "t1"}))
    assert (site.supervisor._status, site.supervisor.workers) == (status, {"c0"})
    assert site.context.recorder.all_evaluations == (EVALUATION,)
    assert hooks == [facts, {"task_id": "t1"}]
    site.supervisor.lose("c0", "it died")
    assert site.newest.heard == [Order(lost="c0", why="it died")]
    assert site.calls.count("workers poll") == 3
    site.tell(report(is_ending=True))
    assert site.calls.count("workers poll") == 3
    site.tell(report(is_ending=True, reason="limit"))
    assert site.supervisor._reason == "limit"


@pytest.mark.parametrize(
    ("has_begun", "has_journal", "code", "left"),
    [
        (False, True, 0, ["close", "remove_data"]),
        (True, True, 0, []),
        (True, True, -9, ["close", "keep_data"]),
        (True, False, -9, ["close", "remove_data"]),
    ],
)
def test_data_of_a_run_is_kept_only_if_it_can_be_resumed(
    site: Site, has_begun: bool, has_journal: bool, code: int, left: list[str]
) -> None:
    journal = site.context.run_dir / "journal"
    if has_begun:
        site.open()
    if has_journal:
        journal.mkdir(exist_ok=True)
    elif has_begun:
        journal.rmdir()
    site.newest.exit_code = code
    site.calls.clear()
    site.supervisor._reason = "limit"
    site.supervisor._close()
    workers = [("workers close", CLOSE_S[1])] * has_begun
    assert site.calls == [*workers, *left]
    assert site.newest.ends == [CLOSE_S[0]]
    assert journal.is_dir() == (has_journal and has_begun)


def test_evaluations_of_a_replaced_coordinator_are_not_added_twice(site: Site) -> None:
    other = replace(EVALUATION, env_steps=7)
    site.open()
    site.tell(report(evaluations=[EVALUATION]))
    site.die()
    site.tell(report(evaluations=[EVALUATION, other]))
    site.tell(report(evaluations=[other]))
    assert site.context.recorder.all_evaluations == (EVALUATION, other, other)


def test_coordinator_of_a_run_without_a_journal_is_not_replaced(site: Site) -> None:
    site.open()
    (site.context.run_dir / "journal").rmdir()
    with pytest.raises(WorkerCrashedError, match="keeps no journal to continue from: killed by"):
        site.die()
    assert len(site.started) == 1


def test_error_of_a_coordinator_interrupts_the_run(idle: Site) -> None:
    idle.script = [report(), ConfigError("no such key", path="a")]
    with pytest.raises(ConfigError, match="no such key"):
        idle.supervisor.run()
    assert idle.newest.heard == [Order("interrupted")]
    assert idle.newest.ends == [INTERRUPTED_CLOSE_S[0]]
    assert idle.calls[-3:] == [("workers close", INTERRUPTED_CLOSE_S[1]), "close", "remove_data"]
