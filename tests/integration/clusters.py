"""Coordinators in the process of the test, with workers in this process or in others."""

from __future__ import annotations

import math
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from dingsdk.pipeline.parallel import worker_config
from dingsdk.pipeline.process_group import ProcessWorkers
from dingsdk.pipeline.train import compile_run
from dingsdk.pipeline.worker import make_transport, worker_ids
from dingsdk.policy.threads import torch_threads
from dingsdk.worker import Coordinator
from dingsdk.worker.coordinator import TaskState, create_role

from .short_runs import ENDLESS

LEASE_S = 3.0
PATIENCE_S = 60.0
"""Timeout of waits without a documented limit. Processes start slowly on a busy machine."""
SETS = (*ENDLESS, "env.stop_value=.inf", f"system.coordinator.lease_s={LEASE_S}")
JOB_SETS = (*ENDLESS, "env.stop_value=1000", "system.coordinator.lease_s=5")


class Cluster:
    """One coordinator, for a learner and two collectors. Torch uses one thread until the close."""

    def __init__(
        self,
        run_dir: Path,
        transport: str,
        sets: Iterable[str],
        coordinator_cls: type[Coordinator],
        example: str = "cartpole-dqn",
    ) -> None:
        self.run_dir = run_dir
        self.cfg = worker_config(compile_run(example, "parallel", transport, sets, 3), run_dir)
        self.transport: Any = make_transport(self.cfg, run_dir)
        self.coordinator = coordinator_cls(self.cfg, self.transport)
        self._until_close = ExitStack()
        self._until_close.enter_context(torch_threads(1))

    def expect(
        self,
        predicate: Callable[[], bool],
        timeout_s: float = PATIENCE_S,
        *,
        is_watched: bool = True,
    ) -> None:
        """Wait until the predicate holds; dead workers are restarted if ``is_watched``."""
        deadline = time.monotonic() + timeout_s
        pause = threading.Event()
        while not predicate():
            if is_watched:
                self.poll()
            assert self.coordinator.end.failure is None, self.coordinator.end.failure
            assert time.monotonic() < deadline, self.coordinator.status()
            pause.wait(0.02)

    def poll(self) -> None:
        """Restart dead workers."""

    def train_iter(self) -> int:
        return self.coordinator.status().train_iter

    def close(self) -> None:
        self._until_close.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class JobCluster(Cluster):
    """A cluster whose workers are in this process.

    Args:
        tmp_path: Folder of the run.
        concurrency: How jobs of the transport ``in_memory`` run; None: use ``transport``.
        *sets: Further settings.
        transport: The transport if ``concurrency`` is None.
        coordinator_cls: Class of the coordinator.
    """

    def __init__(
        self,
        tmp_path: Path,
        concurrency: str | None,
        *sets: str,
        transport: str = "flask_fs",
        coordinator_cls: type[Coordinator] = Coordinator,
    ) -> None:
        sets = (*JOB_SETS, *sets)
        if concurrency is not None:
            transport = "in_memory"
            wire = "system.transport.check_wire=true"
            sets = (f"system.transport.concurrency={concurrency}", wire, *sets)
        super().__init__(tmp_path, transport, sets, coordinator_cls)
        self.address = self.coordinator.start()
        self.workers = [
            create_role(role, self.cfg).create_worker(self.transport, worker_id)
            for role, worker_id in worker_ids(self.cfg)
        ]
        for worker in self.workers:
            worker.start(self.address)

    def running(self, kind: str, *, attempt: int = 1) -> TaskState:
        """Wait until a task of this kind runs in this attempt; return its state."""
        found: list[TaskState] = []

        def is_there() -> bool:
            found[:] = [
                state
                for state in list(self.coordinator.state.running.values())
                if (state.kind, state.attempt) == (kind, attempt) and state.began_at < math.inf
            ]
            return bool(found)

        self.expect(is_there)
        return found[0]

    def lose_over_and_over(self, kind: str) -> str:
        """Cut off the worker of each of three attempts of a task; return the task's id."""
        ids = set()
        for attempt in (1, 2, 3):
            state = self.running(kind, attempt=attempt)
            assert state.worker is not None
            ids.add(state.task_id)
            self.transport.abandon_worker(state.worker.worker_id)
        assert len(ids) == 1
        return ids.pop()

    def close(self) -> None:
        assert self.coordinator.close() == []
        for worker in self.workers:
            worker.close()
        self.transport.close()
        super().close()


class ProcessCluster(Cluster):
    """A cluster with each worker in its own process."""

    def __init__(
        self,
        run_dir: Path,
        sets: Iterable[str] = (),
        transport: str = "flask_fs",
        coordinator_cls: type[Coordinator] = Coordinator,
        example: str = "cartpole-dqn",
    ) -> None:
        super().__init__(run_dir, transport, (*SETS, *sets), coordinator_cls, example)
        ids = worker_ids(self.cfg)
        self.workers = ProcessWorkers(self.cfg, run_dir, ids, self.coordinator.master)
        self.workers.start(self.coordinator.start())

    def pid(self, worker_id: str) -> int:
        """Wait until a worker has a process; return its id."""
        found: list[int] = []

        def is_there() -> bool:
            found[:] = [
                each.pid
                for each in multiprocessing.active_children()
                if each.name == worker_id and each.pid is not None
            ]
            return bool(found)

        self.expect(is_there)
        return found[0]

    def poll(self) -> None:
        self.workers.poll()

    def expect_training(self, iterations: int = 20) -> None:
        """Wait for more iterations of the learner, then validate the coordinator's state."""
        until = self.train_iter() + iterations
        self.expect(lambda: self.train_iter() > until)
        self.coordinator.validate_state()

    def env_steps(self) -> int:
        return self.coordinator.status().env_steps

    def incarnation(self, worker_id: str) -> int:
        info = self.coordinator.master.workers.get(worker_id)
        return 0 if info is None else info.incarnation

    def versions(self) -> list[int]:
        """Return the versions of the policies that collectors read, oldest first."""
        store = self.transport.policy_store()
        tasks = list(self.coordinator.state.running.values())
        found = [
            store.newest(str(each.task["policy_id"])) for each in tasks if each.role == "learner"
        ]
        return [each[0] for each in found if each is not None]

    def close(self) -> None:
        self.coordinator.close()
        self.workers.close(10.0)
        self.transport.close()
        self.transport.remove_data()
        super().close()


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
