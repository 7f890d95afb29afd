"""Workers that speak the whole protocol and do no work, for trying out masters and transports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.worker.comm.slave import JOIN_TIMEOUT_S, Slave
from dingsdk.worker.comm.transport import Transport, WorkerInfo

PAYLOADS = 19
"""Payloads of one task of a NaiveCollector; the next answer says that it is done."""
BATCHES = 5
"""Learn tasks after which a NaiveLearner is done."""


class _NaiveWorker(ABC):
    """Joins the master and answers tasks from a table."""

    role: str

    def __init__(self, transport: Transport, worker_id: str) -> None:
        self._transport = transport
        self._info = WorkerInfo(worker_id, self.role, self.resource())
        self._slave: Slave | None = None
        self._task: Mapping[str, Any] = {}
        self._count = 0

    @staticmethod
    def resource() -> dict[str, Any]:
        """What the worker says its host offers."""
        return {"cpu": "20", "gpu": "1"}

    def start(self, address: str, timeout_s: float = JOIN_TIMEOUT_S) -> None:
        """Join the master at ``address`` and serve from then on."""
        end = self._transport.slave_end(address)
        self._slave = Slave(
            end,
            self._transport.scheduler,
            self._info,
            callback_fn={
                "resource": lambda task: self.resource(),
                f"{self.role}_start_task": self._start,
                f"{self.role}_close_task": lambda task: self._close_task(),
                **self._tasks(),
            },
            renew=lambda: end.renew(self._count),
        )
        self._slave.start(timeout_s)

    def close(self) -> None:
        if self._slave is not None:
            self._slave.close()

    @abstractmethod
    def _tasks(self) -> Mapping[str, Any]:
        """Task name -> function, beside start and close."""

    def _close_task(self) -> dict[str, Any]:
        return self._ids()

    def _start(self, task: Mapping[str, Any]) -> dict[str, Any]:
        self._task, self._count = task["task_info"], 0
        return {"message": f"{self.role} task has started"}

    def _ids(self) -> dict[str, Any]:
        return {"task_id": self._task["task_id"], "buffer_id": self._task["buffer_id"]}


class NaiveCollector(_NaiveWorker):
    """Reports one fake transition at a time, ``PAYLOADS`` of them, then that it is done.

    Args:
        transport: What it is connected by.
        worker_id: Unique in the run.
        prefix: Begins its data ids.

    Differs from the reference: payloads go to the transport's store, not to the working
    directory; and it answers ``collector_close_task``, so that its task can finish.
    """

    role: str = "collector"

    def __init__(
        self, transport: Transport, worker_id: str = "naive_collector", prefix: str = "naive"
    ) -> None:
        super().__init__(transport, worker_id)
        self._prefix = prefix
        self._store = transport.data_store()

    def _tasks(self) -> Mapping[str, Any]:
        return {"collector_data_task": lambda task: self._data()}

    def _data(self) -> dict[str, Any]:
        self._count += 1
        if self._count > PAYLOADS:
            done = {"collector_done": True, "cur_episode": 1, "cur_step": 314, "cur_sample": 314}
            return {"reports": [done], "has_ended": True, **self._ids()}
        data_id = f"{self._prefix}_{self._task['task_id']}_{self._count}"
        self._store.put(data_id, fake_transition())
        report = {
            "data_id": data_id,
            "rows": 1,
            "policy_iter": 0,
            "cur_episode": 0,
            "cur_step": self._count,
            "cur_sample": self._count,
        }
        return {"reports": [report], "has_ended": False, **self._ids()}

    def _close_task(self) -> dict[str, Any]:
        return {
            **self._ids(),
            "eval_flag": False,
            "collector_done": self._count > PAYLOADS,
            "step_count": 314,
            "reward_raw": [],
            "reward_mean": 0.0,
            "train_iter": 0,
        }


class NaiveLearner(_NaiveWorker):
    """Asks for batches, looks at their payloads, and is done after ``BATCHES`` learn tasks."""

    role: str = "learner"

    def __init__(self, transport: Transport, worker_id: str = "naive_learner") -> None:
        super().__init__(transport, worker_id)
        self._store = transport.data_store()
        self.seen: set[str] = set()
        """Data ids that it was told of and read."""

    def _tasks(self) -> Mapping[str, Any]:
        return {
            "learner_get_data_task": lambda task: self._demand(),
            "learner_learn_task": lambda task: self._learn(task["data"]),
        }

    def _demand(self) -> dict[str, Any]:
        return {"batch_size": 2, "batches": 1, "cur_learner_iter": self._count, **self._ids()}

    def _learn(self, data: Mapping[str, Any]) -> dict[str, Any]:
        for data_id in data["payloads"]:
            self._store.get(data_id)
            self.seen.add(data_id)
        self._count += 1
        info = {
            "learner_step": self._count,
            "priority_info": {},
            "lost_payloads": [],
            "learner_done": self._count >= BATCHES,
        }
        return {"info": info, **self._ids()}


def fake_transition() -> SampleBatch:
    """Return one row shaped like a transition."""
    return SampleBatch(
        {
            "obs": np.zeros((1, 2), np.float32),
            "next_obs": np.zeros((1, 2), np.float32),
            "action": np.zeros(1, np.int64),
            "reward": np.ones(1, np.float32),
            "done": np.zeros(1, np.bool_),
        }
    )
