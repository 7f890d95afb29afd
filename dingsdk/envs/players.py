"""Envs of several players: PettingZoo's as gymnasium envs, and one player against opponents.

An env of several players has an attribute ``player_num``. Its observations and actions are arrays
``[player_num, ...]``, a step's reward is an array ``[player_num]``, and ``info["players"]`` may
hold one dict per player with any of

- ``acted``: whether the player's action was used in this step;
- ``acts_next``: whether the player's action will be used in the next step;
- ``terminated``, ``truncated``: whether the player has left.

An observation that is a dict may have an ``action_mask`` ``[player_num, actions]``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from dingsdk.data.action_mask import ACTION_MASK
from dingsdk.data.pytree import part_of
from dingsdk.envs.last_info import EPISODE_INFO, EPISODE_RETURN, PLAYERS
from dingsdk.errors import ConfigError, EnvError, PolicyOutputError
from dingsdk.plugins.user_functions import find_function

Opponent = Callable[[Any, Any, NDArray[np.bool_] | None, np.random.Generator], Any]
"""``opponent(obs, action_space, action_mask, rng)`` returns an action; the mask is bool[actions],
or None where observations have none: then all are legal."""


class PlayersEnv(gym.Env[Any, Any]):
    """A PettingZoo env, parallel or turn-based (AEC), as a gymnasium env with a player axis.

    Players change their agents (seats) in each episode, so that no player always begins. The
    first seats depend on ``first_seat``. A reset with a seed gives the players their first seats
    again, and so does a reset before player 0 has acted, which is how evaluations begin.

    In a turn-based env each step is the turn of one player; the actions of the others are ignored,
    and a player's reward comes with its next turn. The ``action_mask`` of a player whose action is
    ignored is the mask of the game. If that mask allows no action, or the game has terminated, all
    actions are allowed.

    Args:
        env: A PettingZoo env whose agents have equal spaces.

    Attributes:
        first_seat: Index of player 0's agent in the first episode, counted modulo the number of
            players. An env manager sets it to the number of the env.

    Raises:
        ConfigError: the spaces of the agents differ.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._has_turns = hasattr(env, "agent_iter")
        self._agents: list[Any] = list(env.possible_agents)
        self.player_num = len(self._agents)
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        self._has_mask = _is_masked(env.observation_space(self._agents[0]))
        if self._has_mask:
            # PettingZoo logs two lines for each illegal action, and a policy takes thousands.
            logging.getLogger("pettingzoo.utils.env_logger").setLevel(logging.ERROR)
        for name in ("observation_space", "action_space"):
            spaces = {agent: getattr(env, name)(agent) for agent in self._agents}
            first = spaces[self._agents[0]]
            for agent, space in spaces.items():
                if space != first:
                    raise ConfigError(
                        f"env.env_id: the players of an env need equal spaces, and the {name} of "
                        f"{self._agents[0]!r} is {first}, that of {agent!r} is {space}; pad them "
                        "with a wrapper of PettingZoo or SuperSuit",
                        path="env.env_id",
                    )
            setattr(self, name, batch_space(first, self.player_num))
        self.first_seat = 0
        self._shift = 0
        self._has_begun = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        # PettingZoo's list of warnings grows with each illegal action.
        if logger := sys.modules.get("pettingzoo.utils.env_logger"):
            logger.EnvLogger.flush()
        goes_on = seed is None and self._has_begun
        self._shift = (self._shift + 1 if goes_on else self.first_seat) % self.player_num
        self._has_begun = False
        # Seats: the agent of each player.
        self._seats = self._agents[self._shift :] + self._agents[: self._shift]
        found = self._env.reset(seed=seed, options=options)
        if not self._has_turns:
            self._seen = dict(found[0])
            playing = set(self._seats)
        else:
            self._seen = {agent: self._env.observe(agent) for agent in self._seats}
            playing = {self._env.agent_selection}
        return self._obs(playing), self._info({}, {}, set(), playing)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        given = {agent: _of_player(action, player) for player, agent in enumerate(self._seats)}
        take = self._turn if self._has_turns else self._round
        rewards, ends, infos, acted, playing = take(given)
        rewards_by_player = [float(rewards.get(agent, 0.0)) for agent in self._seats]
        is_over = not self._env.agents
        # Opponents may move before the first action of an evaluated player.
        self._has_begun |= is_over or self._seats[0] in acted
        terminated = is_over and any(terminated for terminated, _ in ends.values())
        return (
            self._obs(playing, terminated),
            np.array(rewards_by_player, np.float32),
            terminated,
            is_over and not terminated,
            self._info(ends, infos, acted, playing),
        )

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def _round(self, given: Mapping[Any, Any]) -> Any:
        """Let all agents that are in the game act at once."""
        acted = set(self._env.agents)
        actions = {agent: given[agent] for agent in self._env.agents}
        seen, rewards, terminations, truncations, infos = self._env.step(actions)
        self._seen.update(seen)
        ends = {agent: (bool(terminations[agent]), bool(truncations[agent])) for agent in acted}
        return rewards, ends, infos, acted, set(self._env.agents)

    def _turn(self, given: Mapping[Any, Any]) -> Any:
        """Let one agent act; then remove agents that are done, up to the next turn."""
        env = self._env
        mover = env.agent_selection
        env.step(given[mover])
        rewards, ends, infos = {}, {}, {}
        while env.agents:
            agent = env.agent_selection
            seen, reward, terminated, truncated, info = env.last()
            self._seen[agent], rewards[agent], infos[agent] = seen, reward, info
            if not (terminated or truncated):
                break
            ends[agent] = (bool(terminated), bool(truncated))
            env.step(None)
        for agent in env.agents:
            self._seen[agent] = env.observe(agent)
        return rewards, ends, infos, {mover}, {env.agent_selection} if env.agents else set()

    def _obs(self, playing: Set[Any], has_terminated: bool = False) -> Any:
        seen = _stack([self._seen[agent] for agent in self._seats])
        if self._has_mask:
            mask = seen[ACTION_MASK]
            idle = np.array([agent not in playing for agent in self._seats])
            mask[idle & (has_terminated | ~mask.any(-1))] = 1
        return seen

    def _info(self, ends: Any, infos: Any, acted: Any, playing: Any) -> dict[str, Any]:
        players = []
        for agent in self._seats:
            terminated, truncated = ends.get(agent, (False, False))
            players.append(
                {
                    **infos.get(agent, {}),
                    "acted": agent in acted,
                    "acts_next": agent in playing,
                    "terminated": terminated,
                    "truncated": truncated,
                }
            )
        return {PLAYERS: players}


