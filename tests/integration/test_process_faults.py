"""Faults of worker processes: kills, hangs, lost files, a full disk, failing envs.

All tests share one cluster of processes. After each fault training continues, and every
acknowledged sample is in the buffer or counted as evicted.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from dingsdk.pipeline import process_group
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.worker import Coordinator
from tests.small_disk import fill_up, small_disk

from .clusters import LEASE_S, PATIENCE_S, ProcessCluster, is_running

pytestmark = pytest.mark.slow

PLUGIN = Path(__file__).parent / "crash_plugin"
DISK_BYTES = 8 << 20
SETS = (
    "env.env_id=crashing:CrashingCartPole-v0",
    "env_manager.type=in_process",
    "env_manager.max_retry=10",  # several tests may fail the same env within one episode
    "system.restarts=50",
    "system.learner={type: crashing, save_every_s: 1}",
    "system.transport.import_names=[crashing]",
    "system.transport.min_free_bytes=65536",
    "system.coordinator.orphan_grace_s=3",
    "system.coordinator.max_attempts=10",  # one task of the learner lasts for all tests
)


class KillingCoordinator(Coordinator):
    """Kills a worker just before or just after it acknowledges a payload of that worker.

    The task of the worker ``done`` ends at its next report. ``acknowledged`` is called with the
    id of each payload after its acknowledgement.
    """

    kill: Callable[[str, str], None] | None = None
    acknowledged: Callable[[str], None] | None = None
    done = ""

    def deal_with_collector_judge_finish(self, task_id: str, data: Mapping[str, Any]) -> bool:
        is_done = super().deal_with_collector_judge_finish(task_id, data)
        return is_done or self.worker_of(task_id) == self.done

    def worker_of(self, task_id: str) -> str:
        (found,) = [each for each in list(self.state.running.values()) if each.task_id == task_id]
        assert found.worker is not None
        return found.worker.worker_id

    def deal_with_collector_send_data(
        self, task_id: str, buffer_id: str, data_id: str, data: Mapping[str, Any]
    ) -> bool:
        worker_id = self.worker_of(task_id)
        if self.kill is not None:
            self.kill("announced", worker_id)
        is_acked = super().deal_with_collector_send_data(task_id, buffer_id, data_id, data)
        if is_acked and self.kill is not None:
            self.kill("acknowledged", worker_id)
            self.data_store.get(data_id, 0.0)  # raises if the payload was lost with its worker
        if is_acked and self.acknowledged is not None:
            self.acknowledged(data_id)
        return is_acked


class CrashCluster(ProcessCluster):
    """A cluster whose workers crash, hang or fail at the points that a test arms."""

    def arm(self, point: str) -> None:
        for member in self.workers._members:
            member._deaths = 0  # so that the next start is not delayed
        (self.run_dir / f"at-{point}").touch()

    def seen(self, point: str) -> dict[str, Any]:
        """Wait until a worker reaches an armed point; return its name and what it was doing."""
        path = self.run_dir / f"seen-{point}"
        self.expect(path.exists)
        found: dict[str, Any] = json.loads(path.read_text())
        path.unlink()
        return found

    def expect_return(self, worker_id: str, incarnation: int) -> None:
        """Wait until a worker has joined as a new incarnation and training continues."""
        self.expect(lambda: self.incarnation(worker_id) > incarnation)
        self.expect_training()

    def incarnations(self) -> dict[str, int]:
        self.expect(lambda: len(self.coordinator.master.workers) == 3)
        workers = self.coordinator.master.workers
        return {worker_id: info.incarnation for worker_id, info in workers.items()}

    def busy(self) -> set[str]:
        """Return the workers that have a task."""
        workers = (task.worker for task in list(self.coordinator.state.running.values()))
        return {worker.worker_id for worker in workers if worker is not None}

    @property
    def data(self) -> Path:
        return Path(self.transport.data_dir) / "data"

    def payloads(self) -> set[str]:
        return {path.stem for path in self.data.glob("*/*.ding")}

    def unreadable(self) -> int:
        """Return how many samples were given up because their payload could not be read."""
        evicted = self.coordinator.status().samples.evicted
        return evicted.get("missing", 0) + evicted.get("corrupt", 0)

    def half_written(self) -> set[Path]:
        return set(self.data.glob("*/.tmp-*"))


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """A small separate file system; None without the right to mount one."""
    with contextlib.ExitStack() as stack:
        try:
            path = tmp_path_factory.mktemp("disk") / "small"
            made = stack.enter_context(small_disk(path, str(DISK_BYTES)))
        except pytest.skip.Exception:
            made = None
        yield made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, disk: Path | None) -> Iterator[CrashCluster]:
    run_dir = tmp_path_factory.mktemp("cluster")
    sets = (*SETS, f"system.transport.data_dir={disk / 'shared'}") if disk else SETS
    with (
        pytest.MonkeyPatch.context() as patch,
        use_manager(PluginManager()),
    ):
        patch.syspath_prepend(PLUGIN)
        made = CrashCluster(run_dir, sets, "crashing", KillingCoordinator)
        patch.setattr(process_group, "SILENT_S", 1.0)
        yield made
        made.close()
        gymnasium.registry.pop("CrashingCartPole-v0")
        sys.modules.pop("crashing")
    assert multiprocessing.active_children() == []


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> None:
    """Override the check after each test: the shared cluster is still running."""


@pytest.mark.parametrize("point", ["env-step", "policy-read"])
def test_collector_killed_while_working_is_replaced(cluster: CrashCluster, point: str) -> None:
    before = cluster.incarnations()
    cluster.arm(point)
    victim = cluster.seen(point)["worker"]
    cluster.expect_return(victim, before[victim])


def test_collector_killed_while_writing_leaves_no_payload(cluster: CrashCluster) -> None:
    before = cluster.incarnations()
    cluster.arm("mid-write")
    found = cluster.seen("mid-write")
    torn = cluster.half_written()
    assert found["data_id"] not in cluster.payloads()
    cluster.expect_return(found["worker"], before[found["worker"]])
    assert found["data_id"] not in cluster.payloads()
    cluster.expect(lambda: not torn & cluster.half_written())


def test_payload_of_a_collector_killed_before_announcing_it_is_deleted(
    cluster: CrashCluster,
) -> None:
    before = cluster.incarnations()
    cluster.arm("written")
    found = cluster.seen("written")
    cluster.expect_return(found["worker"], before[found["worker"]])
    (payloads,) = cluster.coordinator.state.buffers.values()
    assert found["data_id"] not in payloads.live_ids()
    cluster.expect(lambda: found["data_id"] not in cluster.payloads())


@pytest.mark.parametrize("point", ["announced", "acknowledged"])
def test_payload_stays_when_its_collector_is_killed(cluster: CrashCluster, point: str) -> None:
    before = cluster.incarnations()
    pids = {worker_id: cluster.pid(worker_id) for worker_id in before}
    killed: list[str] = []

    def kill(where: str, worker_id: str) -> None:
        if where != point or killed:
            return
        killed.append(worker_id)
        os.kill(pids[worker_id], signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while is_running(pids[worker_id]) and time.monotonic() < deadline:
            threading.Event().wait(0.01)

    cluster.coordinator.kill = kill
    cluster.expect(lambda: bool(killed))
    cluster.expect_return(killed[0], before[killed[0]])
    cluster.coordinator.kill = None


def test_killed_idle_collector_is_removed_when_its_lease_ends(cluster: CrashCluster) -> None:
    victim, before = "collector-0", cluster.incarnations()
    cluster.coordinator.deal_with_decrease_collector()  # so that it gets no new task
    cluster.coordinator.done = victim
    cluster.expect(lambda: victim not in cluster.busy())
    cluster.coordinator.done = ""

    os.kill(cluster.pid(victim), signal.SIGKILL)
    # Nothing watches the process, as for a worker on another host: only its lease ends.
    cluster.expect(lambda: cluster.incarnation(victim) == 0, 2 * LEASE_S, is_watched=False)
    cluster.coordinator.deal_with_increase_collector()
    cluster.expect_return(victim, before[victim])


@pytest.mark.parametrize("point", ["inserted", "evicted", "saved"])
def test_learner_killed_before_its_report_is_replaced_and_no_row_is_lost(
    cluster: CrashCluster, point: str
) -> None:
    before, unreadable = cluster.incarnations(), cluster.unreadable()
    cluster.arm(point)
    assert cluster.seen(point)["worker"] == "learner-0"
    cluster.expect_return("learner-0", before["learner-0"])
    assert cluster.unreadable() == unreadable


def test_process_that_hangs_with_the_gil_held_is_replaced(cluster: CrashCluster) -> None:
    before = cluster.incarnations()
    cluster.arm("hang")
    victim = cluster.seen("hang")["worker"]
    pid = cluster.pid(victim)
    cluster.expect_return(victim, before[victim])
    assert not is_running(pid)


def test_slow_collectors_keep_their_leases(cluster: CrashCluster) -> None:
    before = cluster.incarnations()
    (cluster.run_dir / "slow").touch()
    until = time.monotonic() + 1.5 * LEASE_S
    steps = cluster.env_steps()
    cluster.expect(lambda: time.monotonic() > until and cluster.env_steps() > steps)
    (cluster.run_dir / "slow").unlink()
    assert cluster.incarnations() == before
    cluster.expect_training()


@pytest.mark.parametrize("point", ["raise", "observe-nan", "observe-other-shape"])
def test_env_that_fails_once_loses_only_its_episode(cluster: CrashCluster, point: str) -> None:
    before = cluster.incarnations()
    cluster.arm(point)
    assert cluster.seen(point)["worker"].startswith("collector-")
    cluster.expect_training()
    assert cluster.incarnations() == before


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def flip_a_byte(path: Path) -> None:
    try:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
    except (OSError, IndexError):
        return  # deleted meanwhile


@pytest.mark.parametrize("harm", [remove, flip_a_byte])
def test_removed_or_damaged_payload_files_are_replaced_and_counted(
    cluster: CrashCluster, harm: Callable[[Path], None]
) -> None:
    before = cluster.incarnations()
    unreadable = cluster.unreadable()

    def harm_file(data_id: str) -> None:
        for path in cluster.data.glob(f"*/{data_id}.ding"):
            harm(path)

    cluster.coordinator.acknowledged = harm_file  # most likely before the learner has read it
    cluster.expect(lambda: cluster.unreadable() > unreadable)
    cluster.coordinator.acknowledged = None
    cluster.expect_training()
    assert cluster.incarnations() == before
    if harm is flip_a_byte:
        assert list((cluster.data.parent / "quarantine").iterdir())


def test_full_disk_pauses_the_run_until_there_is_space(
    cluster: CrashCluster, disk: Path | None
) -> None:
    if disk is None:
        pytest.skip("cannot mount a file system here")
    before = cluster.incarnations()
    ballast = disk / "ballast"
    steps, still_since = cluster.env_steps(), time.monotonic()

    def stands_still() -> bool:
        nonlocal steps, still_since
        fill_up(ballast)  # again, because deleted payloads free space
        now = cluster.env_steps()
        if now != steps:
            steps, still_since = now, time.monotonic()
        return time.monotonic() - still_since > 2.0

    cluster.expect(stands_still)
    cluster.coordinator.validate_state()
    ballast.unlink()
    cluster.expect(lambda: cluster.env_steps() > steps + 300)
    cluster.expect_training()
    assert cluster.incarnations() == before
