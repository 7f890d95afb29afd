"""The commander follows the rules of all commanders, and counts failed tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from dingsdk_plugin_name import PluginNameCommander

from dingsdk.errors import ConfigError
from dingsdk.testing import CommanderContract


class TestRules(CommanderContract):
    capabilities = PluginNameCommander.contract_capabilities

    def make_commander(self, cfg: Mapping[str, Any]) -> PluginNameCommander:
        return PluginNameCommander(cfg)


def config(**commander: Any) -> dict[str, Any]:
    policy = {"type": "dqn", "model": {"obs_shape": 4, "action_shape": 2}}
    return {
        "env": {"stop_value": 10, "collector_env_num": 1},
        "policy": {**policy, "other": {"commander": commander}},
    }


def test_failed_tasks_are_counted() -> None:
    commander = PluginNameCommander(config())
    commander.notify_fail_collector_task({"task_id": "a"})
    commander.finish_collector_task("b", {"step_count": 10})

    assert commander.statistics()["failed_share"] == 0.5


def test_too_many_failures_end_the_run() -> None:
    commander = PluginNameCommander(config(most_failures=0.5))
    for number in range(19):
        commander.notify_fail_collector_task({"task_id": f"{number}"})

    with pytest.raises(ConfigError, match="20 of 20 collector tasks failed"):
        commander.notify_fail_collector_task({"task_id": "last"})
