"""The numbers in the last info of an episode, and the return that counts, of each manager."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dingsdk.envs import BaseVectorEnvManager, EnvManager, create_env_manager, make_env_fns
from dingsdk.envs.last_info import number_of
from dingsdk.errors import ConfigError
from tests.own_plugins import using
from tests.unit.envs.scored_envs import Tenth

SCORED = "tests.unit.envs.scored_envs:Scored"
TOLD = "tests.unit.envs.scored_envs:told"
NUMBERS = {"is_success": 1.0, "score": 7.0}
SCALED: Any = {"wrappers": ["tenth"]}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Registers wrappers of rewards."""

    def mean(env: Any) -> Any:
        return gym.wrappers.TransformReward(env, np.mean)

    with using(env_wrappers={"tenth": Tenth, "single_steps": SingleSteps, "mean": mean}):
        yield


class NextStep(BaseVectorEnvManager):
    mode = AutoresetMode.NEXT_STEP

    def make_vector_env(self) -> Any:
        return SyncVectorEnv(self._env_fns, autoreset_mode=self.mode)


class SameStep(NextStep):
    mode = AutoresetMode.SAME_STEP


class Disabled(NextStep):
    mode = AutoresetMode.DISABLED


class Recorded(NextStep):
    """Its rewards are wrapped after the statistics are recorded, both in vector form."""

    def make_vector_env(self) -> Any:
        env = gym.wrappers.vector.RecordEpisodeStatistics(super().make_vector_env())
        return gym.wrappers.vector.TransformReward(env, lambda rewards: 50 * rewards)


class RecordedInSameStep(Recorded):
    mode = AutoresetMode.SAME_STEP


VECTOR = {
    each.__name__: each for each in (NextStep, SameStep, Disabled, Recorded, RecordedInSameStep)
}
every_kind_and_form = pytest.mark.parametrize(
    ("kind", "is_dict"),
    [
        *(("in_process", False), ("in_process", True), ("NextStep", False), ("NextStep", True)),
        *(("SameStep", False), ("SameStep", True), ("Disabled", False)),
        *(pytest.param("subprocess", each, marks=pytest.mark.slow) for each in (False, True)),
    ],
)


def make(kind: str, count: int = 2, **section: Any) -> EnvManager:
    env_fns = make_env_fns({"env_id": SCORED, **section}, count)
    return (
        VECTOR[kind]({}, env_fns) if kind in VECTOR else create_env_manager({"type": kind}, env_fns)
    )


def last_infos(manager: EnvManager, is_dict: bool) -> list[Mapping[str, Any]]:
    """Return ``episode_info`` of the first episode of each env; it is empty before its end."""
    manager.launch()
    if is_dict:
        found: dict[int, Mapping[str, Any]] = {}
        while len(found) < manager.env_num:
            for env_id, step in manager.step(dict.fromkeys(manager.ready_obs, 0)).items():
                own = step.info.get("episode_info", {})
                assert bool(own) <= step.done
                if step.done and env_id not in found:
                    found[env_id] = own
                    if "eval_episode_return" in own:
                        assert step.info["eval_episode_return"] == own["eval_episode_return"]
        return [found[env_id] for env_id in range(manager.env_num)]
    for _ in range(2):
        assert manager.step_batch(np.zeros(manager.env_num, np.int64)).episode_info == {}
    step = manager.step_batch(np.zeros(manager.env_num, np.int64))
    assert step.terminated.all() or step.truncated.all()
    return [step.episode_info.get(row, {}) for row in range(manager.env_num)]


@every_kind_and_form
def test_chosen_numbers_are_in_the_info_of_the_episode(kind: str, is_dict: bool) -> None:
    with make(kind, info_numbers=["is_success", "score", "absent"]) as manager:
        assert last_infos(manager, is_dict) == [NUMBERS, NUMBERS]


@pytest.mark.parametrize("kind", ["in_process", "NextStep"])
def test_nothing_is_added_if_nothing_is_chosen(kind: str) -> None:
    with make(kind) as manager:
        assert last_infos(manager, is_dict=False) == [{}, {}]


@pytest.mark.parametrize("kind", ["in_process", "SameStep"])
def test_all_are_the_entries_that_are_numbers(kind: str) -> None:
    more = {"nan": math.nan, "vector": [1, 2], "no": None}
    with make(kind, kwargs=more, info_numbers="all") as manager:
        own = {"time": 3.0, **NUMBERS, "distance": 4.5}
        assert last_infos(manager, is_dict=False) == [own, own]


def test_statistics_that_the_env_reports_itself_are_kept() -> None:
    kwargs = {"episode_info": {"score": 70, "name": "x"}}
    with make("in_process", kwargs=kwargs, info_numbers=["score", "time"]) as manager:
        assert last_infos(manager, True)[0] == {"score": 70, "name": "x", "time": 3.0}


@pytest.mark.parametrize("kind", ["in_process", "NextStep"])
def test_chosen_name_without_a_number_ends_the_run_and_names_env_and_key(kind: str) -> None:
    with (
        make(kind, kwargs={"grade": "A"}, info_numbers=["grade"]) as manager,
        pytest.raises(
            ConfigError, match=r"names 'grade', .*Scored.* 'A' there, which is no number"
        ),
    ):
        last_infos(manager, is_dict=False)


@pytest.mark.parametrize("wrong", ["is_success", [1], 3])
def test_choice_is_all_or_a_list_of_names(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="info_numbers"):
        make("in_process", info_numbers=wrong)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1.0),
        (np.False_, 0.0),
        (np.float32(0.5), 0.5),
        (np.array([3]), 3.0),
        (np.array([3, 4]), None),
        (np.array("x"), None),
        ("3", None),
        (None, None),
        ({}, None),
        pytest.param(-(10**400), -math.inf, id="huge"),
    ],
)
def test_numbers_are_bools_ints_floats_and_arrays_of_one(value: Any, number: float | None) -> None:
    assert number_of(value) == number


