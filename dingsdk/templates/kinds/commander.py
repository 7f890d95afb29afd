"""A commander that counts the tasks that fail.

A commander decides the next task of each worker of a parallel run. This one extends `SoloCommander`, which
trains one policy and evaluates it from time to time. For anything else, extend `BaseParallelCommander`:
`get_collector_task` and `get_learner_task` return a task or None, and `finish_...` and `notify_fail_...`
are called when a task has finished or failed. Once enough data is collected, `get_eval_task` is called
instead of `get_collector_task` while learners continue to train, and `get_last_eval_task` after the
training. No method may block, and the coordinator calls one at a time. `statistics` returns values of the
run that are plotted as curves.

    policy:
      other:
        commander:
          type: plugin_name
    system:
      collector_num: 2
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dingsdk.worker import SoloCommander


class PluginNameCommander(SoloCommander):
    """Trains one policy, and plots the share of collector tasks that failed."""

    class Config(SoloCommander.Config, frozen=True, kw_only=True):
        """Section ``policy.other.commander``; add your options here."""

        type: str = "plugin_name"

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"evaluates", "waits"})

    ended = failed = 0

    def finish_collector_task(self, task_id: str, finished_task: Mapping[str, Any]) -> bool:
        self.ended += 1
        return super().finish_collector_task(task_id, finished_task)

    def notify_fail_collector_task(self, task: Mapping[str, Any]) -> None:
        super().notify_fail_collector_task(task)
        self.ended += 1
        self.failed += 1

    def statistics(self) -> dict[str, float]:
        return {**super().statistics(), "failed_share": self.failed / max(self.ended, 1)}
