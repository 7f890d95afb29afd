"""Infos stay as their env gave them; rows without a transition have no reward and no end."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dingsdk.data.action_mask import legal_actions
from dingsdk.envs import BaseVectorEnvManager, EnvManager, create_env_manager
from dingsdk.envs import subprocess as subprocess_envs
from dingsdk.errors import EnvError

MASKS = gym.spaces.Dict(
    {
        "x": gym.spaces.Box(-9, 9, (1,), np.float32),
        "action_mask": gym.spaces.MultiBinary(3),
    }
)


class Reporting(gym.Env[Any, Any]):
    """Reports other types in each episode; the actions are 4 and 5.

    Args:
        lock: Whether an info holds an object that cannot be sent to another process.
    """

    observation_space = gym.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2, start=4)

    def __init__(self, lock: bool = False) -> None:
        self._lock = lock
        self._episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._episode += 1
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        number = self._episode
        info = {
            "score": [1, 0.5][number],
            "winner": [None, 1][number],
            "text": ["a", 3][number],
            "ragged": np.zeros(number),
            "_score": {7},
        }
        if self._lock:
            info["lock"] = threading.Lock()
        return np.zeros(1, np.float32), 1.0, True, False, {**info, "episode_info": dict(info)}


def reports(number: int) -> dict[str, Any]:
    return {"score": [1, 0.5][number], "winner": [None, 1][number], "text": ["a", 3][number]}


@pytest.fixture
def _fast_processes(fork_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_envs, "spawn_context", lambda path: fork_server)


@pytest.mark.parametrize("kind", ["in_process", "subprocess"])
@pytest.mark.usefixtures("_fast_processes")
def test_infos_arrive_as_the_env_gave_them(kind: str) -> None:
    with create_env_manager({"type": kind, "episode_num": 2}, [Reporting] * 2) as manager:
        manager.launch()
        of_batch = manager.step_batch(np.array([4, 5])).episode_info
        for _, info in sorted(of_batch.items()):
            assert {key: info[key] for key in reports(0)} == reports(0)
            assert info["_score"] == {7}
        infos = {}
        while len(infos) < 2:
            steps = manager.step(dict.fromkeys(manager.ready_obs, 4))
            infos |= {env_id: step.info for env_id, step in steps.items()}
    assert len(of_batch) == 2
    for info in infos.values():
        assert {key: info[key] for key in reports(1)} == reports(1)
        assert info["ragged"].shape == (1,)
        assert type(info["score"]) is float


@pytest.mark.usefixtures("_fast_processes")
def test_info_that_cannot_leave_its_process_is_refused_by_name() -> None:
    with create_env_manager({"type": "subprocess"}, [_Locked]) as manager:
        manager.launch()
        with pytest.raises(EnvError, match=r"cannot be sent .*lock.*; make it of data"):
            manager.step({0: 4})


class _Locked(Reporting):
    def __init__(self) -> None:
        super().__init__(lock=True)


class Ending(gym.Env[Any, Any]):
    """The last observation of an episode has a mask that allows nothing."""

    observation_space = MASKS
    action_space = gym.spaces.Discrete(3)

    def __init__(self, length: int = 2) -> None:
        self._length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._time = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self._time += 1
        return self._obs(), 1.0, self._time == self._length, False, {}

    def _obs(self) -> Any:
        mask = [int(self._time < self._length), 0, 0]
        return {"x": np.array([self._time], np.float32), "action_mask": np.array(mask, np.int8)}


class Vectorized(BaseVectorEnvManager):
    """A vector env that spends a step on each reset."""

    def make_vector_env(self) -> Any:
        return SyncVectorEnv(self._env_fns, autoreset_mode=AutoresetMode.NEXT_STEP)


class _SameStep(BaseVectorEnvManager):
    """A vector env whose last step of an episode holds the first observation of the next one."""

    def make_vector_env(self) -> Any:
        return SyncVectorEnv(self._env_fns, autoreset_mode=AutoresetMode.SAME_STEP)


def make(kind: str, env_fns: list[Any], **cfg: Any) -> EnvManager:
    if kind in ("next_step", "same_step"):
        return {"next_step": Vectorized, "same_step": _SameStep}[kind]({}, env_fns)
    return create_env_manager({"type": kind, "episode_num": 1, **cfg}, env_fns)


@pytest.mark.parametrize(
    "kind", ["next_step", "in_process", pytest.param("subprocess", marks=pytest.mark.slow)]
)
def test_mask_that_no_action_follows_may_allow_none(kind: str) -> None:
    with make(kind, [Ending, _Longer]) as manager:
        manager.launch()
        seen = []
        for _ in range(4):
            legal_actions(manager.current_obs())  # raises where a row allows none
            step = manager.step_batch(np.zeros(2, np.int64))
            seen.append(step.final_obs["action_mask"].any(1).tolist())
            if step.terminated.all():
                break
    assert seen[1][0] is False, "the true last observation keeps its mask"


class _Longer(Ending):
    def __init__(self) -> None:
        super().__init__(4)


class Careless(gym.vector.VectorEnv[Any, Any, Any]):
    """Gives ``reward`` in the steps that are resets, and reports an end in every step."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    single_observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    single_action_space = gym.spaces.Discrete(2)

    def __init__(self, num_envs: int, reward: float) -> None:
        self.num_envs, self.reward = num_envs, reward

    def reset(self, **_: Any) -> Any:
        self.is_over = False
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        reward = np.full(self.num_envs, self.reward if self.is_over else 1.0)
        self.is_over = not self.is_over
        ended = np.full(self.num_envs, True)
        return np.zeros((self.num_envs, 2), np.float32), reward, ended, ended.copy(), {}


