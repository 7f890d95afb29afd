"""The run that is put under faults: ``python -m tools.chaos.run FOLDER SECONDS_A_STEP A.B=C ...``.

It counts in ``FOLDER`` what is acknowledged, see ``tools.chaos.counting``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

from dingsdk import train
from tools.chaos.counting import count_acknowledged

ENV_ID = "SlowCartPole-v0"


class SlowCartPole(CartPoleEnv):
    """CartPole whose step takes a while, as those of simulators do."""

    def __init__(self, step_s: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._step_s = step_s

    def step(self, action: Any) -> Any:
        time.sleep(self._step_s)
        return super().step(action)


gymnasium.register(ENV_ID, SlowCartPole, max_episode_steps=500)
# The process that coordinates imports this module, as each of the run does.
count_acknowledged(Path(sys.argv[1]))

if __name__ == "__main__":
    sets = (f"env.env_id=tools.chaos.run:{ENV_ID}", f"env.kwargs.step_s={sys.argv[2]}")
    train("cartpole-dqn", "parallel", "flask_fs", (*sets, *sys.argv[3:]), 0, sys.argv[1])