class OpponentEnv(gym.Wrapper[Any, Any, Any, Any]):
    """One player of an env of several players; an opponent plays all others.

    A step is one action of that player. In a turn-based env it includes the opponent's turns up to
    the player's next turn; the first step also has the rewards from before the player's first turn.
    The last info of an episode has ``points`` in ``episode_info``: 1 if the return of the player is
    higher than those of all others (a win), 0.5 if it is as high as the highest of them, else 0.

    Args:
        env: An env of several players.
        opponent: See ``find_opponent``. ``step`` and ``reset`` raise PolicyOutputError if it
            chooses a discrete action that does not exist or that its mask forbids: many games end
            at once after such an action, and the evaluation would mean nothing.
    """

    player_num = 1

    def __init__(self, env: gym.Env[Any, Any], opponent: str) -> None:
        super().__init__(env)
        self._count = player_num(env)
        self._opponent, self._name = find_opponent(opponent), opponent
        self.observation_space = space_of_player(env.observation_space, self._count)
        self.action_space = space_of_player(env.action_space, self._count)
        self._rng = np.random.default_rng()
        self._earlier = 0.0  # rewards before the first turn
        self._returns = np.zeros(self._count)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
            self.action_space.seed(seed)
        self._all_obs, info = self.env.reset(seed=seed, options=options)
        self._players = _player_infos(info, self._count)
        self._earlier = 0.0
        self._returns[:] = 0.0
        while not self._players[0].get("acts_next", True):
            reward, terminated, truncated, info = self._step_all(self.action_space.sample())
            self._earlier += reward
            if terminated or truncated:  # the game was over before the player's first turn
                return self.reset(options=options)
        return part_of(self._all_obs, 0), self._own(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        total, terminated, truncated, info = self._step_all(action)
        total, self._earlier = total + self._earlier, 0.0
        while not (terminated or truncated or self._players[0].get("acts_next", True)):
            if self._players[0].get("terminated") or self._players[0].get("truncated"):
                terminated = bool(self._players[0].get("terminated"))
                truncated = not terminated
                break  # the others may continue without the player
            reward, terminated, truncated, info = self._step_all(self.action_space.sample())
            total += reward
        own = self._own(info)
        if terminated or truncated:
            own[EPISODE_INFO] = {**own.get(EPISODE_INFO, {}), "points": self._points()}
        return part_of(self._all_obs, 0), total, terminated, truncated, own

    def _points(self) -> float:
        returns = [
            float(np.sum(info.get(EPISODE_RETURN, gained)))
            for info, gained in zip(self._players, self._returns, strict=True)
        ]
        return (1.0 + float(np.sign(returns[0] - max(returns[1:])))) / 2

    def _step_all(self, action: Any) -> tuple[float, bool, bool, dict[str, Any]]:
        actions = [action]
        for player, info in enumerate(self._players[1:], 1):
            if not info.get("acts_next", True):
                actions.append(action)  # any will do
                continue
            obs, legal = part_of(self._all_obs, player), None
            if isinstance(obs, Mapping) and ACTION_MASK in obs:
                legal = np.asarray(obs[ACTION_MASK], np.bool_)
            action = self._opponent(obs, self.action_space, legal, self._rng)
            self._check(action, legal)
            actions.append(action)
        step: Any = self.env.step(_stack(actions))
        self._all_obs, rewards, terminated, truncated, info = step
        self._players = _player_infos(info, self._count)
        self._returns += rewards
        return float(rewards[0]), bool(terminated), bool(truncated), info

    def _check(self, action: Any, legal: NDArray[np.bool_] | None) -> None:
        space = self.action_space
        if not isinstance(space, gym.spaces.Discrete):
            return
        known = np.arange(space.n) if legal is None or not legal.any() else np.flatnonzero(legal)
        if not (space.start + known == np.asarray(action)).any():
            allowed = (space.start + known).tolist()
            raise PolicyOutputError(
                f"env.eval_opponents: {self._name!r} chose the action {action!r}, and legal are "
                f"{allowed}; return one of them, which action_mask marks if the env has masks",
                key="action",
                expected=allowed,
                found=action,
            )

    def _own(self, info: Mapping[str, Any]) -> dict[str, Any]:
        shared = {key: value for key, value in info.items() if key != PLAYERS}
        ends = ("terminated", "truncated")
        return {**shared, **{k: v for k, v in self._players[0].items() if k not in ends}}


class FlattenPlayers(gym.ObservationWrapper[Any, Any, Any]):
    """Type ``flatten_players``: the observation of each player as a float vector.

    gymnasium's ``FlattenObservation`` would join the players. If an observation has an
    ``action_mask``, all its other parts become the vector ``observation``.
    """

    contract_env: ClassVar[str] = "pettingzoo.classic.tictactoe.tictactoe:env"

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._count = player_num(env)
        self._space = space_of_player(env.observation_space, self._count)
        self._has_mask = _is_masked(self._space)
        if self._has_mask:
            own = {name: space for name, space in self._space.items() if name != ACTION_MASK}
            self._space = gym.spaces.Dict(own)
        flat: Any = gym.spaces.flatten_space(self._space)
        space: Any = gym.spaces.Box(flat.low, flat.high, flat.shape, np.float32)
        self.observation_space = batch_space(space, self._count)
        if self._has_mask:
            mask: Any = env.observation_space[ACTION_MASK]  # type: ignore[index]
            self.observation_space = gym.spaces.Dict(
                {"observation": self.observation_space, ACTION_MASK: mask}
            )

    def observation(self, observation: Any) -> Any:
        """Return float32[player_num, size], in a dict with the mask where there is one."""
        flat = gym.spaces.flatten
        own = observation
        if self._has_mask:
            own = {name: part for name, part in observation.items() if name != ACTION_MASK}
        rows = [flat(self._space, part_of(own, player)) for player in range(self._count)]
        found = np.array(rows, np.float32)
        if not self._has_mask:
            return found
        return {"observation": found, ACTION_MASK: observation[ACTION_MASK]}


def set_first_seat(env: Any, seat: int) -> None:
    """Set the first seat of player 0, if players of the env change seats."""
    inner = getattr(env, "unwrapped", env)
    if isinstance(inner, PlayersEnv):
        inner.first_seat = seat


def adapted(make: Callable[..., Any], **kwargs: Any) -> Any:
    """Return the env that ``make`` makes, a PettingZoo env as a ``PlayersEnv``."""
    env = make(**kwargs)
    return PlayersEnv(env) if hasattr(env, "possible_agents") else env


def player_num(env: Any) -> int:
    """Return the number of players of an env; 1 if it has no ``player_num``."""
    find = getattr(env, "get_wrapper_attr", partial(getattr, env))
    try:
        return int(find("player_num"))
    except AttributeError:
        return 1


def space_of_player(space: Any, count: int) -> Any:
    """Return the space of one player out of the space of ``count``.

    Raises:
        ConfigError: the space has no axis of so many players.
    """
    spaces = gym.spaces
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: space_of_player(each, count) for key, each in space.items()})
    if not space.shape or space.shape[0] != count:
        pass
    elif isinstance(space, spaces.MultiDiscrete):
        if space.nvec.ndim > 1:
            return spaces.MultiDiscrete(space.nvec[0], start=space.start[0])
        return spaces.Discrete(int(space.nvec[0]), start=int(space.start[0]))
    elif isinstance(space, spaces.Box):
        return spaces.Box(space.low[0], space.high[0], space.shape[1:], space.dtype.type)
    raise ConfigError(
        f"env.wrappers: {space} has no axis of {count} players; wrappers of an env of several "
        "players keep it, as flatten_players does",
        path="env.wrappers",
        found=str(space),
    )


