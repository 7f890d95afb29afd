"""A coordinator in the process of the test, with each worker in its own process."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from dingsdk.pipeline.parallel import worker_config
from dingsdk.pipeline.process_group import ProcessWorkers
from dingsdk.pipeline.train import compile_run
from dingsdk.pipeline.worker import make_transport, worker_ids
from dingsdk.worker import Coordinator

from .short_runs import ENDLESS

LEASE_S = 3.0
PATIENCE_S = 60.0
"""Timeout of waits without a documented limit. Processes start slowly on a busy machine."""
SETS = (*ENDLESS, "env.stop_value=.inf", f"system.coordinator.lease_s={LEASE_S}")


class ProcessCluster:
    """One coordinator here; a learner and two collectors in processes."""

    def __init__(
        self,
        run_dir: Path,
        sets: Iterable[str] = (),
        transport: str = "flask_fs",
        coordinator_cls: type[Coordinator] = Coordinator,
        example: str = "cartpole-dqn",
    ) -> None:
        cfg = compile_run(example, "parallel", transport, (*SETS, *sets), 3)
        cfg = worker_config(cfg, run_dir)
        self.run_dir = run_dir
        self.transport = make_transport(cfg, run_dir)
        self.coordinator = coordinator_cls(cfg, self.transport)
        self.workers = ProcessWorkers(cfg, run_dir, worker_ids(cfg), self.coordinator.master)
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
                self.workers.poll()
            assert self.coordinator.end.failure is None, self.coordinator.end.failure
            assert time.monotonic() < deadline, self.coordinator.status()
            pause.wait(0.02)

    def expect_training(self, iterations: int = 20) -> None:
        """Wait for more iterations of the learner, then validate the coordinator's state."""
        until = self.train_iter() + iterations
        self.expect(lambda: self.train_iter() > until)
        self.coordinator.validate_state()

    def train_iter(self) -> int:
        return self.coordinator.status().train_iter

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


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
