"""How a coordinator's process is watched and replaced, and what the user reads of its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dingsdk.errors import DingError, StorageFullError, TaskFailedError, WorkerCrashedError
from dingsdk.pipeline.context import Evaluation, RunContext, RunStatus
from dingsdk.pipeline.coordinator_process import (
    CoordinatorSpec,
    End,
    Ending,
    Evaluated,
    Failed,
    Lose,
    Message,
    Observed,
    Opened,
    Over,
    Told,
    decode,
    encode,
)
from dingsdk.pipeline.process_group import KILL_S
from dingsdk.pipeline.supervisor import CLOSE_S, INTERRUPTED_CLOSE_S, Supervisor
from dingsdk.pipeline.train import compile_run

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


class Coordinator:
    """A coordinator's process that does what the test says."""

    def __init__(self, spec: CoordinatorSpec) -> None:
        self.spec = spec
        self.exit_code: int | None = None
        self.told: list[Message] = []
        self.heard: list[Message] = []
        self.ends: list[float] = []

    def received(self, timeout_s: float = 0.0) -> list[bytes]:
        messages, self.told = self.told, []
        return [encode(message) for message in messages]

    def send(self, message: bytes) -> None:
        self.heard.append(decode(message))

    def end(self, timeout_s: float) -> int | None:
        self.ends.append(timeout_s)
        return self.exit_code


