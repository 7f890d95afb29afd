"""The role ``inference`` of a parallel run, named in ``system.roles``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from dingsdk.config import to_plain
from dingsdk.data.seeding import derive_seed
from dingsdk.worker.comm.scheduler import Job
from dingsdk.worker.comm.slave import CLOSE_TIMEOUT_S, JOIN_TIMEOUT_S, Slave
from dingsdk.worker.comm.transport import Transport, WorkerInfo
from dingsdk.worker.commander.base import BaseParallelCommander, Task
from dingsdk.worker.coordinator.role import Role
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.inference.server import InferenceServer
from dingsdk.worker.run_logger import build_logger
from dingsdk.worker.run_view import RunView

if TYPE_CHECKING:
    from dingsdk.worker.coordinator.coordinator import Coordinator

PROGRESS_S = 60.0
"""Longest time without progress of a server that counts as alive."""


class InferenceWorker(Slave):
    """Serves actions from its start until it is closed; receives no tasks.

    If the server hangs, the lease is not renewed any more. If it fails, the worker ends with its
    error.

    Args:
        transport: The run's transport.
        worker_id: Unique in the run.
        policy_cfg: The config's ``policy`` section.
        seed: Seed of exploration.
    """

    def __init__(
        self, transport: Transport, worker_id: str, policy_cfg: Mapping[str, Any], seed: int
    ) -> None:
        info = WorkerInfo(worker_id, InferenceRole.name, {"cpu": os.cpu_count() or 1})
        super().__init__(transport, info)
        self._policy_cfg, self._seed = policy_cfg, seed
        self._server: InferenceServer | None = None
        self._acting: Job | None = None
        self._moved_at = 0.0

    def start(self, address: str, timeout_s: float = JOIN_TIMEOUT_S) -> None:
        """Join the master, then serve; raises as ``Slave.start`` and ``InferenceServer``."""
        self._moved_at = self._clock()
        super().start(address, timeout_s)  # a transport may have its stores only after that
        self._server = InferenceServer(
            self._policy_cfg,
            self.transport.policy_store(),
            self.transport.run_dir,
            self.info.worker_id,
            self._seed,
        )
        self._acting = self.scheduler.spawn(self._act, f"{self.info.worker_id}-acting")

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Leave the run and close the server; return whether both ended in time. Idempotent."""
        has_ended = super().close(timeout_s)
        server, self._server = self._server, None
        if server is not None and self._acting is not None:
            server.stop()
            has_ended = self._acting.join(timeout_s) and has_ended
            server.close()
            folder = str(self.transport.run_dir / "log" / "inference")
            logger, _ = build_logger(folder, self.info.worker_id, need_tb=False)
            counts = server.request_count, server.batch_count
            logger.info("acted for %d requests in %d batches", *counts)
            logger.close()
        return has_ended

    def renew(self) -> None:
        """Renew the lease as ``Slave.renew``; raise the error of a server that has failed."""
        if self._acting is not None and self._acting.error is not None:
            raise self._acting.error
        super().renew()

    def _act(self) -> None:
        assert self._server is not None
        torch.set_num_threads(torch.get_num_threads())  # the limit is per thread
        self._server.run(self._advance)

    def _advance(self) -> None:
        self._progress += 1
        self._moved_at = self._clock()

    def _is_alive(self, now: float) -> bool:
        return now - self._moved_at < PROGRESS_S

    def _stop_work(self) -> bool:
        # It may join again after its master was restarted, but not if the server hangs.
        return self._is_alive(self._clock())


class InferenceRole(Role):
    """Compute the actions of all collectors of a run in batches. Ctrl-C leaves the run."""

    name: ClassVar[str] = "inference"

    @classmethod
    def check_run(cls, run: RunView) -> str:
        """Return why the server cannot compute the actions of the collectors of a run."""
        why = ""
        if run.runs_threads:
            why = (
                f"the transport {run.system['transport']['type']!r} runs all workers in one "
                "process; choose one whose workers are processes, such as flask_fs"
            )
        elif not run.is_base_policy:
            why = f"{run.of_policy} is no BasePolicy, whose act it calls"
        elif run.collector != "sample" or not getattr(run.parallel_class, "acts_remotely", False):
            why = (
                f"it acts for the parallel collector zergling, and this is "
                f"{run.parallel_collector!r} with the collector {run.collector!r}"
            )
        return why and f"system.roles.inference is set, but {why}; or leave it out"

    def create_worker(self, transport: Transport, worker_id: str) -> Slave:
        seed = derive_seed(int(self.run_cfg["seed"]), "inference", worker_id)
        return InferenceWorker(transport, worker_id, to_plain(self.run_cfg["policy"]), seed)

    def next_task(self, commander: BaseParallelCommander) -> Task | None:
        return None

    def drive(self, coordinator: Coordinator, state: TaskState, task: Mapping[str, Any]) -> None:
        raise NotImplementedError("an inference server has no tasks")
