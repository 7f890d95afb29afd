"""A policy that learns by Q-learning.

`build` makes the networks, `act` chooses actions, `learn` trains on a batch, and `state` returns the objects
to save. `PluginNameLearn` has its options: their types are checked before a run starts.
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
from dingsdk.config import Positive
from dingsdk.policy import (
    BasePolicy,
    EpsilonSchedule,
    LearnSection,
    PolicySection,
    Stateful,
)
from torch import nn


class PluginNameLearn(LearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn``.

    Attributes:
        learning_rate: Step size of Adam.
    """

    learning_rate: Positive = 1e-3


class PluginNameSection(PolicySection, frozen=True, kw_only=True):
    """Section ``policy``.

    Attributes:
        eps: Probability of a random action, as a schedule over env steps.
    """

    type: str = "plugin_name"
    eps: EpsilonSchedule = EpsilonSchedule(type="linear", decay=5000)
    learn: PluginNameLearn = PluginNameLearn()


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
            self.optimizer: Any = torch.optim.Adam(self.net.parameters(), self.section.learn.learning_rate)

    def state(self) -> Mapping[str, Stateful]:
        return {"model": self.net, **({"optimizer": self.optimizer} if self.learns else {})}

    def setting(self, info: Mapping[str, Any]) -> dict[str, Any]:
        return {"eps": self.section.eps(info.get("envstep", 0))}

    def act(
        self,
        obs: Any,
        env_ids: Sequence[int] | None = None,
        *,
        explore: bool,
        eps: float = 0.0,
        **setting: Any,
    ) -> dict[str, Any]:
        with torch.no_grad():
            values = self.array(self.net(self.tensor(obs)))
        self.check_finite(values, obs, env_ids)
        action = values.argmax(1)
        if explore:
            is_random = self.rng.random(len(action)) < eps
            action = np.where(is_random, self.rng.integers(values.shape[1], size=len(action)), action)
        return {"action": action}

    def target(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return ``reward + discount_factor * max Q(next_obs)``, float32[n].

        If the episode terminated, it is the reward alone.
        """
        with torch.no_grad():
            future: torch.Tensor = self.net(batch["next_obs"].float()).max(1).values
        future = future * ~batch["terminated"].bool()
        target: torch.Tensor = batch["reward"].float() + self.section.discount_factor * future
        return target

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        chosen = batch["action"].long().unsqueeze(1)
        values = self.net(batch["obs"].float()).gather(1, chosen).squeeze(1)
        loss = nn.functional.smooth_l1_loss(values, self.target(batch))
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return {"total_loss": float(loss.detach())}
