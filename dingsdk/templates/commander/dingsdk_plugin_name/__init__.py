"""A commander that counts the tasks that fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dingsdk import hookimpl
from dingsdk.config import Share
from dingsdk.errors import ConfigError
from dingsdk.plugins import Registry
from dingsdk.worker import SoloCommander

__all__ = ["PluginNameCommander"]


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


@hookimpl
def dingsdk_register_commanders(registry: Registry) -> None:
    """Register the commander under its type key."""
    registry.register("plugin_name", PluginNameCommander)
