"""The run that is put under faults: ``python -m tools.chaos.run FOLDER SECONDS_A_STEP A.B=C ...``.

Beside all parts of the run it writes down, in ``FOLDER/acknowledged``, which payloads workers are
told to be acknowledged, with their rows.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

from dingsdk import train
from dingsdk.worker import Coordinator

ENV_ID = "SlowCartPole-v0"


class SlowCartPole(CartPoleEnv):
    """CartPole whose step takes a while, as those of simulators do."""

    def __init__(self, step_s: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._step_s = step_s

    def step(self, action: Any) -> Any:
        time.sleep(self._step_s)
        return super().step(action)


_acknowledge = Coordinator.deal_with_collector_send_data


def _counted(self: Coordinator, state: Any, meta: Any) -> bool:
    is_taken = _acknowledge(self, state, meta)
    if is_taken and self.experience_of(state) is not None:
        with Path(sys.argv[1], "acknowledged").open("a") as file:
            file.write(f"{meta['data_id']} {meta['rows']}\n")
    return is_taken


gymnasium.register(ENV_ID, SlowCartPole, max_episode_steps=500)
# The process that coordinates imports this module, as each of the run does.
Coordinator.deal_with_collector_send_data = _counted  # type: ignore[method-assign]

if __name__ == "__main__":
    sets = (f"env.env_id=tools.chaos.run:{ENV_ID}", f"env.kwargs.step_s={sys.argv[2]}")
    train("cartpole-dqn", "parallel", "flask_fs", (*sets, *sys.argv[3:]), 0, sys.argv[1])
