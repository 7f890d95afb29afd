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
          most_failures: 0.5
    system:
      collector_num: 2
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dingsdk.config import Share
from dingsdk.errors import ConfigError
from dingsdk.worker import SoloCommander


class PluginNameCommander(SoloCommander):
    """Trains one policy, and plots the share of collector tasks that failed."""

    class Config(SoloCommander.Config, frozen=True, kw_only=True):
        """Section ``policy.other.commander``.

        Attributes:
            most_failures: Share of the collector tasks that may fail. If more fail, the run ends;
                this is checked once 20 tasks have ended.
        """

        type: str = "plugin_name"
        most_failures: Share = 1.0

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"evaluates", "waits"})

    def __init__(self, cfg: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        section = self.read(cfg["policy"]["other"]["commander"], "policy.other.commander")
        self._most_failures: float = section.most_failures
        self.ended = self.failed = 0

    def finish_collector_task(self, task_id: str, finished_task: Mapping[str, Any]) -> bool:
        self.ended += 1
        return super().finish_collector_task(task_id, finished_task)

    def notify_fail_collector_task(self, task: Mapping[str, Any]) -> None:
        super().notify_fail_collector_task(task)
        self.ended += 1
        self.failed += 1
        if self.ended >= 20 and self.failed > self._most_failures * self.ended:
            raise ConfigError(
                f"{self.failed} of {self.ended} collector tasks failed, more than "
                f"policy.other.commander.most_failures {self._most_failures:g}; see the run's log",
                path="policy.other.commander.most_failures",
            )

    def statistics(self) -> dict[str, float]:
        return {**super().statistics(), "failed_share": self.failed / max(self.ended, 1)}
