"""Asynchronous envs without processes: the steps of one env end a round later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dingsdk.envs.in_process import InProcessEnvManager
from dingsdk.envs.steps import Capabilities, Timestep


class LateEnvs(InProcessEnvManager):
    """Each step of env 1 is returned by the next call of ``step``."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(asynchronous=True)

    @property
    def ready_obs(self) -> dict[int, Any]:
        return {i: obs for i, obs in super().ready_obs.items() if i not in self._unfinished}

    @property
    def _unfinished(self) -> dict[int, Timestep]:
        return vars(self).setdefault("_steps", {})

    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        ended = super().step(actions)
        late = {1: ended.pop(1)} if 1 in ended else {}
        ended |= self._unfinished
        self._steps = late
        return ended
