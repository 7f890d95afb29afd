"""The role ``inference`` of a parallel run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

from dingsdk.config import to_plain
from dingsdk.data.seeding import derive_seed
from dingsdk.errors import TaskFail
from dingsdk.worker.comm.allowed_imports import named_modules
from dingsdk.worker.comm.slave import TaskFunctions
from dingsdk.worker.comm.transport import Transport
from dingsdk.worker.comm.worker import ANSWER_WITHIN_S, CommWorker
from dingsdk.worker.commander.base import BaseParallelCommander, Task
from dingsdk.worker.coordinator.role import Role
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.inference.server import InferenceServer
from dingsdk.worker.run_logger import build_logger
from dingsdk.worker.run_view import RunView

if TYPE_CHECKING:
    from dingsdk.worker.coordinator.coordinator import Coordinator


class InferenceWorker(CommWorker):
    """Runs an inference server while the coordinator has a task for it.

    Args: as ``CommWorker``.
    """

    role = "inference"
    _server: InferenceServer | None = None

    def _tasks(self) -> TaskFunctions:
        return {
            "inference_start_task": lambda task: self._start(task["task_info"]),
            "inference_poll_task": lambda task: self._poll(),
            "inference_close_task": lambda task: self._finish(),
        }

    def close(self, timeout_s: float = 5.0) -> bool:
        has_ended = super().close(timeout_s)
        if self._server is not None:
            self._server.close()
        return has_ended

    def _start(self, task_info: Mapping[str, Any]) -> Mapping[str, Any]:
        with self.building(task_info):
            if self._server is not None:
                self._server.close()  # the server of a task that was given up
            self._server = made = InferenceServer(
                task_info["policy"],
                self.policy_store,
                self.run_dir,
                self.info.worker_id,
                task_info.get("seed"),
            )
        self.start_job(
            lambda: made.run(self.advance), made.stop, f"{self.info.worker_id}-inference"
        )
        return {"message": "inference task has started"}

    def _poll(self) -> Mapping[str, Any]:
        with self.condition:
            self.task_wait(lambda: False, ANSWER_WITHIN_S)
        self.raise_job_error()
        return self._figures()

    def _finish(self) -> Mapping[str, Any]:
        if not self.stop_job():
            raise TaskFail({"message": "stuck"}, f"{self.info.worker_id} hangs")
        self.raise_job_error()
        figures = self._figures()
        if self._server is not None:
            self._server.close()
            self._server = None
        logger, _ = build_logger(
            str(self.run_dir / "log" / "inference"), self.info.worker_id, need_tb=False
        )
        logger.info("acted for %(requests)d requests in %(batches)d batches", figures)
        logger.close()
        return figures

    def _figures(self) -> dict[str, int]:
        server = self._server
        if server is None:
            return {"requests": 0, "batches": 0}
        return {"requests": server.request_count, "batches": server.batch_count}


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

    def create_worker(self, transport: Transport, worker_id: str) -> CommWorker:
        modules = sorted(named_modules(self.run_cfg))
        return InferenceWorker({"allowed_modules": modules}, transport, worker_id)

    def next_task(self, commander: BaseParallelCommander) -> Task | None:
        task_id = f"inference_task_{uuid4().hex[:8]}"
        seed = derive_seed(int(self.run_cfg["seed"]), "inference", task_id)
        return {"task_id": task_id, "policy": to_plain(self.run_cfg["policy"]), "seed": seed}

    def drive(self, coordinator: Coordinator, state: TaskState, task: Mapping[str, Any]) -> None:
        """Let the worker compute actions until the run ends."""
        start = {"name": "inference_start_task", "task_info": task}
        coordinator.ask(state, start, "start_timeout_s")
        coordinator.deal_with_task_started(state)
        while not coordinator.must_end(state):
            coordinator.ask(state, {"name": "inference_poll_task"})
        coordinator.ask(state, {"name": "inference_close_task"})
