"""The comm collector: runs parallel collectors for a coordinator."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from dingsdk.config import Count, to_easydict
from dingsdk.data import SampleBatch
from dingsdk.data.collected import versions_of
from dingsdk.data.list_samples import LIST, has_lists
from dingsdk.errors import (
    BufferFullError,
    ProtocolError,
    SchemaMismatchError,
    StorageFullError,
    TaskFail,
)
from dingsdk.worker.collector.env_pool import EnvPool
from dingsdk.worker.comm.publisher import PolicyPublisher
from dingsdk.worker.comm.slave import CLOSE_TIMEOUT_S, TaskFunctions
from dingsdk.worker.comm.transport import Transport
from dingsdk.worker.comm.worker import ANSWER_WITHIN_S, REPLAY_PAUSE_S, REPLAY_WAIT_S, CommWorker
from dingsdk.worker.factory import create_parallel_collector
from dingsdk.worker.inference.client import InferenceClient
from dingsdk.worker.replay_server import ReplayClient

STORAGE_PAUSE_S = 1.0
"""Pause before trying again to store a payload after the storage was full."""
_log = logging.getLogger(__name__)

_SAMPLE_KEYS = {"data_id", "policy_iter"}
_PROGRESS_KEYS = {"collector_done", "cur_episode", "cur_sample", "cur_step"}


class BaseCommCollector(CommWorker):
    """Builds the parallel collector of each task, and sends its data to the coordinator.

    A subclass may override ``send_stepdata``, ``send_metadata`` and ``get_policy_update_info``,
    which the collector calls.

    Args:
        cfg: ``queue_size`` limits the waiting reports; the collector waits while it is reached.
    """

    role = "collector"
    replay: ReplayClient | None = None
    """Replay server for the samples, used instead of the step data store; None for no server."""

    class Config(CommWorker.Config, frozen=True, kw_only=True):
        """Section ``system.collector``.

        Attributes:
            queue_size: Largest number of reports that wait to be sent; the collector pauses while
                it is reached.
        """

        type: str = "base"
        queue_size: Count = 8

    def __init__(self, cfg: Mapping[str, Any], transport: Transport, worker_id: str) -> None:
        super().__init__(cfg, transport, worker_id)
        self._collector: Any = None
        self._env_pool = EnvPool()
        self.inference: InferenceClient | None = None
        """Inference server that computes the actions; None: the collector's own policy acts."""
        self._begin()

    def _begin(self) -> None:
        """Reset the state of an earlier task."""
        self._reports: deque[Mapping[str, Any]] = deque()
        self._sent_reports: list[Mapping[str, Any]] = []
        """Reports of the last answer; the next request confirms that it arrived."""
        self._delivered: Mapping[str, Any] = {}
        """The last report of env steps and policy, for an on-policy learner."""
        self._stored: dict[str, dict[str, Any]] = {}
        """What is announced of each payload besides its metadata: the digest, if it has one."""
        self._unsent: dict[str, SampleBatch] = {}
        """Samples for the replay server that are not announced yet."""
        self._held_up_by = ""
        self._is_run_held_up = False
        self._limits = (math.inf, 0)
        """Env steps that the task may take in total, and the train iteration of the policy to take
        them with (on-policy)."""
        self._is_to_end = False
        self._starved_at: int | None = None
        """Env steps that it has taken while it waits for a higher limit; None: it does not wait."""
        self._policy_versions: dict[str, int] = {}
        self._policy_model: Mapping[str, Any] | None = None

    @property
    def collector_uid(self) -> str:
        """The worker's id."""
        return self.info.worker_id

    def _tasks(self) -> TaskFunctions:
        return {
            "resource": lambda task: self.deal_with_resource(),
            "collector_start_task": lambda task: self.deal_with_collector_start(task["task_info"]),
            "collector_data_task": self._process_data_task,
            "collector_go_on_task": lambda task: self.deal_with_collector_go_on(task["task_id"]),
            "collector_close_task": lambda task: self.deal_with_collector_close(),
        }

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        has_ended = super().close(timeout_s)
        self._env_pool.close()
        if self.replay is not None:
            self.replay.close()
        if self.inference is not None:
            self.inference.close()
        return has_ended

    def deal_with_collector_start(self, task_info: Mapping[str, Any]) -> Mapping[str, Any]:
        """Build the task's collector and run it; raises as ``building``."""
        with self.building(task_info):
            self._begin()
            self._limit_steps(task_info)
            self._collector = made = self._create_collector(task_info)
        self.start_job(made.start, made.close, f"{self.collector_uid}-collector")
        return {"message": "collector task has started"}

    def deal_with_collector_go_on(self, task_id: str) -> Mapping[str, Any]:
        """Continue for a new coordinator; repeat reports that the old one may not have received.

        Raises:
            TaskFail: the collector belongs to another task.
        """
        self.go_on_with_job(task_id)
        with self.condition:
            self._reports.extendleft(reversed(self._sent_reports))
            self._sent_reports = []
            # Not yet, if the new coordinator may not know all payloads of these steps.
            delivered = {} if self._reports else self._delivered
        steps = self._limits[0]
        limit = {"step_limit": None if steps == math.inf else steps}
        return {**limit, **delivered, **self.task_ids()}

    def _limit_steps(self, told: Mapping[str, Any]) -> None:
        limit = told.get("step_limit")
        self._limits = (math.inf if limit is None else limit, int(told.get("policy_iter", 0)))

    def _process_data_task(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        self._is_run_held_up = bool(task.get("is_held_up"))
        with self.condition:
            self._limit_steps(task)
            self._is_to_end |= bool(task.get("ends_now"))
            self.condition.notify_all()
        if "collect_setting" in task and self._collector is not None:
            self._collector.collect_setting = task["collect_setting"]
        if task.get("ends_now") and self._collector is not None:
            self._collector.end_soon()
        return self.deal_with_collector_data()

    def deal_with_collector_data(self) -> Mapping[str, Any]:
        """Return all waiting reports; wait a while for the first one, unless it waits for steps.

        Raises:
            Exception: the collector's error, once all its reports are delivered.
        """
        with self.condition:
            self.task_wait(lambda: bool(self._reports) or self._is_starved, ANSWER_WITHIN_S)
            starved_at = self._starved_at if self._is_starved else None
            reports = self._sent_reports = list(self._reports)
            self._reports.clear()
            self.condition.notify_all()
        if not reports:
            self.raise_job_error()
        has_ended = not reports and self.job_ended
        held_up_by = self._held_up_by
        try:
            self.data_store.flush()
        except StorageFullError as error:
            held_up_by = str(error)
            with self.condition:
                self._reports.extendleft(reversed(reports))
                reports = self._sent_reports = []
                # The master asks again at once, and each try may send megabytes to another host,
                # so wait before the next one.
                self.task_wait(lambda: False, ANSWER_WITHIN_S, outlasts_job=True)
        found = {"reports": reports, "has_ended": has_ended, "held_up_by": held_up_by}
        return {**found, "starved_at": starved_at, **self.task_ids()}

    def deal_with_collector_close(self) -> Mapping[str, Any]:
        """Stop the collector; return its finish info.

        An evaluated policy is published under the task's id, so that the master can keep exactly
        the weights that were evaluated. It is skipped if there is no room.
        """
        collector = self._collector
        if collector is None:
            raise TaskFail({"message": "no collector"}, f"{self.collector_uid} runs no collector")
        self._collector = None
        if not self.stop_job():
            raise TaskFail({"message": "stuck"}, f"{self.collector_uid}: the collector hangs")
        self.raise_job_error()
        info: dict[str, Any] = {**collector.get_finish_info(), **self.task_ids()}
        model, self._policy_model = self._policy_model, None
        if model is not None:  # of an evaluation
            task_id, version = str(info["task_id"]), int(info.get("train_iter", 0))
            if PolicyPublisher(self, task_id).publish(model, version, is_last=True):
                info["policy_id"] = task_id
        return info

    def _create_collector(self, task_info: Mapping[str, Any]) -> Any:
        """Build the task's parallel collector and connect it with this worker."""
        # The run folder in the task is a path on the master's host.
        own = {"exp_name": str(self.run_dir), "instance_name": self.collector_uid}
        shared = {"env_pool": self._env_pool, "inference": self.inference}
        shared["payload_rows"] = task_info.get("payload_rows", 1)
        cfg = to_easydict({**task_info["collector_cfg"], **own})
        collector = create_parallel_collector({**cfg, **shared})
        collector.send_metadata = self.send_metadata
        collector.send_stepdata = self.send_stepdata
        collector.get_policy_update_info = self.get_policy_update_info
        collector.await_steps = self.await_steps
        collector.yield_turn = self.yield_turn
        collector.clock = self.scheduler.clock
        return collector

    def get_policy_update_info(self, path: str) -> dict[str, Any] | None:
        """Return ``{'model': tensors, 'iter': version}`` if there is a newer version, else None."""
        known = self._policy_versions.get(path)
        newest = self.policy_store.newest(path, known)
        while newest is None and known is None and self._is_run_held_up:
            # The first policy was not stored (disk full); keep waiting.
            if self.is_stopping:
                return None
            self.pause(STORAGE_PAUSE_S)
            newest = self.policy_store.newest(path)
        if newest is None:
            return None
        version, model = newest
        self._policy_versions[path] = version
        if self._task_info["collector_cfg"].get("eval_flag"):
            self._policy_model = model
        return {"model": model, "iter": version}

    def await_steps(self, taken: int) -> tuple[float, int]:
        """Wait until the task may take more than ``taken`` env steps.

        Returns:
            How many it may take in total, at most ``taken`` if the task is over; and the train
            iteration of the policy to take them with, if the policy is on-policy.
        """
        with self.condition:
            self._starved_at = taken
            self.condition.notify_all()
            self.job_wait(lambda: not self._is_starved)
            self._starved_at = None
            return self._limits if not self.is_stopping else (taken, 0)

    @property
    def _is_starved(self) -> bool:
        """Whether the collector waits for env steps, and was told neither more steps nor an end."""
        at = self._starved_at
        return at is not None and not self._is_to_end and self._limits[0] <= at

    def _payload_id(self, path: str) -> str:
        prefix = self._task_info.get("payload_prefix")
        return f"{prefix}-{path}" if prefix else path

    def send_stepdata(self, path: str, stepdata: SampleBatch) -> None:
        """Store a payload under an id; wait while the disk is full.

        The caller must not use ``stepdata`` afterwards. The payload is stored at the latest before
        its report is sent.
        """
        data_id = self._payload_id(path)
        if self.replay is not None:
            self._unsent[data_id] = stepdata
            return
        known = self._stored[data_id] = {}
        while not self.is_stopping:
            try:
                info = self.data_store.put_soon(data_id, stepdata)
            except StorageFullError as error:
                # Until then the payload is not acknowledged.
                if not self._held_up_by:
                    _log.warning("%s; trying again every %.0f s", error, STORAGE_PAUSE_S)
                self._held_up_by = str(error)
                self.pause(STORAGE_PAUSE_S)
                continue
            self._held_up_by = ""
            if info is not None:
                known["digest"] = info.digest
            return

    def send_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Report a payload or the progress; wait while too many reports are unsent.

        Raises:
            ProtocolError: ``metadata`` is neither.
        """
        if not (metadata.keys() >= _SAMPLE_KEYS or metadata.keys() >= _PROGRESS_KEYS):
            raise ProtocolError(
                f"metadata needs the keys {sorted(_SAMPLE_KEYS)} or {sorted(_PROGRESS_KEYS)}, "
                f"got {sorted(metadata)}",
                where="metadata",
            )
        is_sample = "data_id" in metadata
        metadata = dict(metadata)
        if is_sample:
            metadata["data_id"] = data_id = self._payload_id(str(metadata["data_id"]))
            samples = self._unsent.pop(data_id, None)
            if samples is not None and not self._insert(samples, int(metadata["policy_iter"])):
                return
            metadata |= self._stored.pop(data_id, {})
        if "delivered_steps" in metadata:
            self._delivered = {key: metadata[key] for key in ("delivered_steps", "policy_iter")}
        with self.condition:
            if self._reports and not is_sample and "data_id" not in self._reports[-1]:
                # Newer progress replaces older: it counts from the start of the task.
                self._reports[-1] = {**self._reports[-1], **metadata}
            elif self.job_wait(lambda: len(self._reports) < self._cfg.queue_size):
                self._reports.append(metadata)
                self.condition.notify_all()

    def _insert(self, samples: SampleBatch, policy_iter: int) -> bool:
        """Insert samples into the replay server, waiting for its limiter; False: stop now.

        Raises:
            SchemaMismatchError: the samples are or contain lists, or do not fit earlier samples.
            ServerLostError: the server does not answer.
        """
        assert self.replay is not None
        if has_lists(samples.columns):
            raise SchemaMismatchError(
                "the policy's train samples are lists or hold some, which a replay server does "
                "not keep; leave system.replay.type at learner",
                key=LIST,
            )
        versions = versions_of(samples)
        if versions is None:
            versions = np.full(len(samples), policy_iter, dtype=np.int64)
        samples = samples.with_columns(collect_iter=versions)
        wait_s = 0.0 if self.scheduler.is_cooperative else REPLAY_WAIT_S
        while not self.is_stopping:
            try:
                self.replay.insert(samples, timeout_s=wait_s)
            except BufferFullError:
                self.pause(REPLAY_PAUSE_S)
            except StorageFullError as error:
                self._held_up_by = str(error)
                self.pause(STORAGE_PAUSE_S)
            else:
                self._held_up_by = ""
                return True
        return False
