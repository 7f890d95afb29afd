"""A policy that learns by Q-learning.

`build` makes the networks, `act` chooses actions, `learn` trains on a batch, and `state` returns the objects
to save. `PluginNameSection` has its options: their types are checked before a run starts.
Override `samples` to compute training data from whole pieces of trajectories, such as returns. `setting`
returns keyword arguments for `act`, which may depend on the number of env steps. `contract_capabilities`
declares the optional capabilities; remove those that your policy does not have.

    policy:
      type: plugin_name
      collect:
        n_sample: 64
      learn:
        update_per_collect: 8
    system:
      max_env_steps: 20000
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from dingsdk.config import Positive, Scheduled, Share
from dingsdk.policy import BasePolicy, PolicySection, Stateful
from torch import nn


class PluginNameSection(PolicySection, frozen=True, kw_only=True):
    """Section ``policy``.

    Attributes:
        eps: Probability of a random action while data is collected.
        learning_rate: Step size of Adam.
    """

    type: str = "plugin_name"
    eps: Share = 0.1
    learning_rate: Scheduled[Positive] = 1e-3


class PluginNamePolicy(BasePolicy):
    """Q-learning (Watkins 1989) with a network, for flat observations and discrete actions."""

    Config = PluginNameSection
    is_data_parallel: ClassVar[bool] = True
    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"seeded", "batched", "per_step"})

    @staticmethod
    def model_from_spaces(observation_space: Any, action_space: Any) -> dict[str, Any]:
        """Return the section ``policy.model`` for an env of these spaces."""
        return {"obs_shape": observation_space.shape[0], "action_shape": int(action_space.n)}

    def build(self) -> None:
        model = self.section.model
        self.net = nn.Sequential(nn.Linear(model["obs_shape"], 64), nn.ReLU(), nn.Linear(64, model["action_shape"])).to(
            self.device
        )
        if self.learns:
            self.optimizer: Any = torch.optim.Adam(self.net.parameters(), self.section.learning_rate)

    def state(self) -> Mapping[str, Stateful]:
        return {"model": self.net, **({"optimizer": self.optimizer} if self.learns else {})}

    def act(self, obs: Any, env_ids: Sequence[int] | None = None, *, explore: bool, **setting: Any) -> dict[str, Any]:
        with torch.no_grad():
            values = self.array(self.net(self.tensor(obs)))
        self.check_finite(values, obs, env_ids)
        action = values.argmax(1)
        if explore:
            is_random = self.rng.random(len(action)) < self.section.eps
            action = np.where(is_random, self.rng.integers(values.shape[1], size=len(action)), action)
        return {"action": action}

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Train towards ``reward + discount_factor * max Q(next_obs)``; only ``reward`` at the end of an episode."""
        with torch.no_grad():
            future = self.net(batch["next_obs"].float()).max(1).values * ~batch["terminated"].bool()
        target = batch["reward"].float() + self.section.discount_factor * future
        chosen = batch["action"].long().unsqueeze(1)
        values = self.net(batch["obs"].float()).gather(1, chosen).squeeze(1)
        loss = nn.functional.smooth_l1_loss(values, target)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return {"total_loss": float(loss.detach())}
