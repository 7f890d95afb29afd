"""The command follows the rules, shows how a run ended, and refuses a folder without a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from dingsdk_plugin_name import plugin_name

import dingsdk
from dingsdk.errors import RunFolderError
from dingsdk.testing import CommandContract

CONFIG = Path(__file__).parents[1] / "example.yaml"


class TestRules(CommandContract):
    command = plugin_name


def test_run_is_told(tmp_path: Path) -> None:
    run = dingsdk.train(CONFIG, sets=["system.max_env_steps=400"], output=tmp_path)

    told = CliRunner().invoke(plugin_name, [str(run.run_dir)], catch_exceptions=False)

    assert told.exit_code == 0
    assert f"{run.reason} after {run.env_steps:,} env steps" in told.output


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot read"):
        CliRunner().invoke(plugin_name, [str(tmp_path)], catch_exceptions=False)
