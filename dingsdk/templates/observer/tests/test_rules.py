"""The observer follows the rules, and writes the results of evaluations."""

from __future__ import annotations

import json
from pathlib import Path

import dingsdk_plugin_name

import dingsdk
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.testing import ObserverContract

CONFIG = Path(__file__).parents[1] / "example.yaml"


class TestRules(ObserverContract):
    plugin = dingsdk_plugin_name


def test_every_evaluation_is_written(tmp_path: Path) -> None:
    with use_manager(PluginManager()) as manager:
        manager.register_plugin(dingsdk_plugin_name)
        sets = ["system.max_env_steps=400", "policy.eval.evaluator.eval_freq=1"]
        run = dingsdk.train(CONFIG, sets=sets, output=tmp_path)

    written = (run.run_dir / dingsdk_plugin_name.FILE).read_text().splitlines()
    told = [json.loads(line)["mean_return"] for line in written]
    assert told == [each.mean for each in run.evaluations]
    assert len(told) > 1
