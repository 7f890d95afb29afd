"""A training from the command line, and what it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CAP_S = 150


def test_command_line_starts_ray_trains_and_stops_it(tmp_path: Path) -> None:
    sets = ["system.max_env_steps=1000", "system.transport.object_store_bytes=200000000"]
    command = [sys.executable, "-m", "dingsdk", "train", "cartpole-dqn", "--mode", "parallel"]
    command += ["--transport", "ray", "-q", "--output", str(tmp_path)]
    command += [part for each in sets for part in ("--set", each)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CAP_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result = json.loads((tmp_path / "cartpole-dqn" / "result.json").read_text())
    assert result["reason"] == "limit"
    assert result["env_steps"] >= 1000
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(tmp_path) not in listed.stdout
