"""A commander for tests of the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dingsdk.worker.commander.base import BaseParallelCommander


class Commander(BaseParallelCommander):
    """Hands out queued tasks, gives preset answers, and records its calls."""

    def __init__(self) -> None:
        super().__init__({"policy": {"other": {"commander": {}}}})
        self.tasks: dict[str, list[dict[str, Any]]] = {"learner": [], "collector": []}
        self.last: dict[str, Any] | None = None
        self.goal_is_reached = False
        self.calls: list[tuple[str, Any]] = []
        self.failed: list[tuple[str, str]] = []
        self.finished: list[dict[str, Any]] = []
        self.loaded: list[dict[str, Any]] = []

    def state_dict(self) -> dict[str, Any]:
        return {"finished": len(self.finished)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loaded.append(dict(state))

    def get_last_eval_task(self) -> dict[str, Any] | None:
        return self.last

    def get_learner_task(self) -> dict[str, Any] | None:
        return self.tasks["learner"].pop(0) if self.tasks["learner"] else None

    def get_collector_task(self) -> dict[str, Any] | None:
        return self.tasks["collector"].pop(0) if self.tasks["collector"] else None

    def notify_fail_learner_task(self, task: Mapping[str, Any]) -> None:
        self.failed.append(("learner", task["task_id"]))

    def notify_fail_collector_task(self, task: Mapping[str, Any]) -> None:
        self.failed.append(("collector", task["task_id"]))

    def update_collector_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        self.calls.append(("collected", info["cur_step"]))

    def finish_collector_task(self, task_id: str, info: Mapping[str, Any]) -> bool:
        self.calls.append(("finished", task_id))
        self.finished.append({"task_id": task_id, **info})
        return self.goal_is_reached

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        self.calls.append(("learned", info["learner_step"]))

    def finish_learner_task(self, task_id: str, info: Mapping[str, Any]) -> str:
        self.calls.append(("finished", task_id))
        return str(info.get("buffer_id", "b"))
