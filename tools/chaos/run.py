"""The run that gets the faults: ``python -m tools.chaos.run FOLDER SECONDS_A_STEP A.B=C ...``.

Its run folder is in ``FOLDER/disk``. ``FOLDER`` also gets the names of its processes, and the
files of ``tools.chaos.counting``.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from numpy.typing import NDArray

from dingsdk import train
from tools.chaos.counting import count_acknowledged, count_trained

SLOW, HEAVY_TAILED = "SlowCartPole-v0", "HeavyTailed-v0"
LONGEST = 1000
"""Steps of the longest possible episode of ``HeavyTailed``."""


class SlowCartPole(CartPoleEnv):
    """CartPole with slow steps, like those of simulators."""

    def __init__(self, step_s: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._step_s = step_s

    def step(self, action: Any) -> Any:
        time.sleep(self._step_s)
        return super().step(action)


class HeavyTailed(gymnasium.Env[NDArray[np.float32], int]):
    """Episodes of 5 to 1000 steps for any actions: a Pareto distribution with index 1.2.

    An observation begins with the number of steps taken.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        share = 1.0 - self.np_random.random()  # in (0, 1]
        self._length = min(LONGEST, int(5 * share ** (-1 / 1.2)))
        self._steps = 0
        return self._observation(), {}

    def step(self, action: int) -> Any:
        time.sleep(self._step_s)
        self._steps += 1
        return self._observation(), 1.0, self._steps >= self._length, False, {}

    def _observation(self) -> NDArray[np.float32]:
        return np.array([self._steps, 0, 0, 0], np.float32)


FOLDER = Path(sys.argv[1])
# Every process of the run imports this module, some twice: the second time for the envs.
if SLOW not in gymnasium.registry:
    gymnasium.register(SLOW, SlowCartPole, max_episode_steps=500)
    gymnasium.register(HEAVY_TAILED, HeavyTailed)
    count_acknowledged(FOLDER)
    count_trained(FOLDER)
    with (FOLDER / "processes").open("a") as names:
        names.write(f"{os.getpid()} {multiprocessing.current_process().name}\n")

if __name__ == "__main__":
    sets = (f"env.env_id=tools.chaos.run:{SLOW}", f"env.kwargs.step_s={sys.argv[2]}")
    disk = str(FOLDER / "disk")
    train("cartpole-dqn", "parallel", None, (*sets, *sys.argv[3:]), 0, disk)
