"""A coordinator and its workers in the process of the test."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dingsdk.pipeline.parallel import worker_config
from dingsdk.pipeline.train import compile_run
from dingsdk.pipeline.worker import make_transport, worker_ids
from dingsdk.worker import Coordinator
from dingsdk.worker.coordinator import TaskState, create_role

from .short_runs import ENDLESS

SETS = (*ENDLESS, "env.stop_value=1000", "system.coordinator.lease_s=5")


class JobCluster:
    """One coordinator, a learner and two collectors.

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
        sets = (*SETS, *sets)
        if concurrency is not None:
            transport = "in_memory"
            wire = "system.transport.check_wire=true"
            sets = (f"system.transport.concurrency={concurrency}", wire, *sets)
        cfg = compile_run("cartpole-dqn", "parallel", transport, sets, 3)
        cfg = worker_config(cfg, tmp_path)
        self.run_dir = tmp_path
        self.transport = make_transport(cfg, tmp_path)
        self.coordinator = coordinator_cls(cfg, self.transport)
        self.address = self.coordinator.start()
        self.workers = [
            create_role(role, cfg).create_worker(self.transport, worker_id)
            for role, worker_id in worker_ids(cfg)
        ]
        for worker in self.workers:
            worker.start(self.address)

    def expect(self, predicate: Callable[[], bool], timeout_s: float = 40.0) -> None:
        deadline = time.monotonic() + timeout_s
        pause = threading.Event()
        while not predicate():
            assert self.coordinator.end.failure is None, self.coordinator.end.failure
            assert time.monotonic() < deadline, self.coordinator.status()
            pause.wait(0.02)

    def train_iter(self) -> int:
        return self.coordinator.status().train_iter

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