class CarelessManager(BaseVectorEnvManager):
    class Config(BaseVectorEnvManager.Config, frozen=True, kw_only=True):
        rewards_nan: bool = False

    def make_vector_env(self) -> Any:
        return Careless(self.env_num, np.nan if self.section.rewards_nan else 7.0)


@pytest.mark.parametrize(
    "cfg", [{}, {"rewards_nan": True}, {"rewards_nan": True, "episode_num": 1}]
)
def test_rows_without_a_transition_have_no_reward_and_no_end(cfg: dict[str, Any]) -> None:
    with CarelessManager(cfg, [gym.Env] * 2) as manager:
        manager.launch()
        assert manager.step_batch(np.zeros(2, int)).reward.tolist() == [1.0, 1.0]
        columns = manager.step_batch(np.zeros(2, int))
        assert columns.valid.tolist() == [False, False]  # type: ignore[union-attr]
        assert columns.reward.tolist() == [0.0, 0.0]
        assert not (columns.terminated | columns.truncated).any()


class Outside(Reporting):
    """Observes 9.5, beyond its bounds, in its last step."""

    observation_space = gym.spaces.Dict({"x": gym.spaces.Box(-9, 9, (1,), np.float64)})

    def __init__(self, length: int = 3) -> None:
        self._length = length

    def reset(self, **_: Any) -> Any:
        self._time = 0
        return {"x": np.zeros(1)}, {}

    def step(self, action: Any) -> Any:
        self._time += 1
        is_over = self._time == self._length
        return {"x": np.array([9.5 if is_over else 0])}, 1.0, is_over, False, {}


@pytest.mark.parametrize(
    ("kind", "is_dict"),
    [
        ("in_process", False),
        ("in_process", True),
        ("next_step", False),
        ("same_step", False),
        pytest.param("subprocess", True, marks=pytest.mark.slow),
    ],
)
def test_observation_beyond_its_bounds_is_used_and_reported_once(
    kind: str, is_dict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert play_outside(kind, is_dict) == 9.5
    (text,) = [record.getMessage() for record in caplog.records]
    assert "to 9.5, and its space is Box(-9.0, 9.0" in text


def play_outside(kind: str, is_dict: bool) -> float:
    """Return the highest observation of an episode."""
    highest = 0.0
    with make(kind, [Outside] * 2, episode_num=2) as manager:
        manager.launch()
        for _ in range(3):
            if is_dict:
                found = manager.step({0: 4, 1: 4})[0].obs["x"][0]
            else:
                found = manager.step_batch(np.array([4, 4])).final_obs["x"][0, 0]
            highest = max(highest, found)
        assert manager.failure_count == 0
    return highest


@pytest.mark.parametrize(("time", "count"), [(256, 1), (258, 0), (272, 1)])
def test_all_of_the_first_steps_and_every_17th_are_looked_at(
    time: int, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    with make("in_process", [lambda: Outside(time)]) as manager:
        manager.launch()
        for _ in range(time):
            manager.step_batch(np.array([4]))
    assert len(caplog.records) == count
