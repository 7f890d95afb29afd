"""How many env steps each collector may take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dingsdk.worker.coordinator.on_policy import OnPolicyPayloads
from dingsdk.worker.coordinator.scheduler_state import SchedulerState
from dingsdk.worker.coordinator.tasks import TaskState

LEAST_SHARE, LARGEST_SHARE = 64, 4096
"""Env steps that a collector may get at once: others wait for those that it does not take."""


class StepLimits:
    """Limits the env steps of each collector, so that all together take those of the run.

    On-policy, ``Admission`` limits them instead. The caller locks.

    Args:
        state: The state of the run.
        cfg: The compiled config.
    """

    def __init__(self, state: SchedulerState, cfg: Mapping[str, Any]) -> None:
        self._state = state
        self._max_env_steps = cfg["system"].get("max_env_steps")
        self._is_on_policy = bool(cfg["policy"].get("on_policy"))

    def of(self, task: TaskState) -> dict[str, int | None]:
        """Return ``step_limit``: how many env steps a task may take in total, None for no limit.

        On-policy, the result also has ``policy_iter``: the train iteration of the policy that a
        collector must have before it takes them.
        """
        if task.is_evaluation:
            return {"step_limit": None}
        payloads = self._state.payloads_of(task)
        if isinstance(payloads, OnPolicyPayloads):
            return {**payloads.admit(task.task_id)}
        if self._is_on_policy:
            return {"step_limit": 0}  # its buffer is closed
        if self._max_env_steps is None:
            return {"step_limit": None}
        return {"step_limit": self._raised(task, self._max_env_steps)}

    def _raised(self, task: TaskState, max_env_steps: int) -> int:
        """Raise a task's limit by a share of the steps that are left, if it has used it up."""
        tasks = [each for each in self._state.running.values() if each.kind == "collector"]
        others = (max(0, each.step_limit - each.env_steps) for each in tasks if each is not task)
        left = max(0.0, max_env_steps - self._state.env_steps - sum(others))
        count = max(len(tasks), self._state.roles["collector"].worker_num)
        share = max(LEAST_SHARE, math.ceil(left / max(1, count)))
        more = int(min(left, share, LARGEST_SHARE))
        task.step_limit = max(task.step_limit, task.env_steps + more)
        return int(task.step_limit)
