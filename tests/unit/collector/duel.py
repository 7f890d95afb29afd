"""A minimal manager of multi-player envs, and a policy that records its calls."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import numpy as np

from dingsdk.envs.steps import Capabilities

Timestep = namedtuple("Timestep", "obs reward done info")
CollectFunction = namedtuple(
    "CollectFunction",
    "forward process_transition get_train_sample reset get_attribute set_attribute state_dict "
    "load_state_dict",
)


class DuelEnvs:
    """Episode ``k`` of env ``i`` has length ``lengths[i][k % len]``.

    The players observe (env, player, episode, time). Player ``p`` gets ``1 - p`` per step.

    Args:
        lengths: Episode lengths, in turn, by env.
        reward_shape: Shape of the reward of a player.
        players: Number of players.
        fails: (env, episode, time) at which a step is abnormal.
        partial_step: Whether a step may leave out some envs.
    """

    episode_num = float("inf")
    action_space = None
    closed = True

    def __init__(
        self,
        lengths: Any,
        players: int = 2,
        fails: Any = (),
        partial_step: bool = True,
        reward_shape: tuple[int, ...] = (),
    ) -> None:
        self.lengths, self.players, self.fails = lengths, players, set(fails)
        self.player_num, self._reward_shape = players, reward_shape
        self.env_num = len(lengths)
        self.capabilities = Capabilities(partial_step=partial_step)
        self.episode = [-1] * self.env_num
        self.time = [0] * self.env_num
        self.steps = 0
        self.done = False
        self.actions: list[Any] = []

    def launch(self) -> None:
        self.closed = False
        self.reset()

    def close(self) -> None:
        self.closed = True

    def reset(self, reset_param: Any = None) -> None:
        for env_id in range(self.env_num) if reset_param is None else reset_param:
            self.episode[env_id] += 1
            self.time[env_id] = 0

    def _obs(self, env_id: int) -> list[Any]:
        now = self.episode[env_id], self.time[env_id]
        return [np.array([env_id, p, *now], np.float32) for p in range(self.players)]

    @property
    def ready_obs(self) -> dict[int, Any]:
        return {env_id: self._obs(env_id) for env_id in range(self.env_num)}

    def step(self, actions: Mapping[int, Any]) -> dict[int, Any]:
        self.actions.append(dict(actions))
        return {env_id: self._step(env_id) for env_id in actions}

    def _step(self, env_id: int) -> Any:
        self.steps += 1
        self.time[env_id] += 1
        episode, time = self.episode[env_id], self.time[env_id]
        if (env_id, episode, time) in self.fails:
            self.reset([env_id])
            return Timestep(None, None, None, {"abnormal": True})
        done = np.bool_(time == self.lengths[env_id][episode % len(self.lengths[env_id])])
        rewards = [np.full(self._reward_shape, 1 - p, np.float32) for p in range(self.players)]
        infos: list[dict[str, Any]] = [{} for _ in rewards]
        obs = self._obs(env_id)
        if done:
            for player, info in enumerate(infos):
                info |= {"eval_episode_return": np.float32((1 - player) * time), "env": env_id}
            self.reset([env_id])
        return Timestep(obs, rewards, done, infos)


class Fighter:
    """Its action is its number plus ``bonus``. It records its resets and the envs it was given."""

    def __init__(self, number: int, **attributes: Any) -> None:
        self.number = number
        self.resets: list[Any] = []
        self.seen: list[Any] = []
        collect = {"n_sample": attributes.pop("n_sample", None)}
        collect["n_episode"] = attributes.pop("n_episode", None)
        self.cfg = {"collect": collect, "unroll_len": 1, **attributes}

    def mode(self) -> CollectFunction:
        return CollectFunction(
            forward=self._forward,
            process_transition=self._transition,
            get_train_sample=lambda piece: [{**each, "piece": len(piece)} for each in piece],
            reset=lambda ids=None: self.resets.append(ids),
            get_attribute={"cfg": self.cfg, "unroll_len": 1}.__getitem__,
            set_attribute=None,
            state_dict=dict,
            load_state_dict=None,
        )

    def _forward(self, obs: Mapping[int, Any], bonus: int = 0) -> dict[int, Any]:
        self.seen.append(sorted(obs))
        assert all(int(each[0]) == i and int(each[1]) == self.number for i, each in obs.items())
        return {env_id: {"action": np.int64(self.number + bonus)} for env_id in obs}

    @staticmethod
    def _transition(obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
        assert type(timestep) is Timestep
        return {
            "obs": obs, "next_obs": timestep.obs, "action": output["action"],
            "reward": timestep.reward, "done": timestep.done,
        }  # fmt: skip
