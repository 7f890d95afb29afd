"""The example config trains with the plugin."""

from __future__ import annotations

from pathlib import Path

import dingsdk

CONFIG = Path(__file__).parents[1] / "example.yaml"


def test_example_trains(tmp_path: Path) -> None:
    limit = "system.max_env_steps=400"

    result = dingsdk.train(CONFIG, mode="PLUGIN_MODE", sets=[limit], output=tmp_path)

    assert result.env_steps >= 400
    assert result.train_iter > 0
