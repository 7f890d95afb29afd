"""Supervision of worker processes: restarts, their limit, hung processes, shutdown."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

from dingsdk.config import to_easydict
from dingsdk.errors import ConfigError, WorkerCrashedError
from dingsdk.pipeline.process_group import (
    SILENT_S,
    START_S,
    LinkedProcess,
    ProcessWorkers,
    start_worker,
    take_crash_report,
)
from dingsdk.pipeline.worker_process import OUT_OF_MEMORY, WorkerSpec
from dingsdk.plugins import Snapshot
from dingsdk.runtime.spawn import UNGUARDED
from dingsdk.testing import open_files


class Process:
    """A fake process that the test controls."""

    def __init__(self, site: Site, spec: WorkerSpec) -> None:
        self.site, self.spec = site, spec
        self.exit_code: int | None = None
        self.sent: list[dict[str, Any]] = []
        self.calls: list[Any] = []
        self.ends_when_told = True

    def messages(self) -> Iterator[dict[str, Any]]:
        while self.sent:
            yield self.sent.pop(0)

    def join_run(self) -> None:
        """Join the master, like the worker of this process."""
        self.sent.append({"event": "joined"})
        self.site.workers[self.spec.worker_id] = None

    def die(self, code: int, **failure: Any) -> None:
        if failure:
            self.sent.append({"event": "failed", **failure})
        self.exit_code = code

    def send(self, message: str) -> None:
        self.calls.append(message)

    def send_stop(self) -> None:
        self.calls.append("stop")
        if self.ends_when_told:
            self.exit_code = 0

    def kill(self) -> None:
        self.calls.append("kill")
        self.exit_code = -9

    def join(self, timeout_s: float) -> None:
        self.calls.append(("join", timeout_s))
        if self.exit_code is None:
            self.site.now += timeout_s

    def close(self) -> None:
        self.calls.append("close")


class Site:
    """The group under test, with a fake clock and a fake master."""

    def __init__(self, run_dir: Path, restarts: int = 2) -> None:
        self.now = 1000.0
        self.run_dir = run_dir
        self.workers: dict[str, None] = {}
        self.lost: list[tuple[str, str]] = []
        self.started: list[Process] = []
        cfg = to_easydict({"system": {"restarts": restarts}})
        self.group = ProcessWorkers(
            cfg,
            run_dir,
            [("learner", "learner-0"), ("collector", "collector-0")],
            self,  # type: ignore[arg-type]
            lambda: self.now,
            self._start,  # type: ignore[arg-type]
        )

    def _start(self, spec: WorkerSpec) -> Process:
        self.started.append(Process(self, spec))
        return self.started[-1]

    def lose(self, worker_id: str, reason: str) -> None:
        self.workers.pop(worker_id, None)
        self.lost.append((worker_id, reason))

    def newest(self, worker_id: str) -> Process:
        return [each for each in self.started if each.spec.worker_id == worker_id][-1]

    def count(self, worker_id: str) -> int:
        return sum(each.spec.worker_id == worker_id for each in self.started)

    def pass_s(self, seconds: float) -> None:
        """Let time pass, with a poll each second; a longer pause is one of the whole machine."""
        end = self.now + seconds
        while self.now < end - 1.0:
            self.now += 1.0
            self.group.poll()
        self.now = end
        self.group.poll()

    def kill_after(self, seconds: float) -> None:
        """Let the collector join, work and be killed; poll until it is restarted or refused."""
        process = self.newest("collector-0")
        process.join_run()
        self.pass_s(0.0)
        self.now += seconds
        process.die(-9)
        self.pass_s(0.0)
        self.pass_s(10.0)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.group.start("address")
    return made


def test_worker_over_its_memory_limit_is_restarted_without_using_up_a_restart(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, restarts=0)
    site.group.start("address")
    for count in (2, 3):
        process = site.newest("collector-0")
        process.join_run()
        process.die(OUT_OF_MEMORY)
        site.pass_s(0.0)
        site.pass_s(0.0)
        assert site.count("collector-0") == count

    assert site.count("learner-0") == 1


def test_pause_before_a_restart_grows_to_five_seconds(tmp_path: Path) -> None:
    site = Site(tmp_path, restarts=100)
    site.group.start("address")
    for pause_s in (0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
        process = site.newest("collector-0")
        process.join_run()
        process.die(-9)
        site.pass_s(0.0)
        count = site.count("collector-0")
        site.pass_s(pause_s - 0.01)
        assert site.count("collector-0") == count
        site.pass_s(0.02)
        assert site.count("collector-0") == count + 1


def test_more_deaths_than_allowed_restarts_end_the_run(site: Site) -> None:
    site.kill_after(1.0)
    site.kill_after(1.0)
    text = (
        "worker collector-0 died 3 times in a row, at last by: killed by SIGKILL "
        "(system.restarts is 2)"
    )
    with pytest.raises(WorkerCrashedError, match=f"^{re.escape(text)}$") as caught:
        site.kill_after(1.0)
    assert (caught.value.worker_id, caught.value.exit_code) == ("collector-0", -9)
    assert not caught.value.is_user_mistake


def test_death_after_a_minute_of_work_resets_the_count(site: Site) -> None:
    for _ in range(10):
        site.kill_after(60.0)
    site.kill_after(59.0)
    with pytest.raises(WorkerCrashedError):
        site.kill_after(59.0)


def test_worker_that_cannot_start_ends_the_run_with_its_traceback(site: Site) -> None:
    site.newest("learner-0").die(1, text="ValueError: no", traceback="tb", is_user_mistake=True)
    with pytest.raises(
        WorkerCrashedError, match="learner-0 cannot start: ValueError: no"
    ) as caught:
        site.pass_s(0.0)
    assert caught.value.traceback == "tb"
    assert caught.value.is_user_mistake
    assert site.group.crash_report("learner-0") == "tb"
    assert site.group.crash_report("nobody") == ""


def test_worker_that_fails_after_joining_is_restarted_and_its_error_is_not_reused(
    site: Site,
) -> None:
    for code, failure in ((1, {"text": "ValueError: no"}), (-9, {})):
        process = site.newest("collector-0")
        process.join_run()
        site.pass_s(0.0)
        process.die(code, **failure)
        site.pass_s(0.0)
        site.pass_s(5.0)
    assert site.count("collector-0") == 3
    assert site.lost == [("collector-0", "ValueError: no"), ("collector-0", "killed by SIGKILL")]


def test_worker_that_never_joins_is_killed_and_restarted_within_its_budget(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.newest("learner-0").join_run()
    process = site.newest("collector-0")
    site.pass_s(START_S)
    assert process.calls == []
    site.pass_s(0.1)
    assert process.calls == ["kill"]
    assert "worker collector-0 has not joined the run within 300 s" in caplog.text
    site.pass_s(2.0)
    assert site.count("collector-0") == 2

    text = "collector-0 died 3 times in a row, at last by: killed because it has not joined"
    with pytest.raises(WorkerCrashedError, match=text):
        site.pass_s(3 * START_S)


def test_worker_that_waits_for_an_address_is_not_killed(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.group.prepare()
    site.pass_s(1000.0)
    site.group.start("address")
    site.pass_s(START_S)
    assert [process.calls for process in site.started] == [["address"], ["address"]]


def test_script_without_main_guard_gets_an_error_about_it(site: Site) -> None:
    site.newest("learner-0").die(UNGUARDED)
    with pytest.raises(WorkerCrashedError, match="__main__") as caught:
        site.pass_s(0.0)
    assert caught.value.is_user_mistake


def test_output_of_a_crash_is_kept_and_an_empty_file_is_removed(site: Site) -> None:
    log = site.run_dir / "log"
    log.mkdir()
    (log / "learner-0.crash").write_text("Segmentation fault in a.c")
    (log / "collector-0.crash").touch()
    for worker_id in ("learner-0", "collector-0"):
        process = site.newest(worker_id)
        process.join_run()
        process.die(-11)
    site.pass_s(0.0)
    assert site.group.crash_report("learner-0") == "Segmentation fault in a.c"
    assert [path.name for path in log.iterdir()] == ["learner-0.crash"]


def test_crash_report_is_read_up_to_a_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "w0.crash"
    path.write_text("x" * (1 << 20))
    assert len(take_crash_report(path)) == 64 << 10
    assert path.exists()


def test_killed_process_that_takes_a_moment_to_end_is_logged_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    process = site.newest("collector-0")
    process.join_run()
    site.pass_s(0.0)
    process.kill = lambda: None  # type: ignore[method-assign]
    site.workers.clear()
    for _ in range(3):
        site.pass_s(SILENT_S + 0.1)
    assert caplog.text.count("its process is killed") == 1


def test_process_that_rejoins_in_time_is_not_killed(site: Site) -> None:
    process = site.newest("collector-0")
    process.join_run()
    site.pass_s(0.0)
    for _ in range(5):
        site.workers.clear()
        site.pass_s(20.0)
        site.workers["collector-0"] = None
        site.pass_s(20.0)
    assert process.calls == []


def test_close_stops_joined_workers_and_kills_the_others(site: Site) -> None:
    learner, collector = site.newest("learner-0"), site.newest("collector-0")
    learner.join_run()
    site.group.close(4.0)
    assert learner.calls[0] == "stop"
    assert "kill" not in learner.calls
    assert collector.calls[0] == "kill"
    assert learner.calls[-1] == collector.calls[-1] == "close"
    site.group.close(4.0)
    assert learner.calls.count("close") == 1


def test_close_kills_workers_that_do_not_end_in_time(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    learner = site.newest("learner-0")
    learner.join_run()
    learner.ends_when_told = False
    began = site.now
    site.group.close(4.0)
    assert site.now - began == pytest.approx(4.0)
    assert [call for call in learner.calls if call in ("stop", "kill")] == ["stop", "kill"]
    assert ("join", pytest.approx(1.0)) in learner.calls
    assert caplog.text.count("learner-0 does not end; its process is killed") == 1


def test_processes_started_before_the_coordinator_receive_its_address(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    site.group.prepare()
    assert [each.spec.address for each in site.started] == ["", ""]
    site.newest("collector-0").die(-9)
    site.pass_s(0.0)
    site.group.start("http://here")
    assert site.newest("learner-0").calls == ["http://here"]
    assert site.count("collector-0") == 2
    assert site.newest("collector-0").spec.address == "http://here"


class Refusing:
    """Raises an error when it is pickled."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


def spec_of(run_dir: Path, value: Any) -> WorkerSpec:
    return WorkerSpec("collector", "c0", {"env": value}, "", run_dir, Snapshot((), ()))


@pytest.mark.parametrize("value", [lambda: 0, Refusing(TypeError("no")), Refusing(ValueError())])
def test_config_with_unpicklable_data_is_a_config_error(tmp_path: Path, value: Any) -> None:
    resource_tracker.ensure_running()  # it keeps a file descriptor open
    opened, blocked = open_files(collect=True), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(ConfigError, match="cannot be handed to a worker process") as caught:
        start_worker(spec_of(tmp_path, value))
    assert caught.value.path == "config"
    assert caught.value.__cause__ is not None
    assert open_files() == opened
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked


def test_process_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    process = LinkedProcess(print, spec_of(tmp_path, "it takes longer to start"))
    assert process.exit_code is None
    assert process.end(0.0) == -signal.SIGKILL
    assert process.end(0.0) == -signal.SIGKILL
    process.send("to nobody")