def find_opponent(name: str) -> Opponent:
    """Return the opponent of that name: ``random``, or ``module:function``, which is imported.

    Raises:
        ConfigError: there is no such function.
    """
    if name == "random":
        return _act_at_random
    found, why = find_function(name)
    if found is not None:
        return found
    raise ConfigError(
        f"env.eval_opponents: {name!r} is no opponent ({why}); known: random, and "
        "'module:function' for one of your own",
        path="env.eval_opponents",
        found=name,
    )


def _act_at_random(
    obs: Any, action_space: Any, action_mask: NDArray[np.bool_] | None, rng: np.random.Generator
) -> Any:
    legal = None if action_mask is None else np.flatnonzero(action_mask)
    if legal is None or not legal.size:
        return action_space.sample()
    return action_space.start + rng.choice(legal)


def _is_masked(space: Any) -> bool:
    return isinstance(space, gym.spaces.Dict) and ACTION_MASK in space.spaces


def _of_player(actions: Any, player: int) -> Any:
    action = part_of(actions, player)
    return action.item() if isinstance(action, np.generic) else action


def _stack(rows: list[Any]) -> Any:
    if isinstance(rows[0], Mapping):
        return {key: _stack([row[key] for row in rows]) for key in rows[0]}
    return np.stack([np.asarray(row) for row in rows])


def _player_infos(info: Mapping[str, Any], count: int) -> list[Mapping[str, Any]]:
    found = info.get(PLAYERS) or [{}] * count
    if len(found) != count:
        raise EnvError(
            f"info[{PLAYERS!r}] of the env has {len(found)} entries for {count} players",
            env_id=None,
        )
    return list(found)
