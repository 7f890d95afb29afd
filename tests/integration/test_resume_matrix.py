"""Interrupted and killed runs of every policy, with every space it supports, resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from dingsdk import resume
from dingsdk.config import save_config
from dingsdk.data.pytree import flatten
from dingsdk.testing import StopAndGo
from dingsdk.worker.learner.checkpoint import load_checkpoint

from .test_parallel_resume import ITERATIONS, python, status, wait_until

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
OBSERVATIONS = {
    "flat": VECTOR,
    "image": IMAGE,
    "dict": spaces.Dict(picture=IMAGE, vector=VECTOR, place=spaces.Discrete(4)),
    "mask": spaces.Dict(vector=VECTOR, action_mask=spaces.MultiBinary(4)),
}
ACTIONS = {"discrete": spaces.Discrete(4), "box": spaces.Box(-2, 2, (2,), np.float32)}


class Noise(gym.Env[Any, Any]):
    """Episodes of 5 to 12 steps with random observations and rewards; masked actions raise."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium's declaration

    def __init__(self, observation: str, action: str) -> None:
        self.observation_space = OBSERVATIONS[observation]
        self.action_space = ACTIONS[action]
        self.is_masked = observation == "mask"

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(5, 13))
        return self._drawn(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.is_masked and not self.mask[action]:
            raise RuntimeError(f"action {action} is masked")
        self.left -= 1
        reward = float(np.sum(action)) * 0.1 + float(self.np_random.normal())
        return self._drawn(), reward, self.left == 0, False, {}

    def _drawn(self) -> Any:
        draw = self.np_random
        vector = draw.uniform(-1, 1, 3).astype(np.float32)
        picture = draw.integers(0, 256, IMAGE.shape, np.uint8)
        self.mask = np.array([1, *draw.integers(0, 2, 3)], np.int8)
        space = self.observation_space
        if isinstance(space, spaces.Dict):
            parts = {
                "picture": picture,
                "vector": vector,
                "place": np.int64(draw.integers(4)),
                "action_mask": self.mask,
            }
            return {name: parts[name] for name in space.spaces}
        return vector if space == VECTOR else picture


LSTM = {"model": {"recurrent": "lstm"}, "learn": {"sequence_len": 4}}
ADVANCED = {"priority": True, "other": {"replay_buffer": {"type": "advanced"}}}
NORMALIZED = {"normalize": {"obs": True, "reward": True}}
CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    **{
        f"{policy}-{observation}": (policy, observation, "discrete", {})
        for policy in ("dqn", "r2d2", "ppo")
        for observation in OBSERVATIONS
    },
    **{f"ppo-{each}-box": ("ppo", each, "box", {}) for each in ("flat", "image", "dict")},
    **{f"sac-{each}-box": ("sac", each, "box", {}) for each in ("flat", "dict")},
    "dqn-prioritized": ("dqn", "flat", "discrete", ADVANCED),
    "r2d2-prioritized": ("r2d2", "dict", "discrete", ADVANCED),
    "ppo-recurrent": ("ppo", "flat", "discrete", LSTM),
    "ppo-normalized": ("ppo", "dict", "box", NORMALIZED),
    "dqn-normalized": ("dqn", "mask", "discrete", NORMALIZED),
    "r2d2-normalized": ("r2d2", "flat", "discrete", NORMALIZED),
    "sac-normalized": ("sac", "flat", "box", NORMALIZED),
}


def config(case: str) -> dict[str, Any]:
    policy, observation, action, extra = CASES[case]
    section: dict[str, Any] = {
        "type": policy,
        "model": {**extra.get("model", {})},
        "learn": {
            "batch_size": 8,
            "update_per_collect": 4,
            "learner": {"train_iterations": 40, "hook": {"save_ckpt_after_iter": 5}},
            **extra.get("learn", {}),
        },
        "collect": {"n_sample": 16},
        "eval": {"evaluator": {"eval_freq": 20}},
        "other": {"replay_buffer": {"replay_buffer_size": 256}},
    }
    if policy == "ppo":
        del section["learn"]["update_per_collect"]
        section["learn"]["epoch_per_collect"] = 2
        section["collect"]["n_sample"] = 64
    section["other"]["replay_buffer"] |= extra.get("other", {}).get("replay_buffer", {})
    section |= {key: extra[key] for key in ("priority", "normalize") if key in extra}
    return {
        "exp_name": "run",
        "seed": 5,
        "env": {
            "env_id": f"{__name__}:Noise",
            "kwargs": {"observation": observation, "action": action},
            "collector_env_num": 2,
            "evaluator_env_num": 2,
            "n_evaluator_episode": 2,
            "stop_value": 1e9,
        },
        "env_manager": {"type": "in_process", "max_retry": 0},
        "policy": section,
        "system": {"journal": {"enabled": True}, "validate_state": True},
    }


QUICK = ("dqn-prioritized", "ppo-mask")


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in CASES]
)
def test_interrupted_run_equals_an_uninterrupted_one(tmp_path: Path, case: str) -> None:
    StopAndGo(config(case)).run(tmp_path, after_iterations=[7, 26])


SCRIPT = """
import sys
from dingsdk import train
if __name__ == "__main__":
    train(sys.argv[1], "parallel", sys.argv[2], sys.argv[3:])
"""
KILLED = ("dqn-dict", "r2d2-prioritized", "ppo-mask", "sac-flat-box")
KILLED_PROCESSES = ("dqn-mask", "ppo-image")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("transport", "case"),
    [*(("in_memory", case) for case in KILLED), *(("flask_fs", case) for case in KILLED_PROCESSES)],
)
def test_killed_parallel_run_can_be_resumed(tmp_path: Path, transport: str, case: str) -> None:
    save_config(config(case), tmp_path / "config.yaml")
    (tmp_path / "train.py").write_text(SCRIPT)
    run = tmp_path / "runs" / "run"
    pointer = run / "ckpt" / "latest.json"
    with python("train.py", "config.yaml", transport, f"{ITERATIONS}=1000000", cwd=tmp_path):
        wait_until(lambda: status(run)["train_iter"] > 10 and pointer.is_file(), timeout_s=240.0)
    before = status(run)
    assert not (run / "result.json").exists()
    kept = load_checkpoint(run / "ckpt").iteration
    target = max(kept, before["train_iter"]) + 20
    result = resume(run, sets=[f"{ITERATIONS}={target}"])

    assert result.reason == "limit"
    # On-policy training ends after a whole round, which has many iterations.
    assert result.train_iter >= target if case.startswith("ppo") else result.train_iter == target
    assert result.env_steps > before["env_steps"]
    result.samples.check()
    assert result.samples.acknowledged >= before["samples"]["acknowledged"]
    # The payloads of in_memory are lost with the process and count as missing. On-policy training
    # may have used all of them before.
    if not case.startswith("ppo") or transport == "flask_fs":
        assert ("missing" in result.samples.evicted) == (transport == "in_memory")
    final = load_checkpoint(run / "ckpt")
    assert final.iteration == result.train_iter
    weights = [np.asarray(leaf) for _, leaf in flatten(final.state) if hasattr(leaf, "shape")]
    assert weights
    assert all(np.isfinite(each).all() for each in weights)
