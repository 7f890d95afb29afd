"""A test double: a commander that issues tasks without limit or evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dingsdk.worker.commander.base import BaseParallelCommander, LimitedSpaceContainer, Task
from dingsdk.worker.commander.tasks import collector_task, learner_task

POLICY_ID = "test"
BUFFER_ID = "test"


class NaiveCommander(BaseParallelCommander):
    """Issues collector and learner tasks as long as places are free; never evaluates.

    The policy id is ``test``. In DI-engine the policy id is ``test.pth``, but here ids are not file
    names.
    """

    class Config(BaseParallelCommander.Config, frozen=True, kw_only=True):
        """Section ``policy.other.commander``.

        Attributes:
            collect_setting: Keyword arguments for the collect policy.
        """

        type: str = "naive"
        collect_setting: dict[str, Any] = msgspec.field(default_factory=lambda: {"eps": 0.9})

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        self._collect_setting: dict[str, Any] = dict(self._own.collect_setting)
        self._collector_count = self._learner_count = 0
        self._out: set[str] = set()
        self.finished_collector_tasks = 0
        self.learner_info: dict[str, Mapping[str, Any]] = {}
        """Newest info of each learner task."""

    def get_collector_task(self) -> Task | None:
        if not self._collector_space.acquire_space():
            return None
        number, self._collector_count = self._collector_count, self._collector_count + 1
        task_id = f"collector_task_id{number}"
        self._out.add(task_id)
        return collector_task(
            self._cfg,
            task_id,
            BUFFER_ID,
            POLICY_ID,
            number=number,
            collect_setting=self._collect_setting,
        )

    def get_learner_task(self) -> Task | None:
        if not self._learner_space.acquire_space():
            return None
        number, self._learner_count = self._learner_count, self._learner_count + 1
        task_id = f"learner_task_id{number}"
        self._out.add(task_id)
        return learner_task(self._cfg, task_id, BUFFER_ID, POLICY_ID, number=number)

    def finish_collector_task(self, task_id: str, finished_task: Mapping[str, Any]) -> None:
        self.finished_collector_tasks += self._end(task_id, self._collector_space)

    def finish_learner_task(self, task_id: str, finished_task: Mapping[str, Any]) -> str:
        self._end_learner(task_id)
        return str(finished_task["buffer_id"])

    def notify_fail_collector_task(self, task: Mapping[str, Any]) -> None:
        self._end(task["task_id"], self._collector_space)

    def notify_fail_learner_task(self, task: Mapping[str, Any]) -> None:
        self._end_learner(task["task_id"])

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "counts": [self._collector_count, self._learner_count, self.finished_collector_tasks],
            "out": sorted(self._out),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._collector_count, self._learner_count, self.finished_collector_tasks = state["counts"]
        self._out = set(state["out"])

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        self.learner_info[task_id] = dict(info)

    def _end_learner(self, task_id: str) -> None:
        self._end(task_id, self._learner_space)
        self.learner_info.pop(task_id, None)

    def _end(self, task_id: str, space: LimitedSpaceContainer) -> bool:
        """Free the place of a task; return False if the task is unknown or has ended."""
        if task_id not in self._out:
            return False
        self._out.remove(task_id)
        space.release_space()
        return True
