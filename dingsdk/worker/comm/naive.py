"""Test doubles: workers that implement the whole protocol but do no work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.errors import TaskFail
from dingsdk.worker.comm.slave import Slave
from dingsdk.worker.comm.transport import Transport, WorkerInfo

PAYLOADS = 19
"""Payloads of one task of a NaiveCollector; the next answer says that it is done."""
BATCHES = 5
"""Batches after which a NaiveLearner is done."""
RESOURCE = {"cpu": "20", "gpu": "1"}


class _NaiveWorker(Slave):
    """Stores its task, and counts its payloads or learn tasks."""

    role: str

    def __init__(self, transport: Transport, worker_id: str) -> None:
        super().__init__(transport, WorkerInfo(worker_id, self.role, RESOURCE))
        self._task: Mapping[str, Any] = {}
        self._count = 0

    def _process_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        name = task.get("name")
        if name == "resource":
            return dict(RESOURCE)
        if name == f"{self.role}_start_task":
            self._task, self._count = task["task_info"], 0
            return {"message": f"{self.role} task has started"}
        if name == f"{self.role}_close_task":
            return self._ids()
        raise TaskFail({"message": "task name error"}, f"unknown task {name!r}")

    def _ids(self) -> dict[str, Any]:
        return {"task_id": self._task["task_id"], "buffer_id": self._task["buffer_id"]}


class NaiveCollector(_NaiveWorker):
    """Reports ``PAYLOADS`` fake transitions, one at a time, then that it is done.

    Args:
        prefix: Prefix of its data ids.

    Differs from the reference: payloads go to the transport's store, not to the working
    directory; and it answers ``collector_close_task``, so that its task can finish.
    """

    role = "collector"

    def __init__(
        self, transport: Transport, worker_id: str = "naive_collector", prefix: str = "naive"
    ) -> None:
        super().__init__(transport, worker_id)
        self._prefix = prefix

    def _process_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        if task.get("name") == "collector_data_task":
            return {**self._data(), **self._ids()}
        result = super()._process_task(task)
        if task.get("name") == "collector_close_task":
            is_done = self._count > PAYLOADS
            result |= {"eval_flag": False, "collector_done": is_done, "step_count": 314}
            result |= {"reward_raw": [], "reward_mean": 0.0, "train_iter": 0}
        return result

    def _data(self) -> dict[str, Any]:
        self._count += 1
        if self._count > PAYLOADS:
            done = {"collector_done": True, "cur_episode": 1, "cur_step": 314, "cur_sample": 314}
            return {"reports": [done], "has_ended": True}
        data_id = f"{self._prefix}_{self._task['task_id']}_{self._count}"
        self.transport.data_store().put(data_id, self._get_timestep())
        report = {"data_id": data_id, "rows": 1, "policy_iter": 0, "cur_episode": 0}
        report |= {"cur_step": self._count, "cur_sample": self._count}
        return {"reports": [report], "has_ended": False}

    def _get_timestep(self) -> SampleBatch:
        """Return one row with the columns of a transition."""
        obs = np.zeros((1, 2), np.float32)
        columns = {"obs": obs, "next_obs": obs.copy(), "action": np.zeros(1, np.int64)}
        columns |= {"reward": np.ones(1, np.float32), "done": np.zeros(1, np.bool_)}
        return SampleBatch(columns)


class NaiveLearner(_NaiveWorker):
    """Reads all announced payloads, and is done after ``BATCHES`` learn tasks with a payload."""

    role = "learner"

    def __init__(self, transport: Transport, worker_id: str = "naive_learner") -> None:
        super().__init__(transport, worker_id)
        self.seen: dict[str, int] = {}
        """Number of rows of each payload that was announced to it."""
        self._tasks = 0

    def _process_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        name = task.get("name")
        if name == "learner_learn_task":
            return self._learn(task["data"])
        result = super()._process_task(task)
        if name == "learner_start_task":
            self.seen, self._tasks = {}, 0
        elif name == "learner_close_task":
            result["info"] = self._info([])
        return result

    def _learn(self, data: Mapping[str, Any]) -> dict[str, Any]:
        news = {str(each["data_id"]): int(each["rows"]) for each in data["announcements"]}
        for data_id in news:
            self.transport.data_store().get(data_id)
        self.seen |= news
        self._tasks += 1
        self._count += bool(self.seen)
        info = self._info([{"number": self._tasks, **self._changes(list(news))}])
        return {"info": info, "held_up_by": "", **self._ids()}

    def _changes(self, inserted: list[str]) -> dict[str, Any]:
        """Return what changes in its buffer when it gets payloads."""
        return {"inserted": inserted, "lost": [], "left": []}

    def _info(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "learner_step": self._count,
            "learner_done": self._count >= BATCHES,
            "priority_info": {},
            "reports": reports,
            "trained_rows": self._count,
            "count": sum(self.seen.values()),
            "counts": {},
            "figures": None,
            "is_idle": not self.seen,
            "lag": None,
        }
