"""Every benchmark script runs to its end, at sizes too small for meaningful figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COMMANDS = {
    "bench_env": [
        *["--envs", "CartPole-v1", "--step-us", "--counts", "2", "64"],
        *["--seconds", "0.1", "--repeats", "1", "--budget", "1"],
    ],
    "buffers": [
        *["--quick", "--only", "uniform", "--peers"],
        *["--w1-capacity", "3000", "--w2-capacity", "2100", "--growth-max", "3000"],
    ],
    "collect": ["--envs", "2", "--rounds", "4", "--seconds", "0.02", "--repeats", "1"],
    "envs": ["--seconds", "0.2", "--repeats", "1"],
    "learners": ["--batch-size", "8", "--hidden", "8", "--rounds", "1"],
    "library": ["--env-steps", "1000", "--repeats", "1"],
    "offline": [
        *["--env", "Pendulum-v1", "--steps", "600", "--iterations", "20"],
        *["--expert-episodes", "2", "--mixed-episodes", "10", "--played", "2"],
    ],
    "offline feed": ["feed", "--rows", "2000", "--rounds", "1"],
    "parallel_floor": [
        *["--jobs", "dqn", "--env-steps", "600", "--seeds", "1"],
        *["--contenders", "floor", "in_memory"],
    ],
    "plugins": ["--installed", "3", "--repeats", "1"],
    "policy_lag": ["--seconds", "6", "--repeats", "1", "--lags", "2", "null"],
    "replay_server": ["--seconds", "0.1", "--rounds", "1", "--rows", "20000"],
    "simulator": ["--seconds", "10", "--repeats", "1"],
    "startup": ["--repeats", "1"],
    "time_to_solve": ["--seeds", "1", "--set", "env.stop_value=1", "--transports", "in_memory"],
    "train": ["--jobs", "dqn", "--env-steps", "600", "--seeds", "1", "--contenders", "serial"],
    "transport": ["trajectories", "policy", "--seconds", "0.1", "--rounds", "1"],
    "transport home": ["home"],
    "transport ray": ["ray", "--seconds", "0.1"],
    "transport shared_memory": ["shared_memory", "--seconds", "0.1", "--rounds", "1"],
    "updates": ["--rounds", "1"],
    "watch": ["--env-steps", "10000", "--repeats", "1"],
}


def test_every_script_is_run() -> None:
    scripts = {path.stem for path in BENCHMARKS.glob("[a-z]*.py")}
    run = {name.partition(" ")[0] for name in COMMANDS}
    assert scripts == run


def left_by_peers() -> set[str]:
    patterns = "sem.hdr*", "sem.obj*", "iox2_*", "dingsdk-*_*"
    return {path.name for each in patterns for path in Path("/dev/shm").glob(each)}


@pytest.mark.slow
@pytest.mark.timeout(240)  # some scripts start two clusters; the machine may be busy
@pytest.mark.parametrize("name", COMMANDS)
def test_script_prints_figures_and_leaves_nothing_in_shared_memory(
    name: str, tmp_path: Path
) -> None:
    before = left_by_peers()
    done = subprocess.run(
        [sys.executable, BENCHMARKS / f"{name.partition(' ')[0]}.py", *COMMANDS[name]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert any(each.isdigit() for each in done.stdout)
    assert left_by_peers() <= before
