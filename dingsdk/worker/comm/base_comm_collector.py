"""The comm collector: what stands between a coordinator and a parallel collector."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

from dingsdk.data import FrameInfo, SampleBatch
from dingsdk.errors import ProtocolError, StorageFullError, TaskFail
from dingsdk.worker.comm.comm_worker import CommWorker
from dingsdk.worker.comm.imports import check_imports
from dingsdk.worker.comm.policy_outlet import PolicyOutlet
from dingsdk.worker.comm.transport import Transport
from dingsdk.worker.comm.worker_role import ANSWER_WITHIN_S, RoleLife, WorkerRole
from dingsdk.worker.factory import create_parallel_collector

STORAGE_PAUSE_S = 1.0
_log = logging.getLogger(__name__)

_SAMPLE_KEYS = {"data_id", "policy_iter"}
_PROGRESS_KEYS = {"collector_done", "cur_episode", "cur_sample", "cur_step"}


class BaseCommCollector(CommWorker):
    """Builds the parallel collector of a task and gives it its three ways out.

    Subclass it to connect collectors by other means; subclass ``TransportCollector`` to do
    so by a transport plugin.
    """

    config: ClassVar[dict[str, Any]] = {
        "type": "",
        "import_names": [],
        "allowed_modules": [],  # that tasks may have imported, beyond those of the local config
    }

    @abstractmethod
    def get_policy_update_info(self, path: str) -> dict[str, Any] | None:
        """Return ``{'model': tensors, 'iter': version}`` if newer than the last, else None."""

    @abstractmethod
    def send_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Report a payload or the progress; waits while too much is unreported."""

    @abstractmethod
    def send_stepdata(self, path: str, stepdata: SampleBatch) -> None:
        """Store a payload under an id; the caller hands it over."""

    @property
    @abstractmethod
    def collector_uid(self) -> str: ...

    def _create_collector(self, task_info: Mapping[str, Any]) -> Any:
        """Build the task's parallel collector and attach the three ways out.

        Raises:
            UntrustedImportError: the task names modules that this worker's config does not.
        """
        check_imports(task_info, self._cfg["allowed_modules"])
        collector = create_parallel_collector(self._collector_cfg(task_info))
        collector.send_metadata = self.send_metadata
        collector.send_stepdata = self.send_stepdata
        collector.get_policy_update_info = self.get_policy_update_info
        return collector

    def _collector_cfg(self, task_info: Mapping[str, Any]) -> Mapping[str, Any]:
        cfg: Mapping[str, Any] = task_info["collector_cfg"]
        return cfg


