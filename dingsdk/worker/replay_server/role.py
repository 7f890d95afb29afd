"""The role ``replay-server`` of a parallel run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dingsdk.worker.comm.slave import CLOSE_TIMEOUT_S, JOIN_TIMEOUT_S, Slave
from dingsdk.worker.comm.transport import Transport, WorkerInfo
from dingsdk.worker.commander.base import BaseParallelCommander, Task
from dingsdk.worker.commander.tasks import buffer_section
from dingsdk.worker.coordinator.role import Role
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.replay_server.client import FOLDER
from dingsdk.worker.replay_server.server import ReplayServer
from dingsdk.worker.run_id import run_id
from dingsdk.worker.run_view import RunView

if TYPE_CHECKING:
    from dingsdk.worker.coordinator.coordinator import Coordinator


class ReplayWorker(Slave):
    """Serves the replay buffer of a run from its start to its end; receives no tasks.

    Args:
        transport: The run's transport.
        worker_id: Unique in the run.
        buffer_cfg: Config of the replay buffer.
        is_kept: Whether to write a checkpoint at the end, for a run that can be resumed.
    """

    has_job = True
    """Always True, as other workers use its buffer: it must not leave between two tasks."""

    def __init__(
        self, transport: Transport, worker_id: str, buffer_cfg: Mapping[str, Any], *, is_kept: bool
    ) -> None:
        info = WorkerInfo(worker_id, ReplayServerRole.name, {"cpu": os.cpu_count() or 1})
        super().__init__(transport, info)
        self._buffer_cfg = buffer_cfg
        self._is_kept = is_kept
        self._server: ReplayServer | None = None

    def start(self, address: str, timeout_s: float = JOIN_TIMEOUT_S) -> None:
        """Serve, then join the master; raises as ``ReplayServer`` and ``Slave.start``."""
        run_dir = self.transport.run_dir
        run = run_id(run_dir, create=False)  # a worker may start before the run has one
        self._server = ReplayServer({}, self._buffer_cfg, run_dir / FOLDER, run)
        super().start(address, timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Leave the run and close the server; raises as ``ReplayServer.close``."""
        has_ended = super().close(timeout_s)
        if self._server is not None:
            self._server.close(has_checkpoint=self._is_kept)
        return has_ended


class ReplayServerRole(Role):
    """Hold the replay buffer of a run (system.replay.type: server). Ctrl-C leaves the run."""

    name: ClassVar[str] = "replay-server"

    @classmethod
    def check_run(cls, run: RunView) -> str:
        """Return that the role starts by another key."""
        return (
            "system.roles.replay-server: system.replay.type=server starts this role; leave it out "
            "here"
        )

    def create_worker(self, transport: Transport, worker_id: str) -> Slave:
        buffer_cfg = buffer_section(self.run_cfg)
        enabled = self.run_cfg["system"]["journal"]["enabled"]
        place = transport.cfg.workers or transport.places[0]
        is_kept = enabled is True or (enabled == "auto" and place != "threads")
        return ReplayWorker(transport, worker_id, buffer_cfg, is_kept=is_kept)

    def next_task(self, commander: BaseParallelCommander) -> Task | None:
        return None

    def drive(self, coordinator: Coordinator, state: TaskState, task: Mapping[str, Any]) -> None:
        raise NotImplementedError("a replay server has no tasks")