class Site:
    """The supervisor of a run, with a clock of its own and nothing that really runs."""

    def __init__(self, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.calls: list[Any] = []
        self.started: list[Coordinator] = []
        sets = ["system.restarts=1", "system.coordinator.storage_timeout_s=30"]
        cfg = compile_run("cartpole-dqn", "parallel", "flask_fs", sets, 0)
        self.lease_s = cfg.system.coordinator.lease_s
        self.context = RunContext(cfg=cfg, run_dir=run_dir)
        self.supervisor = Supervisor(self.context, lambda: self.now)
        transport = SimpleNamespace(
            **{name: self.noting(name) for name in ("close", "keep_data", "remove_data")}
        )

        def start(main: Any, spec: CoordinatorSpec, name: str) -> Coordinator:
            self.started.append(Coordinator(spec))
            return self.started[-1]

        def workers(*given: Any, start: Any) -> Any:
            self.calls.append("made")
            names = ("prepare", "start", "poll", "close")
            calls = {name: self.noting(f"workers {name}") for name in names}
            return SimpleNamespace(crash_report=lambda worker_id: "", **calls)

        module = "dingsdk.pipeline.supervisor"
        monkeypatch.setattr(f"{module}.LinkedProcess", start)
        monkeypatch.setattr(f"{module}.ProcessWorkers", workers)
        monkeypatch.setattr(f"{module}.make_transport", lambda cfg, run_dir: transport)
        monkeypatch.setattr(f"{module}.NO_ROOM_PAUSE_S", 0.0)
        self.supervisor._start(is_resumed=False, rejoin_s=0.0)

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
        self.tell(Opened(f"http://127.0.0.1:{port}", [], 0.0), after_s=after_s)

    def die(self, after_s: float = 0.0) -> None:
        self.newest.exit_code = -9
        self.tell(after_s=after_s)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


FULL = Failed("StorageFullError", "no room", {"path": "p", "reason": "ENOSPC"}, [], False)


def test_coordinator_that_dies_is_replaced_where_its_workers_look_for_it(site: Site) -> None:
    first = site.newest
    assert (first.spec.is_resumed, first.spec.rejoin_s) == (False, 0.0)
    site.open(7777)
    site.die()
    assert first.ends == [KILL_S]
    spec = site.newest.spec
    assert (spec.is_resumed, spec.rejoin_s) == (True, site.lease_s)
    assert spec.cfg["system"]["transport"]["port"] == 7777
    site.calls.clear()
    site.open(7777)
    assert site.calls == ["workers poll"]
    site.open(8888)
    assert site.calls == [
        "workers poll",
        ("workers close", INTERRUPTED_CLOSE_S[1]),
        "made",
        ("workers start", "http://127.0.0.1:8888"),
        "workers poll",
    ]


@pytest.mark.parametrize(("healthy_s", "ends"), [(59.0, True), (60.0, False)])
def test_deaths_of_a_coordinator_count_unless_it_was_well_for_a_minute(
    site: Site, healthy_s: float, ends: bool
) -> None:
    site.open()
    site.die()
    site.open(after_s=5.0)
    if ends:
        with pytest.raises(WorkerCrashedError, match="the coordinator died 2 times"):
            site.die(healthy_s)
    else:
        site.die(healthy_s)
    assert len(site.started) == (2 if ends else 3)


def test_coordinator_that_never_opened_is_not_replaced(site: Site) -> None:
    with pytest.raises(WorkerCrashedError, match="cannot start: killed by SIGKILL"):
        site.die()
    assert len(site.started) == 1


def test_coordinator_that_finds_no_room_is_started_again_for_a_time(site: Site) -> None:
    site.open()
    site.die()
    for after_s in (0.0, 20.0):
        tried = site.newest
        site.tell(FULL, after_s=after_s)
        assert tried.ends == [KILL_S]
        assert site.newest is not tried
        assert (site.newest.spec.is_resumed, site.newest.spec.rejoin_s) == (True, site.lease_s)
    site.open()  # the next outage has its own time
    site.die(after_s=60.0)
    for after_s in (0.0, 30.0):
        site.tell(FULL, after_s=after_s)
    with pytest.raises(StorageFullError, match="no room"):
        site.tell(FULL, after_s=0.1)


def test_run_without_room_ends_where_it_has_not_begun_or_is_under_way(site: Site) -> None:
    with pytest.raises(StorageFullError):
        site.tell(FULL)
    site.open()
    with pytest.raises(StorageFullError):
        site.tell(FULL)
    assert len(site.started) == 1


def test_interrupted_run_is_ended_by_its_coordinator_or_after_five_seconds(site: Site) -> None:
    site.open()
    site.context.stop.set()
    for after_s in (0.0, 5.0):
        site.tell(after_s=after_s)
        assert site.supervisor._over is None
    site.tell(after_s=0.1)
    assert site.supervisor._over is not None
    assert site.supervisor._over.reason == "interrupted"
    assert site.newest.heard == [End("interrupted")]


@pytest.mark.parametrize("has_begun", [False, True])
def test_interrupted_run_does_not_wait_for_a_coordinator_that_is_of_no_use(
    site: Site, has_begun: bool
) -> None:
    if has_begun:
        site.open()
        site.newest.exit_code = 1
    site.context.stop.set()
    site.tell()
    assert site.supervisor._over is not None


def test_what_a_coordinator_tells_is_passed_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks: list[Any] = []
    told = SimpleNamespace(after_checkpoint=lambda **facts: hooks.append(facts))
    monkeypatch.setattr("dingsdk.pipeline.supervisor.observe", lambda: told)
    site.open()
    status = RunStatus(env_steps=5, train_iter=2)
    evaluation = Evaluation(0.5, 5, 2, mean=2.0, min=1.0, max=3.0, episodes=2)
    facts = {"path": "/run/ckpt", "iteration": 2}
    site.tell(Told(status, ["c0"]), Evaluated(evaluation), Observed("after_checkpoint", facts))
    assert (site.supervisor._status, site.supervisor.workers) == (status, ["c0"])
    assert site.context.recorder.all_evaluations == (evaluation,)
    assert hooks == [{"path": Path("/run/ckpt"), "iteration": 2}]
    site.supervisor.lose("c0", "it died")
    assert site.newest.heard == [Lose("c0", "it died")]
    assert site.calls.count("workers poll") == 2
    site.tell(Ending())
    assert site.calls.count("workers poll") == 2
    site.tell(Over("limit", status))
    assert site.supervisor._over == Over("limit", status)


@pytest.mark.parametrize(
    ("has_begun", "has_journal", "code", "left"),
    [
        (False, True, 0, ["close", "remove_data"]),
        (True, True, 0, []),
        (True, True, -9, ["close", "keep_data"]),
        (True, False, -9, ["close", "remove_data"]),
    ],
)
def test_data_of_a_run_is_left_as_its_coordinator_would_have(
    site: Site, has_begun: bool, has_journal: bool, code: int, left: list[str]
) -> None:
    journal = site.context.run_dir / "journal"
    if has_journal:
        journal.mkdir()
    if has_begun:
        site.open()
    site.newest.exit_code = code
    site.calls.clear()
    site.supervisor._over = Over("limit", RunStatus())
    site.supervisor._close()
    workers = [("workers close", CLOSE_S[1])] * has_begun
    assert site.calls == [*workers, *left]
    assert site.newest.ends == [CLOSE_S[0]]
    assert journal.is_dir() == (has_journal and has_begun)
