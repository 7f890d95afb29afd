"""The buffer benchmark measures every section and lists the peer libraries it did not find."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "buffers.py"
OPERATIONS = {"push", "one", "uniform", "priority", "sequence"}


def run(tmp_path: Path, *options: str) -> dict[str, Any]:
    file = tmp_path / "found.json"
    # 32 sequences of 64 steps need 2,048 rows.
    sizes = ["--w1-capacity", "3000", "--w2-capacity", "2100", "--growth-max", "3000"]
    done = subprocess.run(
        [sys.executable, SCRIPT, "--quick", *sizes, "--dir", tmp_path, "--json", file, *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_every_section_measures_numpy_and_the_buffer(tmp_path: Path) -> None:
    found = run(tmp_path, "--plot", str(tmp_path / "growth.png"))
    measured = {(each["section"], each["load"], each["name"]) for each in found["figures"]}
    both = {(who, load) for who in ("bare numpy", "dingsdk") for load in ("W1", "W2")}
    expected = {(section, load, who) for section in OPERATIONS for who, load in both}
    expected |= {("memory", load, what) for load in ("W1", "W2") for what in ("naive", "next_of")}
    expected |= {("keep", "W1", who) for who in ("bare numpy", "dingsdk")}
    expected |= {("growth", "W1", section) for section in OPERATIONS}
    assert measured == expected
    assert (tmp_path / "growth.png").stat().st_size > 0


def test_missing_peer_libraries_are_listed(tmp_path: Path) -> None:
    found = run(tmp_path, "--only", "uniform", "--peers")
    measured = {each["name"] for each in found["figures"]}
    for peer in ("stable-baselines3", "cpprb", "tianshou", "torchrl"):
        assert (peer in measured) != any(peer in what for what in found["missing"])
