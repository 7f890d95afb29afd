"""Small policies, writers and clocks in place of real ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dingsdk.policy import BasePolicy


class Clock:
    """A clock in seconds that only the test moves."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class IdlePolicy(BasePolicy):
    """Takes action 0 and learns nothing."""

    def build(self) -> None:
        self.net = torch.nn.Linear(1, 1)

    def act(self, obs: Any, env_ids: Any = None, *, explore: bool, **setting: Any) -> Any:
        return {"action": np.zeros(len(obs), np.int64)}

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {}

    def state(self) -> Mapping[str, Any]:
        return {"model": self.net}


class StepCounter(IdlePolicy):
    """Counts the steps of an episode in its recurrent state; its action is the count modulo 3."""

    state_size = 1

    def act(self, obs: Any, env_ids: Any = None, *, explore: bool, **setting: Any) -> Any:
        state = setting["state"]
        return {"action": state[:, 0].astype(np.int64) % 3, "next_state": state + 1}


class Scalars:
    """A TensorBoard writer that keeps the points of its curves."""

    def __init__(self) -> None:
        self.points: dict[str, list[tuple[float, int]]] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.points.setdefault(tag, []).append((value, step))

    def flush(self) -> None: ...
