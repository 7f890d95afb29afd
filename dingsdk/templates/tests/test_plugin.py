"""The plugin follows the rules of its kind, and the example trains with it."""

from pathlib import Path

import dingsdk
from dingsdk.testing import check_plugin

CONFIG = Path(__file__).parents[1] / "example.yaml"


def test_plugin_follows_the_rules_of_its_kind() -> None:
    report = check_plugin("dingsdk-rl-plugin-name")

    assert report.is_passed, str(report)


def test_example_trains(tmp_path: Path) -> None:
    limit = "system.max_env_steps=400"

    result = dingsdk.train(CONFIG, mode="PLUGIN_MODE", sets=[limit], output=tmp_path)

    assert result.env_steps >= 400
    assert result.train_iter > 0
