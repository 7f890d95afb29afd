"""Envs for child processes. The processes import this module by its name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

STEP, RAISE, EXIT, HANG, TELL = range(5)


class ChildEnv(gym.Env[Any, Any]):
    """Observes [a number drawn at reset, step]. An episode has three steps with rewards 1, 2, 3.

    Actions: RAISE raises, EXIT ends the process with code 3, HANG waits until the fifo ``gate``
    is opened for writing, TELL puts the process id and whether torch was imported into the info.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, gate: Path | None = None) -> None:
        self._gate = gate

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        self._drawn = (options or {}).get("start", self.np_random.random())
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        info = {}
        if action == RAISE:
            raise RuntimeError("raises in the child")
        if action == EXIT:
            os._exit(3)
        if action == HANG:
            assert self._gate is not None
            self._gate.open().close()
        if action == TELL:
            info.update(pid=os.getpid(), has_torch="torch" in sys.modules)
        self._time += 1
        if is_over := self._time == 3:
            info["episode_info"] = {"length": 3}
        return self._observe(), float(self._time), is_over, False, info

    def reward_shaping(self, transitions: list[dict[str, Any]]) -> None:
        for each in transitions:
            each["reward"] += 10

    def enable_save_replay(self, path: str) -> None:
        (Path(path) / f"replay-{os.getpid()}-{id(self)}").touch()

    def enable_save_figure(self, path: str) -> None:
        if path == "gate":
            assert self._gate is not None
            self._gate.open().close()
        raise OSError("no room for a figure")

    def _observe(self) -> Any:
        return np.array([self._drawn, self._time], np.float32)


class NotingEnv(ChildEnv):
    """Creates an empty file in a folder when it is closed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def close(self) -> None:
        (self._folder / f"closed-{os.getpid()}-{id(self)}").touch()


def fail(gate: Path) -> None:
    """Raise instead of making an env."""
    raise RuntimeError("no env can be made")


def make_once(folder: Path) -> ChildEnv:
    """Make one env; raise on the second call."""
    try:
        (folder / "made").touch(exist_ok=False)
    except FileExistsError:
        raise RuntimeError("the licence is used up") from None
    return ChildEnv()


def hang(gate: Path) -> None:
    """Wait until ``gate`` is opened for writing."""
    gate.open().close()


def exit_at_once(gate: Path) -> None:
    """End the process with code 4."""
    os._exit(4)
