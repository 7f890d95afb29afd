"""The bridge to DI-engine's policies: conversions, and whole runs with the real DI-engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from dingsdk_di_engine.policy import (
    DIEnginePolicy,
)

from dingsdk.errors import ConfigError

PACKAGES = Path(__file__).parents[3] / ".venv" / "di-engine"
"""Folder in which `make test-all` installs DI-engine, separate from all other packages."""


def test_shapes_come_from_the_spaces() -> None:
    box = gym.spaces.Box(-1, 1, (4,))
    image = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    shapes = DIEnginePolicy.model_from_spaces

    assert shapes(box, gym.spaces.Discrete(2)) == {"obs_shape": 4, "action_shape": 2}
    assert shapes(image, box) == {"obs_shape": [4, 84, 84], "action_shape": 4}
    with pytest.raises(ConfigError, match="observation space Discrete"):
        shapes(gym.spaces.Discrete(3), gym.spaces.Discrete(2))
    with pytest.raises(ConfigError, match="action space MultiBinary"):
        shapes(box, gym.spaces.MultiBinary(2))
    with pytest.raises(ConfigError, match="action space Box"):
        shapes(box, gym.spaces.Box(-1, 1, (2, 3)))


def test_without_di_engine_the_config_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"cannot be imported.*README") as caught:
        DIEnginePolicy({"name": "dqn"})
    assert caught.value.path == "policy.type"


def run(tmp_path: Path, policy: dict[str, Any], *args: str, env: str = "CartPole-v1") -> Any:
    """Train with DI-engine on the path; return the completed process."""
    assert PACKAGES.is_dir(), "DI-engine is not installed: `make test-all` does it"
    cfg = {
        "exp_name": "bridge",
        "env": {
            "env_id": env,
            "collector_env_num": 4,
            "evaluator_env_num": 2,
            "n_evaluator_episode": 4,
            "stop_value": 195,
        },
        "env_manager": {"type": "base"},
        "policy": {"type": "di_engine", **policy},
    }
    path = tmp_path / "bridge.yaml"
    path.write_text(yaml.safe_dump(cfg))
    return train(tmp_path, path, *args)


def train(folder: Path, path: Path, *args: str) -> Any:
    command = [sys.executable, "-m", "dingsdk", "train", str(path), "--seed", "0", *args]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PACKAGES), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
    )


ZOO = """
import json, runpy, sys, warnings
from pathlib import Path

warnings.simplefilter("ignore")
from dingsdk.config import load_config
from dingsdk.errors import ConfigError
from dingsdk.pipeline.train import compile_run
from dingsdk_di_engine.keys import NO_SECTION, ONLY

KINDS = {"dqn", "ppo", "sac", "r2d2", "td3"}
REASONS = {reason for _, reason in ONLY.values()} | set(NO_SECTION.values())


def compiled(cfg):
    try:
        compile_run(cfg, sets=["policy.cuda=false"])
    except ConfigError as error:
        return error


found = {}
for path in sorted(Path(sys.argv[1], "dizoo").glob("**/config/**/*.py")):
    try:
        cfg = load_config(path)
    except ConfigError:
        continue  # it needs other packages, or is none
    kind = str(cfg.get("create_config", {}).get("policy", {}).get("type"))
    if kind.removesuffix("_command") not in KINDS:
        continue
    error, outcome = compiled(cfg), "runs"
    if error is not None and "refused" in error.facts:
        assert set(error.refused.values()) <= REASONS, (path, error)
        outcome = "refused"
        for place in error.refused:
            *parents, last = place.split(".")
            section = cfg if parents[0].endswith("_config") else cfg["main_config"]
            if parents[0] == "system":
                section = {"system": cfg["system_config"]}
            for key in parents:
                section = section[key]
            del section[last]
        error = compiled(cfg)
    found[str(path)] = outcome if error is None else f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""

NOT_HERE = {
    "cartpole_dqn_config_k8s": "policy.other.commander.collector_task_space",
    "cartpole_drex_dqn_config": "policy.collect.n_episode",
    "pendulum_dqn_config": "env.kwargs",
    "pong_dqn_render_config": "policy.eval.evaluator.render.render_freq",
}
"""Configs of the zoo with a value that no run here can have: other options of the env in gymnasium,
videos of envs in processes, no place for collectors, no number of episodes; with the path."""


@pytest.mark.slow
def test_each_key_of_the_zoo_is_mapped_or_refused_with_its_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ZOO, str(PACKAGES)],
        cwd=tmp_path,  # MuJoCo writes a log there
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])

    for name, outcome in found.items():
        if outcome.startswith("UnknownEnvError"):
            assert "is no env of gymnasium" in outcome, name
        elif outcome not in ("runs", "refused"):
            assert NOT_HERE[Path(name).stem] in outcome, (name, outcome)
    outcomes = Counter(found.values())
    assert outcomes["runs"] >= 45
    assert outcomes["refused"] >= 44


@pytest.mark.slow
def test_config_module_of_the_zoo_trains_unchanged_in_both_modes(tmp_path: Path) -> None:
    for name, mode in (("pendulum_td3_config", "serial"), ("pendulum_sac_config", "parallel")):
        path = PACKAGES / "dizoo/classic_control/pendulum/config" / f"{name}.py"
        folder = tmp_path / mode
        folder.mkdir()
        ended = train(folder, path, "--mode", mode, "--set", "system.max_env_steps=1500")
        assert result_of(ended, folder)["env_steps"] >= 1500


def result_of(ended: Any, tmp_path: Path) -> dict[str, Any]:
    assert ended.returncode == 0, ended.stderr[-2000:]
    (path,) = tmp_path.glob("runs/*/result.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


RAINBOW = {
    "name": "rainbow",
    "priority": True,
    "nstep": 3,
    "learn": {"batch_size": 32, "update_per_collect": 2},
    "collect": {"n_sample": 80},
    "model": {"encoder_hidden_size_list": [32, 32], "v_min": -10, "v_max": 10, "n_atom": 11},
    "other": {"replay_buffer": {"type": "advanced"}},
}
TD3 = {
    "name": "td3",
    "learn": {"batch_size": 32, "update_per_collect": 2},
    "collect": {"n_sample": 48},
    "model": {"action_space": "regression", "twin_critic": True},
    "config": {"collect": {"noise_sigma": 0.1}},
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize(
    ("policy", "env"), [(RAINBOW, "CartPole-v1"), (TD3, "Pendulum-v1")], ids=["rainbow", "td3"]
)
def test_policy_of_di_engine_trains_in_both_modes(
    tmp_path: Path, policy: dict[str, Any], env: str, mode: str
) -> None:
    ended = run(tmp_path, policy, "--set", "system.max_env_steps=1500", "--mode", mode, env=env)

    result = result_of(ended, tmp_path)
    assert result["env_steps"] >= 1500
    assert result["train_iter"] > 10
    assert list(tmp_path.glob("runs/*/ckpt/*.safetensors"))
