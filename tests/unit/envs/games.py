"""Two small PettingZoo games: a parallel env and an AEC env."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from pettingzoo import AECEnv, ParallelEnv


class Sums(ParallelEnv):  # type: ignore[misc]
    """All act at once. Reward: own action minus the mean. Observation: (seat, time, last action).

    Args:
        lengths: Steps after which each agent leaves, in order of the seats.
    """

    metadata = {"name": "sums", "render_modes": []}  # noqa: RUF012

    def __init__(
        self, lengths: Any = (3, 3), unequal: bool = False, truncates: bool = False
    ) -> None:
        self._truncates = truncates
        self.possible_agents = [f"seat_{index}" for index in range(len(lengths))]
        self._lengths = dict(zip(self.possible_agents, lengths, strict=True))
        self._unequal = unequal
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return gym.spaces.Box(-1, 100, (3,), np.float32)

    def action_space(self, agent: str) -> Any:
        return gym.spaces.Discrete(3 + (self._unequal and agent == "seat_1"))

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._time = list(self.possible_agents), 0
        return {agent: self._observe(agent, -1) for agent in self.agents}, {}

    def step(self, actions: Any) -> Any:
        self._time += 1
        acted = list(self.agents)
        assert set(actions) == set(acted)
        mean = sum(actions.values()) / len(acted)
        ends = {agent: self._time >= self._lengths[agent] for agent in acted}
        self.agents = [agent for agent in acted if not ends[agent]]
        return (
            {agent: self._observe(agent, actions[agent]) for agent in acted},
            {agent: actions[agent] - mean for agent in acted},
            {agent: end and not self._truncates for agent, end in ends.items()},
            {agent: end and self._truncates for agent, end in ends.items()},
            {agent: {"who": agent} for agent in acted},
        )

    def _observe(self, agent: str, last: int) -> Any:
        return np.array([int(agent[-1]), self._time, last], np.float32)


class Nim(AECEnv):  # type: ignore[misc]
    """Two players take one or two stones in turn. Taking the last stone wins 1; the other loses 1.

    A player observes ``{"observation": (own seat, stones), "action_mask"}``.
    """

    metadata = {"name": "nim", "render_modes": [], "is_parallelizable": False}  # noqa: RUF012

    def __init__(self, stones: int = 4, limit: int = 99) -> None:
        super().__init__()
        self._limit = limit
        self.possible_agents = ["seat_0", "seat_1"]
        self._stones = stones

    def observation_space(self, agent: str) -> Any:
        return gym.spaces.Dict(
            {
                "observation": gym.spaces.Box(0, 100, (2,), np.float32),
                "action_mask": gym.spaces.Box(0, 1, (2,), np.int8),
            }
        )

    def action_space(self, agent: str) -> Any:
        return gym.spaces.Discrete(2)

    def observe(self, agent: str) -> Any:
        seen = np.array([int(agent[-1]), self.stones], np.float32)
        mask = np.array([1, self.stones >= 2], np.int8) * (agent == self.agent_selection)
        return {"observation": seen, "action_mask": mask}

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(self.possible_agents)
        self.stones, self._moves = self._stones, 0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agent_selection = "seat_0"

    def step(self, action: Any) -> None:
        mover = self.agent_selection
        if self.terminations[mover] or self.truncations[mover]:
            self._was_dead_step(action)
            return
        other = "seat_1" if mover == "seat_0" else "seat_0"
        self._cumulative_rewards[mover] = 0.0
        self.stones -= action + 1
        self._moves += 1
        self._clear_rewards()
        if self.stones <= 0:
            won = 1.0 if self.stones == 0 else -1.0
            self.rewards = {mover: won, other: -won}
            self.terminations = dict.fromkeys(self.agents, True)
        elif self._moves == self._limit:
            self.truncations = dict.fromkeys(self.agents, True)
        self.agent_selection = other
        self._accumulate_rewards()


def take_one(obs: Any, action_space: Any, action_mask: Any, rng: Any) -> int:
    """A Nim opponent that always takes one stone."""
    assert obs["observation"].shape == (2,)
    assert action_mask.dtype == np.bool_
    assert action_mask.any(), "asked to act out of turn"
    return 0
