"""Multi-player envs with gymnasium's interface, and single players against opponents."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("pettingzoo", reason="the extra multiagent is not installed")

from pettingzoo.utils.env_logger import EnvLogger

from dingsdk.envs import create_env_manager, make_env_fns
from dingsdk.envs.make import make_env
from dingsdk.envs.players import (
    PLAYERS,
    FlattenPlayers,
    OpponentEnv,
    PlayersEnv,
    find_opponent,
    space_of_player,
)
from dingsdk.errors import ConfigError, PolicyOutputError
from dingsdk.worker.collector.rollout import episode_quota

from .games import Nim, Sums, take_one

SUMS, NIM = f"{Sums.__module__}:Sums", f"{Nim.__module__}:Nim"


def test_players_of_a_parallel_env_act_at_once() -> None:
    env = PlayersEnv(Sums())
    obs, info = env.reset(seed=1)

    assert (env.player_num, env.metadata["name"]) == (2, "sums")
    assert (env.observation_space.shape, env.action_space.nvec.tolist()) == ((2, 3), [3, 3])
    assert obs.tolist() == [[0, 0, -1], [1, 0, -1]]
    assert [each["acts_next"] for each in info[PLAYERS]] == [True, True]
    obs, reward, terminated, truncated, info = env.step(np.array([2, 1]))
    assert obs.tolist() == [[0, 1, 2], [1, 1, 1]]
    assert (reward.dtype, reward.tolist(), terminated, truncated) == (
        np.float32, [0.5, -0.5], False, False,
    )  # fmt: skip
    assert [each["who"] for each in info[PLAYERS]] == ["seat_0", "seat_1"]
    env.step(np.array([0, 0]))
    *_, terminated, truncated, info = env.step(np.array([0, 0]))
    assert (terminated, truncated) == (True, False)
    assert all(each["acted"] and each["terminated"] for each in info[PLAYERS])


def test_players_change_seats_after_each_episode() -> None:
    env = PlayersEnv(Sums((1, 1, 1)))
    action = np.array([2, 0, 1])
    seats = [env.reset(seed=3)[0][:, 0].tolist()]
    for _ in range(3):
        env.step(action)
        seats.append(env.reset()[0][:, 0].tolist())

    assert seats == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]
    assert env.reset(seed=4)[0][:, 0].tolist() == [0, 1, 2]
    env.step(action)
    _, reward, *_ = (env.reset(), env.step(action))[1]
    assert reward.tolist() == [1, -1, 0]


def seats_of_evaluations(env_num: int, games: int, reseeds: bool) -> list[list[int]]:
    """Return how many games of each of three evaluations each seat has."""
    cfg = {"env_id": NIM, "eval_opponent": f"{take_one.__module__}:take_one"}
    with create_env_manager({"type": "base"}, make_env_fns(cfg, env_num)) as manager:
        manager.seed(0)
        manager.launch()
        found = []
        for seed in range(3):
            if reseeds:
                manager.seed(seed)
            manager.reset()
            counts, left = [0, 0], episode_quota(games, env_num, "n_episode")
            seats = {i: int(obs["observation"][0]) for i, obs in manager.ready_obs.items()}
            while left.any():
                steps = manager.step({i: 0 for i in manager.ready_obs if left[i]})
                for i in [i for i, step in steps.items() if step.done]:
                    counts[seats[i]] += 1
                    left[i] -= 1
                    seats[i] = int(manager.ready_obs[i]["observation"][0])
            found.append(counts)
    return found


@pytest.mark.parametrize("reseeds", [False, True])
@pytest.mark.parametrize(
    ("env_num", "games", "counts"),
    [(5, 5, [3, 2]), (5, 10, [5, 5]), (5, 7, [4, 3]), (2, 2, [1, 1]), (1, 3, [2, 1])],
)
def test_games_of_an_evaluation_are_spread_over_the_seats(
    env_num: int, games: int, counts: list[int], reseeds: bool
) -> None:
    assert seats_of_evaluations(env_num, games, reseeds) == [counts] * 3


def test_reset_clears_the_warnings_of_illegal_actions() -> None:
    env = PlayersEnv(Sums())
    env.reset(seed=0)
    EnvLogger.warn_on_illegal_move()
    assert len(EnvLogger.mqueue) == 1
    env.reset()
    assert EnvLogger.mqueue == []


def test_info_shows_which_player_left_early() -> None:
    env = PlayersEnv(Sums((1, 2)))
    env.reset(seed=0)
    _, _, terminated, _, info = env.step(np.array([1, 1]))
    assert not terminated
    assert [each["terminated"] for each in info[PLAYERS]] == [True, False]
    assert [each["acts_next"] for each in info[PLAYERS]] == [False, True]

    obs, reward, terminated, _, info = env.step(np.array([2, 1]))

    assert terminated
    assert [each["acted"] for each in info[PLAYERS]] == [False, True]
    assert obs.tolist() == [[0, 1, 1], [1, 2, 1]]
    assert reward.tolist() == [0, 0]


def test_turn_based_env_reports_turns_rewards_and_masks() -> None:
    env = PlayersEnv(Nim(stones=3))
    obs, info = env.reset(seed=0)
    assert obs["observation"].tolist() == [[0, 3], [1, 3]]
    assert env.observation_space.contains(obs)
    assert [each["acts_next"] for each in info[PLAYERS]] == [True, False]

    obs, reward, terminated, _, info = env.step(np.array([1, 0]))
    assert obs["observation"].tolist() == [[0, 1], [1, 1]]
    assert (reward.tolist(), terminated) == ([0, 0], False)
    assert [each["acted"] for each in info[PLAYERS]] == [True, False]
    assert [each["acts_next"] for each in info[PLAYERS]] == [False, True]
    # The action of the player that does not act next is ignored, so its mask allows all.
    assert obs["action_mask"].tolist() == [[1, 1], [1, 0]]

    obs, reward, terminated, truncated, info = env.step(np.array([1, 0]))
    assert (reward.tolist(), terminated, truncated) == ([-1, 1], True, False)
    assert [each["acted"] for each in info[PLAYERS]] == [False, True]
    assert [each["acts_next"] for each in info[PLAYERS]] == [False, False]
    assert obs["action_mask"].tolist() == [[1, 1], [1, 1]]
    assert env.reset()[0]["observation"].tolist() == [[1, 3], [0, 3]]


class Open(Nim):
    """Nim that also shows the mask of the player whose turn it is not, or of neither."""

    shows = True

    def observe(self, agent: str) -> Any:
        seen = super().observe(agent)
        mask = np.array([1, self.stones >= 2], np.int8) * self.shows
        return {**seen, "action_mask": mask}


def test_mask_of_an_idle_player_is_that_of_the_game_if_it_has_one() -> None:
    env = PlayersEnv(Open(stones=3))
    env.reset(seed=0)
    obs = env.step(np.array([1, 0]))[0]
    assert obs["action_mask"].tolist() == [[1, 0], [1, 0]]


@pytest.mark.parametrize("made", [Sums((2, 2), truncates=True), Nim(stones=3, limit=2)])
def test_game_that_reaches_its_limit_is_truncated(made: Any) -> None:
    env = PlayersEnv(made)
    env.reset(seed=0)
    *_, terminated, truncated, _ = env.step(np.array([0, 0]))
    assert (terminated, truncated) == (False, False)

    obs, _, terminated, truncated, info = env.step(np.array([0, 0]))

    assert (terminated, truncated) == (False, True)
    if isinstance(made, Nim):
        # One stone is left. The game shows a mask to the agent whose turn it is, also at the end.
        assert obs["action_mask"].tolist() == [[1, 0], [1, 0]]
    assert all(each["truncated"] and not each["terminated"] for each in info[PLAYERS])


class CutForOne(Sums):
    """A game that ends for both players at once: for one by its rules, for one by a limit."""

    def step(self, actions: Any) -> Any:
        obs, rewards, ends, _, infos = super().step(actions)
        limits = {"seat_0": False, "seat_1": ends["seat_1"]}
        return obs, rewards, {**ends, "seat_1": False}, limits, infos


def test_game_that_its_rules_end_for_one_player_is_terminated() -> None:
    env = PlayersEnv(CutForOne((1, 1)))
    env.reset(seed=0)
    *_, terminated, truncated, _ = env.step(np.array([0, 0]))
    assert (terminated, truncated) == (True, False)


class Ticks(gym.Env[Any, Any]):
    """The players act in turn (actions 5 to 8). Player 0 gets 1 per step. Ends after 40 steps.

    Args:
        mask: Mask of player 1.
        first: The player who begins.
    """

    player_num = 2
    action_space = gym.spaces.MultiDiscrete([4, 4], start=[5, 5])

    def __init__(self, mask: Any = None, first: int = 0) -> None:
        self.mask, self.first, self.actions = mask, first, []
        self.observation_space = gym.spaces.Box(0, 99, (2, 1), np.float32)
        if mask is not None:
            self.observation_space = gym.spaces.Dict(
                {"seen": self.observation_space, "action_mask": gym.spaces.Box(0, 1, (2, 4))}
            )

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.time = 0
        return self._obs(), self._info()

    def step(self, action: Any) -> Any:
        self.actions.append(int(action[1]))
        self.time += 1
        return self._obs(), np.array([1, 0]), self.time == 40, False, self._info()

    def _obs(self) -> Any:
        seen = np.zeros((2, 1), np.float32)
        if self.mask is None:
            return seen
        return {"seen": seen, "action_mask": np.array([[True] * 4, self.mask], np.float32)}

    def _info(self) -> Any:
        turn = (self.time + self.first) % 2
        return {PLAYERS: [{"acts_next": turn == player} for player in (0, 1)]}


def test_random_opponent_follows_its_seed_and_the_mask() -> None:
    def played(seed: int, mask: Any = None) -> list[int]:
        env = OpponentEnv(ticks := Ticks(mask), "random")
        env.reset(seed=seed)
        while not env.step(5)[2]:
            pass
        return ticks.actions[1::2]

    assert played(1) == played(1) != played(2)
    assert set(played(1)) == {5, 6, 7, 8}
    assert set(played(1, [False, True, True, False])) == {6, 7}


def test_players_with_unequal_spaces_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'seat_0' is Discrete\(3\), that of 'seat_1'"):
        PlayersEnv(Sums(unequal=True))


def test_opponent_plays_its_turns_within_a_step() -> None:
    env = OpponentEnv(PlayersEnv(Nim(stones=4)), f"{take_one.__module__}:take_one")
    obs, _ = env.reset(seed=0)
    assert (obs["observation"].tolist(), env.action_space.n) == ([0, 4], 2)
    assert obs["action_mask"].tolist() == [1, 1]
    assert env.observation_space.contains(obs)

    obs, reward, terminated, truncated, _ = env.step(0)
    assert (obs["observation"].tolist(), reward, terminated, truncated) == ([0, 2], 0, False, False)
    obs, reward, terminated, truncated, info = env.step(1)
    assert (reward, terminated, truncated) == (1, True, False)
    assert PLAYERS not in info

    obs, _ = env.reset()
    assert obs["observation"].tolist() == [1, 3]  # the seats have changed: the opponent began
    _, reward, terminated, *_ = env.step(0)
    assert (reward, terminated) == (0, False)
    _, reward, terminated, *_ = env.step(0)
    assert (reward, terminated) == (1, True)


@pytest.mark.parametrize("is_cut", [False, True])
def test_episode_ends_when_the_player_leaves(is_cut: bool) -> None:
    game = Sums((1, 9), truncates=is_cut)
    env = OpponentEnv(PlayersEnv(game), "random")
    env.reset(seed=0)

    *_, terminated, truncated, _ = env.step(0)

    assert (terminated, truncated, game._time) == (not is_cut, is_cut, 1)


@pytest.mark.parametrize("name", ["nobody", "no.such.module:f", f"{Sums.__module__}:nobody"])
def test_unknown_opponent_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        find_opponent(name)

    assert caught.value.path == "env.eval_opponents"


def test_make_env_adapts_and_wraps_a_game_as_configured() -> None:
    cfg = {"env_id": NIM, "kwargs": {"stones": 5}, "wrappers": ["flatten_players"]}

    made = make_env(cfg)
    obs = made.reset(seed=0)[0]
    assert obs["observation"].tolist() == [[0, 5], [1, 5]]
    assert obs["action_mask"].tolist() == [[1, 1], [1, 1]]
    assert made.observation_space.contains(obs)
    own = make_env({**cfg, "eval_opponent": "random"}).reset(seed=0)[0]
    assert own["observation"].tolist() == [0, 5]
    assert make_env({"env_id": "CartPole-v1", "eval_opponent": "random"}).action_space.n == 2


class Plain(gym.Env[Any, Any]):
    """Two players act at once, without player infos. Player 0's reward encodes both actions.

    Args:
        lost: Number of first episodes in which player 0 has no turn.
    """

    player_num = 2
    observation_space = gym.spaces.Dict({"seat": gym.spaces.Box(0, 1, (2, 1), np.float32)})
    action_space = gym.spaces.MultiDiscrete([5, 5], start=[3, 3])

    def __init__(self, lost: int = 0) -> None:
        self._lost, self.episodes = lost, 0

    def reset(self, **_: Any) -> Any:
        self.episodes += 1
        is_lost = self.episodes <= self._lost
        return self._obs(), {PLAYERS: [{"acts_next": False}, {}]} if is_lost else {}

    def step(self, action: Any) -> Any:
        return self._obs(), np.array([10 * action[0] + action[1], 0]), True, False, {}

    def _obs(self) -> Any:
        return {"seat": np.array([[0], [1]], np.float32)}


def take_four(obs: Any, action_space: Any, action_mask: Any, rng: Any) -> int:
    assert (obs["seat"].tolist(), action_mask) == ([1], None)
    assert action_space == gym.spaces.Discrete(5, start=3)
    return 4


def test_opponent_acts_if_no_info_says_who_acts() -> None:
    env = OpponentEnv(Plain(), f"{__name__}:take_four")
    obs, info = env.reset()
    assert (obs["seat"].tolist(), info) == ([0], {})
    obs, reward, terminated, truncated, info = env.step(7)
    ended = {"episode_info": {"points": 1.0}}
    assert (reward, terminated, truncated, info) == (74.0, True, False, ended)


def take_nothing(*_: Any) -> Any:
    return None


def take_five(*_: Any) -> int:
    return 5


def test_opponent_that_chooses_no_legal_action_is_refused() -> None:
    with pytest.raises(PolicyOutputError, match=r"take_nothing' chose .* None, and legal are"):
        open_and_step(OpponentEnv(Plain(), f"{__name__}:take_nothing"))
    masked = OpponentEnv(Ticks([False, True, True, False]), f"{__name__}:take_five")
    with pytest.raises(PolicyOutputError, match=r"take_five' chose .* 5, and legal are \[6, 7\]"):
        open_and_step(masked)


def open_and_step(env: Any) -> None:
    env.reset(seed=0)
    env.step(7)


def test_first_step_has_the_rewards_from_before_the_first_turn() -> None:
    env = OpponentEnv(Ticks(first=1), "random")
    for _ in range(2):
        env.reset(seed=0)
        assert [env.step(5)[1] for _ in range(2)] == [3, 2]


class Shares(gym.Env[Any, Any]):
    """Three players share a win of 3 in two steps, by the shares that ``reset`` is told."""

    player_num = 3
    observation_space = gym.spaces.Box(0, 9, (3, 1), np.float32)
    action_space = gym.spaces.MultiDiscrete([2, 2, 2])

    def reset(self, *, options: Any = None, **_: Any) -> Any:
        self._shares, self._time = np.array(options["shares"], np.float32), 0
        return np.zeros((3, 1), np.float32), {}

    def step(self, action: Any) -> Any:
        self._time += 1
        info = {"episode_info": {"length": 2}} if self._time == 2 else {}
        return np.zeros((3, 1), np.float32), self._shares, self._time == 2, False, info


@pytest.mark.parametrize(
    ("shares", "points"), [((2, 0, 1), 1.0), ((1.5, 0, 1.5), 0.5), ((1, 0.5, 1.5), 0.0)]
)
def test_points_of_an_episode_compare_the_returns_of_all_players(
    shares: Any, points: float
) -> None:
    env = OpponentEnv(Shares(), "random")
    for _ in range(2):
        env.reset(options={"shares": shares})
        assert "episode_info" not in env.step(0)[4]
        assert env.step(0)[4]["episode_info"] == {"length": 2, "points": points}


def test_reset_repeats_until_the_player_has_a_turn() -> None:
    env = OpponentEnv(Plain(lost=2), "random")
    obs, _ = env.reset(seed=1)
    assert obs["seat"].tolist() == [0]
    assert env.unwrapped.episodes == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("space", "own"),
    [
        (gym.spaces.MultiDiscrete([4], start=[2]), gym.spaces.Discrete(4, start=2)),
        (
            gym.spaces.MultiDiscrete([[4, 3]], start=[[2, 1]]),
            gym.spaces.MultiDiscrete([4, 3], start=[2, 1]),
        ),
        (gym.spaces.Box(-1, 2, (1, 3), np.int8), gym.spaces.Box(-1, 2, (3,), np.int8)),
    ],
)
def test_space_of_one_player_has_no_player_axis(space: Any, own: Any) -> None:
    assert space_of_player(space, 1) == own
    with pytest.raises(ConfigError, match="no axis of 2 players"):
        space_of_player(space, 2)


def test_observations_without_a_mask_are_flattened_for_each_player() -> None:
    class Boards(gym.Env[Any, Any]):
        player_num = 2
        observation_space = gym.spaces.Dict(
            {
                "board": gym.spaces.Box(0, 9, (2, 2, 2), np.int8),
                "turn": gym.spaces.MultiDiscrete([3, 3]),
            }
        )
        action_space = gym.spaces.MultiDiscrete([2, 2])

        def reset(self, **kwargs: Any) -> Any:
            board = np.arange(8, dtype=np.int8).reshape(2, 2, 2)
            return {"board": board, "turn": np.array([2, 0])}, {}

    env = FlattenPlayers(Boards())
    obs, _ = env.reset()
    assert obs.dtype == np.float32
    assert obs.tolist() == [[0, 1, 2, 3, 0, 0, 1], [4, 5, 6, 7, 1, 0, 0]]
    assert env.observation_space.shape == (2, 7)
