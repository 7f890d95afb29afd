"""REINFORCE, a policy for dingsdk."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import nn

from dingsdk import hookimpl
from dingsdk.config import Positive, Scheduled
from dingsdk.data import SampleBatch
from dingsdk.policy import BasePolicy, CollectSection, LearnSection, PolicySection


class ReinforceLearn(LearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn``.

    Attributes:
        learning_rate: Step size of Adam.
    """

    learning_rate: Scheduled[Positive] = 5e-3


class ReinforceCollect(CollectSection, frozen=True, kw_only=True):
    """Section ``policy.collect``: the number of samples per training."""

    n_sample: int | None = 1000


class ReinforceSection(PolicySection, frozen=True, kw_only=True):
    """Section ``policy``."""

    type: str = "reinforce"
    on_policy: Literal[True] = True
    learn: ReinforceLearn = ReinforceLearn()
    collect: ReinforceCollect = ReinforceCollect()


class Reinforce(BasePolicy):
    """REINFORCE with normalised returns, for flat observations and discrete actions."""

    Config = ReinforceSection

    @staticmethod
    def model_from_spaces(observation_space, action_space):
        return {"obs_shape": observation_space.shape[0], "action_shape": int(action_space.n)}

    def build(self) -> None:
        model = self.section.model
        self.net = nn.Sequential(
            nn.Linear(model["obs_shape"], 64), nn.Tanh(), nn.Linear(64, model["action_shape"])
        ).to(self.device)
        if self.learns:
            rate = self.section.learn.learning_rate
            self.optimizer = torch.optim.Adam(self.net.parameters(), rate)

    def state(self) -> Mapping:
        found = {"model": self.net}
        return {**found, "optimizer": self.optimizer} if self.learns else found

    def act(self, obs, env_ids: Sequence[int] | None = None, *, explore: bool, **setting):
        with torch.no_grad():
            logits = self.array(self.net(self.tensor(obs)))
        self.check_finite(logits, obs, env_ids)
        if explore:
            logits = logits + self.rng.gumbel(size=logits.shape)
        return {"action": logits.argmax(1)}

    def samples(self, columns, ends):
        reward, future = columns.pop("reward"), 0.0
        returns, first_rows = np.zeros(len(reward), np.float32), {0, *ends.tolist()}
        for row in reversed(range(len(reward))):
            if row + 1 in first_rows:
                future = 0.0
            future = returns[row] = reward[row] + self.section.discount_factor * future
        return SampleBatch({**columns, "return": returns})

    def learn(self, batch):
        returns = batch["return"]
        weights = (returns - returns.mean()) / (returns.std() + 1e-8)
        chosen = torch.log_softmax(self.net(batch["obs"].float()), -1).gather(
            1, batch["action"].long().unsqueeze(1)
        )
        loss = -(chosen.squeeze(1) * weights).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"total_loss": float(loss.detach())}


@hookimpl
def dingsdk_register_policies(registry):
    registry.register("reinforce", Reinforce)