@every_kind_and_form
def test_return_is_the_sum_of_the_rewards_beneath_the_wrappers(kind: str, is_dict: bool) -> None:
    with make(kind, **SCALED) as manager:
        assert last_infos(manager, is_dict) == [{"eval_episode_return": 6.0}] * 2


def test_each_episode_has_a_return_of_its_own() -> None:
    with make("in_process", 1, **SCALED) as manager:
        manager.launch()
        manager.step_batch(np.zeros(1, np.int64))
        manager.reset()  # drops an episode
        steps = [manager.step_batch(np.zeros(1, np.int64)) for _ in range(6)]
    assert [dict(each.episode_info) for each in steps[2::3]] == [
        {0: {"eval_episode_return": 6}}
    ] * 2
    assert np.concatenate([each.reward for each in steps]) == pytest.approx(0.2)


def test_return_counts_where_a_wrapper_ends_the_episode() -> None:
    limit = {"type": "TimeLimit", "max_episode_steps": 2}
    with make("in_process", wrappers=["tenth", limit]) as manager:
        manager.launch()
        for _ in range(2):
            manager.step_batch(np.zeros(2, np.int64))
            step = manager.step_batch(np.zeros(2, np.int64))
            assert step.truncated.all()
            assert step.episode_info[0] == {"eval_episode_return": 4.0}


class SingleSteps(gym.Wrapper[Any, Any, Any, Any]):
    """Makes an episode of each step; the env inside goes on at its reset, as with lives."""

    at: Any = None

    def reset(self, **kwargs: Any) -> Any:
        return self.env.reset(**kwargs) if self.at is None else (self.at, {})

    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = self.env.step(action)
        self.at = None if terminated else obs
        return obs, reward, terminated, True, info


def test_rewards_of_earlier_episodes_do_not_count_if_the_env_inside_goes_on() -> None:
    with make("in_process", 1, wrappers=["tenth", "single_steps"]) as manager:
        manager.launch()
        steps = [manager.step_batch(np.zeros(1, np.int64)) for _ in range(4)]
    assert [each.episode_info[0]["eval_episode_return"] for each in steps] == [2.0] * 4


@pytest.mark.parametrize("wrappers", [[], ["tenth"]])
@pytest.mark.parametrize("kind", ["in_process", "NextStep"])
def test_return_that_the_env_has_recorded_itself_counts(kind: str, wrappers: list[Any]) -> None:
    with make(kind, env_id=TOLD, wrappers=wrappers) as manager:
        assert last_infos(manager, is_dict=False) == [{"eval_episode_return": 6.0}] * 2


@pytest.mark.parametrize("kind", ["Recorded", "RecordedInSameStep"])
def test_return_that_a_vector_env_has_recorded_counts(kind: str) -> None:
    with make(kind) as manager:
        assert last_infos(manager, is_dict=False) == [{"eval_episode_return": 6.0}] * 2


def test_return_that_the_env_reports_is_used_in_both_forms() -> None:
    for is_dict in (False, True):
        with make("in_process", kwargs={"eval_episode_return": 5}) as manager:
            assert last_infos(manager, is_dict)[0] == {"eval_episode_return": 5}


class Several(gym.Env[Any, Any]):
    """Gives two rewards in its only step; a wrapper has to join them."""

    observation_space = gym.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), np.array([1.0, 2.0]), True, False, {}


def test_rewards_that_only_wrappers_turn_into_numbers_are_summed_above_them() -> None:
    with make("in_process", env_id=f"{__name__}:Several", wrappers=["mean"]) as manager:
        manager.launch()
        assert manager.step({0: 0, 1: 0})[0].info["eval_episode_return"] == 1.5


@pytest.mark.parametrize("opponent", [None, "random"])
def test_each_player_has_the_return_beneath_the_wrappers(opponent: str | None) -> None:
    pytest.importorskip("pettingzoo")
    section = {"env_id": "tests.unit.envs.games:Sums", "wrappers": ["tenth"]}
    with make("in_process", 1, eval_opponent=opponent, **section) as manager:
        manager.launch()
        returns = np.zeros(2)
        for _ in range(3):
            step = manager.step({0: 2 if opponent else np.array([2, 0])})[0]
            returns += np.atleast_1d(step.reward)
        infos = [step.info] if opponent else step.info
        told = [info["eval_episode_return"] for info in infos]
    if opponent is None:
        assert told == [3.0, -3.0]
    assert told[0] == pytest.approx(10 * returns[0])


def test_numbers_of_several_players_are_those_of_the_first() -> None:
    section = {"env_id": f"{__name__}:Duel", "info_numbers": ["points", "rounds"]}
    with make("in_process", 1, **section) as manager:
        manager.launch()
        infos = manager.step({0: np.array([0, 0])})[0].info
    assert [info["episode_info"] for info in infos] == [{"points": 4.0, "rounds": 1.0}] * 2


class Duel(gym.Env[Any, Any]):
    """A game of two players and one step."""

    player_num = 2
    observation_space = gym.spaces.Box(-9, 9, (2, 1), np.float32)
    action_space = gym.spaces.MultiDiscrete([2, 2])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros((2, 1), np.float32), {}

    def step(self, action: Any) -> Any:
        info = {"rounds": 1, "players": [{"points": 4}, {"points": -4}]}
        return np.zeros((2, 1), np.float32), np.zeros(2), True, False, info