class TransportCollector(RoleLife, BaseCommCollector):
    """A comm collector over a transport plugin.

    Args:
        cfg: ``queue_size`` bounds the reports that wait (back-pressure beyond it).
        transport: The run's transport.
        worker_id: Unique in the run.
    """

    config: ClassVar[dict[str, Any]] = {"queue_size": 8, "progress_timeout_s": 60.0}

    def __init__(self, cfg: Mapping[str, Any], transport: Transport, worker_id: str) -> None:
        super().__init__(cfg)
        self._queue_size = int(self._cfg["queue_size"])
        self._role = WorkerRole(
            transport,
            worker_id,
            "collector",
            {
                "resource": lambda task: self.deal_with_resource(),
                "collector_start_task": lambda task: self.deal_with_collector_start(
                    task["task_info"]
                ),
                "collector_data_task": self._process_data_task,
                "collector_close_task": lambda task: self.deal_with_collector_close(),
            },
            progress_timeout_s=float(self._cfg["progress_timeout_s"]),
        )
        self._collector: Any = None
        self._task_info: Mapping[str, Any] = {}
        self._reports: deque[Mapping[str, Any]] = deque()
        self._stored: dict[str, FrameInfo] = {}
        """What readers can hold the payloads to that are stored and not announced yet."""
        self._held_up_by = ""
        self._is_run_held_up = False
        self._policy_version: int | None = None
        self._policy_model: Mapping[str, Any] | None = None

    @property
    def collector_uid(self) -> str:
        return self._role.info.worker_id

    # Tasks ------------------------------------------------------------------------------------
    def deal_with_collector_start(self, task_info: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._role.has_job:
            raise TaskFail({"message": "busy"}, f"{self.collector_uid} has a collector running")
        self._reports.clear()
        self._stored.clear()
        self._task_info = task_info
        self._policy_version = self._policy_model = None
        self._held_up_by, self._is_run_held_up = "", False
        with self._role.building():
            self._collector = self._create_collector(task_info)
        self._collector.yield_turn = self._role.yield_turn
        self._role.start_job(
            self._collector.start, self._collector.close, f"{self.collector_uid}-collector"
        )
        return {"message": "collector task has started"}

    def _process_data_task(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        self._is_run_held_up = bool(task.get("is_held_up"))
        return self.deal_with_collector_data()

    def deal_with_collector_data(self) -> Mapping[str, Any]:
        """Return all reports that wait, waiting a while for the first.

        Raises:
            Exception: what the collector raised, after its reports were delivered.
        """
        with self._role.condition:
            self._role.task_wait(lambda: len(self._reports) > 0, ANSWER_WITHIN_S)
            reports = list(self._reports)
            self._reports.clear()
            self._role.condition.notify_all()
        if not reports:
            self._role.raise_job_error()
        return {
            "reports": reports,
            "has_ended": not reports and self._role.job_ended,
            "held_up_by": self._held_up_by,
            "task_id": self._task_info.get("task_id"),
            "buffer_id": self._task_info.get("buffer_id"),
        }

    def deal_with_collector_close(self) -> Mapping[str, Any]:
        """Stop the collector; return its finish info.

        An evaluated policy is published under the task's id, so that the master can keep the
        very weights that earned the result, unless there is no room for them.
        """
        collector, task_id = self._collector, self._task_info.get("task_id")
        if collector is None:
            raise TaskFail({"message": "no collector"}, f"{self.collector_uid} runs no collector")
        self._collector = None
        if not self._role.stop_job():
            raise TaskFail({"message": "stuck"}, f"{self.collector_uid}: the collector hangs")
        self._role.raise_job_error()
        info: dict[str, Any] = dict(collector.get_finish_info())
        info["task_id"] = task_id
        if (
            info.get("eval_flag")
            and self._policy_model is not None
            and PolicyOutlet(self._role).publish(
                str(task_id), self._policy_model, self._policy_version or 0, is_last=True
            )
        ):
            info["policy_id"] = task_id
        self._policy_model = None
        return info

    def _collector_cfg(self, task_info: Mapping[str, Any]) -> Mapping[str, Any]:
        # The path in the message is one of the master's host.
        return {**super()._collector_cfg(task_info), "exp_name": str(self._role.run_dir)}

    # Ways out of the collector ------------------------------------------------------------------
    def get_policy_update_info(self, path: str) -> dict[str, Any] | None:
        newest = self._role.policy_store.newest(path, self._policy_version)
        while newest is None and self._policy_version is None and self._is_run_held_up:
            # The first one found no room; who waits for it need not wonder where it is.
            if self._role.is_stopping:
                return None
            self._role.pause(STORAGE_PAUSE_S)
            newest = self._role.policy_store.newest(path)
        if newest is None:
            return None
        self._policy_version, model = newest
        if self._task_info["collector_cfg"].get("eval_flag"):
            self._policy_model = model
        return {"model": model, "iter": self._policy_version}

    def _payload_id(self, path: str) -> str:
        """Return the id under which a payload is stored: it begins with whose it is."""
        prefix = self._task_info.get("payload_prefix")
        return f"{prefix}-{path}" if prefix else path

    def send_stepdata(self, path: str, stepdata: SampleBatch) -> None:
        data_id = self._payload_id(path)
        while not self._role.is_stopping:
            try:
                info = self._role.data_store.put(data_id, stepdata)
            except StorageFullError as error:
                # Nothing is acknowledged meanwhile; it goes on where it stood once there is room.
                if not self._held_up_by:
                    _log.warning("%s; trying again every %.0f s", error, STORAGE_PAUSE_S)
                self._held_up_by = str(error)
                self._role.pause(STORAGE_PAUSE_S)
            else:
                self._held_up_by = ""
                if info is not None:
                    self._stored[data_id] = info
                return

    def send_metadata(self, metadata: Mapping[str, Any]) -> None:
        if not (metadata.keys() >= _SAMPLE_KEYS or metadata.keys() >= _PROGRESS_KEYS):
            raise ProtocolError(
                f"metadata needs the keys {sorted(_SAMPLE_KEYS)} or {sorted(_PROGRESS_KEYS)}, "
                f"got {sorted(metadata)}",
                where="metadata",
            )
        if "data_id" in metadata:
            metadata = {**metadata, "data_id": self._payload_id(str(metadata["data_id"]))}
        info = self._stored.pop(str(metadata.get("data_id")), None)
        if info is not None:
            metadata = {**metadata, "size_bytes": info.size_bytes, "digest": info.digest}
        with self._role.condition:
            if self._role.job_wait(lambda: len(self._reports) < self._queue_size):
                self._reports.append(metadata)
                self._role.condition.notify_all()
